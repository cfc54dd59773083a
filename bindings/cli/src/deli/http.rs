//! A small blocking HTTP/1.1 client: one keep-alive connection, one request at a time, as DELI's trainers read.
//!
//! Owns its socket and a read buffer. Speaks just enough for a bucket: `GET` with `Content-Length` or chunked bodies, and
//! ListObjectsV2 pages. Never pipelines, never retries a failed answer; a connection the server closed between two
//! requests is opened again once.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use fuelrail_base::limits::{DOCUMENT_BYTES_MAX, RESPONSE_HEAD_BYTES_MAX};
use fuelrail_base::{Error, Kind, Result};

/// Silence after which a read is given up.
const SILENCE_MAX: Duration = Duration::from_secs(30);
/// Read buffer: a head and a small body arrive in one receive.
const BUFFER_BYTES: usize = 16 << 10;

/// One keep-alive connection to one bucket.
#[derive(Debug)]
pub(super) struct Client {
    addr: SocketAddr,
    bucket: String,
    stream: Option<BufReader<TcpStream>>,
    line: Vec<u8>,
}

/// One page of a listing.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Page {
    pub(super) keys: Vec<String>,
    pub(super) next: Option<String>,
}

/// What a head says of its body.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Framing {
    Length(usize),
    Chunked,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Head {
    status: u16,
    framing: Framing,
    close: bool,
}

impl Client {
    /// A client of `bucket` at `addr`. Connects with the first request.
    pub(super) fn new(addr: SocketAddr, bucket: &str) -> Client {
        Client { addr, bucket: bucket.to_owned(), stream: None, line: Vec::new() }
    }

    /// Appends the object's bytes to `out`. Keys need no escaping here: generated keys are plain ASCII.
    ///
    /// # Errors
    /// `Network` when the connection fails; `Protocol` for an answer that is no HTTP; `NotFound` or `Server` by status.
    pub(super) fn get(&mut self, key: &str, out: &mut Vec<u8>) -> Result<()> {
        let path = format!("/{}/{key}", self.bucket);
        self.fetch(&path, out).map_err(|e| e.object(key))
    }

    /// One page of at most `keys_max` keys after the page that gave `token`.
    ///
    /// # Errors
    /// As [`Client::get`]; `Protocol` when the document is no listing.
    pub(super) fn list_page(&mut self, keys_max: usize, token: Option<&str>) -> Result<Page> {
        let mut path = format!("/{}?list-type=2&max-keys={keys_max}", self.bucket);
        if let Some(token) = token {
            path.push_str("&continuation-token=");
            path.push_str(&escape(token));
        }
        let mut document = Vec::new();
        self.fetch(&path, &mut document)?;
        parse_page(&document)
    }

    fn fetch(&mut self, path: &str, out: &mut Vec<u8>) -> Result<()> {
        let is_fresh = self.stream.is_none();
        let from = out.len();
        match self.exchange(path, out) {
            // The server may have closed the idle connection: that is no failure of this request.
            Err(Failure::Lost(_)) if !is_fresh => {
                self.stream = None;
                out.truncate(from);
                self.exchange(path, out)
            }
            other => other,
        }
        .map_err(|failure| {
            self.stream = None;
            failure.into_error(self.addr)
        })
    }

    fn exchange(&mut self, path: &str, out: &mut Vec<u8>) -> Result<(), Failure> {
        let request = format!("GET {path} HTTP/1.1\r\nHost: {}\r\n\r\n", self.addr);
        let stream = match &mut self.stream {
            Some(stream) => stream,
            closed => closed.insert(connect(self.addr)?),
        };
        stream.get_mut().write_all(request.as_bytes())?;
        let head = read_head(stream, &mut self.line)?;
        let from = out.len();
        read_body(stream, head.framing, &mut self.line, out)?;
        if head.close {
            self.stream = None;
        }
        if head.status != 200 {
            out.truncate(from);
            return Err(Failure::Status(head.status));
        }
        Ok(())
    }
}

