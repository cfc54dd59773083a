//! Faults of the bucket: drawn by share, applied to one response.

use super::http::{Answer, Says};
use crate::scenario::{BucketShape, FaultShares, RETRY_AFTER_S_MAX};
use fuelrail_base::prng::Prng;

/// What goes wrong with a response.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Fault {
    SlowDown,
    ServerError,
    Reset,
    Finish,
    Stall,
    WrongLength,
    WrongEtag,
    Changed,
    Garbage,
    WrongRange,
    IgnoredRange,
    ExtraBytes,
    Flipped,
    Drip,
}

/// What a fault does beyond the bytes of the response.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Effect {
    /// Nothing the client has to notice.
    None,
    /// Only the first bytes are sent, and then the connection is reset, finished or stalls.
    Cut { at: usize, how: Fault },
    /// A refusal in good order: the attempt fails, the connection lives.
    Refusal,
    /// No client may accept this response, or keep the connection.
    Breaks,
    /// The response is good; what comes after it on this connection need not be.
    Poisons,
    /// It comes in slowly.
    Drip,
}

type Share = fn(&FaultShares) -> f64;

/// Every fault, its name in the bookkeeping and its share.
const FAULTS: [(Fault, &str, Share); 14] = [
    (Fault::SlowDown, "slow_down", |shares| shares.slow_down),
    (Fault::ServerError, "server_error", |shares| shares.server_error),
    (Fault::Reset, "reset", |shares| shares.reset),
    (Fault::Finish, "finish", |shares| shares.finish),
    (Fault::Stall, "stall", |shares| shares.stall),
    (Fault::WrongLength, "wrong_length", |shares| shares.wrong_length),
    (Fault::WrongEtag, "wrong_etag", |shares| shares.wrong_etag),
    (Fault::Changed, "changed", |shares| shares.changed),
    (Fault::Garbage, "garbage", |shares| shares.garbage),
    (Fault::WrongRange, "wrong_range", |shares| shares.wrong_range),
    (Fault::IgnoredRange, "ignored_range", |shares| shares.ignored_range),
    (Fault::ExtraBytes, "extra_bytes", |shares| shares.extra_bytes),
    (Fault::Flipped, "flipped", |shares| shares.flipped),
    (Fault::Drip, "drip", |shares| shares.drip),
];

/// The fault of one response and its name; most have none.
pub(super) fn draw(shares: &FaultShares, prng: &mut Prng) -> Option<(Fault, &'static str)> {
    let mut at = prng.unit();
    FAULTS.into_iter().find_map(|(fault, name, share)| {
        at -= share(shares);
        (at < 0.0).then_some((fault, name))
    })
}

impl Fault {
    pub(super) fn apply(self, answer: &mut Answer, shape: &BucketShape, prng: &mut Prng) -> Effect {
        match self {
            Fault::SlowDown | Fault::ServerError => {
                self.refuse(answer, prng);
                Effect::Refusal
            }
            Fault::Reset | Fault::Finish | Fault::Stall => Effect::Cut { at: cut_at(answer, prng), how: self },
            Fault::Garbage => {
                answer.wire = garbage(prng);
                Effect::Breaks
            }
            Fault::ExtraBytes => {
                if !answer.until_close {
                    answer.wire.extend_from_slice(&b"\0\x01surplus\r\n\r\n"[..1 + prng.below(12) as usize]);
                }
                Effect::Poisons
            }
            Fault::Drip => Effect::Drip,
            Fault::WrongEtag | Fault::Changed | Fault::Flipped => {
                self.reword(answer, prng);
                // Without a listed tag the first response cannot be checked; the assembling shard verifies the checksum.
                if self != Fault::Flipped && shape.etags.0 { Effect::Breaks } else { Effect::None }
            }
            _ => {
                self.reword(answer, prng);
                Effect::Breaks
            }
        }
    }

