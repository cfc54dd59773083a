//! Response heads, through `httparse`: from bytes to the few facts the engine acts on.
//!
//! Owns the decision how a body is framed. Never keeps a reference into the buffer and never allocates on success.

use crate::digest::Digest;
use crate::escape::{protocol, shown};
use crate::etag::Etag;
use crate::framing::Framing;
use crate::range::{ContentRange, decimal};
use crate::{base64, date};
use core::mem::MaybeUninit;
use fuelrail_base::limits::{RESPONSE_HEAD_BYTES_MAX, RESPONSE_HEADERS_MAX};
use fuelrail_base::{Error, Kind, Result, WallTime};

/// What a response's head says, as far as it matters here.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ResponseHead {
    /// Status code, 200 to 599.
    pub status: u16,
    /// How the body that follows is delimited. [`Framing::None`] for 204 and 304.
    pub framing: Framing,
    /// The Content-Length line, bytes. For 304: of the body that it stands for.
    pub content_length: Option<u64>,
    /// Which bytes of the object the body carries. Only with status 206.
    pub content_range: Option<ContentRange>,
    /// The object's entity tag.
    pub etag: Option<Etag>,
    /// CRC-32C of the whole object. Absent when S3 only keeps a checksum of the checksums of its parts.
    pub crc32c: Option<u32>,
    /// Another checksum of the whole body, where there is no CRC-32C. Only with status 200.
    pub digest: Option<Digest>,
    /// Whether the connection may carry another response after this one.
    pub keep_alive: bool,
    /// How long the server asks to wait before the next try, seconds. A date is ignored: there is no clock here.
    pub retry_after_s: Option<u32>,
    /// When a refusal (400 and above) was written, by the server's clock.
    pub date: Option<WallTime>,
    /// How another rank found it, by its `Server-Timing` line.
    pub found: Found,
}

/// How another rank found a block; by default, it had it at once.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Found {
    /// In how long, microseconds.
    pub took_us: u32,
    /// It had it from the bucket for this response alone, and does not keep it.
    pub passed: bool,
    /// The entity tag of the object that the block is a part of, where the bucket sent one.
    pub tag: Option<Etag>,
}

impl ResponseHead {
    /// What the header lines of a response to GET say that another parser has taken apart.
    ///
    /// # Errors
    /// As [`parse_head`], for what the lines say.
    pub fn of<'a>(status: u16, headers: impl IntoIterator<Item = (&'a str, &'a [u8])>) -> Result<ResponseHead> {
        let mut lines = Lines::default();
        headers.into_iter().try_for_each(|(name, value)| lines.take(status, name, value))?;
        lines.into_head(status, 1)
    }

    /// What kind of failure the status is, or `None` when it brings the object (200, 206).
    pub fn failure(&self) -> Option<Kind> {
        match self.status {
            200 | 206 => None,
            401 | 403 | 407 => Some(Kind::Denied),
            404 | 410 => Some(Kind::NotFound),
            408 => Some(Kind::Server),
            412 => Some(Kind::Changed),
            416 => Some(Kind::Mismatch),
            429 | 503 => Some(Kind::Throttled),
            300..=499 => Some(Kind::Usage),
            500..=599 => Some(Kind::Server),
            _ => Some(Kind::Protocol),
        }
    }
}

/// How far the bytes at hand go.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[expect(clippy::large_enum_variant, reason = "it is taken apart where it arrives")]
pub enum Parsed {
    /// The head has not ended yet: read more and parse again from the start.
    Partial,
    /// An interim response (1xx) of `len` bytes: skip it, the real head follows.
    Interim {
        /// Bytes to skip.
        len: usize,
    },
    /// A whole head of `len` bytes. What follows is body, or the next head.
    Complete {
        /// What the head says.
        head: ResponseHead,
        /// Bytes of the head, blank line included.
        len: usize,
    },
}

