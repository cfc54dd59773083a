//! The format of listings that are kept on disk: whole ones, and the journals of those under way.
//!
//! A file begins with a header of [`HEADER_BYTES`]. What follows in a whole listing is `flow`'s, which uses it where it lies. In a journal it is
//! frames: one answer of the server each, in the order they came. A frame is a length, a checksum and a payload; its checksum goes on from the
//! one before it, the first from the header's, so that a frame that is torn, left out or another file's is seen. A
//! key is written as what it shares with the one before it and the rest. All numbers are little-endian.
//!
//! Owns nothing: bytes in, meaning out.

use crate::etag::is_sound;
use crate::list::{Entry, ListPage, PageStart};
pub use crate::sealed::Flaw;
use crate::sealed::{SEALED_BYTES, bytes_at, checked_header, header, hex_number, named, sealed, u32_at, u64_at};
use crate::uri::Source;
use core::fmt::{self, Write as _};
use fuelrail_base::limits::{DOCUMENT_BYTES_MAX, KEY_BYTES_MAX, OBJECT_BYTES_MAX};
use std::io::{ErrorKind, Read};

/// Bytes of the header.
pub const HEADER_BYTES: usize = SEALED_BYTES;
/// Bytes before a payload.
pub const FRAME_HEAD_BYTES: usize = 8;
const VERSION: u32 = 2;
const MAGIC: &[u8; 16] = b"fuelrail listing";
const WHOLE: u32 = 1;
const JOURNAL: u32 = 2;
const NO_TAG: u8 = 0;
/// An MD5 in quotes, as nearly all are.
const DIGEST: u8 = 1;
const TEXT: u8 = 2;

/// Names a data set: 16 bytes of a SHA-256 over server, bucket and prefixes.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct SourceId(pub [u8; 16]);

impl SourceId {
    /// The id of the data set that a URI means, from a `verified` server or an unverified one. How the URI was written does not count.
    pub fn of(source: &Source, verified: bool) -> SourceId {
        let endpoint = &source.endpoint;
        let authority = endpoint.authority();
        let scheme = if verified { endpoint.scheme.word() } else { "unverified" };
        let fields = [scheme, endpoint.dialect.word(), &authority, &endpoint.base, &endpoint.bucket];
        SourceId(named(fields.into_iter().chain(source.prefixes.iter().map(String::as_str)), &[]))
    }
}

/// What a file holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Holds {
    /// So many objects: all there were.
    Whole(u64),
    /// What came of a listing under way.
    Journal,
}

/// What a file says of itself.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Header {
    /// What it holds.
    pub holds: Holds,
    /// Of which data set.
    pub source: SourceId,
    /// When its first page was asked for, s since 1970.
    pub begun_s: u64,
}

impl Header {
    /// Its bytes.
    pub fn encode(&self) -> [u8; HEADER_BYTES] {
        let (word, objects) = match self.holds {
            Holds::Whole(objects) => (WHOLE, objects),
            Holds::Journal => (JOURNAL, 0),
        };
        let mut bytes = header(MAGIC, VERSION);
        bytes[20..24].copy_from_slice(&word.to_le_bytes());
        bytes[24..40].copy_from_slice(&self.source.0);
        bytes[40..48].copy_from_slice(&self.begun_s.to_le_bytes());
        bytes[48..56].copy_from_slice(&objects.to_le_bytes());
        sealed(bytes)
    }

    /// Reads a header; what follows it is not looked at.
    ///
    /// # Errors
    /// Why it is none.
    pub fn decode(bytes: &[u8]) -> Result<Header, Flaw> {
        let bytes = checked_header(bytes, MAGIC, VERSION)?;
        let holds = match (u32_at(bytes, 20), u64_at(bytes, 48), u32_at(bytes, 56)) {
            (WHOLE, objects, 0) => Holds::Whole(objects),
            (JOURNAL, 0, 0) => Holds::Journal,
            _ => return Err(Flaw::Absurd),
        };
        Ok(Header { holds, source: SourceId(bytes_at(bytes, 24)), begun_s: u64_at(bytes, 40) })
    }
}

/// Which of a listing's files a name is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NameKind {
    /// The whole listing.
    Whole,
    /// The same, being written.
    New,
    /// The journal of one under way.
    Journal,
}

/// The name of a kept listing's file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Name {
    /// Which data set's.
    pub source: SourceId,
    /// Which of its files.
    pub kind: NameKind,
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ending = match self.kind {
            NameKind::Whole => "listing",
            NameKind::New => "listing-new",
            NameKind::Journal => "journal",
        };
        write!(f, "fuelrail-{:032x}.{ending}", u128::from_be_bytes(self.source.0))
    }
}

/// Where a file stands between two frames.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Frames {
    sum: u32,
}