/// Why an exchange failed.
#[derive(Debug)]
enum Failure {
    Lost(io::Error),
    Garbled(&'static str),
    Status(u16),
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Failure {
        Failure::Lost(error)
    }
}

impl Failure {
    fn into_error(self, addr: SocketAddr) -> Error {
        match self {
            Failure::Lost(error) => Error::new(Kind::Network, format!("talking to {addr}: {error}")),
            Failure::Garbled(what) => Error::new(Kind::Protocol, format!("{addr} answered with {what}")),
            Failure::Status(404) => Error::new(Kind::NotFound, format!("{addr} has no such object")),
            Failure::Status(503) => Error::new(Kind::Throttled, format!("{addr} asks to slow down")),
            Failure::Status(status) => Error::new(Kind::Server, format!("{addr} answered with status {status}")),
        }
    }
}

fn connect(addr: SocketAddr) -> io::Result<BufReader<TcpStream>> {
    let stream = TcpStream::connect(addr)?;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(SILENCE_MAX))?;
    Ok(BufReader::with_capacity(BUFFER_BYTES, stream))
}

/// Reads one line into `line`, without its end, counting it against `left`.
fn read_line(stream: &mut impl BufRead, line: &mut Vec<u8>, left: &mut usize) -> Result<(), Failure> {
    line.clear();
    let read = stream.take(*left as u64).read_until(b'\n', line)?;
    if read == 0 && *left > 0 {
        return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into());
    }
    if line.pop() != Some(b'\n') {
        return Err(Failure::Garbled("a head that does not end"));
    }
    line.pop_if(|byte| *byte == b'\r');
    *left -= read;
    Ok(())
}

fn read_head(stream: &mut impl BufRead, line: &mut Vec<u8>) -> Result<Head, Failure> {
    let mut left = RESPONSE_HEAD_BYTES_MAX;
    read_line(stream, line, &mut left)?;
    let status = str::from_utf8(line)
        .ok()
        .and_then(|line| line.strip_prefix("HTTP/1.1 "))
        .and_then(|rest| rest.get(..3)?.parse().ok())
        .ok_or(Failure::Garbled("something that is no HTTP/1.1"))?;
    let (mut framing, mut close) = (None, false);
    loop {
        read_line(stream, line, &mut left)?;
        if line.is_empty() {
            break;
        }
        let (name, value) = str::from_utf8(line)
            .ok()
            .and_then(|line| line.split_once(':'))
            .ok_or(Failure::Garbled("a header line without a colon"))?;
        let value = value.trim();
        if name.eq_ignore_ascii_case("content-length") {
            let length = value.parse().map_err(|_| Failure::Garbled("a Content-Length that is no number"))?;
            framing = Some(Framing::Length(length));
        } else if name.eq_ignore_ascii_case("transfer-encoding") {
            framing = Some(Framing::Chunked);
        } else if name.eq_ignore_ascii_case("connection") {
            close = value.eq_ignore_ascii_case("close");
        }
    }
    let framing = framing.ok_or(Failure::Garbled("a body of unknown length"))?;
    Ok(Head { status, framing, close })
}

fn read_body(
    stream: &mut impl BufRead,
    framing: Framing,
    line: &mut Vec<u8>,
    out: &mut Vec<u8>,
) -> Result<(), Failure> {
    let most = out.len() + DOCUMENT_BYTES_MAX;
    let append = |stream: &mut dyn BufRead, length: usize, out: &mut Vec<u8>| {
        if out.len() + length > most {
            return Err(Failure::Garbled("a body larger than any object here"));
        }
        let from = out.len();
        out.resize(from + length, 0);
        Ok(stream.read_exact(&mut out[from..])?)
    };
    match framing {
        Framing::Length(length) => append(stream, length, out),
        Framing::Chunked => loop {
            let mut left = RESPONSE_HEAD_BYTES_MAX;
            read_line(stream, line, &mut left)?;
            let length = str::from_utf8(line)
                .ok()
                .and_then(|line| usize::from_str_radix(line.split(';').next()?.trim(), 16).ok())
                .ok_or(Failure::Garbled("a chunk without a size"))?;
            append(stream, length, out)?;
            // The end of the chunk, or of the (empty) trailers.
            read_line(stream, line, &mut left)?;
            if length == 0 {
                break Ok(());
            }
        },
    }
}

/// The listing's keys and its continuation. A substring scan: the document comes from our own bucket, whose generated keys
/// need no unescaping.
fn parse_page(document: &[u8]) -> Result<Page> {
    let garbled = |what: &str| Error::new(Kind::Protocol, format!("a listing with {what}"));
    let mut rest = str::from_utf8(document).map_err(|_| garbled("bytes that are no UTF-8"))?;
    if !rest.contains("<ListBucketResult") {
        return Err(garbled("no ListBucketResult"));
    }
    let next = element(rest, "<NextContinuationToken>", "</NextContinuationToken>").map(|(token, _)| token.to_owned());
    let mut keys = Vec::new();
    while let Some((key, after)) = element(rest, "<Key>", "</Key>") {
        keys.push(key.to_owned());
        rest = after;
    }
    Ok(Page { keys, next })
}