/// Parses the response head at the start of `buf`, the answer to a GET.
///
/// # Errors
/// [`Kind::Protocol`] when the bytes are no HTTP/1 head, exceed `RESPONSE_HEAD_BYTES_MAX` or `RESPONSE_HEADERS_MAX`,
/// frame the body in two ways at once, contradict themselves, or announce a body in a content coding.
pub fn parse_head(buf: &[u8]) -> Result<Parsed> {
    let mut lines = [const { MaybeUninit::uninit() }; RESPONSE_HEADERS_MAX];
    let mut response = httparse::Response::new(&mut []);
    let outcome = httparse::ParserConfig::default().parse_response_with_uninit_headers(&mut response, buf, &mut lines);
    let len = match outcome.map_err(|error| garbage(error, buf))? {
        httparse::Status::Complete(len) if len <= RESPONSE_HEAD_BYTES_MAX => len,
        httparse::Status::Partial if buf.len() < RESPONSE_HEAD_BYTES_MAX => return Ok(Parsed::Partial),
        _ => return Err(protocol(format!("the response header is longer than {RESPONSE_HEAD_BYTES_MAX} bytes"))),
    };
    let (Some(status), Some(version)) = (response.code, response.version) else {
        return Err(protocol("the response has no status line"));
    };
    match status {
        101 => return Err(protocol("unexpected status 101 (Switching Protocols)")),
        100..=199 => return Ok(Parsed::Interim { len }),
        200..=599 => {}
        _ => return Err(protocol(format!("no such HTTP status: {status}"))),
    }
    let mut lines = Lines::default();
    for header in response.headers.iter() {
        lines.take(status, header.name, header.value)?;
    }
    Ok(Parsed::Complete { head: lines.into_head(status, version)?, len })
}

/// What the header lines seen so far say.
#[derive(Default)]
struct Lines {
    head: ResponseHead,
    chunked: bool,
    composite: bool,
    close: bool,
    keep_alive: bool,
}

impl Lines {
    fn take(&mut self, status: u16, name: &str, value: &[u8]) -> Result<()> {
        let is = |known: &str| name.eq_ignore_ascii_case(known);
        if is("content-length") {
            let length = decimal(value).ok_or_else(|| unreadable("Content-Length", value))?;
            once(&mut self.head.content_length, length, "Content-Length")?;
        } else if is("etag") {
            once(&mut self.head.etag, Etag::of_bytes(value), "ETag")?;
        } else if is("content-range") && status == 206 {
            once(&mut self.head.content_range, ContentRange::parse(value)?, "Content-Range")?;
        } else if is("connection") {
            for token in tokens(value) {
                self.close |= token.eq_ignore_ascii_case(b"close");
                self.keep_alive |= token.eq_ignore_ascii_case(b"keep-alive");
            }
        } else if is("transfer-encoding") {
            if self.chunked || !value.eq_ignore_ascii_case(b"chunked") {
                return Err(protocol(format!("unknown Transfer-Encoding '{}'", shown(value, 64)))
                    .with_hint("only a single 'chunked' is supported"));
            }
            self.chunked = true;
        } else if (is("content-encoding") || is(STORED_CODING)) && (200..300).contains(&status) {
            refuse_coding(value)?;
        } else if is("x-amz-checksum-crc32c") {
            // "…-7" is a checksum over the checksums of seven parts: it says nothing about the bytes as a whole.
            if !value.contains(&b'-') {
                let crc = checksum(value).ok_or_else(|| unreadable("x-amz-checksum-crc32c", value))?;
                once(&mut self.head.crc32c, crc, "x-amz-checksum-crc32c")?;
            }
        } else if is("x-goog-hash") && status == 200 {
            // One line or several; the MD5 beside it is ignored: it would cost another pass over the body.
            for crc in tokens(value).filter_map(|token| token.strip_prefix(b"crc32c=")) {
                let crc = checksum(crc).ok_or_else(|| unreadable("x-goog-hash", value))?;
                once(&mut self.head.crc32c, crc, "x-goog-hash")?;
            }
        } else if status == 200
            && let Some(digest) = Digest::parse(name, value)
        {
            // "…-7" is one over those of seven parts, as above.
            if !value.contains(&b'-') {
                let digest = digest.map_err(|()| unreadable(name, value))?;
                let cheaper = self.head.digest.is_none_or(|known| digest.rank() < known.rank());
                self.head.digest = if cheaper { Some(digest) } else { self.head.digest };
            }
        } else if is("x-amz-checksum-type") {
            self.composite |= value.eq_ignore_ascii_case(b"composite");
        } else if is("retry-after") {
            self.head.retry_after_s = decimal(value).map(|seconds| u32::try_from(seconds).unwrap_or(u32::MAX));
        } else if is("date") && status >= 400 {
            self.head.date = date::parse_http(value);
        } else if is("server-timing") {
            self.head.found = found(value).unwrap_or_default();
        }
        Ok(())
    }