impl Frames {
    /// After this header.
    pub fn behind(header: &[u8; HEADER_BYTES]) -> Frames {
        Frames { sum: u32_at(header, HEADER_BYTES - 4) }
    }

    /// Reads the next frame of this file from `from` into `payload`, which takes no more memory than there are bytes, whatever the
    /// frame says. After an error it stands where it stood.
    ///
    /// # Errors
    /// `Short` when the frame is not all there, `Absurd` for a length that no page of a listing has, `Damaged` when it is not the next
    /// one of this file, or cannot be read: a disk that refuses is no better than a file that is damaged.
    pub fn read(&mut self, from: &mut impl Read, payload: &mut Vec<u8>) -> Result<(), Flaw> {
        let flaw = |error: std::io::Error| match error.kind() {
            ErrorKind::UnexpectedEof => Flaw::Short,
            _ => Flaw::Damaged,
        };
        let mut head = [0; FRAME_HEAD_BYTES];
        from.read_exact(&mut head).map_err(flaw)?;
        let len = u32_at(&head, 0) as usize;
        if len > DOCUMENT_BYTES_MAX {
            return Err(Flaw::Absurd);
        }
        payload.clear();
        if from.take(len as u64).read_to_end(payload).map_err(flaw)? < len {
            return Err(Flaw::Short);
        }
        let sum = self.after(payload);
        if sum != u32_at(&head, 4) {
            return Err(Flaw::Damaged);
        }
        self.sum = sum;
        Ok(())
    }

    /// Appends a frame whose payload is what `write` appends.
    pub fn push(&mut self, out: &mut Vec<u8>, write: impl FnOnce(&mut Vec<u8>)) {
        let at = out.len();
        out.extend_from_slice(&[0; FRAME_HEAD_BYTES]);
        write(out);
        let payload = at + FRAME_HEAD_BYTES;
        self.sum = self.after(&out[payload..]);
        let len = u32::try_from(out.len() - payload).expect("a page of a listing is shorter");
        out[at..at + 4].copy_from_slice(&len.to_le_bytes());
        out[at + 4..payload].copy_from_slice(&self.sum.to_le_bytes());
    }

    fn after(self, payload: &[u8]) -> u32 {
        let len = (payload.len() as u32).to_le_bytes();
        crc32c::crc32c_append(crc32c::crc32c_append(self.sum, &len), payload)
    }
}

/// One object.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Object<'a> {
    /// Its whole key.
    pub key: &'a str,
    /// Its length, bytes.
    pub size: u64,
    /// Its entity tag as it was listed.
    pub etag: Option<&'a str>,
}

/// Writes objects of one frame.
#[derive(Debug, Default)]
pub struct Packer {
    before: String,
}

impl Packer {
    /// Appends one.
    pub fn push(&mut self, out: &mut Vec<u8>, object: Object<'_>) {
        let Object { key, size, etag } = object;
        let same = key.char_indices().zip(self.before.chars()).find(|((_, a), b)| a != b).map(|((at, _), _)| at);
        let same = same.unwrap_or(key.len().min(self.before.len()));
        push_number(out, same as u64);
        push_text(out, &key[same..]);
        push_number(out, size);
        match etag {
            None => out.push(NO_TAG),
            Some(text) => match digest(text) {
                Some(digest) => {
                    out.push(DIGEST);
                    out.extend_from_slice(&digest);
                }
                None => {
                    out.push(TEXT);
                    push_text(out, text);
                }
            },
        }
        self.before.truncate(same);
        self.before.push_str(&key[same..]);
    }
}

/// Reads objects of one frame.
#[derive(Debug)]
pub struct Unpacker<'a> {
    rest: &'a [u8],
    key: String,
    tag: String,
}

impl<'a> Unpacker<'a> {
    /// Of these bytes, to their end.
    pub fn new(bytes: &'a [u8]) -> Unpacker<'a> {
        Unpacker { rest: bytes, key: String::new(), tag: String::new() }
    }

    /// The next one; `None` at the end.
    ///
    /// # Errors
    /// The flaw in the bytes, which are then discarded.
    #[expect(clippy::should_implement_trait, reason = "what it returns borrows from it")]
    pub fn next(&mut self) -> Result<Option<Object<'_>>, Flaw> {
        if self.rest.is_empty() {
            return Ok(None);
        }
        let same = usize::try_from(take_number(&mut self.rest)?).map_err(|_| Flaw::Absurd)?;
        let behind = take_text(&mut self.rest)?;
        if same > self.key.len() || !self.key.is_char_boundary(same) {
            return Err(Flaw::Absurd);
        }
        self.key.truncate(same);
        self.key.push_str(behind);
        let size = take_number(&mut self.rest)?;
        if self.key.is_empty() || self.key.len() > KEY_BYTES_MAX || size > OBJECT_BYTES_MAX {
            return Err(Flaw::Absurd);
        }
        let etag = match take(&mut self.rest, 1)?[0] {
            NO_TAG => None,
            DIGEST => {
                let digest = u128::from_be_bytes(bytes_at(take(&mut self.rest, 16)?, 0));
                self.tag.clear();
                let _ = write!(self.tag, "\"{digest:032x}\""); // writing to memory cannot fail
                Some(self.tag.as_str())
            }
            TEXT => Some(
                take_text(&mut self.rest).and_then(|text| if is_sound(text) { Ok(text) } else { Err(Flaw::Absurd) })?,
            ),
            _ => return Err(Flaw::Absurd),
        };
        Ok(Some(Object { key: &self.key, size, etag }))
    }
}

