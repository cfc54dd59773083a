//! One record of a segment's journal: which bytes of which object lie where.

use fuelrail_base::limits::{BLOCK_BYTES_MAX, OBJECT_BYTES_MAX};

use super::{Fingerprint, PAGE_BYTES, RECORD_BYTES, is_sealed, sealed, u32_at, u64_at};

/// The whole object's checksum is in the record.
const PROMISED: u32 = 1;

/// A block in a segment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Record {
    /// The object, and which content of it.
    pub fingerprint: Fingerprint,
    /// The block's first byte in the object.
    pub first: u64,
    /// The block's length, bytes.
    pub len: u32,
    /// The block's first byte in the segment.
    pub place: u64,
    /// CRC-32C of the block.
    pub crc32c: u32,
    /// CRC-32C of the whole object, where the server promised one.
    pub promised: Option<u32>,
    /// Which record of its segment this is, counted by the process that wrote it.
    pub sequence: u32,
    /// Start of its segment's number ([`SegmentHeader::mark`](super::SegmentHeader::mark)). Drawn at random, it is known to nobody
    /// who stores objects: bytes of one cannot pass for a record, wherever they lie.
    pub mark: u64,
}

/// A place for a record in a page.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Entry {
    /// Nothing was written here: all zeroes.
    Empty,
    /// Something was, and is no record: torn or rotten.
    Damaged,
    /// A record, and it proves itself.
    Record(Record),
}

impl Record {
    /// Its bytes.
    #[must_use]
    pub fn encode(&self) -> [u8; RECORD_BYTES] {
        let mut bytes = [0; RECORD_BYTES];
        bytes[..16].copy_from_slice(&self.fingerprint.0);
        bytes[16..24].copy_from_slice(&self.first.to_le_bytes());
        bytes[24..32].copy_from_slice(&self.place.to_le_bytes());
        bytes[32..36].copy_from_slice(&self.len.to_le_bytes());
        bytes[36..40].copy_from_slice(&self.crc32c.to_le_bytes());
        bytes[40..44].copy_from_slice(&self.promised.unwrap_or(0).to_le_bytes());
        let flags = if self.promised.is_some() { PROMISED } else { 0 };
        bytes[44..48].copy_from_slice(&flags.to_le_bytes());
        bytes[48..52].copy_from_slice(&self.sequence.to_le_bytes());
        bytes[52..60].copy_from_slice(&self.mark.to_le_bytes());
        sealed(bytes)
    }

    /// Whether its block lies between the header and `end`: the first byte of the segment's journal.
    #[must_use]
    pub fn lies_before(&self, end: u64) -> bool {
        let behind = self.place.checked_add(u64::from(self.len));
        self.place >= PAGE_BYTES as u64 && behind.is_some_and(|behind| behind <= end)
    }
}

impl Entry {
    /// What these bytes are.
    #[must_use]
    pub fn decode(bytes: &[u8; RECORD_BYTES]) -> Entry {
        if *bytes == [0; RECORD_BYTES] {
            return Entry::Empty;
        }
        let (flags, promised) = (u32_at(bytes, 44), u32_at(bytes, 40));
        let mut fingerprint = [0; 16];
        fingerprint.copy_from_slice(&bytes[..16]);
        let record = Record {
            fingerprint: Fingerprint(fingerprint),
            first: u64_at(bytes, 16),
            place: u64_at(bytes, 24),
            len: u32_at(bytes, 32),
            crc32c: u32_at(bytes, 36),
            promised: (flags == PROMISED).then_some(promised),
            sequence: u32_at(bytes, 48),
            mark: u64_at(bytes, 52),
        };
        // What a later version may put here, this one does not understand.
        let is_known = flags == PROMISED || (flags | promised) == 0;
        if is_sealed(bytes) && is_known && record.is_sane() { Entry::Record(record) } else { Entry::Damaged }
    }
}

impl Record {
    fn is_sane(&self) -> bool {
        let behind = self.first.checked_add(u64::from(self.len));
        self.len > 0
            && u64::from(self.len) <= BLOCK_BYTES_MAX
            && behind.is_some_and(|behind| behind <= OBJECT_BYTES_MAX)
    }
}

/// What stands in a journal page, or in several that lie side by side, in the order of their bytes; bytes behind the last whole
/// place are left out.
pub fn entries(page: &[u8]) -> impl Iterator<Item = Entry> + '_ {
    page.as_chunks::<RECORD_BYTES>().0.iter().map(Entry::decode)
}

/// The records that prove themselves.
pub fn records(page: &[u8]) -> impl Iterator<Item = Record> + '_ {
    entries(page).filter_map(|entry| match entry {
        Entry::Record(record) => Some(record),
        Entry::Empty | Entry::Damaged => None,
    })
}