/// The text of the first element, and what follows it.
fn element<'a>(text: &'a str, open: &str, close: &str) -> Option<(&'a str, &'a str)> {
    let (_, inside) = text.split_once(open)?;
    inside.split_once(close)
}

/// Escapes a continuation token for a query.
fn escape(token: &str) -> String {
    let mut out = String::with_capacity(token.len());
    for byte in token.bytes() {
        if byte.is_ascii_alphanumeric() || b"-_.~".contains(&byte) {
            out.push(char::from(byte));
        } else {
            out.push_str(&format!("%{byte:02X}"));
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use fuelrail_bucket::{Bucket, BucketConfig, DataSet, Source};

    fn bucket(script: &str) -> (Bucket, DataSet) {
        let set = DataSet::digits(95, 3);
        let config = BucketConfig {
            source: Source::Generated(set.clone()),
            script: script.parse().unwrap(),
            ..BucketConfig::default()
        };
        (Bucket::start(config).unwrap(), set)
    }

    #[test]
    fn reads_objects_over_one_connection() {
        let (bucket, set) = bucket("");
        let mut client = Client::new(bucket.addr(), "bucket");
        let mut out = Vec::new();
        for index in 0..set.len() {
            out.clear();
            client.get(&set.key(index), &mut out).unwrap();
            set.verify(&set.key(index), &out).unwrap();
        }
        assert_eq!(bucket.counters().connections_opened, 1);
        let error = client.get("training/0/nothing.png", &mut out).unwrap_err();
        assert_eq!((error.kind(), error.object_key()), (Kind::NotFound, Some("training/0/nothing.png")));
    }

    #[test]
    fn reads_chunked_bodies_and_connects_again_after_a_close() {
        for script in ["chunked=1.0", "close_after=3", "drop_after=3"] {
            let (bucket, set) = bucket(script);
            let mut client = Client::new(bucket.addr(), "bucket");
            for index in 0..10 {
                let mut out = Vec::new();
                client.get(&set.key(index), &mut out).unwrap_or_else(|e| panic!("{script}: {e}"));
                set.verify(&set.key(index), &out).unwrap();
            }
        }
    }

    #[test]
    fn lists_page_by_page() {
        let (bucket, set) = bucket("");
        let mut client = Client::new(bucket.addr(), "bucket");
        let (mut keys, mut token, mut pages) = (Vec::new(), None, 0);
        loop {
            let page = client.list_page(10, token.as_deref()).unwrap();
            keys.extend(page.keys);
            pages += 1;
            token = page.next;
            if token.is_none() {
                break;
            }
        }
        assert_eq!(pages, 10);
        assert!(keys.iter().map(String::as_str).eq((0..95).map(|i| set.key(i)).collect::<Vec<_>>().iter()));
    }

    #[test]
    fn garbage_is_named() {
        let head = |text: &str| read_head(&mut text.as_bytes(), &mut Vec::new());
        let whole = head("HTTP/1.1 206 Partial\r\nConnection: close\r\nContent-length:  7\r\n\r\n").unwrap();
        assert_eq!(whole, Head { status: 206, framing: Framing::Length(7), close: true });
        assert!(matches!(head("SSH-2.0-x\r\n\r\n"), Err(Failure::Garbled(_))));
        assert!(matches!(head("HTTP/1.1 200 OK\r\n\r\n"), Err(Failure::Garbled(_))));
        assert!(matches!(head("HTTP/1.1 200 OK\r\nContent-Length: x\r\n\r\n"), Err(Failure::Garbled(_))));
        assert!(matches!(head(&"x".repeat(RESPONSE_HEAD_BYTES_MAX + 1)), Err(Failure::Garbled(_))));
        assert!(matches!(head("HTTP/1.1 200 OK\r\n"), Err(Failure::Lost(_))));
        assert_eq!(parse_page(b"<html></html>").unwrap_err().kind(), Kind::Protocol);
    }

    #[test]
    fn an_unreachable_bucket_is_a_network_error() {
        let (bucket, _) = bucket("");
        let addr = bucket.addr();
        bucket.stop();
        let error = Client::new(addr, "bucket").get("a", &mut Vec::new()).unwrap_err();
        assert_eq!(error.kind(), Kind::Network);
    }
}
