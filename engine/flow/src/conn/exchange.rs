//! One request and its response on a connection: the range requested, and where its bytes land.
//!
//! Owns the window while the exchange is open. Checks a response head against the request; never touches a socket.

use fuelrail_base::{Error, Instant, Kind, Result, SampleId, WallTime};
use fuelrail_io::{Filling, Window};
use fuelrail_plan::planner::FetchId;
use fuelrail_wire::tls::asks_for_tls;
use fuelrail_wire::{Digest, Etag, Framing, ResponseHead};

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
}

impl Asked {
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
    pub(crate) fn into_memory(self) -> (Window, Option<Filling>) {
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
        self.digest = None;
        match head.status {
            200 => self.accept_whole(head),
            206 => self.accept_part(head),
            status => {
                let (kind, text) = (head.failure().unwrap_or(Kind::Protocol), Vec::new());
                let ResponseHead { retry_after_s, date, .. } = *head;
                self.sink = Sink::Refusal { status, kind, retry_after_s, date, text };
                match head.framing {
                    Framing::Length(n) if n > REFUSAL_BYTES_MAX => Err(self.refusal()),
                    framing => Ok(framing),
                }
            }
        }
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
    pub(crate) fn check_digest(&self) -> Result<()> {
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