    fn into_head(self, status: u16, version: u8) -> Result<ResponseHead> {
        let framing = self.framing(status, version)?;
        let Lines { head, composite, close, keep_alive, .. } = self;
        if let (Some(range), Some(length)) = (head.content_range, head.content_length)
            && range.span_bytes() != length
        {
            let (first, last) = (range.first, range.last);
            return Err(protocol(format!("Content-Length {length} contradicts Content-Range {first}-{last}")));
        }
        let is_whole = |digest: &Digest| head.crc32c.is_none() && (!composite || matches!(digest, Digest::Md5(_)));
        Ok(ResponseHead {
            status,
            framing,
            crc32c: head.crc32c.filter(|_| !composite),
            digest: head.digest.filter(is_whole),
            keep_alive: (keep_alive || version > 0) && !close && framing != Framing::UntilClose,
            ..head
        })
    }

    /// RFC 9112, section 6.3, without its leniences: what frames a body twice is how responses are smuggled.
    fn framing(&self, status: u16, version: u8) -> Result<Framing> {
        if self.chunked && self.head.content_length.is_some() {
            return Err(protocol("the response has both Content-Length and Transfer-Encoding"));
        }
        if self.chunked && version == 0 {
            return Err(protocol("Transfer-Encoding in an HTTP/1.0 response"));
        }
        if status == 204 || status == 304 {
            return Ok(Framing::None);
        }
        Ok(match self.head.content_length {
            _ if self.chunked => Framing::Chunked,
            Some(length) => Framing::Length(length),
            None => Framing::UntilClose,
        })
    }
}

/// The coding that Google stores an object in. It decompresses it for those who take none, and says so in this line alone.
const STORED_CODING: &str = "x-goog-stored-content-encoding";

/// Refuses a body of which such a line says that it is not the object's own bytes.
///
/// # Errors
/// [`Kind::Protocol`] naming the coding.
pub fn refuse_coding(value: &[u8]) -> Result<()> {
    match tokens(value).find(|token| !token.eq_ignore_ascii_case(b"identity")) {
        Some(coding) => Err(protocol(format!("it is stored or sent with Content-Encoding '{}'", shown(coding, 64)))
            .with_hint("serve the object's bytes unchanged: remove its Content-Encoding and turn off compression")),
        None => Ok(()),
    }
}

fn unreadable(name: &str, value: &[u8]) -> Error {
    protocol(format!("unreadable {name} '{}'", shown(value, 64)))
}

/// Fills `slot`, which a head may do twice only with the same value.
fn once<T: PartialEq>(slot: &mut Option<T>, value: T, name: &str) -> Result<()> {
    if slot.as_ref().is_some_and(|before| *before != value) {
        return Err(protocol(format!("two different {name} lines in one head")));
    }
    *slot = Some(value);
    Ok(())
}

/// What a line such as `found;dur=23.4;desc=held` tells, in milliseconds. After it may be `;tag=` and an [`Etag`] as it is printed.
fn found(value: &[u8]) -> Option<Found> {
    let text = core::str::from_utf8(value.strip_prefix(b"found;dur=")?).ok()?;
    let (text, tag) = match text.split_once(";tag=") {
        // All zeros where none is known.
        Some((text, digits)) => (text, Some(Etag::of_hash(digits)?).filter(|tag| tag.to_bytes() != [0; 16])),
        None => (text, None),
    };
    let (dur, how) = text.split_once(";desc=").unwrap_or((text, ""));
    let ms = dur.parse::<f64>().ok().filter(|ms| *ms >= 0.0)?;
    // Saturates.
    Some(Found { took_us: (ms * 1e3) as u32, passed: how == "pass", tag })
}

/// The members of a comma-separated header value, trimmed, without empty ones.
fn tokens(value: &[u8]) -> impl Iterator<Item = &[u8]> {
    value.split(|byte| *byte == b',').map(<[u8]>::trim_ascii).filter(|token| !token.is_empty())
}

/// Four bytes, big-endian, in padded base64: `yZRlqg==`.
fn checksum(text: &[u8]) -> Option<u32> {
    base64::decode_array(text).map(u32::from_be_bytes)
}

fn garbage(error: httparse::Error, buf: &[u8]) -> Error {
    if error == httparse::Error::TooManyHeaders {
        return protocol(format!("the response header has more than {RESPONSE_HEADERS_MAX} lines"));
    }
    let cure = match buf {
        // A TLS record: alert or handshake, version 3.x.
        [0x15 | 0x16, 3, ..] => "the port speaks TLS: write https:// in the URI, or name the server's plain HTTP port",
        _ => "check that host and port are those of an HTTP server",
    };
    protocol(format!("not an HTTP/1 response ({error}): '{}'", shown(buf, 32))).with_hint(cure)
}
