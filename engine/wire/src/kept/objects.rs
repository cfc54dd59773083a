//! Objects one behind the other: a key as what it shares with the one before it and the rest, a length, an entity tag.

use fuelrail_base::limits::{KEY_BYTES_MAX, OBJECT_BYTES_MAX};

use super::{Flaw, push_number, push_text, take, take_number, take_text};
use crate::etag::is_sound;

const NO_TAG: u8 = 0;
/// An MD5 in quotes, as nearly all are.
const DIGEST: u8 = 1;
const TEXT: u8 = 2;

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
    #[must_use]
    pub fn new(bytes: &'a [u8]) -> Unpacker<'a> {
        Unpacker { rest: bytes, key: String::new(), tag: String::new() }
    }

    /// The next one; `None` at the end.
    ///
    /// # Errors
    /// What is wrong with the bytes: they are nobody's then.
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
                self.tag.clear();
                self.tag.push('"');
                for byte in take(&mut self.rest, 16)? {
                    self.tag.extend([byte >> 4, byte & 15].map(|digit| char::from(HEX[usize::from(digit)])));
                }
                self.tag.push('"');
                Some(self.tag.as_str())
            }
            TEXT => Some(take_text(&mut self.rest)?).filter(|text| is_sound(text)).ok_or(Flaw::Absurd).map(Some)?,
            _ => return Err(Flaw::Absurd),
        };
        Ok(Some(Object { key: &self.key, size, etag }))
    }
}

const HEX: &[u8; 16] = b"0123456789abcdef";

/// The bytes of 32 lower-case hexadecimal digits in quotes.
fn digest(text: &str) -> Option<[u8; 16]> {
    let digits = text.strip_prefix('"')?.strip_suffix('"')?;
    let plain = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
    if digits.len() != 32 || !digits.bytes().all(plain) {
        return None;
    }
    u128::from_str_radix(digits, 16).ok().map(u128::to_be_bytes)
}
