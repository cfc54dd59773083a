//! GETs of a given size over one plain keep-alive connection, as a load generator sends them.
//!
//! Owns the connection. Reads answers to their end and keeps nothing.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream, ToSocketAddrs};
use std::time::Duration;

use fuelrail::{Error, Kind, Listed, Result};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};

const PLAIN: AsciiSet = NON_ALPHANUMERIC.remove(b'-').remove(b'_').remove(b'.').remove(b'~').remove(b'/');
/// Silence after which a server is given up.
const SILENCE: Duration = Duration::from_secs(30);
const HEAD_BYTES_MAX: usize = 16 << 10;

/// What is asked for, and where.
#[derive(Clone, Debug)]
pub(super) struct Aim {
    address: SocketAddr,
    requests: Vec<(Vec<u8>, u64)>,
}

impl Aim {
    /// GETs of the first `bytes` of every object that has as many; of whole objects without `bytes`.
    pub(super) fn new(uri: &str, listing: &[Listed], bytes: Option<u64>) -> Result<Aim> {
        let bad = |why: String| {
            Error::new(Kind::Usage, format!("{uri}: {why}"))
                .cure("give http://HOST[:PORT]/PREFIX/; over TLS use --through loader")
        };
        let rest = uri.strip_prefix("http://").ok_or_else(|| bad("plain http is asked for here".into()))?;
        let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
        // Keys are whole ones: what comes behind the bucket's name is a prefix that they have already.
        let bucket = path.split_once('/').map_or(path, |(bucket, _)| bucket);
        let with_port = if authority.contains(':') { authority.to_owned() } else { format!("{authority}:80") };
        let mut found = with_port.to_socket_addrs().map_err(|error| bad(error.to_string()))?;
        let address = found.next().ok_or_else(|| bad("the host has no address".into()))?;
        let fit = listing.iter().filter(|object| object.size >= bytes.unwrap_or(1).max(1));
        let request = |object: &Listed| {
            let key = utf8_percent_encode(&object.key, &PLAIN);
            let length = bytes.unwrap_or(object.size);
            let range = bytes.map_or_else(String::new, |bytes| format!("Range: bytes=0-{}\r\n", bytes - 1));
            (format!("GET /{bucket}/{key} HTTP/1.1\r\nHost: {authority}\r\n{range}\r\n").into_bytes(), length)
        };
        let requests: Vec<_> = fit.map(request).collect();
        if requests.is_empty() {
            return Err(Error::new(Kind::Usage, "no object is that large").cure("give a smaller --size"));
        }
        Ok(Aim { address, requests })
    }
}

/// One connection.
#[derive(Debug)]
pub(super) struct Caller<'a> {
    aim: &'a Aim,
    stream: TcpStream,
    memory: Vec<u8>,
}

impl<'a> Caller<'a> {
    pub(super) fn dial(aim: &'a Aim) -> Result<Caller<'a>> {
        let dialled = TcpStream::connect(aim.address).and_then(|stream| {
            stream.set_nodelay(true)?;
            stream.set_read_timeout(Some(SILENCE))?;
            Ok(stream)
        });
        let stream =
            dialled.map_err(|error| Error::new(Kind::Network, format!("connecting to {}: {error}", aim.address)))?;
        Ok(Caller { aim, stream, memory: vec![0; 1 << 20] })
    }

    /// Sends the request of a number and reads its answer to the end.
    pub(super) fn ask(&mut self, number: u64) -> Result<()> {
        let (request, length) = &self.aim.requests[(number % self.aim.requests.len() as u64) as usize];
        self.stream.write_all(request).map_err(|error| broken(&error))?;
        let mut filled = 0;
        let body_at = loop {
            filled += self.read(filled)?;
            if let Some(end) = self.memory[..filled].windows(4).position(|four| four == b"\r\n\r\n") {
                break end + 4;
            }
            if filled > HEAD_BYTES_MAX {
                return Err(Error::new(Kind::Protocol, "the server's head does not end"));
            }
        };
        check(&self.memory[..body_at], *length)?;
        let mut left = length.checked_sub((filled - body_at) as u64).ok_or_else(more)?;
        while left > 0 {
            left = left.checked_sub(self.read(0)? as u64).ok_or_else(more)?;
        }
        Ok(())
    }

    fn read(&mut self, from: usize) -> Result<usize> {
        match self.stream.read(&mut self.memory[from..]) {
            Ok(0) => Err(Error::new(Kind::Truncated, "the server closed the connection inside an answer")),
            Ok(bytes) => Ok(bytes),
            Err(error) => Err(broken(&error)),
        }
    }
}

fn broken(error: &std::io::Error) -> Error {
    Error::new(Kind::Network, format!("the connection broke: {error}"))
}

fn more() -> Error {
    Error::new(Kind::Protocol, "the server sends more than it was asked for")
}

/// Whether the head announces what was asked for: any other status or length is not the latency of this GET.
fn check(head: &[u8], length: u64) -> Result<()> {
    let text = String::from_utf8_lossy(head);
    let status = text.split(' ').nth(1).unwrap_or_default();
    let field = text.lines().find_map(|line| {
        let (name, value) = line.split_once(':')?;
        name.eq_ignore_ascii_case("content-length").then(|| value.trim().parse::<u64>().ok())?
    });
    if ["200", "206"].contains(&status) && field == Some(length) {
        return Ok(());
    }
    let line = text.lines().next().unwrap_or_default().escape_debug().to_string();
    let cause = format!("the server answers `{line}` with {field:?} bytes where {length} are asked for");
    Err(Error::new(Kind::Protocol, cause).cure("check --uri, --manifest and that the server knows ranges"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_was_asked_for_counts() {
        assert!(check(b"HTTP/1.1 206 Partial Content\r\nContent-Length: 5\r\n\r\n", 5).is_ok());
        for other in [
            &b"HTTP/1.1 206 Partial Content\r\nContent-Length: 6\r\n\r\n"[..],
            b"HTTP/1.1 503 Slow Down\r\nContent-Length: 5\r\n\r\n",
            b"HTTP/1.1 200 OK\r\n\r\n",
            b"rubbish\r\n\r\n",
        ] {
            assert_eq!(check(other, 5).unwrap_err().kind(), Kind::Protocol);
        }
    }

    #[test]
    fn objects_that_are_too_small_are_left_out() {
        let listing = [10, 100].map(|size| Listed { key: format!("{size} bytes"), size, etag: None });
        let aim = Aim::new("http://127.0.0.1:9/p/1", &listing, Some(50)).unwrap();
        let text = String::from_utf8(aim.requests[0].0.clone()).unwrap();
        assert_eq!((aim.requests.len(), aim.requests[0].1), (1, 50));
        assert!(text.starts_with("GET /p/100%20bytes HTTP/1.1\r\n") && text.contains("bytes=0-49\r\n"), "{text}");
        assert_eq!(Aim::new("http://127.0.0.1:9/p/1", &listing, None).unwrap().requests[1].1, 100);
        assert_eq!(Aim::new("http://127.0.0.1:9/", &listing, Some(500)).unwrap_err().kind(), Kind::Usage);
        assert_eq!(Aim::new("https://127.0.0.1:9/", &listing, None).unwrap_err().kind(), Kind::Usage);
    }
}
