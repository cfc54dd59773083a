//! Response heads: what real servers send, what hostile ones send, and pieces of either.

use fuelrail_base::limits::{RESPONSE_HEAD_BYTES_MAX, RESPONSE_HEADERS_MAX};
use fuelrail_base::{Error, Kind, WallTime};
use fuelrail_wire::{ContentRange, Etag, Found, Framing, Parsed, ResponseHead, parse_head};
use proptest::prelude::*;

fn complete(text: &str) -> ResponseHead {
    match parse_head(text.as_bytes()) {
        Ok(Parsed::Complete { head, len }) => {
            assert_eq!(len, text.len(), "{text}");
            head
        }
        other => panic!("{text}: {other:?}"),
    }
}

fn get(lines: &str) -> ResponseHead {
    complete(&format!("HTTP/1.1 200 OK\r\n{lines}\r\n"))
}

fn refused(text: &str) -> Error {
    let error = parse_head(text.as_bytes()).expect_err(text);
    assert_eq!(error.kind(), Kind::Protocol, "{text}");
    error
}

#[test]
fn an_s3_partial_response() {
    let head = complete(
        "HTTP/1.1 206 Partial Content\r\nx-amz-id-2: Zq\r\nx-amz-request-id: 8D\r\nDate: Tue, 02 Jan 2024 03:04:05 GMT\r\n\
         ETag: \"b54357faf0632cce46e942fa68356b38\"\r\nx-amz-checksum-crc32c: yZRlqg==\r\nAccept-Ranges: bytes\r\n\
         Content-Range: bytes 100-199/1000\r\nContent-Type: image/jpeg\r\nServer: AmazonS3\r\nContent-Length: 100\r\n\r\n",
    );
    assert_eq!(
        head,
        ResponseHead {
            status: 206,
            framing: Framing::Length(100),
            content_length: Some(100),
            content_range: Some(ContentRange { first: 100, last: 199, total: Some(1000) }),
            etag: Some(Etag::of("b54357faf0632cce46e942fa68356b38")),
            crc32c: Some(0xC994_65AA),
            digest: None,
            keep_alive: true,
            retry_after_s: None,
            date: None,
            found: Found::default(),
        }
    );
    assert_eq!(head.failure(), None);
}

#[test]
fn a_server_tells_how_long_it_took_to_find_the_bytes() {
    for (line, us) in [
        ("Server-Timing: found;dur=000023.5", 23_500),
        ("Server-Timing: found;dur=000023.5;desc=held", 23_500),
        ("server-timing: found;dur=0", 0),
        ("Server-Timing: found", 0),
        ("Server-Timing: found;dur=-1", 0),
        ("Server-Timing: found;dur=NaN", 0),
        ("Server-Timing: found;dur=1e300", u32::MAX),
        ("Server-Timing: cache;dur=7", 0),
    ] {
        let found = get(&format!("Content-Length: 0\r\n{line}\r\n")).found;
        assert_eq!(found, Found { took_us: us, passed: false, tag: None }, "{line}");
    }
    let found = get("Content-Length: 0\r\nServer-Timing: found;dur=000001.0;desc=pass\r\n").found;
    assert_eq!(found, Found { took_us: 1_000, passed: true, tag: None });
}

#[test]
fn a_server_tells_of_which_version_the_bytes_are() {
    let tag = Etag::of("\"b54357faf0632cce46e942fa68356b38\"");
    let found = |tag: &str| get(&format!("Server-Timing: found;dur=000001.0;desc=held;tag={tag}\r\n")).found;
    assert_eq!(found(&tag.to_string()), Found { took_us: 1_000, passed: false, tag: Some(tag) });
    for wrong in ["", "7", &tag.to_string()[1..], &format!("{tag}0"), &format!("{tag};x"), &"G".repeat(32)] {
        assert_eq!(found(wrong), Found::default(), "{wrong}");
    }
}

