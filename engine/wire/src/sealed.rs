//! What our files on disk have in common: 64-byte headers and records whose last four bytes are a CRC-32C of those before them,
//! little-endian numbers, and names that are 16 bytes of a SHA-256.

use core::fmt;
use sha2::{Digest as _, Sha256};

/// Bytes of a header, and of a record.
pub(crate) const SEALED_BYTES: usize = fuelrail_base::limits::SEGMENT_RECORD_BYTES;

/// Why bytes are not a file, or a part of one, that this program wrote.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Flaw {
    /// They end too early.
    Short,
    /// They are something else's.
    Foreign,
    /// They are of another version of the format: which one, and the one that is known.
    Version(u32, u32),
    /// A checksum does not fit.
    Damaged,
    /// They hold values that are never written.
    Absurd,
}

impl fmt::Display for Flaw {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Flaw::Short => f.write_str("it is truncated"),
            Flaw::Foreign => f.write_str("it is another kind of file, or belongs to another data set"),
            Flaw::Version(version, known) => write!(f, "it has version {version}, this program supports {known}"),
            Flaw::Damaged => f.write_str("it is damaged"),
            Flaw::Absurd => f.write_str("it contains invalid values"),
        }
    }
}

/// The first bytes of a file: what it is, in which version, and zeroes.
pub(crate) fn header(magic: &[u8; 16], version: u32) -> [u8; SEALED_BYTES] {
    let mut bytes = [0; SEALED_BYTES];
    bytes[..16].copy_from_slice(magic);
    bytes[16..20].copy_from_slice(&version.to_le_bytes());
    bytes
}

/// The sealed header that `bytes` begin with.
pub(crate) fn checked_header<'a>(
    bytes: &'a [u8],
    magic: &[u8; 16],
    version: u32,
) -> Result<&'a [u8; SEALED_BYTES], Flaw> {
    let bytes = bytes.first_chunk::<SEALED_BYTES>().ok_or(Flaw::Short)?;
    if !bytes.starts_with(magic) {
        return Err(Flaw::Foreign);
    }
    // A later version may keep its checksum elsewhere.
    match u32_at(bytes, 16) {
        other if other != version => Err(Flaw::Version(other, version)),
        _ if is_sealed(bytes) => Ok(bytes),
        _ => Err(Flaw::Damaged),
    }
}

/// Ends 64 bytes with the checksum of those before it.
pub(crate) fn sealed(mut bytes: [u8; SEALED_BYTES]) -> [u8; SEALED_BYTES] {
    let sum = crc32c::crc32c(&bytes[..SEALED_BYTES - 4]);
    bytes[SEALED_BYTES - 4..].copy_from_slice(&sum.to_le_bytes());
    bytes
}

/// Whether 64 bytes end with the checksum of those before it.
pub(crate) fn is_sealed(bytes: &[u8; SEALED_BYTES]) -> bool {
    crc32c::crc32c(&bytes[..SEALED_BYTES - 4]) == u32_at(bytes, SEALED_BYTES - 4)
}

pub(crate) fn bytes_at<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    bytes[at..at + N].try_into().expect("as many bytes as were taken")
}

pub(crate) fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes_at(bytes, at))
}

pub(crate) fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes_at(bytes, at))
}

/// 16 bytes of a SHA-256 over these texts, each after its length, and `rest`.
pub(crate) fn named<'a>(fields: impl IntoIterator<Item = &'a str>, rest: &[u8]) -> [u8; 16] {
    let mut hash = Sha256::new();
    for field in fields {
        hash.update((field.len() as u64).to_le_bytes());
        hash.update(field.as_bytes());
    }
    hash.update(rest);
    bytes_at(&hash.finalize(), 0)
}

/// The number that 32 lower-case hexadecimal digits stand for.
pub(crate) fn hex_number(digits: &str) -> Option<u128> {
    let plain = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
    let is_plain = digits.len() == 32 && digits.bytes().all(plain);
    is_plain.then(|| u128::from_str_radix(digits, 16).ok())?
}
