//! One object, fetched by itself: whole, of one version, and as its checksum says, or an error.

use crate::common::bucket;
use crate::common::services::{Answer, Heard, Service};
use fuelrail::internal::object_bytes;
use fuelrail::{Access, Kind, Result, get, get_with, put};
use fuelrail_bucket::DataSet;
use std::sync::atomic::{AtomicU32, Ordering};

/// What the server's answers bring together.
fn got(server: &Service) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    get_with(Access::default(), &format!("{}/b/k", server.url()), &mut bytes).map(|_| bytes)
}

/// Bytes from `first` on of an object of `total` bytes, all of them `letter`, at most 100.
fn part(letter: char, first: usize, total: usize, etag: &str) -> Answer {
    let body = letter.to_string().repeat((total - first).min(100));
    let lines = format!("ETag: {etag}\r\nContent-Range: bytes {first}-{}/{total}\r\n", first + body.len() - 1);
    Answer(206, lines, body)
}

/// Where a range begins, if one is asked for.
fn from(heard: &Heard) -> Option<usize> {
    heard.header("range").strip_prefix("bytes=")?.strip_suffix('-')?.parse().ok()
}

#[test]
fn a_part_of_an_object_of_unknown_length_is_not_the_object() {
    let server = Service::start(|_| Answer(206, "Content-Range: bytes 0-99/*\r\n".into(), "a".repeat(100)));
    let error = got(&server).unwrap_err();
    assert!(error.kind() == Kind::Protocol && error.to_string().contains("how long"), "{error}");
}

#[test]
fn what_broke_off_goes_on_only_where_the_version_is_certain() {
    for (etag, certain) in [("\"strong\"", true), ("W/\"weak\"", false), ("", false)] {
        let server = Service::start(move |heard| part('a', from(heard).unwrap_or(0), 250, etag));
        if certain {
            assert_eq!(got(&server).unwrap(), "a".repeat(250).into_bytes());
            let [first, rest @ ..] = &server.heard()[..] else { panic!("something was asked") };
            assert_eq!(first.header("if-match"), "");
            assert!(!rest.is_empty() && rest.iter().all(|heard| heard.header("if-match") == etag));
        } else {
            // It never gets beyond its first part.
            assert_eq!(got(&server).unwrap_err().kind(), Kind::Truncated);
            assert!(server.heard().iter().all(|heard| heard.header("range").is_empty()), "{etag}");
        }
    }
}

#[test]
fn two_versions_are_never_joined() {
    for etag in ["W/\"weak\"", "", "\"strong\""] {
        let asked = AtomicU32::new(0);
        let server = Service::start(move |heard| match asked.fetch_add(1, Ordering::Relaxed) {
            0 => part('a', 0, 250, etag),
            // A server that does not judge the condition.
            _ if from(heard).is_some() => {
                part('b', from(heard).unwrap(), 250, if etag == "\"strong\"" { "\"new\"" } else { etag })
            }
            _ => Answer::ok("b".repeat(250)),
        });
        let error = got(&server).expect_err("some of each");
        assert_eq!(error.kind(), Kind::Changed, "{etag}: {error}");
    }
}

#[test]
fn without_a_tag_the_same_bytes_are_fetched_again_and_given_once() {
    let asked = AtomicU32::new(0);
    let server = Service::start(move |_| match asked.fetch_add(1, Ordering::Relaxed) {
        0 => part('a', 0, 250, ""),
        _ => Answer::ok("a".repeat(250)),
    });
    assert_eq!(got(&server).unwrap(), "a".repeat(250).into_bytes());
}

/// `Content-Length` may say less than there is: without a checksum it is held against a second answer.
#[test]
fn a_length_is_held_against_what_is_behind_it() {
    let server = Service::start(move |heard| match from(heard) {
        None => Answer(200, "ETag: \"x\"\r\n".into(), "a".repeat(100)),
        Some(first) => part('a', first, 250, "\"x\""),
    });
    assert_eq!(got(&server).unwrap(), "a".repeat(250).into_bytes());
}

#[test]
fn a_key_that_is_not_there_is_told_from_a_prefix() {
    let bucket = bucket(&DataSet::digits(3, 1), "");
    put(&bucket.url("up/a"), b"x").unwrap();
    for (key, said) in [("up", "under 'up/': add the slash"), ("down", "`fuelrail ls` shows the keys")] {
        let error = get(&bucket.url(key), &mut Vec::new()).unwrap_err();
        assert!(error.kind() == Kind::NotFound && error.hint().unwrap().contains(said), "{error}");
    }
    let bytes = |below: &str| object_bytes(&Access::default(), &bucket.url("up/"), below);
    assert_eq!([bytes("a"), bytes("b")], [Ok(Some(1)), Ok(None)]);
}

#[test]
fn checksums_of_every_kind_are_verified() {
    const DIGITS: &str = "123456789";
    // The check values of the catalogues.
    for (name, value) in [
        ("x-amz-checksum-crc32c", "4waSgw=="),
        ("x-goog-hash", "crc32c=4waSgw=="),
        ("x-amz-checksum-crc64nvme", "rosUhgp5mIg="),
        ("x-amz-checksum-crc32", "y/Q5Jg=="),
        ("x-amz-checksum-sha256", "FeKw08M4keuw8e9gnsQZQgwg4yDOlMZfvIwzEkSOsiU="),
        ("x-amz-checksum-sha1", "98O8HYCOBHMq32eZZczDTKeuNEE="),
        ("Content-MD5", "JfnnlDI7RTiF9RgfG2JNCw=="),
    ] {
        let sends =
            |body: &'static str| Service::start(move |_| Answer(200, format!("{name}: {value}\r\n"), body.into()));
        let sound = sends(DIGITS);
        assert_eq!(got(&sound).unwrap(), DIGITS.as_bytes(), "{name}");
        assert_eq!((sound.heard().len(), sound.heard()[0].header("x-amz-checksum-mode")), (1, "ENABLED"));
        let error = got(&sends("123456780")).expect_err(name);
        assert!(
            error.kind() == Kind::Mismatch && error.to_string().contains("the checksum the server sent"),
            "{name}: {error}"
        );
    }
}
