//! Entity tags as fixed-size values: what a listing promised and what a response carries, compared without a heap.

use crate::sealed::hex_number;
use core::fmt;
use xxhash_rust::xxh3::xxh3_128_with_seed;

/// An entity tag, as the XXH3-128 of its text without the quotes. A weak tag (`W/"…"`) never equals a strong one.
///
/// A hash keeps response heads free of heap memory. It tells changed objects apart; it is no defence against a server
/// that lies, which could as well send wrong bytes under the right tag.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Etag(u128);

impl Etag {
    /// The tag written `text`, with or without quotes: listings of some servers leave them out.
    pub fn of(text: &str) -> Etag {
        Etag::of_bytes(text.as_bytes())
    }

    /// As [`Etag::of`], for a header value, which need not be UTF-8.
    pub fn of_bytes(text: &[u8]) -> Etag {
        let (weak, quoted) = match text.strip_prefix(b"W/") {
            Some(rest) => (true, rest),
            None => (false, text),
        };
        let opaque = quoted.strip_prefix(b"\"").and_then(|rest| rest.strip_suffix(b"\"")).unwrap_or(quoted);
        Etag(xxh3_128_with_seed(opaque, u64::from(weak)))
    }

    /// The hash, the same on every machine and in every run.
    #[must_use]
    pub fn to_bytes(self) -> [u8; 16] {
        self.0.to_le_bytes()
    }

    /// Parses what `Display` writes.
    pub(crate) fn of_hash(digits: &str) -> Option<Etag> {
        hex_number(digits).map(Etag)
    }
}

/// The hash, as 32 hexadecimal digits.
impl fmt::Display for Etag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

/// Whether a request may insist on the tag `text`: it is strong, and sound.
pub fn can_match(text: &str) -> bool {
    !text.starts_with("W/") && is_sound(text)
}

/// Whether `text` can stand as an entity tag in a header line: visible ASCII or bytes above it, no inner quotes.
pub(crate) fn is_sound(text: &str) -> bool {
    let quoted = text.strip_prefix("W/").unwrap_or(text);
    let opaque = quoted.strip_prefix('"').and_then(|rest| rest.strip_suffix('"')).unwrap_or(quoted);
    !opaque.is_empty() && opaque.bytes().all(|byte| byte == b'!' || (b'#'..=b'~').contains(&byte) || byte >= 0x80)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quotes_do_not_count_but_weakness_does() {
        let strong = Etag::of("\"d41d8cd98f00b204e9800998ecf8427e\"");
        assert_eq!(strong, Etag::of("d41d8cd98f00b204e9800998ecf8427e"));
        assert_ne!(strong, Etag::of("W/\"d41d8cd98f00b204e9800998ecf8427e\""));
        assert_eq!(Etag::of("W/\"1\""), Etag::of("W/1"));
    }
}
