//! Base64 (RFC 4648): the plain alphabet with padding, which headers and keys are written in, and the URL-safe one without.
//!
//! Twenty lines each way; the crate of that name would bring engines and configurations for what is four tables here.

const PLAIN: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
const URL_SAFE: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";

/// Appends `bytes` in the plain alphabet, padded.
pub fn push(out: &mut Vec<u8>, bytes: &[u8]) {
    push_in(out, bytes, PLAIN);
    out.resize(out.len() + (3 - bytes.len() % 3) % 3, b'=');
}

/// `bytes` in the plain alphabet, padded.
#[must_use]
pub fn encode(bytes: &[u8]) -> String {
    let mut out = Vec::with_capacity(bytes.len().div_ceil(3) * 4);
    push(&mut out, bytes);
    String::from_utf8(out).expect("the alphabet is ASCII")
}

/// `bytes` in the URL-safe alphabet, without padding: how tokens are written.
#[must_use]
pub fn encode_url_safe(bytes: &[u8]) -> String {
    let mut out = Vec::with_capacity(bytes.len().div_ceil(3) * 4);
    push_in(&mut out, bytes, URL_SAFE);
    String::from_utf8(out).expect("the alphabet is ASCII")
}

fn push_in(out: &mut Vec<u8>, bytes: &[u8], alphabet: &[u8; 64]) {
    for chunk in bytes.chunks(3) {
        let mut word = [0; 3];
        word[..chunk.len()].copy_from_slice(chunk);
        let bits = u32::from_be_bytes([0, word[0], word[1], word[2]]);
        out.extend((0..=chunk.len()).map(|n| alphabet[(bits >> (18 - 6 * n) & 63) as usize]));
    }
}

/// The bytes that `text` stands for. `None` when it is not the plain alphabet, padded, with nothing in the bits that are left
/// over.
#[must_use]
pub fn decode(text: &[u8]) -> Option<Vec<u8>> {
    let mut out = Vec::with_capacity(text.len() / 4 * 3);
    decode_by_three(text, |bytes| {
        out.extend_from_slice(bytes);
        Some(())
    })?;
    Some(out)
}

/// As [`decode`], where so many bytes are expected. Takes nothing from the heap.
#[must_use]
pub fn decode_array<const N: usize>(text: &[u8]) -> Option<[u8; N]> {
    let (mut out, mut len) = ([0; N], 0);
    decode_by_three(text, |bytes| {
        out.get_mut(len..len + bytes.len())?.copy_from_slice(bytes);
        len += bytes.len();
        Some(())
    })?;
    (len == N).then_some(out)
}

fn decode_by_three(text: &[u8], mut put: impl FnMut(&[u8]) -> Option<()>) -> Option<()> {
    let letters = text.strip_suffix(b"==").or_else(|| text.strip_suffix(b"=")).unwrap_or(text);
    if !text.len().is_multiple_of(4) || letters.len() % 4 == 1 {
        return None;
    }
    for chunk in letters.chunks(4) {
        let mut bits = 0;
        for letter in chunk {
            bits = bits << 6 | value(*letter)?;
        }
        let spare = 6 * chunk.len() % 8;
        if bits & ((1 << spare) - 1) != 0 {
            return None;
        }
        let bytes = (bits >> spare).to_be_bytes();
        put(&bytes[4 - chunk.len() * 6 / 8..])?;
    }
    (letters.len().next_multiple_of(4) == text.len()).then_some(())
}

fn value(letter: u8) -> Option<u32> {
    Some(u32::from(match letter {
        b'A'..=b'Z' => letter - b'A',
        b'a'..=b'z' => letter - b'a' + 26,
        b'0'..=b'9' => letter - b'0' + 52,
        b'+' => 62,
        b'/' => 63,
        _ => return None,
    }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_standards_own_examples() {
        for (plain, coded) in [
            ("", ""),
            ("f", "Zg=="),
            ("fo", "Zm8="),
            ("foo", "Zm9v"),
            ("foob", "Zm9vYg=="),
            ("fooba", "Zm9vYmE="),
            ("foobar", "Zm9vYmFy"),
        ] {
            assert_eq!(encode(plain.as_bytes()), coded);
            assert_eq!(decode(coded.as_bytes()).unwrap(), plain.as_bytes());
        }
        assert_eq!(encode_url_safe(&[0xFB, 0xFF]), "-_8");
    }

    #[test]
    fn what_is_not_base64_is_refused() {
        for text in ["A", "AA", "AAA", "====", "A===", "AA=A", "AB==", "AAB=", "AA A", "-_8=", "AAAA=", "AAAAA==="] {
            assert_eq!(decode(text.as_bytes()), None, "{text}");
        }
    }

    proptest! {
        #[test]
        fn comes_back(bytes: Vec<u8>) {
            prop_assert_eq!(decode(encode(&bytes).as_bytes()).unwrap(), bytes);
        }

        #[test]
        fn only_one_text_stands_for_bytes(text in "[A-Za-z0-9+/]{0,9}={0,2}") {
            let bytes = decode(text.as_bytes());
            let four = bytes.as_deref().and_then(|bytes| bytes.try_into().ok());
            prop_assert_eq!(decode_array::<4>(text.as_bytes()), four);
            if let Some(bytes) = bytes {
                prop_assert_eq!(encode(&bytes), text);
            }
        }
    }
}
