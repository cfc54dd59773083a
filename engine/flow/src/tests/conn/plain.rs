//! The reference: what a connection must make of a stream of bytes, read plainly from one buffer.

use crate::conn::Asked;
use fuelrail_base::Kind;
use fuelrail_base::limits::RESPONSE_HEAD_BYTES_MAX;
use fuelrail_wire::{Body, Expect, Framing, Parsed, ResponseHead, parse_head};

/// How the server's stream ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum End {
    Finish,
    Reset,
    /// It says nothing more and keeps the connection.
    Stall,
}

/// What the server does on the one connection it gets.
#[derive(Clone, Debug)]
pub(super) struct Script {
    /// The response to each request; sent when the request has come.
    pub(super) responses: Vec<Vec<u8>>,
    /// Bytes sent after the last response.
    pub(super) extra: Vec<u8>,
    /// The stream ends after so many bytes, or after the last of them.
    pub(super) cut: usize,
    pub(super) end: End,
}

/// How an exchange ended, with what its window holds.
#[derive(Clone, PartialEq, Eq)]
pub(super) enum Ended {
    Landed(Vec<u8>),
    Failed(Kind, Vec<u8>),
    Unserved(Vec<u8>),
}

impl core::fmt::Debug for Ended {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Ended::Landed(bytes) => write!(f, "Landed({} bytes)", bytes.len()),
            Ended::Failed(kind, bytes) => write!(f, "Failed({kind:?}, {} bytes)", bytes.len()),
            Ended::Unserved(bytes) => write!(f, "Unserved({} bytes)", bytes.len()),
        }
    }
}

/// A request, and what its window holds before.
#[derive(Clone, Debug)]
pub(super) struct Case {
    pub(super) asked: Asked,
    pub(super) before: Vec<u8>,
}

impl Case {
    pub(super) fn window_len(&self) -> usize {
        self.before.len() + self.asked.len as usize
    }
}

/// What every exchange must come to.
pub(super) fn expected(cases: &[Case], script: &Script) -> Vec<Ended> {
    let mut stream = script.responses.concat();
    stream.extend_from_slice(&script.extra);
    stream.truncate(script.cut);
    let mut rest: &[u8] = &stream;
    let mut open = true;
    let mut answer = |case: &Case| {
        if !open {
            return Ended::Unserved(case.before.clone());
        }
        let (ended, goes_on) = answer(case, &mut rest, script.end);
        open = goes_on;
        ended
    };
    cases.iter().map(&mut answer).collect()
}

/// Reads one response. The second value tells whether another may follow.
fn answer(case: &Case, rest: &mut &[u8], end: End) -> (Ended, bool) {
    let judged = head(rest, end).and_then(|head| Ok((head, judge(case, &head)?)));
    let (head, verdict) = match judged {
        Ok(judged) => judged,
        Err(kind) => return (failed(kind, case, &case.before, &[]), false),
    };
    let mut payload = Vec::new();
    let fault = body(Body::new(head.framing), &mut payload, rest, end);
    let goes_on = fault.is_none() && head.keep_alive;
    match verdict {
        Judged::Refused(kind) if payload.len() > 64 << 10 => (failed(kind, case, &case.before, &[]), false),
        Judged::Refused(kind) => (failed(fault.unwrap_or(kind), case, &case.before, &[]), goes_on),
        Judged::Wanted { kept } if payload.len() > case.window_len() - kept => {
            (failed(Kind::Mismatch, case, &[], &[]), false)
        }
        // A sum is of the whole body.
        Judged::Wanted { .. }
            if payload.len() == case.window_len() && head.digest.is_some_and(|digest| !digest.holds(&payload)) =>
        {
            (failed(Kind::Mismatch, case, &[], &[]), goes_on)
        }
        Judged::Wanted { kept } => {
            (failed(fault.unwrap_or(Kind::Truncated), case, &case.before[..kept], &payload), goes_on)
        }
    }
}

/// A fault of this kind after `kept` and `payload`; none at all when these are the whole window and can be trusted.
fn failed(kind: Kind, case: &Case, kept: &[u8], payload: &[u8]) -> Ended {
    let bytes = [kept, payload].concat();
    match kind {
        Kind::Mismatch | Kind::Changed | Kind::Protocol => Ended::Failed(kind, Vec::new()),
        _ if bytes.len() == case.window_len() => Ended::Landed(bytes),
        _ => Ended::Failed(kind, bytes),
    }
}

/// Reads interim heads and the final one.
fn head(rest: &mut &[u8], end: End) -> Result<ResponseHead, Kind> {
    let mut interim_bytes = 0;
    loop {
        match parse_head(rest).map_err(|e| e.kind())? {
            Parsed::Complete { head, len } => {
                *rest = &rest[len..];
                return Ok(head);
            }
            Parsed::Interim { len } => {
                *rest = &rest[len..];
                interim_bytes += len;
                if interim_bytes > RESPONSE_HEAD_BYTES_MAX {
                    return Err(Kind::Protocol);
                }
            }
            Parsed::Partial => {
                return Err(match end {
                    End::Finish if rest.is_empty() && interim_bytes == 0 => Kind::Network,
                    End::Finish => Kind::Truncated,
                    End::Reset => Kind::Network,
                    End::Stall => Kind::Stalled,
                });
            }
        }
    }
}

/// Reads a body to its end or to a fault.
fn body(mut body: Body, payload: &mut Vec<u8>, rest: &mut &[u8], end: End) -> Option<Kind> {
    loop {
        match body.expect() {
            Expect::End => return None,
            _ if rest.is_empty() => {
                return match end {
                    End::Finish => body.closed().err().map(|e| e.kind()),
                    End::Reset => Some(Kind::Network),
                    End::Stall => Some(Kind::Stalled),
                };
            }
            Expect::Payload { at_most } => {
                let n = rest.len().min(usize::try_from(at_most).unwrap_or(usize::MAX));
                payload.extend_from_slice(&rest[..n]);
                body.payload(n as u64);
                *rest = &rest[n..];
            }
            Expect::Control { .. } => match body.control(rest) {
                Ok(n) => *rest = &rest[n..],
                Err(error) => return Some(error.kind()),
            },
        }
    }
}

enum Judged {
    /// The body belongs into the window, after its first `kept` bytes.
    Wanted { kept: usize },
    /// The body is the text of a refusal.
    Refused(Kind),
}

fn judge(case: &Case, head: &ResponseHead) -> Result<Judged, Kind> {
    let Case { asked, before } = case;
    let part = asked.len != asked.object_len;
    if !matches!(head.status, 200 | 206) {
        let kind = head.failure().unwrap();
        return match head.framing {
            Framing::Length(n) if n > 64 << 10 => Err(kind),
            _ => Ok(Judged::Refused(kind)),
        };
    }
    if asked.etag.is_some() && head.etag.is_some() && asked.etag != head.etag {
        return Err(Kind::Changed);
    }
    let (wanted, kept) = match (head.status, head.content_range) {
        (200, _) if part && case.window_len() as u64 != asked.object_len => return Err(Kind::Mismatch),
        (200, _) => (asked.object_len, 0),
        (_, None) => return Err(Kind::Protocol),
        (_, Some(range)) => {
            let total = range.total.unwrap_or(asked.object_len);
            if (range.first, range.last, total) != (asked.first, asked.first + asked.len - 1, asked.object_len) {
                return Err(Kind::Mismatch);
            }
            (asked.len, before.len())
        }
    };
    if head.content_length.is_some_and(|n| n != wanted) { Err(Kind::Mismatch) } else { Ok(Judged::Wanted { kept }) }
}
