//! The format of blocks on disk: segments with a header page, blocks growing up and a journal growing down.
//!
//! A segment is a file of fixed length. Page 0 says what it is; blocks follow, each where its record says; journal pages of
//! [`PAGE_BYTES`] count from the end, page `k` at [`journal_page`]. A record proves itself by its checksum and its block by the
//! one inside, so a page that was torn costs records and never tells a lie. All numbers are little-endian.
//!
//! Owns nothing: bytes in, meaning out.

mod fingerprint;
mod header;
mod record;
mod scan;

pub use fingerprint::Fingerprint;
pub use header::{HeaderFlaw, SegmentHeader, SegmentName};
pub use record::{Entry, Record, entries, records};
pub use scan::{Scan, Scanned};

/// Bytes of the header page and of each journal page.
pub const PAGE_BYTES: usize = fuelrail_base::limits::SEGMENT_PAGE_BYTES;
/// Bytes of one record of the journal.
pub const RECORD_BYTES: usize = fuelrail_base::limits::SEGMENT_RECORD_BYTES;

/// Where journal page `page` of a segment of `len` bytes begins; `None` when it would reach into the header.
#[must_use]
pub fn journal_page(len: u64, page: u64) -> Option<u64> {
    let back = page.checked_add(1)?.checked_mul(PAGE_BYTES as u64)?;
    len.checked_sub(back).filter(|place| *place >= PAGE_BYTES as u64)
}

fn u32_at(bytes: &[u8; RECORD_BYTES], at: usize) -> u32 {
    u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

fn u64_at(bytes: &[u8; RECORD_BYTES], at: usize) -> u64 {
    u64::from(u32_at(bytes, at)) | u64::from(u32_at(bytes, at + 4)) << 32
}

/// Ends 64 bytes with the checksum of those before it.
fn sealed(mut bytes: [u8; RECORD_BYTES]) -> [u8; RECORD_BYTES] {
    let sum = crc32c::crc32c(&bytes[..RECORD_BYTES - 4]);
    bytes[RECORD_BYTES - 4..].copy_from_slice(&sum.to_le_bytes());
    bytes
}

/// Whether 64 bytes end with the checksum of those before it.
fn is_sealed(bytes: &[u8; RECORD_BYTES]) -> bool {
    crc32c::crc32c(&bytes[..RECORD_BYTES - 4]) == u32_at(bytes, RECORD_BYTES - 4)
}