    fn refuse(self, answer: &mut Answer, prng: &mut Prng) {
        let (flavour, close) = (answer.says.flavour, answer.says.close && !answer.until_close);
        let mut says = Says::refusal(if self == Fault::SlowDown { 503 } else { 500 }, flavour);
        says.close = close;
        if self == Fault::SlowDown && prng.chance(0.3) {
            says.retry_after_s = Some(prng.below(RETRY_AFTER_S_MAX + 1));
        }
        if prng.chance(0.3) {
            (says.chunked, says.length) = (true, None);
        }
        answer.says = says;
        answer.rewrite(prng);
    }

    /// Faults in what the head says.
    fn reword(self, answer: &mut Answer, prng: &mut Prng) {
        let says = &mut answer.says;
        let len = says.payload.len() as u64;
        match self {
            Fault::WrongLength => {
                says.chunked = false;
                let more = len + 1 + prng.below(len + 10);
                says.length = Some(if prng.chance(0.5) { more } else { prng.below(len) });
            }
            Fault::WrongEtag => {
                says.etag = Some(format!("\"other-{}\"", prng.below(1000)));
            }
            Fault::Changed => {
                says.etag = Some(format!("\"newer-{}\"", prng.below(1000)));
                says.crc32c = None;
                says.payload.iter_mut().for_each(|byte| *byte = !*byte);
                if says.range.is_none() && prng.chance(0.5) {
                    says.payload.extend_from_slice(b"longer now");
                    says.length = says.length.map(|_| says.payload.len() as u64);
                }
            }
            Fault::WrongRange => {
                let (first, last, total) = says.range.expect("drawn for ranged requests only");
                says.range = Some(if first > 0 { (first - 1, last - 1, total) } else { (first, last, total + 1) });
            }
            Fault::IgnoredRange => {
                (says.status, says.reason, says.range) = (200, "OK", None);
                says.payload = says.whole.clone();
                says.length = says.length.map(|_| says.payload.len() as u64);
            }
            Fault::Flipped => {
                let bit = prng.below(len * 8);
                says.payload[(bit / 8) as usize] ^= 1 << (bit % 8);
            }
            _ => unreachable!("every other fault is applied elsewhere"),
        }
        answer.rewrite(prng);
    }
}

/// Somewhere in the head, in the body or just before the end; never after the last byte.
fn cut_at(answer: &Answer, prng: &mut Prng) -> usize {
    let (head, total) = (answer.head_len as u64, answer.wire.len() as u64);
    let at = match prng.below(4) {
        0 => 0,
        1 => prng.below(head),
        2 if total > head => head + prng.below(total - head),
        _ => total - 1,
    };
    at as usize
}

fn garbage(prng: &mut Prng) -> Vec<u8> {
    match prng.below(5) {
        0 => (0..64).map(|_| prng.next() as u8 | 0x80).collect(),
        1 => b"SSH-2.0-OpenSSH_9.9\r\n\r\n".to_vec(),
        2 => [b"HTTP/1.1 200 OK\r\nX: ".as_slice(), &[b'y'; 20 << 10], b"\r\n\r\n"].concat(),
        3 => b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nhello".to_vec(),
        _ => b"\x15\x03\x01\x00\x02\x02\x46\r\n\r\n".to_vec(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_kept_and_zero_means_never() {
        let shares = FaultShares { reset: 0.25, drip: 0.5, ..FaultShares::default() };
        let mut prng = Prng::new(3);
        let drawn: Vec<_> = (0..4000).map(|_| draw(&shares, &mut prng).map(|(fault, _)| fault)).collect();
        let count = |what| drawn.iter().filter(|fault| **fault == what).count();
        assert!((900..1100).contains(&count(Some(Fault::Reset))), "{}", count(Some(Fault::Reset)));
        assert!((900..1100).contains(&count(None)));
        assert_eq!(count(Some(Fault::Reset)) + count(Some(Fault::Drip)) + count(None), 4000);
    }
}
