//! A deliberately plain HTTP/1.1 client over `std::net::TcpStream`: it shows exactly what came over the wire, and it
//! shares no code with the server.
#![allow(dead_code)] // each test binary uses its own part
#![allow(unreachable_pub)]

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use fuelrail_bucket::{Bucket, BucketConfig, DataSet, Script, Source};

/// Longest any single read of a test waits: a hang becomes a failure.
pub const PATIENCE: Duration = Duration::from_secs(20);

/// A bucket of `set` under `script`.
pub fn serve(set: &DataSet, script: &str) -> Bucket {
    let script: Script = script.parse().unwrap();
    Bucket::start(BucketConfig { source: Source::Generated(set.clone()), script, ..BucketConfig::default() }).unwrap()
}

/// What came back, as far as it came.
#[derive(Debug)]
pub struct Reply {
    pub status: u16,
    pub headers: Vec<(String, String)>,
    pub body: Vec<u8>,
    /// Why the body ended before its length, if it did.
    pub broken: Option<io::ErrorKind>,
}

impl Reply {
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(have, _)| have.eq_ignore_ascii_case(name)).map(|(_, value)| value.as_str())
    }

    pub fn text(&self) -> &str {
        std::str::from_utf8(&self.body).unwrap()
    }
}

/// One connection.
pub struct Client {
    stream: TcpStream,
    unread: Vec<u8>,
}

impl Client {
    pub fn connect(bucket: &Bucket) -> Client {
        let stream = TcpStream::connect(bucket.addr()).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.set_nodelay(true).unwrap();
        Client { stream, unread: Vec::new() }
    }

    pub fn set_patience(&self, patience: Duration) {
        self.stream.set_read_timeout(Some(patience)).unwrap();
    }

    pub fn send(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).unwrap();
    }

    pub fn half_close(&self) {
        self.stream.shutdown(std::net::Shutdown::Write).unwrap();
    }

    /// Sends a request whose `target` is already encoded.
    pub fn ask(&mut self, method: &str, target: &str, headers: &[(&str, &str)]) {
        self.send(head(method, target, headers).as_bytes());
    }

    /// Sends a request and reads the reply; an error says what came instead of a head.
    pub fn request(&mut self, method: &str, target: &str, headers: &[(&str, &str)]) -> io::Result<Reply> {
        self.ask(method, target, headers);
        self.reply(method == "HEAD")
    }

    pub fn get(&mut self, key: &str) -> Reply {
        self.request("GET", &format!("/bucket/{key}"), &[]).unwrap()
    }

    pub fn put(&mut self, target: &str, body: &[u8], headers: &[(&str, &str)]) -> Reply {
        let length = body.len().to_string();
        let mut all = vec![("content-length", length.as_str())];
        all.extend_from_slice(headers);
        self.ask("PUT", target, &all);
        self.send(body);
        self.reply(false).unwrap()
    }

    /// Reads one reply. A broken body is in the reply; a broken head is an error.
    pub fn reply(&mut self, is_head: bool) -> io::Result<Reply> {
        let end = loop {
            if let Some(end) = self.unread.windows(4).position(|four| four == b"\r\n\r\n") {
                break end + 4;
            }
            if self.unread.len() > 64 << 10 {
                return Err(io::Error::new(io::ErrorKind::InvalidData, "overlong head"));
            }
            self.more()?;
        };
        let head: Vec<u8> = self.unread.drain(..end).collect();
        let head = std::str::from_utf8(&head).map_err(|_| io::ErrorKind::InvalidData)?;
        let mut lines = head.split("\r\n");
        let status = lines.next().and_then(|line| line.strip_prefix("HTTP/1.1 ")).and_then(|line| line.get(..3));
        let status = status.and_then(|code| code.parse().ok()).ok_or(io::ErrorKind::InvalidData)?;
        let headers: Vec<(String, String)> = lines
            .filter_map(|line| line.split_once(':'))
            .map(|(name, value)| (name.to_ascii_lowercase(), value.trim().to_owned()))
            .collect();
        let mut reply = Reply { status, headers, body: Vec::new(), broken: None };
        if is_head || matches!(status, 204 | 304) {
            return Ok(reply);
        }
        let broken = if reply.header("transfer-encoding") == Some("chunked") {
            self.read_chunked(&mut reply.body)
        } else {
            let length = reply.header("content-length").unwrap().parse().unwrap();
            self.read_exactly(length, &mut reply.body)
        };
        reply.broken = broken.err().map(|e| e.kind());
        Ok(reply)
    }

    /// Everything until the connection ends, and how it ended.
    pub fn rest(&mut self) -> (Vec<u8>, Option<io::ErrorKind>) {
        let ended = loop {
            match self.more() {
                Ok(()) => {}
                Err(e) if e.kind() == io::ErrorKind::UnexpectedEof => break None,
                Err(e) => break Some(e.kind()),
            }
        };
        (std::mem::take(&mut self.unread), ended)
    }

    fn read_exactly(&mut self, length: usize, body: &mut Vec<u8>) -> io::Result<()> {
        loop {
            let take = self.unread.len().min(length - body.len());
            body.extend(self.unread.drain(..take));
            if body.len() == length {
                return Ok(());
            }
            self.more()?;
        }
    }

    fn read_chunked(&mut self, body: &mut Vec<u8>) -> io::Result<()> {
        loop {
            let end = loop {
                match self.unread.windows(2).position(|two| two == b"\r\n") {
                    Some(end) => break end,
                    None => self.more()?,
                }
            };
            let line: Vec<u8> = self.unread.drain(..end + 2).collect();
            let length = usize::from_str_radix(std::str::from_utf8(&line[..end]).unwrap(), 16).unwrap();
            let mut chunk = Vec::new();
            self.read_exactly(length + 2, &mut chunk)?;
            assert_eq!(chunk.split_off(length), b"\r\n");
            if length == 0 {
                return Ok(());
            }
            body.append(&mut chunk);
        }
    }

    /// Reads what is there; the end of the connection is `UnexpectedEof`.
    fn more(&mut self) -> io::Result<()> {
        let mut buffer = [0u8; 64 << 10];
        match self.stream.read(&mut buffer)? {
            0 => Err(io::ErrorKind::UnexpectedEof.into()),
            read => {
                self.unread.extend_from_slice(&buffer[..read]);
                Ok(())
            }
        }
    }
}

/// A request head.
pub fn head(method: &str, target: &str, headers: &[(&str, &str)]) -> String {
    let mut head = format!("{method} {target} HTTP/1.1\r\nhost: test\r\n");
    for (name, value) in headers {
        head.push_str(&format!("{name}: {value}\r\n"));
    }
    head + "\r\n"
}

/// The contents of every element of this name, in order, entities decoded.
pub fn elements(xml: &str, name: &str) -> Vec<String> {
    let (open, close) = (format!("<{name}>"), format!("</{name}>"));
    let found = xml.split(&open).skip(1).map(|rest| rest.split(&close).next().unwrap());
    found.map(|text| quick_xml::escape::unescape(text).unwrap().into_owned()).collect()
}
