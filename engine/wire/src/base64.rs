//! Base64 (RFC 4648) in the two forms that headers, keys and tokens are written in.

use ::base64::Engine as _;
use ::base64::prelude::{BASE64_STANDARD, BASE64_URL_SAFE_NO_PAD};

/// Appends `bytes` in the plain alphabet, padded.
///
/// # Panics
/// Never: there is room for what is written.
pub fn push(out: &mut Vec<u8>, bytes: &[u8]) {
    let from = out.len();
    out.resize(from + bytes.len().div_ceil(3) * 4, 0);
    BASE64_STANDARD.encode_slice(bytes, &mut out[from..]).expect("four letters for three bytes");
}

/// `bytes` in the plain alphabet, padded.
pub fn encode(bytes: &[u8]) -> String {
    BASE64_STANDARD.encode(bytes)
}

/// `bytes` in the URL-safe alphabet, without padding: how tokens are written.
pub fn encode_url_safe(bytes: &[u8]) -> String {
    BASE64_URL_SAFE_NO_PAD.encode(bytes)
}

/// The bytes that `text` stands for. `None` when it is not the plain alphabet, padded, with nothing in the bits that are left
/// over.
pub fn decode(text: &[u8]) -> Option<Vec<u8>> {
    BASE64_STANDARD.decode(text).ok()
}

/// As [`decode`], where so many bytes are expected. Takes nothing from the heap.
pub fn decode_array<const N: usize>(text: &[u8]) -> Option<[u8; N]> {
    let mut out = [0; N];
    (BASE64_STANDARD.decode_slice(text, &mut out) == Ok(N)).then_some(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_one_text_of_bytes_is_refused() {
        for text in ["A", "AA", "AAA", "====", "A===", "AA=A", "AB==", "AAB=", "AA A", "-_8=", "AAAA=", "AAAAA==="] {
            assert_eq!((decode(text.as_bytes()), decode_array::<1>(text.as_bytes())), (None, None), "{text}");
        }
        assert_eq!((decode_array(b"AQI="), decode_array::<3>(b"AQI=")), (Some([1, 2]), None));
        assert_eq!(encode_url_safe(&[0xFB, 0xFF]), "-_8");
    }
}
