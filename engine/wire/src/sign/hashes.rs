//! What signatures are made of: SHA-256 and its keyed form, through aws-lc-rs, and the key that was used last.

use super::credential::Secret;
use aws_lc_rs::{digest, hmac};

/// Appends `bytes` in lower-case hexadecimal.
pub(super) fn push_hex(out: &mut Vec<u8>, bytes: &[u8]) {
    let digits = bytes.iter().flat_map(|byte| [byte >> 4, byte & 15]);
    out.extend(digits.map(|digit| b"0123456789abcdef"[usize::from(digit)]));
}

/// SHA-256 of `bytes` in hexadecimal, as signatures have it.
#[must_use]
pub fn sha256_hex(bytes: &[u8]) -> String {
    let mut out = Vec::with_capacity(64);
    push_hex(&mut out, sha256(bytes).as_ref());
    String::from_utf8(out).expect("hexadecimal is ASCII")
}

pub(super) fn sha256(bytes: &[u8]) -> digest::Digest {
    digest::digest(&digest::SHA256, bytes)
}

pub(super) fn keyed(key: &[u8], bytes: &[u8]) -> hmac::Tag {
    hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, key), bytes)
}

/// The key made last, kept while what it was made from stays the same.
#[derive(Default)]
pub(super) struct LastKey {
    made: Option<(Secret, [u8; 8], hmac::Key)>,
}

impl LastKey {
    /// The key for `secret` on `day`; `make` is asked when it is another one than before.
    pub(super) fn get(&mut self, secret: &Secret, day: [u8; 8], make: impl FnOnce() -> hmac::Key) -> &hmac::Key {
        if !self.made.as_ref().is_some_and(|(of, at, _)| of == secret && *at == day) {
            self.made = None;
        }
        &self.made.get_or_insert_with(|| (secret.clone(), day, make())).2
    }
}