/// The bytes of 32 lower-case hexadecimal digits in quotes.
fn digest(text: &str) -> Option<[u8; 16]> {
    let digits = text.strip_prefix('"')?.strip_suffix('"')?;
    hex_number(digits).map(u128::to_be_bytes)
}

/// A page that came.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Answer {
    /// The stretch of keys it was asked for.
    pub stretch: u32,
    /// What was asked: see [`asked`].
    pub asked: u32,
    /// What came.
    pub page: ListPage,
}

/// A checksum over the request of a page, so that no page passes for another.
pub fn asked(prefix: &str, start: PageStart<'_>) -> u32 {
    let mut text = Vec::new();
    for part in [Some(prefix), start.after, start.token] {
        text.push(u8::from(part.is_some()));
        push_text(&mut text, part.unwrap_or_default());
    }
    crc32c::crc32c(&text)
}

impl Answer {
    /// Appends the payload of a frame.
    pub fn write(out: &mut Vec<u8>, (stretch, asked): (u32, u32), page: &ListPage) {
        push_number(out, stretch.into());
        out.extend_from_slice(&asked.to_le_bytes());
        out.push(u8::from(page.next.is_some()));
        push_text(out, page.next.as_deref().unwrap_or_default());
        let mut packer = Packer::default();
        for Entry { key, size, etag } in &page.entries {
            packer.push(out, Object { key, size: *size, etag: etag.as_deref() });
        }
    }

    /// Reads the payload of a frame.
    ///
    /// # Errors
    /// Why it is none.
    pub fn decode(mut bytes: &[u8]) -> Result<Answer, Flaw> {
        let bytes = &mut bytes;
        let stretch = u32::try_from(take_number(bytes)?).map_err(|_| Flaw::Absurd)?;
        let asked = u32_at(take(bytes, 4)?, 0);
        let is_truncated = match take(bytes, 1)?[0] {
            0 => false,
            1 => true,
            _ => return Err(Flaw::Absurd),
        };
        let token = take_text(bytes)?;
        if token.is_empty() == is_truncated {
            return Err(Flaw::Absurd);
        }
        let mut page = ListPage { next: is_truncated.then(|| token.to_owned()), ..ListPage::default() };
        let mut objects = Unpacker::new(bytes);
        while let Some(Object { key, size, etag }) = objects.next()? {
            page.entries.push(Entry { key: key.to_owned(), size, etag: etag.map(str::to_owned) });
        }
        Ok(Answer { stretch, asked, page })
    }
}

/// Seven bits a byte, the lowest first.
fn push_number(out: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        out.push(number as u8 | 0x80);
        number >>= 7;
    }
    out.push(number as u8);
}

fn take_number(bytes: &mut &[u8]) -> Result<u64, Flaw> {
    let mut number = 0;
    for shift in (0..64).step_by(7) {
        let byte = take(bytes, 1)?[0];
        let bits = u64::from(byte & 0x7F);
        if bits << shift >> shift != bits {
            return Err(Flaw::Absurd);
        }
        number |= bits << shift;
        if byte < 0x80 {
            return Ok(number);
        }
    }
    Err(Flaw::Absurd)
}

fn take<'a>(bytes: &mut &'a [u8], len: usize) -> Result<&'a [u8], Flaw> {
    let (taken, rest) = bytes.split_at_checked(len).ok_or(Flaw::Short)?;
    *bytes = rest;
    Ok(taken)
}

fn push_text(out: &mut Vec<u8>, text: &str) {
    push_number(out, text.len() as u64);
    out.extend_from_slice(text.as_bytes());
}

fn take_text<'a>(bytes: &mut &'a [u8]) -> Result<&'a str, Flaw> {
    let len = usize::try_from(take_number(bytes)?).map_err(|_| Flaw::Absurd)?;
    core::str::from_utf8(take(bytes, len)?).map_err(|_| Flaw::Absurd)
}