#[test]
fn refusals_are_dated() {
    let dated = |status| {
        complete(&format!("HTTP/1.1 {status} x\r\nDate: Fri, 24 May 2013 00:00:00 GMT\r\nContent-Length: 0\r\n\r\n"))
            .date
    };
    assert_eq!((dated(403), dated(200)), (Some(WallTime(1_369_353_600)), None));
    assert_eq!(complete("HTTP/1.1 403 x\r\nDate: soon\r\nContent-Length: 0\r\n\r\n").date, None);
}

#[test]
fn framing_follows_status_and_lines() {
    assert_eq!(get("Content-Length: 0\r\n").framing, Framing::Length(0));
    assert_eq!(get("transfer-encoding: Chunked\r\n").framing, Framing::Chunked);
    assert_eq!(get("").framing, Framing::UntilClose);
    assert_eq!(get("Content-Length: 5\r\ncontent-length: 5\r\n").framing, Framing::Length(5));
    for status in [204, 304] {
        let head = complete(&format!("HTTP/1.1 {status} x\r\nContent-Length: 5\r\n\r\n"));
        assert_eq!(head.framing, Framing::None, "{status}");
    }
}

#[test]
fn keep_alive_follows_version_and_tokens() {
    for (version, line, expected) in [
        (1, "", true),
        (1, "Connection: keep-alive\r\n", true),
        (1, "Connection: close\r\n", false),
        (1, "Connection: Upgrade, CLOSE\r\n", false),
        (1, "Connection: keep-alive\r\nConnection: close\r\n", false),
        (0, "", false),
        (0, "Connection: Keep-Alive\r\n", true),
        (0, "Connection: keep-alive-not\r\n", false),
    ] {
        let text = format!("HTTP/1.{version} 200 OK\r\nContent-Length: 1\r\n{line}\r\n");
        assert_eq!(complete(&text).keep_alive, expected, "{text}");
    }
    assert!(!get("Connection: keep-alive\r\n").keep_alive, "only closing ends a body without a length");
}

#[test]
fn interim_heads_are_told_apart() {
    let text = b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\n";
    assert_eq!(parse_head(text).unwrap(), Parsed::Interim { len: 25 });
    assert_eq!(parse_head(&text[25..]).unwrap(), Parsed::Partial);
    assert!(refused("HTTP/1.1 101 Switching Protocols\r\n\r\n").to_string().contains("101"));
}

#[test]
fn what_could_smuggle_a_body_is_refused() {
    for (lines, says) in [
        ("Content-Length: 5\r\nTransfer-Encoding: chunked\r\n", "both Content-Length and Transfer-Encoding"),
        ("Content-Length: 5\r\nContent-Length: 6\r\n", "two different Content-Length"),
        ("Content-Length: 5, 5\r\n", "unreadable Content-Length '5, 5'"),
        ("Content-Length: +5\r\n", "unreadable Content-Length"),
        ("Content-Length:\r\n", "unreadable Content-Length"),
        ("Content-Length: 18446744073709551616\r\n", "unreadable Content-Length"),
        ("Transfer-Encoding: gzip, chunked\r\n", "Transfer-Encoding 'gzip, chunked'"),
        ("Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n", "Transfer-Encoding"),
        ("Content-Encoding: gzip\r\nContent-Length: 5\r\n", "Content-Encoding 'gzip'"),
        ("x-goog-stored-content-encoding: gzip\r\nContent-Length: 5\r\n", "Content-Encoding 'gzip'"),
        ("ETag: \"a\"\r\nETag: \"b\"\r\n", "two different ETag"),
        ("x-amz-checksum-crc32c: nonsense\r\n", "unreadable x-amz-checksum-crc32c"),
        ("x-amz-checksum-crc32c: AAAAAB==\r\n", "unreadable x-amz-checksum-crc32c"),
        ("Content-Length: 5\r\n folded\r\n", "not an HTTP/1 response"),
    ] {
        let error = refused(&format!("HTTP/1.1 200 OK\r\n{lines}\r\n"));
        assert!(error.to_string().contains(says), "{lines}: {error}");
    }
    refused("HTTP/1.0 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n");
    let error = refused("HTTP/1.1 206 x\r\nContent-Range: bytes 0-9/100\r\nContent-Length: 11\r\n\r\n");
    assert!(error.to_string().contains("Content-Length 11 contradicts Content-Range 0-9"), "{error}");
    refused("HTTP/1.1 206 x\r\nContent-Range: bytes 9-0/100\r\n\r\n");
}

