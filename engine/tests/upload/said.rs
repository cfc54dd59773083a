//! What is said to servers, word for word, and what is made of answers that no sound server gives.

use super::{brought, content};
use crate::common::services::{Answer, Heard, Service};
use fuelrail::{Access, Kind, PutOptions, PutOver, Result, Stored, put_as};
use fuelrail_bucket::DataSet;
use std::io::Cursor;
use std::sync::atomic::{AtomicU32, Ordering};

const TEXT: &str = "0123456789abcdefghijvwxyz";

/// Puts [`TEXT`] in parts of 10 to a server that answers as `answer` says.
fn told(
    (uri, over): (&str, PutOver),
    answer: impl Fn(&Heard) -> Answer + Send + Sync + 'static,
) -> (Result<Stored>, Vec<Heard>) {
    let service = Service::start(answer);
    let mut access = Access::default();
    access.credentials.anonymous = Some(true);
    access.cloud.endpoint = service.url();
    let options = PutOptions { over, parts_above_bytes: 10, part_bytes: 10 };
    let outcome = put_as(&options, access, uri, &mut Cursor::new(TEXT), |_| {});
    // Parts arrive in any order.
    let mut heard = service.heard();
    if outcome.is_ok() {
        heard.retain(|heard| !heard.line.starts_with("HEAD"));
    }
    heard.sort_by_key(|heard| match heard.line.as_str() {
        line if line.contains("?uploads") => String::new(),
        line if line.contains("comp=blocklist") => "~".into(),
        line => line.replace("POST", "~"),
    });
    (outcome, heard)
}

const BEGUN: &str = "<InitiateMultipartUploadResult><UploadId>a+b/c</UploadId></InitiateMultipartUploadResult>";
const DONE: &str = "<CompleteMultipartUploadResult><ETag>&quot;tag-3&quot;</ETag></CompleteMultipartUploadResult>";

/// A server that takes everything.
fn kind(heard: &Heard) -> Answer {
    match heard.line.as_str() {
        line if line.ends_with("?uploads") => Answer::ok(BEGUN),
        line if line.starts_with("POST") => Answer::ok(DONE),
        line if line.starts_with("HEAD") => Answer(404, String::new(), String::new()),
        line if line.contains("comp=") => Answer(201, "ETag: \"0x8D\"\r\n".into(), String::new()),
        _ => Answer(200, "ETag: \"t\"\r\n".into(), String::new()),
    }
}

#[test]
fn s3_and_google_are_told_checksums_and_conditions() {
    for (uri, over, said) in [
        (
            "s3://bucket/a b",
            PutOver::Nothing,
            [("x-amz-checksum-algorithm", "CRC32C"), ("x-amz-checksum-crc32c", "KAwGng=="), ("if-none-match", "*")],
        ),
        (
            "s3://bucket/a b",
            PutOver::Etag("\"t\"".into()),
            [("content-length", "0"), ("content-length", "10"), ("if-match", "\"t\"")],
        ),
        (
            "gs://bucket/a b",
            PutOver::Anything,
            [("content-length", "0"), ("x-goog-hash", "crc32c=KAwGng=="), ("content-type", "application/xml")],
        ),
    ] {
        let (outcome, heard) = told((uri, over), kind);
        assert_eq!(outcome.unwrap().etag.as_deref(), Some("\"tag-3\""), "{uri}");
        let lines: Vec<&str> = heard.iter().map(|heard| heard.line.as_str()).collect();
        let wanted = [
            "POST /bucket/a%20b?uploads",
            "PUT /bucket/a%20b?partNumber=1&uploadId=a%2Bb%2Fc",
            "PUT /bucket/a%20b?partNumber=2&uploadId=a%2Bb%2Fc",
            "PUT /bucket/a%20b?partNumber=3&uploadId=a%2Bb%2Fc",
            "POST /bucket/a%20b?uploadId=a%2Bb%2Fc",
        ];
        assert_eq!(lines, wanted);
        for (part, text) in heard[1..4].iter().zip([&TEXT[..10], &TEXT[10..20], &TEXT[20..]]) {
            assert_eq!(part.body, text);
        }
        for (heard, (name, value)) in [&heard[0], &heard[1], &heard[4]].into_iter().zip(said) {
            assert_eq!(heard.header(name), value, "{uri} {name}");
        }
        let document = &heard[4].body;
        assert_eq!(document.matches("<Part><PartNumber>").count(), 3, "{document}");
        assert_eq!(document.contains("<ChecksumCRC32C>KAwGng=="), uri.starts_with("s3"), "{document}");
    }
}

/// Conditions that Google judges only of whole objects are kept by sending one.
#[test]
fn google_judges_what_is_new_in_one_request() {
    let (outcome, heard) = told(("gs://bucket/k", PutOver::Nothing), kind);
    assert_eq!((outcome.unwrap().bytes, heard.len()), (25, 1));
    assert_eq!((heard[0].line.as_str(), heard[0].header("x-goog-if-generation-match")), ("PUT /bucket/k", "0"));
    let (outcome, heard) = told(("gs://bucket/k", PutOver::Etag("x".into())), kind);
    assert_eq!((outcome.unwrap_err().kind(), heard.len()), (Kind::Usage, 0));
}

