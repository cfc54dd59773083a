//! Entity tags of a listing, packed.

use super::piece::Piece;
use fuelrail_wire::Etag;
use std::borrow::Cow;
use std::io::Write;

/// Entity tags. Nearly all are an MD5 in quotes, or one and a number of parts; on Azure a number.
#[derive(Clone, Debug, Default)]
pub(super) struct Tags {
    /// 16 bytes each.
    pub digests: Piece,
    /// Parts of a multipart object, 0 for none; or one of the forms below. 2 bytes each.
    pub forms: Piece,
    /// Texts of the odd ones, one after another, …
    pub texts: Piece,
    /// … and which object each belongs to, and where it ends: 8 bytes and 8.
    pub odd: Piece,
}

/// The longest text of one that is packed: quotes, 32 digits, a hyphen and five more.
const TEXT_BYTES_MAX: usize = 40;
pub(super) const PARTS_MAX: u16 = 10_000;
pub(super) const NUMBER: u16 = u16::MAX - 2;
pub(super) const ODD: u16 = u16::MAX - 1;
pub(super) const NONE: u16 = u16::MAX;

impl Tags {
    pub(super) fn push(&mut self, etag: Option<&str>) {
        let (digest, form) = match etag {
            None => ([0; 16], NONE),
            Some(text) => packed(text).unwrap_or_else(|| {
                self.texts.add(text.as_bytes());
                self.odd.add(&(self.forms.len() as u64 / 2).to_le_bytes());
                self.odd.add(&(self.texts.len() as u64).to_le_bytes());
                ([0; 16], ODD)
            }),
        };
        self.digests.add(&digest);
        self.forms.add(&form.to_le_bytes());
    }

    pub(super) fn get(&self, at: usize) -> Option<Cow<'_, str>> {
        if self.form(at) == ODD {
            return self.odd(at).map(Cow::Borrowed);
        }
        let mut room = [0; TEXT_BYTES_MAX];
        self.written(at, &mut room).map(|text| Cow::Owned(String::from_utf8_lossy(text).into_owned()))
    }

    pub(super) fn compared(&self, at: usize) -> Option<Etag> {
        if self.form(at) == ODD {
            return self.odd(at).map(Etag::of);
        }
        let mut room = [0; TEXT_BYTES_MAX];
        self.written(at, &mut room).map(Etag::of_bytes)
    }

    pub(super) fn push_strong(&self, at: usize, out: &mut String) {
        let mut room = [0; TEXT_BYTES_MAX];
        let text = match self.form(at) {
            ODD => self.odd(at).filter(|text| fuelrail_wire::can_match(text)),
            _ => self.written(at, &mut room).and_then(|text| core::str::from_utf8(text).ok()),
        };
        out.push_str(text.unwrap_or_default());
    }

    #[cfg(test)]
    pub(super) fn is_odd(&self, at: usize) -> bool {
        self.form(at) == ODD
    }

    /// Parts, or a form.
    fn form(&self, at: usize) -> u16 {
        u16::from_le_bytes(self.forms.array(at))
    }

    fn odd(&self, at: usize) -> Option<&str> {
        let place = self.odd.as_chunks::<16>().0.binary_search_by_key(&(at as u64), first).ok()?;
        let from = if place == 0 { 0 } else { self.odd.number(2 * place - 1) as usize };
        core::str::from_utf8(&self.texts[from..self.odd.number(2 * place + 1) as usize]).ok()
    }

    /// The text of one that is not odd.
    fn written<'r>(&self, at: usize, room: &'r mut [u8; TEXT_BYTES_MAX]) -> Option<&'r [u8]> {
        let digest = u128::from_be_bytes(self.digests.array(at));
        let mut rest = room.as_mut_slice();
        let done = match self.form(at) {
            NONE => return None,
            NUMBER => write!(rest, "\"0x{digest:X}\""),
            0 => write!(rest, "\"{digest:032x}\""),
            parts => write!(rest, "\"{digest:032x}-{parts}\""),
        };
        done.ok()?;
        let len = TEXT_BYTES_MAX - rest.len();
        Some(&room[..len])
    }
}

/// The number that 16 bytes begin with.
fn first(place: &[u8; 16]) -> u64 {
    u64::from_le_bytes(place.as_chunks::<8>().0[0])
}

/// A tag that can be written again from 16 bytes and its form. `None` for any other.
fn packed(text: &str) -> Option<([u8; 16], u16)> {
    let inner = text.strip_prefix('"')?.strip_suffix('"')?;
    if let Some(digits) = inner.strip_prefix("0x") {
        let fits = |byte: u8| byte.is_ascii_digit() || (b'A'..=b'F').contains(&byte);
        let plain =
            (1..=32).contains(&digits.len()) && digits.bytes().all(fits) && (digits == "0" || !digits.starts_with('0'));
        return plain.then(|| u128::from_str_radix(digits, 16).ok()).flatten().map(|n| (n.to_be_bytes(), NUMBER));
    }
    let (digits, form) = match inner.split_once('-') {
        None => (inner, 0),
        Some((digits, parts)) => {
            let number: u16 = parts.parse().ok().filter(|parts| (1..=PARTS_MAX).contains(parts))?;
            (digits, (number.to_string() == parts).then_some(number)?)
        }
    };
    let fits = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
    let plain = digits.len() == 32 && digits.bytes().all(fits);
    plain.then(|| u128::from_str_radix(digits, 16).ok()).flatten().map(|digest| (digest.to_be_bytes(), form))
}
