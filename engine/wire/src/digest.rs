//! Checksums that a server sends with a whole body, and whether they hold.
//!
//! CRC-32C has its own way: it is kept with every block. What is here is computed once, when the body has come.

#[cfg_attr(not(feature = "tls"), path = "digest/absent.rs")]
mod hashes;

use crate::base64;
use crc_fast::CrcAlgorithm;
use hashes::Hash;

/// One of the checksums that S3, Google, Azure and web servers send, of all bytes of the body.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Digest {
    /// `x-amz-checksum-crc32c` and Google's `x-goog-hash`.
    Crc32c(u32),
    /// `x-amz-checksum-crc64nvme`: what S3 makes of objects that came without a checksum.
    Crc64Nvme(u64),
    /// `x-amz-checksum-crc32`.
    Crc32(u32),
    /// `x-amz-checksum-sha256`.
    Sha256([u8; 32]),
    /// `x-amz-checksum-sha1`.
    Sha1([u8; 20]),
    /// `Content-MD5` (RFC 1864): all that Azure has.
    Md5([u8; 16]),
}

impl Digest {
    /// The one that a header line of this name carries: `None` for another line, an error for a value that is none. Hashes are of the
    /// feature `tls`: without it they are not verified.
    pub(crate) fn parse(name: &str, value: &[u8]) -> Option<Result<Digest, ()>> {
        let is = |known: &str| name.eq_ignore_ascii_case(known);
        let found = if is("content-md5") {
            base64::decode_array(value).map(Digest::Md5)
        } else if !name.get(..AMAZON.len()).is_some_and(|start| start.eq_ignore_ascii_case(AMAZON)) {
            return None;
        } else if is("x-amz-checksum-crc64nvme") {
            base64::decode_array(value).map(|bytes| Digest::Crc64Nvme(u64::from_be_bytes(bytes)))
        } else if is("x-amz-checksum-crc32") {
            base64::decode_array(value).map(|bytes| Digest::Crc32(u32::from_be_bytes(bytes)))
        } else if is("x-amz-checksum-sha256") {
            base64::decode_array(value).map(Digest::Sha256)
        } else if is("x-amz-checksum-sha1") {
            base64::decode_array(value).map(Digest::Sha1)
        } else {
            return None;
        };
        let is_hash = matches!(found, Some(Digest::Sha256(_) | Digest::Sha1(_) | Digest::Md5(_)));
        (cfg!(feature = "tls") || !is_hash).then_some(found.ok_or(()))
    }

    /// What people call it.
    pub fn name(&self) -> &'static str {
        match self {
            Digest::Crc32c(_) => "CRC-32C",
            Digest::Crc64Nvme(_) => "CRC-64/NVME",
            Digest::Crc32(_) => "CRC-32",
            Digest::Sha256(_) => "SHA-256",
            Digest::Sha1(_) => "SHA-1",
            Digest::Md5(_) => "MD5",
        }
    }

    /// Whether it is that of `body`. Reads all of it: a CRC about as fast as memory allows, the hashes much slower, MD5 the slowest.
    #[must_use]
    pub fn holds(self, body: &[u8]) -> bool {
        let mut sum = self.sum();
        sum.update(body);
        sum.holds()
    }

    /// Starts to check a body that comes in pieces.
    #[must_use]
    pub fn sum(self) -> Sum {
        let crc = |algorithm| Running::Crc(crc_fast::Digest::new(algorithm));
        let running = match self {
            Digest::Crc32c(_) => crc(CrcAlgorithm::Crc32Iscsi),
            Digest::Crc64Nvme(_) => crc(CrcAlgorithm::Crc64Nvme),
            Digest::Crc32(_) => crc(CrcAlgorithm::Crc32IsoHdlc),
            Digest::Sha256(_) => Running::Hash(Hash::sha256()),
            Digest::Sha1(_) => Running::Hash(Hash::sha1()),
            Digest::Md5(_) => Running::Hash(Hash::md5()),
        };
        Sum { promised: self, running }
    }

    /// How cheap it is, the cheapest first: a body needs no more than one.
    pub(crate) fn rank(&self) -> u8 {
        match self {
            Digest::Crc32c(_) | Digest::Crc64Nvme(_) => 0,
            Digest::Crc32(_) => 1,
            Digest::Sha256(_) => 2,
            Digest::Sha1(_) => 3,
            Digest::Md5(_) => 4,
        }
    }
}

/// A checksum of a body that comes in pieces.
#[derive(Clone)]
pub struct Sum {
    promised: Digest,
    running: Running,
}

#[derive(Clone)]
#[allow(clippy::large_enum_variant, reason = "there is one at a time, and a CRC must not cost an allocation")]
enum Running {
    Crc(crc_fast::Digest),
    Hash(Hash),
}

impl Sum {
    /// Takes in the next piece.
    pub fn update(&mut self, piece: &[u8]) {
        match &mut self.running {
            Running::Crc(crc) => crc.update(piece),
            Running::Hash(hash) => hash.update(piece),
        }
    }

    /// Whether all that was taken in has the checksum that was promised.
    pub fn holds(&self) -> bool {
        match (&self.promised, &self.running) {
            (Digest::Crc64Nvme(promised), Running::Crc(crc)) => crc.finalize() == *promised,
            (Digest::Crc32c(promised) | Digest::Crc32(promised), Running::Crc(crc)) => {
                crc.finalize() == u64::from(*promised)
            }
            (Digest::Sha256(promised), Running::Hash(hash)) => hash.is(promised),
            (Digest::Sha1(promised), Running::Hash(hash)) => hash.is(promised),
            (Digest::Md5(promised), Running::Hash(hash)) => hash.is(promised),
            _ => unreachable!("Digest::sum starts the algorithm of what was promised"),
        }
    }
}

const AMAZON: &str = "x-amz-checksum-";

#[cfg(test)]
mod tests {
    use super::*;

    /// The check values of the catalogues: of the nine digits.
    const LINES: [(&str, &str); 5] = [
        ("x-amz-checksum-crc64nvme", "rosUhgp5mIg="),
        ("X-Amz-Checksum-Crc32", "y/Q5Jg=="),
        ("x-amz-checksum-sha256", "FeKw08M4keuw8e9gnsQZQgwg4yDOlMZfvIwzEkSOsiU="),
        ("x-amz-checksum-sha1", "98O8HYCOBHMq32eZZczDTKeuNEE="),
        ("Content-MD5", "JfnnlDI7RTiF9RgfG2JNCw=="),
    ];

    #[test]
    fn check_values_hold_and_nothing_else_does() {
        for (at, (name, value)) in LINES.into_iter().enumerate() {
            let digest = Digest::parse(name, value.as_bytes()).unwrap().unwrap();
            assert!(digest.holds(b"123456789"), "{name}");
            assert!(!digest.holds(b"123456780") && !digest.holds(b""), "{name}");
            assert_eq!(usize::from(digest.rank()), at);
        }
    }

    #[test]
    fn other_lines_are_left_alone_and_bad_values_named() {
        for name in ["x-amz-checksum-crc32c", "x-amz-checksum-type", "x-amz-id-2", "content-type", "é"] {
            assert_eq!(Digest::parse(name, b"AAAA"), None, "{name}");
        }
        for (name, _) in LINES {
            for value in ["", "AAAA", "not base64", "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA"] {
                assert_eq!(Digest::parse(name, value.as_bytes()), Some(Err(())), "{name}: {value}");
            }
        }
    }
}
