//! The format of listings that are kept on disk: whole ones, and the journals of those under way.
//!
//! A file is a header of [`HEADER_BYTES`] and frames. A frame is a length, a checksum and a payload; its checksum goes on from the
//! one before it, the first from the header's, so that a frame that is torn, left out or another file's is seen. The frames of a whole
//! listing hold objects in the order of their keys, those of a journal one answer of the server each, in the order they came. A
//! key is written as what it shares with the one before it and the rest. All numbers are little-endian.
//!
//! Owns nothing: bytes in, meaning out.

mod answer;
mod frame;
mod header;
mod objects;

pub use answer::{Answer, asked};
pub use frame::{FRAME_HEAD_BYTES, FrameHead, Frames};
pub use header::{HEADER_BYTES, Header, Holds, Name, NameKind, SourceId};
pub use objects::{Object, Packer, Unpacker};

use core::fmt;

const VERSION: u32 = 1;

/// Why bytes are no listing that was kept.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Flaw {
    /// They end too early.
    Short,
    /// They are something else's.
    Foreign,
    /// They are of another version of this format.
    Version(u32),
    /// A checksum does not fit.
    Damaged,
    /// They say what no listing says.
    Absurd,
}

impl fmt::Display for Flaw {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Flaw::Short => f.write_str("it ends too early"),
            Flaw::Foreign => f.write_str("it is something else, or of another data set"),
            Flaw::Version(version) => {
                write!(f, "it is of version {version}, and this program knows {VERSION}")
            }
            Flaw::Damaged => f.write_str("it is damaged"),
            Flaw::Absurd => f.write_str("it says what no listing says"),
        }
    }
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from(u32_at(bytes, at)) | u64::from(u32_at(bytes, at + 4)) << 32
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
