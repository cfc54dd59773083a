//! The key of one direction of a connection: which record comes next, and opening or sealing it.

use super::record::{APPLICATION, HEADER_BYTES, TAG_BYTES, broken};
use aws_lc_rs::aead::{AES_128_GCM, AES_256_GCM, Aad, Algorithm, CHACHA20_POLY1305, LessSafeKey, Nonce, UnboundKey};
use fuelrail_base::{Error, Kind, Result};
use rustls::ConnectionTrafficSecrets;

const IV_BYTES: usize = 12;

/// One direction's key and the number of its next record.
pub(super) struct Key {
    key: LessSafeKey,
    iv: [u8; IV_BYTES],
    records: u64,
}

impl Key {
    /// From what rustls gives, with the number of the next record.
    pub(super) fn new((records, secrets): (u64, ConnectionTrafficSecrets)) -> Result<Key> {
        use ConnectionTrafficSecrets::{Aes128Gcm, Aes256Gcm, Chacha20Poly1305};
        match &secrets {
            Aes128Gcm { key, iv } => Key::of(&AES_128_GCM, key.as_ref(), iv.as_ref(), records),
            Aes256Gcm { key, iv } => Key::of(&AES_256_GCM, key.as_ref(), iv.as_ref(), records),
            Chacha20Poly1305 { key, iv } => Key::of(&CHACHA20_POLY1305, key.as_ref(), iv.as_ref(), records),
            _ => None,
        }
        .ok_or_else(|| Error::new(Kind::Environment, "no opener for the cipher suite that was agreed on"))
    }

    /// From raw material; `None` when a length does not fit the algorithm.
    pub(super) fn of(algorithm: &'static Algorithm, key: &[u8], iv: &[u8], records: u64) -> Option<Key> {
        let key = LessSafeKey::new(UnboundKey::new(algorithm, key).ok()?);
        Some(Key { key, iv: iv.try_into().ok()?, records })
    }

    /// Records opened or sealed with it so far.
    pub(super) fn records(&self) -> u64 {
        self.records
    }

    /// Opens a record (`sealed` ends with its tag) into memory of exactly its length without tag.
    ///
    /// # Errors
    /// `Protocol` when it is not genuine; `into` is scrap then.
    pub(super) fn open_into(&mut self, header: &[u8], sealed: &[u8], into: &mut [u8]) -> Result<()> {
        let nonce = self.nonce()?;
        let (text, tag) = sealed.split_at(sealed.len() - TAG_BYTES);
        self.key.open_separate_gather(nonce, Aad::from(header), text, tag, into).map_err(|_| forged())
    }

    /// Opens a record where it lies, and returns it without its tag.
    pub(super) fn open_in_place<'a>(&mut self, header: &[u8], sealed: &'a mut [u8]) -> Result<&'a mut [u8]> {
        let nonce = self.nonce()?;
        self.key.open_in_place(nonce, Aad::from(header), sealed).map_err(|_| forged())
    }

    /// Appends a sealed record whose inside (content, type, padding) is these parts.
    pub(super) fn seal(&mut self, inside: &[&[u8]], out: &mut Vec<u8>) -> Result<()> {
        let nonce = self.nonce()?;
        let sealed = inside.iter().map(|part| part.len()).sum::<usize>() + TAG_BYTES;
        let len = u16::try_from(sealed).expect("callers cut payload into records");
        let start = out.len();
        out.extend_from_slice(&[APPLICATION, 3, 3, (len >> 8) as u8, len as u8]);
        inside.iter().for_each(|part| out.extend_from_slice(part));
        let (header, text) = out[start..].split_at_mut(HEADER_BYTES);
        let tag = self.key.seal_in_place_separate_tag(nonce, Aad::from(&*header), text);
        out.extend_from_slice(tag.map_err(|_| broken("a record cannot be sealed"))?.as_ref());
        Ok(())
    }

    /// The nonce of the next record, which counts as used from here on.
    fn nonce(&mut self) -> Result<Nonce> {
        let mut nonce = self.iv;
        for (byte, number) in nonce[IV_BYTES - 8..].iter_mut().zip(self.records.to_be_bytes()) {
            *byte ^= number;
        }
        let next = self.records.checked_add(1);
        self.records = next.ok_or_else(|| broken("the connection has used up its record numbers"))?;
        Ok(Nonce::assume_unique_for_key(nonce))
    }
}

fn forged() -> Error {
    broken("a TLS record failed authentication: it was damaged or forged on the way")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_never_used_twice() {
        let mut key = Key::of(&CHACHA20_POLY1305, &[1; 32], &[2; 12], u64::MAX).unwrap();
        assert!(key.seal(&[&[23]], &mut Vec::new()).unwrap_err().cause().contains("used up"));
    }
}
