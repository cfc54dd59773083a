//! What is said to servers, word for word, and what is made of answers that no sound server gives.

use super::content;
use fuelrail::{Access, Kind, PutOptions, PutOver, Result, Stored, put_as};
use std::io::{BufRead, BufReader, Cursor, Read, Write};
use std::net::TcpListener;

/// A request as it came.
struct Heard {
    line: String,
    headers: Vec<String>,
    body: Vec<u8>,
}

impl Heard {
    fn has(&self, header: &str) -> bool {
        self.headers.iter().any(|have| have == header)
    }
}

/// Puts 25 bytes in parts of 10 to a server that answers as `answer` says, by the number of the request and its first line.
fn told(
    (uri, over): (&str, PutOver),
    answer: impl Fn(usize, &str) -> String + Send + 'static,
) -> (Result<Stored>, Vec<Heard>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let (stop, stopped) = std::sync::mpsc::channel::<()>();
    let served = std::thread::spawn(move || {
        let mut heard = Vec::new();
        loop {
            let (mut socket, _) = listener.accept().unwrap();
            if stopped.try_recv().is_ok() {
                return heard;
            }
            let mut reader = BufReader::new(socket.try_clone().unwrap());
            let mut lines = reader.by_ref().lines().map(std::result::Result::unwrap);
            let line = lines.next().unwrap();
            let headers: Vec<String> = lines.take_while(|line| !line.is_empty()).collect();
            let length = headers.iter().find_map(|header| header.strip_prefix("content-length: "));
            let mut body = vec![0; length.map_or(0, |length| length.parse().unwrap())];
            reader.read_exact(&mut body).unwrap();
            let reply = answer(heard.len(), &line).replacen("\r\n", "\r\nConnection: close\r\n", 1);
            heard.push(Heard { line, headers, body });
            socket.write_all(reply.as_bytes()).unwrap();
        }
    });
    let mut access = Access::default();
    access.credentials.anonymous = Some(true);
    access.cloud.endpoint = format!("http://{address}");
    let options = PutOptions { over, parts_above_bytes: 10, part_bytes: 10 };
    let outcome = put_as(&options, access, uri, &mut Cursor::new(content(25)), |_| {});
    stop.send(()).unwrap();
    drop(std::net::TcpStream::connect(address).unwrap());
    (outcome, served.join().unwrap())
}

fn reply(status: &str, headers: &str, body: &str) -> String {
    format!("HTTP/1.1 {status}\r\n{headers}Content-Length: {}\r\n\r\n{body}", body.len())
}

const BEGUN: &str = "<InitiateMultipartUploadResult><UploadId>a+b/c</UploadId></InitiateMultipartUploadResult>";
const DONE: &str = "<CompleteMultipartUploadResult><ETag>&quot;tag-3&quot;</ETag></CompleteMultipartUploadResult>";

/// A server that takes everything.
fn kind(_: usize, line: &str) -> String {
    match line {
        line if line.contains("?uploads ") => reply("200 OK", "", BEGUN),
        line if line.starts_with("POST") => reply("200 OK", "", DONE),
        line if line.contains("comp=") => reply("201 Created", "ETag: \"0x8D\"\r\n", ""),
        _ => reply("200 OK", "ETag: \"t\"\r\n", ""),
    }
}

#[test]
fn s3_and_google_are_told_their_checksums_and_conditions() {
    for (uri, over, said) in [
        (
            "s3://bucket/a b",
            PutOver::Nothing,
            ["x-amz-checksum-algorithm: CRC32C", "x-amz-checksum-crc32c: ", "if-none-match: *"],
        ),
        (
            "s3://bucket/a b",
            PutOver::Etag("\"t\"".into()),
            ["content-length: 0", "content-length: 10", "if-match: \"t\""],
        ),
        (
            "gs://bucket/a b",
            PutOver::Anything,
            ["content-length: 0", "x-goog-hash: crc32c=", "content-type: application/xml"],
        ),
    ] {
        let (outcome, heard) = told((uri, over), kind);
        assert_eq!(outcome.unwrap().etag.as_deref(), Some("\"tag-3\""), "{uri}");
        assert_eq!(heard.len(), 5);
        let (first, last) = (&heard[0], &heard[4]);
        assert_eq!(first.line, "POST /bucket/a%20b?uploads HTTP/1.1");
        assert_eq!(last.line, "POST /bucket/a%20b?uploadId=a%2Bb%2Fc HTTP/1.1");
        let mut parts: Vec<&Heard> = heard[1..4].iter().collect();
        parts.sort_by_key(|part| part.line.clone());
        for (n, part) in parts.iter().enumerate() {
            let line = format!("PUT /bucket/a%20b?partNumber={}&uploadId=a%2Bb%2Fc HTTP/1.1", n + 1);
            assert_eq!((&part.line, &part.body), (&line, &content(25).chunks(10).nth(n).unwrap().to_vec()));
        }
        let begins = |heard: &Heard, start: &str| heard.headers.iter().any(|header| header.starts_with(start));
        assert!(begins(first, said[0]) && begins(parts[0], said[1]) && begins(last, said[2]), "{:?}", first.headers);
        let document = String::from_utf8(last.body.clone()).unwrap();
        assert_eq!(document.matches("<Part><PartNumber>").count(), 3, "{document}");
        assert_eq!(document.contains("ChecksumCRC32C"), uri.starts_with("s3"), "{document}");
    }
}