#[test]
fn azure_is_told_of_blocks_and_their_md5() {
    let (outcome, heard) = told(("az://account/set/k", PutOver::Nothing), kind);
    assert_eq!(outcome.unwrap().etag.as_deref(), Some("\"0x8D\""));
    assert_eq!(heard.len(), 4);
    let mut listed = String::new();
    for block in &heard[..3] {
        let id = block.line.strip_prefix("PUT /account/set/k?comp=block&blockid=").unwrap();
        let id = id.replace("%3D", "=").replace("%2B", "+").replace("%2F", "/");
        assert_eq!((id.len(), block.header("content-md5").len()), (32, 24), "{id}");
        listed += &format!("<Latest>{id}</Latest>");
    }
    assert_eq!(heard[3].line, "PUT /account/set/k?comp=blocklist");
    assert_eq!(heard[3].header("if-none-match"), "*");
    assert!(heard[3].body.contains(&listed), "{}", heard[3].body);
}

/// The upload is gone, and what is there has its length but is another object, or is another altogether.
#[test]
fn an_upload_that_is_gone_is_an_error() {
    for there in [TEXT, "shorter"] {
        let (outcome, heard) = told(("s3://bucket/k", PutOver::Anything), move |heard| match heard.line.as_str() {
            line if line.starts_with("HEAD") => {
                Answer(200, "ETag: \"other-3\"\r\nConnection: close\r\n".into(), there.into())
            }
            line if line.contains("?uploadId") => Answer::refusal(404, "NoSuchUpload", ""),
            _ => kind(heard),
        });
        let error = outcome.unwrap_err();
        assert!(error.kind() == Kind::NotFound && error.to_string().contains("upload again"), "{error}");
        let asked = |method: &str| heard.iter().filter(|heard| heard.line.starts_with(method)).count();
        assert_eq!((asked("HEAD"), asked("DELETE")), (1, 1));
        assert!(heard.iter().any(|heard| heard.header("x-amz-checksum-mode") == "ENABLED"));
    }
}

/// The answer to the first attempt says nothing, the second one that something is there: on Azure its MD5 tells whose it is.
#[test]
fn an_object_that_is_ours_is_known_by_its_md5() {
    for (there, ours) in [("lSTRzzXelq10xAFt2DSG1A==", true), ("1B2M2Y8AsgTpgAmY7PhCfg==", false)] {
        let attempts = AtomicU32::new(0);
        let service = Service::start(move |heard| match heard.line.as_str() {
            line if line.starts_with("HEAD") => {
                let headers = format!("ETag: \"0x8D\"\r\nContent-MD5: {there}\r\nConnection: close\r\n");
                Answer(200, headers, TEXT.into())
            }
            _ if attempts.fetch_add(1, Ordering::Relaxed) == 0 => Answer::refusal(500, "InternalError", ""),
            _ => Answer::refusal(409, "BlobAlreadyExists", ""),
        });
        let mut access = Access::default();
        access.credentials.anonymous = Some(true);
        access.cloud.endpoint = service.url();
        let options = PutOptions { over: PutOver::Nothing, ..PutOptions::default() };
        let outcome = put_as(&options, access, "az://account/set/k", &mut Cursor::new(TEXT), |_| {});
        match outcome {
            Ok(stored) => assert!(ours && stored.etag.as_deref() == Some("\"0x8D\""), "{stored:?}"),
            Err(error) => assert!(!ours && error.kind() == Kind::Exists, "{error}"),
        }
    }
}

#[test]
fn answers_that_begin_nothing_are_errors() {
    let begins = |heard: &Heard| heard.line.ends_with("?uploads");
    let (outcome, heard) =
        told(
            ("s3://bucket/k", PutOver::Anything),
            move |heard| {
                if begins(heard) { Answer::ok("<html/>") } else { kind(heard) }
            },
        );
    assert_eq!((outcome.unwrap_err().kind(), heard.len()), (Kind::Protocol, 1));
    let (outcome, heard) = told(("s3://bucket/k", PutOver::Anything), move |heard| {
        if begins(heard) { Answer::refusal(403, "AccessDenied", "") } else { kind(heard) }
    });
    assert_eq!((outcome.unwrap_err().kind(), heard.len()), (Kind::Denied, 1));
}

/// In one request and in parts.
#[test]
fn an_object_goes_where_its_bucket_is() {
    let bucket = crate::common::bucket(&DataSet::digits(3, 1), "");
    let to = format!("http://{}", bucket.addr());
    let front = Service::start(move |heard: &Heard| {
        let path = heard.line.split(' ').nth(1).unwrap_or_default();
        Answer(307, format!("Location: {to}{path}\r\n"), String::new())
    });
    for (len, options) in [
        (3_000, PutOptions::default()),
        (6_000_000, PutOptions { parts_above_bytes: 1 << 20, ..PutOptions::default() }),
    ] {
        let uri = format!("{}/bucket/{len}", front.url());
        put_as(&options, Access::default(), &uri, &mut Cursor::new(content(len)), |_| {}).unwrap();
        assert!(brought(&bucket.url(&len.to_string())) == content(len));
    }
    assert_eq!((front.heard().len(), bucket.counters().part_requests), (2, 1));
}
