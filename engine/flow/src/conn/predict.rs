//! Guesses how long the next response head is, so that head and body land in one receive: the head in scratch memory,
//! the body straight in its place.
//!
//! A server's heads differ from one response to the next only in the digits of their lengths: decimal ones in
//! Content-Length and Content-Range, hexadecimal ones in the ETags of servers that make them from the size (nginx, Apache).
//! The rest is constant, so one number is learnt for each count of hexadecimal digits of the object's length.
//! Wrong guesses are corrected by copying (see `scatter.rs`), so they cost time, never bytes.

use fuelrail_base::SampleId;
use fuelrail_plan::planner::FetchId;
use fuelrail_plan::schedule::UseTime;
use fuelrail_wire::{Etag, Framing, ResponseHead};

/// The range that a request is for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Asked {
    /// The fetch it belongs to.
    pub fetch: FetchId,
    /// The object.
    pub sample: SampleId,
    /// First byte wanted, in the object.
    pub first: u64,
    /// Bytes wanted.
    pub len: u64,
    /// Length of the object as listed.
    pub object_len: u64,
    /// The sample is all of the object: what the server says of the object holds for it.
    pub whole: bool,
    /// ETag as listed or as first seen.
    pub etag: Option<Etag>,
    /// It is a second request of its fetch, into spare memory.
    pub second: bool,
    /// How another rank is asked, in the bucket's place.
    pub rank: Option<AskedRank>,
}

/// What another rank is told of a block it is asked for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AskedRank {
    /// When the block is used.
    pub at: UseTime,
    /// It is not to fetch the block.
    pub if_held: bool,
}

impl Asked {
    /// A whole object of so many bytes.
    #[cfg(test)]
    pub(crate) fn whole(fetch: FetchId, sample: SampleId, len: u64) -> Asked {
        Asked { fetch, sample, first: 0, len, object_len: len, whole: true, etag: None, second: false, rank: None }
    }

    /// Whether another rank is asked, which may have to fetch the block first, and in turn may wait for this one.
    pub(crate) fn may_be_fetched(&self) -> bool {
        self.rank.is_some_and(|rank| !rank.if_held)
    }

    /// Whether the request carries a Range header: only a whole object goes without.
    pub(crate) fn ranged(&self) -> bool {
        self.len != self.object_len
    }

    /// Whether a response with this head brings exactly the bytes requested, framed by length.
    pub(crate) fn is_answered_in_place(&self, head: &ResponseHead) -> bool {
        head.status == if self.ranged() { 206 } else { 200 }
            && matches!(head.framing, Framing::Length(n) if n == self.len)
    }
}

/// What to receive for a head.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Guess {
    /// The head is this long: the body may follow in the same receive.
    Exact(usize),
    /// Receive this much and look; no body bytes are expected to follow that far.
    Probe(usize),
}

/// Bytes requested when nothing is known: shorter than most heads, so that few body bytes come along.
const FIRST_PROBE_BYTES: usize = 256;
/// With this much doubt, guessing pauses until heads turn out constant again.
const DISTRUST: i32 = 16;

/// The constant part of a kind of head, by the number of hexadecimal digits of the object's length.
type Bases = [Option<usize>; 17];

/// Per shard and origin: the constant parts of the heads of whole and of partial responses.
#[derive(Clone, Debug, Default)]
pub(crate) struct HeadPredictor {
    whole: Bases,
    part: Bases,
    shortest: Option<usize>,
    /// Wrong guesses raise it by two, right ones lower it by one, not below zero.
    doubt: i32,
    pub wrong: u64,
    pub right: u64,
}

fn digits(n: u64) -> usize {
    n.checked_ilog10().unwrap_or(0) as usize + 1
}

fn hex_digits(n: u64) -> usize {
    n.checked_ilog2().unwrap_or(0) as usize / 4 + 1
}

/// The digits of the numbers a head of this exchange spells out.
fn variable_part(asked: &Asked) -> usize {
    if asked.ranged() {
        digits(asked.len) + digits(asked.first) + digits(asked.first + asked.len - 1) + digits(asked.object_len)
    } else {
        digits(asked.len)
    }
}

