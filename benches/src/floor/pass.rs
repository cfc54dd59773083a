//! One pass of a floor: where the answer under way stands, and what came so far.
//!
//! Owns the counting, which is all a floor does beside its system calls.

use std::time::Instant;

use fuelrail::{Error, Kind, Result};
use xxhash_rust::xxh3::Xxh3;

use super::head;
use super::requests::Request;
use crate::harness::{Said, SetHash};

/// Longest head.
const HEAD_BYTES_MAX: usize = 16 << 10;

/// What a pass has brought.
#[derive(Debug)]
pub(super) struct Pass {
    batch_size: u64,
    started: Instant,
    first_batch_us: Option<u64>,
    bytes: u64,
    objects: u64,
    hash: Option<SetHash>,
}

/// The answer under way on one connection.
#[derive(Default)]
pub(super) struct Answer {
    /// The head so far, when it did not come whole.
    head: Vec<u8>,
    left_bytes: Option<u64>,
    hash: Option<Box<Xxh3>>,
}

impl Answer {
    /// Bytes of the body that are still to come; none before the head is whole.
    pub(super) fn left_bytes(&self) -> Option<u64> {
        self.left_bytes
    }

    /// Whether nothing of it has come.
    pub(super) fn is_untouched(&self) -> bool {
        self.head.is_empty() && self.left_bytes.is_none()
    }
}

/// Whether an answer goes on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Came {
    /// It does.
    Part,
    /// It is whole.
    Whole,
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

    /// An answer that begins.
    pub(super) fn begin(&self) -> Answer {
        Answer { hash: self.hash.map(|_| Box::default()), ..Answer::default() }
    }

    /// Takes the next bytes of an answer.
    pub(super) fn take(&mut self, answer: &mut Answer, request: &Request, piece: &[u8]) -> Result<Came> {
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
            None if head.len() > HEAD_BYTES_MAX => Err(Error::new(Kind::Protocol, "the server's head does not end")),
            None => {
                answer.head = head;
                Ok(Came::Part)
            }
        }
    }

    fn body(&mut self, answer: &mut Answer, body: &[u8]) -> Result<Came> {
        if let Some(hash) = &mut answer.hash {
            hash.update(body);
        }
        self.count(answer, body.len() as u64)
    }

    /// Counts bytes of a body, seen or not.
    pub(super) fn count(&mut self, answer: &mut Answer, bytes: u64) -> Result<Came> {
        let left = answer.left_bytes.unwrap_or(0).checked_sub(bytes);
        let left = left.ok_or_else(|| Error::new(Kind::Protocol, "the server sends more than its Content-Length"))?;
        answer.left_bytes = Some(left);
        self.bytes += bytes;
        if left > 0 {
            return Ok(Came::Part);
        }
        if let (Some(sum), Some(hash)) = (&mut self.hash, &answer.hash) {
            sum.add_hash(hash.digest128());
        }
        self.whole();
        Ok(Came::Whole)
    }

    /// Counts an object that came from nowhere.
    pub(super) fn copied(&mut self, bytes: u64) {
        self.bytes += bytes;
        self.whole();
    }

    fn whole(&mut self) {
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
    let Some(head) = head::parse(bytes)? else { return Ok(None) };
    if head.body_bytes != request.body_bytes {
        let cause = format!("an object has {} bytes, {} in the manifest", head.body_bytes, request.body_bytes);
        return Err(Error::new(Kind::Mismatch, cause).cure("list the bucket again"));
    }
    answer.left_bytes = Some(head.body_bytes);
    Ok(Some(head.bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_may_come_in_any_pieces() {
        let request = Request { text: Vec::new(), body_bytes: 5 };
        let answer = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello";
        let mut whole = SetHash::default();
        whole.add(b"hello");
        for step in 1..=answer.len() {
            let mut pass = Pass::new(1, true);
            let mut under_way = pass.begin();
            let came: Vec<Came> =
                answer.chunks(step).map(|piece| pass.take(&mut under_way, &request, piece).unwrap()).collect();
            assert!(came[..came.len() - 1].iter().all(|came| *came == Came::Part), "{step}");
            assert_eq!(came.last(), Some(&Came::Whole), "{step}");
            let said = pass.said(String::new());
            assert_eq!((said.bytes, said.objects, said.hash), (5, 1, Some(whole.to_string())));
        }
    }

    #[test]
    fn answers_that_do_not_fit_the_manifest_are_refused() {
        let request = Request { text: Vec::new(), body_bytes: 5 };
        let take = |bytes: &[u8]| {
            let mut pass = Pass::new(1, false);
            let mut answer = pass.begin();
            pass.take(&mut answer, &request, bytes).unwrap_err().kind()
        };
        assert_eq!(take(b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\n"), Kind::Mismatch);
        assert_eq!(take(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello!"), Kind::Protocol);
        assert_eq!(take(&[b'x'; HEAD_BYTES_MAX + 1]), Kind::Protocol);
    }
}
