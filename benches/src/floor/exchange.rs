//! One pass of a floor: its requests, where the answers under way stand, and what came so far. The counting is all a floor does beside its system
//! calls.

use std::net::{SocketAddr, TcpStream, ToSocketAddrs};
use std::time::Instant;

use fuelrail::{Error, Kind, Result, read_manifest};
use fuelrail_plan::order::Order;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use xxhash_rust::xxh3::Xxh3;

use crate::harness::{Said, SetHash, Task};

const HEAD_BYTES_MAX: usize = 16 << 10;

#[derive(Debug)]
pub(super) struct Pass {
    batch_size: u64,
    started: Instant,
    first_batch_us: Option<u64>,
    bytes: u64,
    objects: u64,
    hash: Option<SetHash>,
}

#[derive(Default)]
pub(super) struct Answer {
    /// The head so far, when it did not come whole.
    head: Vec<u8>,
    /// Bytes of the body not received yet; `None` until the head is complete.
    pub(super) left_bytes: Option<u64>,
    hash: Option<Box<Xxh3>>,
}

impl Answer {
    pub(super) fn is_untouched(&self) -> bool {
        self.head.is_empty() && self.left_bytes.is_none()
    }
}

impl Pass {
    pub(super) fn new(batch_size: u32, hash: bool) -> Pass {
        Pass {
            batch_size: u64::from(batch_size.max(1)),
            started: Instant::now(),
            first_batch_us: None,
            bytes: 0,
            objects: 0,
            hash: hash.then(SetHash::default),
        }
    }

    pub(super) fn begin(&self) -> Answer {
        Answer { hash: self.hash.map(|_| Box::default()), ..Answer::default() }
    }

    /// Takes the next bytes of an answer; whether it is whole.
    pub(super) fn take(&mut self, answer: &mut Answer, request: &Request, piece: &[u8]) -> Result<bool> {
        if answer.left_bytes.is_some() {
            return self.body(answer, piece);
        }
        if answer.head.is_empty()
            && let Some(body) = begun(answer, request, piece)?
        {
            return self.body(answer, &piece[body..]);
        }
        let mut head = std::mem::take(&mut answer.head);
        head.extend_from_slice(piece);
        match begun(answer, request, &head)? {
            Some(body) => self.body(answer, &head[body..]),
            None if head.len() > HEAD_BYTES_MAX => Err(Error::new(Kind::Protocol, "the response header is too long")),
            None => {
                answer.head = head;
                Ok(false)
            }
        }
    }

    fn body(&mut self, answer: &mut Answer, body: &[u8]) -> Result<bool> {
        if let Some(hash) = &mut answer.hash {
            hash.update(body);
        }
        self.count(answer, body.len() as u64)
    }

    /// Counts bytes of a body, seen or not; whether it is whole.
    pub(super) fn count(&mut self, answer: &mut Answer, bytes: u64) -> Result<bool> {
        let left = answer.left_bytes.unwrap_or(0).checked_sub(bytes);
        let left = left.ok_or_else(|| Error::new(Kind::Protocol, "the server sends more than its Content-Length"))?;
        answer.left_bytes = Some(left);
        if left > 0 {
            self.bytes += bytes;
            return Ok(false);
        }
        if let (Some(sum), Some(hash)) = (&mut self.hash, &answer.hash) {
            sum.add_hash(hash.digest128());
        }
        self.whole(bytes);
        Ok(true)
    }

    fn whole(&mut self, bytes: u64) {
        self.bytes += bytes;
        self.objects += 1;
        if self.objects == self.batch_size {
            self.first_batch_us = Some(self.started.elapsed().as_micros() as u64);
        }
    }

    pub(super) fn said(self, settings: String) -> Said {
        Said {
            bytes: self.bytes,
            objects: self.objects,
            wall_s: self.started.elapsed().as_secs_f64(),
            first_batch_us: self.first_batch_us,
            hash: self.hash.map(|hash| hash.to_string()),
            settings,
            ..Said::default()
        }
    }
}

/// Reads the head if `bytes`, which start where the answer does, hold all of it; returns where the body starts.
fn begun(answer: &mut Answer, request: &Request, bytes: &[u8]) -> Result<Option<usize>> {
    let Some(end) = bytes.windows(4).position(|four| four == b"\r\n\r\n") else { return Ok(None) };
    let body_bytes = content_length(&bytes[..end])?;
    if body_bytes != request.body_bytes {
        let cause = format!("an object has {body_bytes} bytes, {} in the manifest", request.body_bytes);
        return Err(Error::new(Kind::Mismatch, cause).with_hint("list the bucket again"));
    }
    answer.left_bytes = Some(body_bytes);
    Ok(Some(end + 4))
}

/// A head read as little as can be: that it is a 200, and its `Content-Length`. A server that chunks or closes is refused.
fn content_length(head: &[u8]) -> Result<u64> {
    const LENGTH: &[u8] = b"content-length:";
    let mut lines = head.split(|byte| *byte == b'\n');
    if !head.starts_with(b"HTTP/1.1 200") {
        let line = String::from_utf8_lossy(lines.next().unwrap_or_default()).trim_end().escape_debug().to_string();
        return Err(
            Error::new(Kind::Protocol, format!("the server answers `{line}`")).with_hint("check --uri and --manifest")
        );
    }
    let value = lines.find_map(|line| {
        let (name, value) = line.split_at_checked(LENGTH.len())?;
        name.eq_ignore_ascii_case(LENGTH).then_some(value)
    });
    value.and_then(|value| std::str::from_utf8(value).ok()?.trim().parse().ok()).ok_or_else(|| {
        Error::new(Kind::Protocol, "the response has no Content-Length").with_hint("use a server of plain files")
    })
}