impl HeadPredictor {
    pub(crate) fn guess(&self, asked: &Asked) -> Guess {
        let bases = if asked.ranged() { &self.part } else { &self.whole };
        match bases[hex_digits(asked.object_len)] {
            Some(base) if self.doubt < DISTRUST => Guess::Exact(base + variable_part(asked)),
            _ => Guess::Probe(self.shortest.unwrap_or(FIRST_PROBE_BYTES)),
        }
    }

    /// Learns from a response head of `len` bytes to `asked`.
    pub(crate) fn learn(&mut self, asked: &Asked, head: &ResponseHead, len: usize) {
        self.shortest = Some(self.shortest.map_or(len, |s| s.min(len)));
        let bases = match head.status {
            200 if !asked.ranged() => &mut self.whole,
            206 if asked.ranged() => &mut self.part,
            _ => return,
        };
        let slot = &mut bases[hex_digits(asked.object_len)];
        let base = len.saturating_sub(variable_part(asked));
        match slot {
            Some(known) if *known == base => {
                self.right += 1;
                self.doubt = (self.doubt - 1).max(0);
            }
            Some(known) => {
                *known = base;
                self.wrong += 1;
                self.doubt += 2;
            }
            None => *slot = Some(base),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use fuelrail_wire::{Parsed, parse_head};

    fn asked(first: u64, len: u64, object_len: u64) -> Asked {
        Asked {
            fetch: FetchId { place: 0, serial: 0 },
            sample: SampleId(0),
            first,
            len,
            object_len,
            whole: true,
            etag: None,
            second: false,
            rank: None,
        }
    }

    fn head(text: &str) -> (ResponseHead, usize) {
        match parse_head(text.as_bytes()).unwrap() {
            Parsed::Complete { head, len } => (head, len),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn digits_of_lengths_are_the_only_difference() {
        let mut p = HeadPredictor::default();
        let small = asked(0, 7, 7);
        assert_eq!(p.guess(&small), Guess::Probe(FIRST_PROBE_BYTES));
        let text = |n: u64| format!("HTTP/1.1 200 OK\r\nServer: x\r\nContent-Length: {n}\r\n\r\n");
        let (h, len) = head(&text(7));
        p.learn(&small, &h, len);
        assert_eq!(p.guess(&asked(0, 12, 12)), Guess::Exact(text(12).len()));
    }

    #[test]
    fn etags_made_from_the_size_are_learnt_per_count_of_hexadecimal_digits() {
        let mut p = HeadPredictor::default();
        let text = |n: u64| format!("HTTP/1.1 200 OK\r\nETag: \"671e1a2b-{n:x}\"\r\nContent-Length: {n}\r\n\r\n");
        for n in [9_000, 70_000] {
            let (h, len) = head(&text(n));
            p.learn(&asked(0, n, n), &h, len);
        }
        for n in [5_000, 65_535, 65_536, 99_999, 100_000, 500_000] {
            assert_eq!(p.guess(&asked(0, n, n)), Guess::Exact(text(n).len()), "{n}");
        }
        assert_eq!(p.wrong, 0);
    }

    #[test]
    fn stops_guessing_when_heads_vary() {
        let mut p = HeadPredictor::default();
        for i in 0..40 {
            let text = format!("HTTP/1.1 200 OK\r\nX-Id: {}\r\nContent-Length: 5\r\n\r\n", "y".repeat(i % 7));
            let (h, len) = head(&text);
            p.learn(&asked(0, 5, 5), &h, len);
        }
        assert!(matches!(p.guess(&asked(0, 5, 5)), Guess::Probe(n) if n < 50), "{p:?}");
        p.doubt = DISTRUST;
        assert!(matches!(p.guess(&asked(0, 5, 5)), Guess::Probe(_)));
        p.doubt = DISTRUST - 1;
        assert!(matches!(p.guess(&asked(0, 5, 5)), Guess::Exact(_)));
    }
}
