//! One request and its response on a connection: the range requested, where its bytes land, and how it ends.
//!
//! Owns the window while the exchange is open. Checks a response head against the request. Every exchange ends in exactly one outcome,
//! which carries its window back. Decides which landed bytes may be kept; never whether to retry, and never touches a socket.

use super::predict::{Asked, HeadPredictor};
use fuelrail_base::canary::{self, Mistake};
use fuelrail_base::{Duration, Error, Instant, Kind, Result, WallTime};
use fuelrail_io::{Filling, Window};
use fuelrail_wire::tls::asks_for_tls;
use fuelrail_wire::{Digest, Etag, Found, Framing, ResponseHead};

/// What a successful response proves about the bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Proof {
    /// The object's ETag as the response gave it.
    pub etag: Option<Etag>,
    /// CRC-32C of the whole object, when the server offers it.
    pub crc32c: Option<u32>,
}

impl Proof {
    /// This proof, with what a later response for the rest of the same bytes adds to it.
    pub(crate) fn with(self, later: Proof) -> Proof {
        Proof { etag: self.etag.or(later.etag), crc32c: self.crc32c.or(later.crc32c) }
    }
}

/// Where a response's body goes.
pub(crate) enum Sink {
    /// Into the window, straight.
    Window,
    /// A refusal: the text is read for its message and dropped.
    Refusal { status: u16, kind: Kind, retry_after_s: Option<u32>, date: Option<WallTime>, text: Vec<u8> },
}

/// An exchange waiting for, or receiving, its response.
pub(crate) struct Exchange {
    pub asked: Asked,
    /// `None` only while a receive holds it.
    pub window: Option<Window>,
    /// The spare memory that the window is carved from, of a second request.
    pub spare: Option<Filling>,
    pub sink: Sink,
    pub proof: Proof,
    /// How another rank found it, as it says.
    pub found: Found,
    /// Running checksum of the range, where one response brings it from its first byte on.
    pub digest: Option<Digest>,
    pub sent_at: Instant,
    pub first_byte_at: Option<Instant>,
    /// Window bytes that had landed before this attempt.
    pub resumed_at: usize,
    /// A second request runs against this one.
    pub hedged: bool,
}

/// Bytes of a refusal's body that are kept for the message.
pub(crate) const REFUSAL_TEXT_BYTES_MAX: usize = 8192;
/// A refusal longer than this closes the connection instead of being read to its end.
pub(crate) const REFUSAL_BYTES_MAX: u64 = 64 << 10;

const PRESENT: &str = "an exchange lacks its window only during a receive, and cannot end then";

impl Exchange {
    pub(crate) fn new(asked: Asked, window: Window, now: Instant) -> Exchange {
        Exchange {
            resumed_at: window.filled(),
            asked,
            window: Some(window),
            spare: None,
            sink: Sink::Window,
            proof: Proof::default(),
            found: Found::default(),
            digest: None,
            sent_at: now,
            first_byte_at: None,
            hedged: false,
        }
    }

    /// The window, between two receives.
    pub(crate) fn window(&self) -> &Window {
        self.window.as_ref().expect(PRESENT)
    }

    /// The window, between two receives.
    pub(crate) fn window_mut(&mut self) -> &mut Window {
        self.window.as_mut().expect(PRESENT)
    }

    /// Gives the window back, and the spare memory it is carved from, between two receives.
    fn into_memory(self) -> (Window, Option<Filling>) {
        (self.window.expect(PRESENT), self.spare)
    }

    /// Clears what landed in this attempt, whose head was not accepted.
    pub(crate) fn forget_landed(&mut self) {
        let resumed_at = self.resumed_at;
        self.window_mut().rewind(resumed_at);
    }

    /// Checks the head. Returns how the body is framed; the window then stands where the body begins.
    pub(crate) fn accept(&mut self, head: &ResponseHead) -> Result<Framing> {
        self.proof = Proof { etag: head.etag, crc32c: head.crc32c.filter(|_| self.asked.whole) };
        (self.found, self.digest) = (head.found, None);
        let framing = match head.status {
            200 => self.accept_whole(head),
            206 => self.accept_part(head),
            status => {
                let (kind, text) = (head.failure().unwrap_or(Kind::Protocol), Vec::new());
                let ResponseHead { retry_after_s, date, .. } = *head;
                self.sink = Sink::Refusal { status, kind, retry_after_s, date, text };
                return match head.framing {
                    Framing::Length(n) if n > REFUSAL_BYTES_MAX => Err(self.refusal()),
                    framing => Ok(framing),
                };
            }
        };
        if self.asked.rank.is_some() {
            // Other ranks send the checksum of the bytes asked for, always.
            let missing = || Error::new(Kind::Protocol, "another rank sent a block without its checksum");
            self.digest = Some(Digest::Crc32c(head.crc32c.ok_or_else(missing)?));
        }
        framing
    }