#[test]
fn codings_and_ranges_are_ignored_where_they_mean_nothing() {
    assert_eq!(get("Content-Encoding: identity\r\nContent-Length: 5\r\n").framing, Framing::Length(5));
    let head = complete("HTTP/1.1 404 x\r\nContent-Encoding: gzip\r\nContent-Length: 5\r\n\r\n");
    assert_eq!(head.failure(), Some(Kind::NotFound), "an error page may be compressed");
    assert_eq!(get("x-goog-stored-content-encoding: identity\r\nContent-Length: 5\r\n").framing, Framing::Length(5));
    let head = complete("HTTP/1.1 416 x\r\nContent-Range: bytes */10\r\nContent-Length: 0\r\n\r\n");
    assert_eq!((head.content_range, head.failure()), (None, Some(Kind::Mismatch)));
}

#[test]
fn checksums_of_parts_are_not_checksums_of_the_object() {
    assert_eq!(get("x-amz-checksum-crc32c: yZRlqg==-7\r\n").crc32c, None);
    assert_eq!(get("x-amz-checksum-crc32c: yZRlqg==\r\nx-amz-checksum-type: COMPOSITE\r\n").crc32c, None);
    assert_eq!(get("x-amz-checksum-type: FULL_OBJECT\r\nx-amz-checksum-crc32c: AAAAAA==\r\n").crc32c, Some(0));
    assert_eq!(get("x-amz-checksum-crc32c: /////w==\r\n").crc32c, Some(u32::MAX));
}

#[test]
fn googles_hash_is_a_checksum_of_whole_objects() {
    assert_eq!(
        get("x-goog-hash: crc32c=/////w==\r\nx-goog-hash: md5=Ojk9c3dhfxgoKVVHYwFbHQ==\r\n").crc32c,
        Some(u32::MAX)
    );
    assert_eq!(get("x-goog-hash: md5=Ojk9c3dhfxgoKVVHYwFbHQ==,crc32c=AAAAAA==\r\n").crc32c, Some(0));
    assert_eq!(get("x-goog-hash: md5=Ojk9c3dhfxgoKVVHYwFbHQ==\r\n").crc32c, None);
    let head = "HTTP/1.1 206 Partial Content\r\nContent-Range: bytes 0-0/2\r\nContent-Length: 1\r\nx-goog-hash: crc32c=AAAAAA==\r\n\r\n";
    assert_eq!(complete(head).crc32c, None, "it is not that of a part");
    for bad in ["crc32c=AAAA", "crc32c=AAAAAA==,crc32c=/////w=="] {
        let text = format!("HTTP/1.1 200 OK\r\nContent-Length: 0\r\nx-goog-hash: {bad}\r\n\r\n");
        assert_eq!(parse_head(text.as_bytes()).unwrap_err().kind(), Kind::Protocol, "{bad}");
    }
}

#[test]
fn slow_down_says_how_long() {
    let head = complete("HTTP/1.1 503 Slow Down\r\nRetry-After: 7\r\nContent-Length: 0\r\n\r\n");
    assert_eq!((head.failure(), head.retry_after_s), (Some(Kind::Throttled), Some(7)));
    assert_eq!(get("Retry-After: Tue, 02 Jan 2024 03:04:05 GMT\r\n").retry_after_s, None);
    assert_eq!(get("Retry-After: 99999999999\r\n").retry_after_s, Some(u32::MAX));
}

#[test]
fn statuses_have_kinds() {
    for (status, kind) in [
        (206, None),
        (204, Some(Kind::Protocol)),
        (301, Some(Kind::Usage)),
        (400, Some(Kind::Usage)),
        (403, Some(Kind::Denied)),
        (408, Some(Kind::Server)),
        (412, Some(Kind::Changed)),
        (429, Some(Kind::Throttled)),
        (500, Some(Kind::Server)),
    ] {
        let head = complete(&format!("HTTP/1.1 {status} x\r\nContent-Length: 0\r\n\r\n"));
        assert_eq!(head.failure(), kind, "{status}");
    }
    refused("HTTP/1.1 600 x\r\n\r\n");
    refused("HTTP/1.1 099 x\r\n\r\n");
}