/// What stays as it is in a path.
const PLAIN: AsciiSet = NON_ALPHANUMERIC.remove(b'-').remove(b'_').remove(b'.').remove(b'~').remove(b'/');

/// The requests of a pass, written before it starts, in the order a loader with the same seed takes: all see the same sizes in the same
/// order.
#[derive(Debug)]
pub(super) struct Requests {
    address: SocketAddr,
    all: Vec<Request>,
}

#[derive(Clone, Debug)]
pub(super) struct Request {
    pub(super) text: Vec<u8>,
    pub(super) body_bytes: u64,
}

/// A trial is this long: tenths of a second, whatever the size of objects.
const TRIAL_BYTES: u64 = 512 << 20;
const TRIAL_REQUESTS_MAX: usize = 8192;

impl Requests {
    pub(super) fn new(task: &Task, scheme: &str) -> Result<Requests> {
        let bad = |why: &str| {
            Error::new(Kind::Usage, format!("{}: {why}", task.uri))
                .with_hint(format!("give {scheme}HOST[:PORT]/PREFIX/"))
        };
        let rest = task.uri.strip_prefix(scheme).ok_or_else(|| bad(&format!("this floor reads {scheme}")))?;
        let (authority, prefix) = rest.split_once('/').unwrap_or((rest, ""));
        let with_port = if authority.contains(':') { authority.to_owned() } else { format!("{authority}:80") };
        let mut found = with_port.to_socket_addrs().map_err(|error| bad(&error.to_string()))?;
        let address = found.next().ok_or_else(|| bad("the host has no address"))?;
        let listing = read_manifest(&task.manifest)?;
        if listing.is_empty() {
            return Err(Error::new(Kind::Usage, format!("the manifest {} is empty", task.manifest.display())));
        }
        let order = Order::new(listing.len() as u64, task.seed, true).epoch(0);
        let request = |position: u64| {
            let object = &listing[order.sample_at(position).0 as usize];
            let key = utf8_percent_encode(&object.key, &PLAIN);
            let text = format!("GET /{prefix}{key} HTTP/1.1\r\nHost: {authority}\r\n\r\n");
            Request { text: text.into_bytes(), body_bytes: object.size }
        };
        Ok(Requests { address, all: (0..listing.len() as u64).map(request).collect() })
    }

    /// The first of them: enough to tell one number of connections from another.
    pub(super) fn trial(&self) -> Requests {
        let mut left = TRIAL_BYTES;
        let enough = |request: &&Request| {
            let wanted = left > 0;
            left = left.saturating_sub(request.body_bytes);
            wanted
        };
        let all = self.all.iter().take(TRIAL_REQUESTS_MAX).take_while(enough).cloned().collect();
        Requests { address: self.address, all }
    }

    pub(super) fn all(&self) -> &[Request] {
        &self.all
    }

    pub(super) fn connect(&self) -> Result<TcpStream> {
        let stream = TcpStream::connect(self.address).and_then(|stream| stream.set_nodelay(true).map(|()| stream));
        stream.map_err(|error| Error::new(Kind::Network, format!("connecting to {}: {error}", self.address)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_may_come_in_any_pieces() {
        let request = Request { text: Vec::new(), body_bytes: 5 };
        let answer = b"HTTP/1.1 200 OK\r\nServer: x\r\nContent-Length: 5\r\n\r\nhello";
        let mut whole = SetHash::default();
        whole.add(b"hello");
        for step in 1..=answer.len() {
            let mut pass = Pass::new(1, true);
            let mut under_way = pass.begin();
            let came: Vec<bool> =
                answer.chunks(step).map(|piece| pass.take(&mut under_way, &request, piece).unwrap()).collect();
            assert!(came.iter().position(|whole| *whole) == Some(came.len() - 1), "{step}");
            let said = pass.said(String::new());
            assert_eq!((said.bytes, said.objects, said.hash), (5, 1, Some(whole.to_string())));
        }
    }

    #[test]
    fn answers_that_do_not_fit_the_manifest_are_refused() {
        let request = Request { text: Vec::new(), body_bytes: 5 };
        let refused = |bytes: &[u8]| {
            let mut pass = Pass::new(1, false);
            let mut answer = pass.begin();
            pass.take(&mut answer, &request, bytes).unwrap_err()
        };
        assert_eq!(refused(b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\n").kind(), Kind::Mismatch);
        for bad in [
            &b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello!"[..],
            &[b'x'; HEAD_BYTES_MAX + 1],
            b"HTTP/1.1 200 OK\r\nX: 1\r\n\r\n",
            b"HTTP/1.1 200 OK\r\ncontent-length: x\r\n\r\n",
        ] {
            assert_eq!(refused(bad).kind(), Kind::Protocol);
        }
        assert!(refused(b"HTTP/1.1 404 Not Found\r\nContent-Length: 1\r\n\r\n").to_string().contains("404"));
    }
}
