//! Entity tags as fixed-size values: what a listing promised and what a response carries, compared without a heap.

use fuelrail_base::prng::mix64;

/// An entity tag, as a 128-bit hash of its text without the quotes. A weak tag (`W/"…"`) never equals a strong one.
///
/// A hash keeps response heads free of heap memory. It tells changed objects apart; it is no defence against a server
/// that lies, which could as well send wrong bytes under the right tag.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Etag(u128);

impl Etag {
    /// The tag written `text`, with or without quotes: listings of some servers leave them out.
    #[must_use]
    pub fn of(text: &str) -> Etag {
        Etag::of_bytes(text.as_bytes())
    }

    /// As [`Etag::of`], for a header value, which need not be UTF-8.
    #[must_use]
    pub fn of_bytes(text: &[u8]) -> Etag {
        let (weak, quoted) = match text.strip_prefix(b"W/") {
            Some(rest) => (true, rest),
            None => (false, text),
        };
        let opaque = quoted.strip_prefix(b"\"").and_then(|rest| rest.strip_suffix(b"\"")).unwrap_or(quoted);
        // Two lanes with different seeds and different mixing. Each step is a bijection of the lane for a given word,
        // so tags of equal length that differ in one word differ in both lanes.
        let mut low = mix64(opaque.len() as u64);
        let mut high = mix64(u64::from(weak) + 1);
        for chunk in opaque.chunks(8) {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            let word = u64::from_le_bytes(word);
            low = mix64(low ^ word);
            high = mix64(high.rotate_left(29).wrapping_add(word));
        }
        Etag(u128::from(high) << 64 | u128::from(low))
    }

    /// The hash, the same on every machine and in every run.
    #[must_use]
    pub fn to_bytes(self) -> [u8; 16] {
        self.0.to_le_bytes()
    }
}

/// Whether a request may insist on the tag `text`: it is strong, and sound.
#[must_use]
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

    #[test]
    fn near_tags_differ() {
        let mut tags: Vec<Etag> = (0..20_000).map(|n| Etag::of(&format!("{n:x}-{}", n % 7))).collect();
        tags.extend(["", "\0", "\0\0", "a\0", "a"].map(Etag::of));
        let all = tags.len();
        tags.sort_unstable_by_key(|tag| tag.0);
        tags.dedup();
        assert_eq!(tags.len(), all);
    }

    #[test]
    fn knows_what_fits_a_header_line() {
        for good in ["\"abc\"", "abc-7", "W/\"x\"", "é"] {
            assert!(is_sound(good), "{good}");
        }
        for bad in ["", "\"\"", "a b", "a\r\nX: y", "a\"b", "\"a"] {
            assert!(!is_sound(bad), "{bad:?}");
        }
    }
}