#[test]
fn garbage_is_shown_with_a_cure() {
    let error = refused("SSH-2.0-OpenSSH_9.6\r\n");
    assert!(error.to_string().contains("'SSH-2.0-OpenSSH_9.6\\r\\n'"), "{error}");
    assert!(refused(&"x".repeat(33)).to_string().contains(&format!("'{}…'", "x".repeat(32))));
    let tls = parse_head(b"\x15\x03\x01\x00\x02\x02\x16").unwrap_err();
    assert!(tls.to_string().contains("TLS"), "{tls}");
}

#[test]
fn heads_are_bounded() {
    let exactly = |bytes: usize| {
        let frame = "HTTP/1.1 200 OK\r\nX: \r\n\r\n".len();
        format!("HTTP/1.1 200 OK\r\nX: {}\r\n\r\n", "y".repeat(bytes - frame))
    };
    complete(&exactly(RESPONSE_HEAD_BYTES_MAX));
    assert!(refused(&exactly(RESPONSE_HEAD_BYTES_MAX + 1)).to_string().contains("longer than 16384 bytes"));
    let endless = exactly(RESPONSE_HEAD_BYTES_MAX + 1);
    assert_eq!(parse_head(&endless.as_bytes()[..RESPONSE_HEAD_BYTES_MAX - 1]).unwrap(), Parsed::Partial);
    refused(&endless[..RESPONSE_HEAD_BYTES_MAX]);
    complete(&format!("HTTP/1.1 200 OK\r\n{}\r\n", "A: b\r\n".repeat(RESPONSE_HEADERS_MAX)));
    let error = refused(&format!("HTTP/1.1 200 OK\r\n{}\r\n", "A: b\r\n".repeat(RESPONSE_HEADERS_MAX + 1)));
    assert!(error.to_string().contains("more than 96 lines"), "{error}");
}

/// Header lines that belong together in any order.
fn any_head() -> impl Strategy<Value = String> {
    let line = prop_oneof![
        any::<u64>().prop_map(|n| format!("ETag: \"{n:x}\"")),
        Just("Connection: close".to_string()),
        Just("connection:keep-alive".to_string()),
        any::<u16>().prop_map(|n| format!("Retry-After: {n}")),
        "[A-Z][a-z]{0,9}-[0-9]: [ -~]{0,40}",
    ];
    let body = prop_oneof![
        Just(String::new()),
        any::<u64>().prop_map(|n| format!("Content-Length: {n}\r\n")),
        Just("Transfer-Encoding: chunked\r\n".to_string()),
    ];
    let status = prop_oneof![Just(200u16), Just(206), Just(304), Just(404), Just(503), Just(100)];
    (status, body, proptest::collection::vec(line, 0..6)).prop_map(|(status, body, mut lines)| {
        let mut seen_tag = false;
        lines.retain(|line| !line.starts_with("ETag") || !core::mem::replace(&mut seen_tag, true));
        let lines: String = lines.iter().map(|line| format!("{line}\r\n")).collect();
        format!("HTTP/1.1 {status} Because\r\n{body}{lines}\r\n")
    })
}

proptest! {
    #[test]
    fn every_piece_of_a_head_is_partial_and_what_follows_does_not_matter(
        text in any_head(),
        rest in proptest::collection::vec(any::<u8>(), 0..40),
    ) {
        let whole = parse_head(text.as_bytes()).unwrap();
        match whole {
            Parsed::Complete { len, .. } | Parsed::Interim { len } => prop_assert_eq!(len, text.len()),
            Parsed::Partial => prop_assert!(false, "{} is whole", text),
        }
        for cut in 0..text.len() {
            prop_assert_eq!(parse_head(&text.as_bytes()[..cut]).unwrap(), Parsed::Partial);
        }
        let followed = [text.as_bytes(), &rest].concat();
        prop_assert_eq!(parse_head(&followed).unwrap(), whole);
    }
}