    fn accept_whole(&mut self, head: &ResponseHead) -> Result<Framing> {
        self.check_etag(head)?;
        let asked = self.asked;
        if asked.ranged() {
            // The server ignores Range. That still serves a fetch which wants the whole object after all.
            let window = self.window_mut();
            if window.len() as u64 != asked.object_len {
                return Err(Error::new(
                    Kind::Mismatch,
                    "the server ignored the Range header and sent the whole object",
                )
                .with_hint("this server cannot serve parts: raise block_bytes above the largest object"));
            }
            window.rewind(0);
            self.resumed_at = 0;
        }
        self.digest = head.digest;
        self.check_length(head, asked.object_len)
    }

    fn accept_part(&mut self, head: &ResponseHead) -> Result<Framing> {
        self.check_etag(head)?;
        let Asked { first, len, object_len, .. } = self.asked;
        let range = head.content_range.ok_or_else(|| {
            Error::new(Kind::Protocol, "a 206 response without Content-Range")
                .with_hint("the server or a proxy is broken")
        })?;
        range.check(first, first + len - 1, object_len)?;
        self.check_length(head, len)
    }

    fn check_etag(&self, head: &ResponseHead) -> Result<()> {
        match (self.asked.etag, head.etag) {
            (Some(listed), Some(got)) if listed != got => {
                Err(Error::new(Kind::Changed, "its ETag is not the listed one").with_hint(
                    "the object changed after it was listed: start a new run, or keep the data set immutable",
                ))
            }
            _ => Ok(()),
        }
    }

    fn check_length(&self, head: &ResponseHead, wanted: u64) -> Result<Framing> {
        match head.content_length {
            Some(got) if got != wanted => Err(Error::new(
                Kind::Mismatch,
                format!("the server announces {got} bytes where the listing promises {wanted}"),
            )
            .with_hint("the object changed after it was listed, or the server reports wrong lengths")),
            _ => Ok(head.framing),
        }
    }

    /// Verifies the checksum of a complete body.
    fn check_digest(&self) -> Result<()> {
        let window = self.window();
        match self.digest {
            Some(digest) if self.resumed_at == 0 && !digest.holds(window.bytes()) => Err(Error::new(
                Kind::Mismatch,
                format!("checksum mismatch: the bytes differ from the {} the server sent", digest.name()),
            )
            .with_hint("the bytes were corrupted on the server or in transit")),
            _ => Ok(()),
        }
    }

    /// The error of a body that is over before its last byte: where in the object that is.
    pub(super) fn cut_short(&self) -> Error {
        let Asked { first, len, object_len, .. } = self.asked;
        let at = first + len - self.window().room() as u64;
        Error::new(Kind::Truncated, format!("the body ended at byte {at} of {object_len}"))
    }

    /// The error of a complete refusal.
    pub(crate) fn refusal(&self) -> Error {
        let Sink::Refusal { status, kind, text, .. } = &self.sink else {
            unreachable!("only a refusal is turned into an error")
        };
        if *status == 400 && asks_for_tls(text) {
            return Error::new(Kind::Protocol, "the server asks for TLS on this port")
                .with_hint("write https:// in the URI");
        }
        if *status == 407 {
            return fuelrail_wire::proxy::authentication_required();
        }
        let cure = match kind {
            Kind::NotFound => "it was deleted after it was listed, or bucket and prefix are wrong",
            Kind::Denied => {
                "check the bucket's permissions; http:// and https:// URIs are unsigned unless anonymous = false"
            }
            Kind::Changed => "the object changed after it was listed: start a new run",
            Kind::Mismatch => "the object is shorter than it was listed",
            Kind::Throttled => {
                "the server asks to slow down: where several processes of a machine read it, a common share_dir helps"
            }
            Kind::Server => "see the server's logs",
            _ if (300..400).contains(status) => {
                "the bucket is in another region or at another endpoint: set region or endpoint"
            }
            _ => "check the URI: the server may not be an object store",
        };
        let code = fuelrail_wire::parse_error(text).map(|(code, _)| code);
        let (kind, cure) =
            code.as_deref().and_then(|code| fuelrail_wire::sign::refusal(*status, code)).unwrap_or((*kind, cure));
        let said = code.map_or(String::new(), |code| format!(" ({code})"));
        Error::new(kind, format!("the server answered {status}{said}")).with_hint(cure)
    }
}

/// What an exchange was, and how it ended.
#[derive(Debug)]
pub(crate) struct Outcome {
    pub asked: Asked,
    pub window: Window,
    /// What the window is carved from, of a second request.
    pub spare: Option<Filling>,
    /// How another rank found it, as it says.
    pub found: Found,
    pub end: End,
}