/// Conditions that Google judges only of whole objects are kept by sending one.
#[test]
fn google_judges_what_is_new_in_one_request() {
    let (outcome, heard) = told(("gs://bucket/k", PutOver::Nothing), kind);
    assert_eq!((outcome.unwrap().bytes, heard.len()), (25, 1));
    assert!(heard[0].line == "PUT /bucket/k HTTP/1.1" && heard[0].has("x-goog-if-generation-match: 0"));
    let (outcome, heard) = told(("gs://bucket/k", PutOver::Etag("x".into())), kind);
    assert_eq!((outcome.unwrap_err().kind(), heard.len()), (Kind::Usage, 0));
}

#[test]
fn azure_is_told_of_blocks_and_their_md5() {
    let (outcome, heard) = told(("az://account/set/k", PutOver::Nothing), kind);
    assert_eq!(outcome.unwrap().etag.as_deref(), Some("\"0x8D\""));
    assert_eq!(heard.len(), 4);
    let mut ids: Vec<String> = Vec::new();
    for block in &heard[..3] {
        let id = block.line.strip_prefix("PUT /account/set/k?comp=block&blockid=").unwrap();
        ids.push(id.strip_suffix(" HTTP/1.1").unwrap().replace("%3D", "="));
        assert!(block.headers.iter().any(|header| header.starts_with("content-md5: ")));
    }
    assert!(ids.iter().all(|id| id.len() == ids[0].len()));
    ids.sort();
    assert_eq!(heard[3].line, "PUT /account/set/k?comp=blocklist HTTP/1.1");
    assert!(heard[3].has("if-none-match: *"));
    let listed: String = ids.iter().map(|id| format!("<Latest>{id}</Latest>")).collect();
    assert!(String::from_utf8(heard[3].body.clone()).unwrap().contains(&listed));
}

/// The upload is gone, and what is there has its length but is another object.
#[test]
fn an_upload_that_is_gone_is_an_error() {
    let gone = "<Error><Code>NoSuchUpload</Code><Message>m</Message></Error>";
    for there in ["Content-Length: 25\r\nETag: \"other-3\"\r\n\r\n", "Content-Length: 9\r\n\r\n"] {
        let (outcome, heard) = told(("s3://bucket/k", PutOver::Anything), move |n, line| match line {
            line if line.starts_with("HEAD") => format!("HTTP/1.1 200 OK\r\n{there}"),
            line if line.contains("uploadId") && !line.starts_with("PUT") => reply("404 Not Found", "", gone),
            line => kind(n, line),
        });
        let error = outcome.unwrap_err();
        assert!(error.kind() == Kind::NotFound && error.to_string().contains("put it again"), "{error}");
        let asked = |method: &str| heard.iter().filter(|heard| heard.line.starts_with(method)).count();
        assert_eq!((asked("HEAD"), asked("DELETE")), (1, 1));
        assert!(heard.iter().any(|heard| heard.has("x-amz-checksum-mode: ENABLED")));
    }
}

#[test]
fn answers_that_make_no_sense_are_errors() {
    // No id; no tag of a part, which is asked for again and again.
    for (start, answer) in [
        ("POST /bucket/k?uploads", reply("200 OK", "", "<html/>")),
        ("POST /bucket/k?uploads", reply("403 Forbidden", "", "")),
    ] {
        let (outcome, heard) = told(("s3://bucket/k", PutOver::Anything), move |n, line| {
            if line.starts_with(start) { answer.clone() } else { kind(n, line) }
        });
        let error = outcome.unwrap_err();
        assert!(matches!(error.kind(), Kind::Protocol | Kind::Denied), "{error}");
        assert_eq!(heard.len(), 1, "{error}");
    }
}