#[derive(Debug)]
pub(crate) enum End {
    /// All bytes are in the window.
    Landed { proof: Proof, first_byte: Duration, total: Duration },
    /// This attempt failed; what landed before the fault stays in the window when it can be trusted.
    Failed { proof: Proof, new_bytes: usize, fault: Fault },
    /// The connection closed before this request's turn; `displaced` when that was our doing, for the one before it.
    Unserved { displaced: bool },
}

/// What an exchange failed from.
#[derive(Debug)]
pub(crate) struct Fault {
    pub error: Error,
    /// The pause that the server requested.
    pub retry_after: Option<Duration>,
    /// The date of a refusal.
    pub server_time: Option<WallTime>,
    /// The server had closed a connection that was idle for long: it says nothing about the object.
    pub idled_out: bool,
}

impl Fault {
    /// For a reason that no server gave.
    pub(crate) fn new(error: Error) -> Fault {
        Fault { error, retry_after: None, server_time: None, idled_out: false }
    }
}

impl Outcome {
    pub(crate) fn new(exchange: Exchange, end: End) -> Outcome {
        let Exchange { asked, found, .. } = exchange;
        let (window, spare) = exchange.into_memory();
        Outcome { asked, window, spare, found, end }
    }

    /// All bytes of an exchange are in its window, and prove this.
    pub(crate) fn landed(exchange: Exchange, proof: Proof, now: Instant) -> Outcome {
        let first_byte = exchange.first_byte_at.unwrap_or(now).since(exchange.sent_at);
        let total = now.since(exchange.sent_at);
        Outcome::new(exchange, End::Landed { proof, first_byte, total })
    }

    pub(crate) fn failed(exchange: Exchange, fault: Fault) -> Outcome {
        let new_bytes = exchange.window().filled().saturating_sub(exchange.resumed_at);
        let proof = exchange.proof;
        Outcome::new(exchange, End::Failed { proof, new_bytes, fault })
    }

    /// The same end; where it failed, for what another failed from, if that did.
    pub(crate) fn because_of(mut self, other: End) -> Outcome {
        if let (End::Failed { fault, .. }, End::Failed { fault: other, .. }) = (&mut self.end, other) {
            *fault = other;
        }
        self
    }

    /// Why it failed, if the server or the way there is to blame.
    pub(crate) fn failure(&self) -> Option<Kind> {
        match &self.end {
            End::Failed { fault, .. } if !fault.idled_out => Some(fault.error.kind()).filter(|k| *k != Kind::Cancelled),
            _ => None,
        }
    }
}

/// What a connection borrows from its shard while it handles an event.
pub(crate) struct Context<'a> {
    pub now: Instant,
    pub predictor: &'a mut HeadPredictor,
    pub outcomes: &'a mut Vec<Outcome>,
    pub copied_bytes: &'a mut u64,
}

/// The response has ended as its framing says.
pub(super) fn finish(mut exchange: Exchange, cx: &mut Context) {
    let error = match &exchange.sink {
        Sink::Refusal { .. } => exchange.refusal(),
        Sink::Window => {
            if canary::on(Mistake::FetchTakesShort) {
                let window = exchange.window_mut();
                window.fill(window.room());
            }
            if exchange.window().room() > 0 {
                exchange.cut_short()
            } else {
                return land(exchange, cx);
            }
        }
    };
    fail(exchange, error, false, cx);
}

/// The response ended in a fault.
pub(super) fn fail(mut exchange: Exchange, error: Error, idled_out: bool, cx: &mut Context) {
    let window = exchange.window_mut();
    if matches!(error.kind(), Kind::Mismatch | Kind::Changed | Kind::Protocol) {
        window.rewind(0);
    }
    if window.room() == 0 {
        // All payload came before the fault: only the end of its framing is lost, and nothing is left to request.
        return land(exchange, cx);
    }
    let (retry_after_s, server_time) = match exchange.sink {
        Sink::Refusal { retry_after_s, date, .. } => (retry_after_s, date),
        Sink::Window => (None, None),
    };
    let retry_after = retry_after_s.map(|s| Duration::from_secs(u64::from(s)));
    cx.outcomes.push(Outcome::failed(exchange, Fault { error, retry_after, server_time, idled_out }));
}

/// The connection closes before this exchange's response was looked at: nothing that landed for it is known to be good.
pub(super) fn unserved(mut exchange: Exchange, displaced: bool, cx: &mut Context) {
    exchange.forget_landed();
    cx.outcomes.push(Outcome::new(exchange, End::Unserved { displaced }));
}

/// Every byte has come. It counts, unless the server's checksum says otherwise.
fn land(exchange: Exchange, cx: &mut Context) {
    match exchange.check_digest() {
        Ok(()) => {
            let proof = exchange.proof;
            cx.outcomes.push(Outcome::landed(exchange, proof, cx.now));
        }
        Err(damaged) => fail(exchange, damaged, false, cx),
    }
}
