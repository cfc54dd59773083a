//! The format of blocks on disk: segments with a header page, blocks growing up and a journal growing down.
//!
//! A segment is a file of fixed length. Page 0 says what it is; blocks follow, each where its record says; journal pages of
//! [`PAGE_BYTES`] count from the end, page `k` at [`journal_page`]. A record proves itself by its checksum and its block by the
//! one inside, so a page that was torn costs records and never tells a lie. All numbers are little-endian.
//!
//! Owns nothing: bytes in, meaning out.

use crate::etag::Etag;
pub use crate::sealed::Flaw;
use crate::sealed::{
    SEALED_BYTES, bytes_at, checked_header, header, hex_number, is_sealed, named, sealed, u32_at, u64_at,
};
use crate::uri::Endpoint;
use core::fmt;
use fuelrail_base::limits::{BLOCK_BYTES_MAX, OBJECT_BYTES_MAX, SEGMENT_BYTES_MAX, SEGMENT_BYTES_MIN};

/// Bytes of the header page and of each journal page.
pub const PAGE_BYTES: usize = fuelrail_base::limits::SEGMENT_PAGE_BYTES;
/// Bytes of one record of the journal.
pub const RECORD_BYTES: usize = SEALED_BYTES;
const MAGIC: &[u8; 16] = b"fuelrail segment";
const VERSION: u32 = 2;
/// The whole object's checksum is in the record.
const PROMISED: u32 = 1;
/// Pages that a scan asks for at a time.
const SCAN_PAGES: u64 = 64;

/// Where journal page `page` of a segment of `len` bytes begins; `None` when it would reach into the header.
pub fn journal_page(len: u64, page: u64) -> Option<u64> {
    let back = page.checked_add(1)?.checked_mul(PAGE_BYTES as u64)?;
    len.checked_sub(back).filter(|place| *place >= PAGE_BYTES as u64)
}

/// Names one content of one object: 16 bytes of a SHA-256 over the bucket, the key, the entity tag and the length, and
/// whether the server was verified. An object that was overwritten has another one.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Fingerprint(pub [u8; 16]);

impl Fingerprint {
    /// Of the object `key` (the whole key) with this entity tag and length. The endpoint's prefix does not count: two data
    /// sets of one bucket share their objects. Bytes from a TLS server that is not `verified` count as other content: a man in the
    /// middle may have written them.
    pub fn of(endpoint: &Endpoint, key: &str, etag: Etag, size: u64, verified: bool) -> Fingerprint {
        let authority = endpoint.authority();
        // No bucket's name holds a slash: what stands before it cannot pass for a part of one.
        let bucket = match endpoint.base.as_str() {
            "" => endpoint.bucket.clone(),
            base => format!("{base}/{}", endpoint.bucket),
        };
        let scheme = if verified { endpoint.scheme.word() } else { "unverified" };
        let rest = [&etag.to_bytes()[..], &size.to_le_bytes()].concat();
        Fingerprint(named([scheme, &authority, &bucket, key], &rest))
    }

    /// Of the `len` bytes from byte `first` on of the content that this one names.
    #[must_use]
    pub fn of_range(self, first: u64, len: u64) -> Fingerprint {
        Fingerprint(named([], &[&self.0[..], &first.to_le_bytes(), &len.to_le_bytes()].concat()))
    }
}

/// What a segment says of itself. Stands in the first 64 bytes; the rest of the page is zeroes, and not looked at.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SegmentHeader {
    /// Its number, drawn at random, which is in its file's name, too.
    pub id: u128,
    /// Its length, bytes: a power of two.
    pub len: u64,
    /// What places and lengths of its direct transfers were multiples of: 512 or 4096.
    pub unit: u32,
    /// When it was made, s since 1970.
    pub created_s: u64,
}

impl SegmentHeader {
    /// The header page.
    pub fn encode(&self) -> [u8; PAGE_BYTES] {
        let mut bytes = header(MAGIC, VERSION);
        bytes[20..24].copy_from_slice(&self.unit.to_le_bytes());
        bytes[24..40].copy_from_slice(&self.id.to_le_bytes());
        bytes[40..48].copy_from_slice(&self.len.to_le_bytes());
        bytes[48..56].copy_from_slice(&self.created_s.to_le_bytes());
        let mut page = [0; PAGE_BYTES];
        page[..RECORD_BYTES].copy_from_slice(&sealed(bytes));
        page
    }

    /// Reads a header page; what follows it is not looked at.
    ///
    /// # Errors
    /// Why it is none.
    pub fn decode(page: &[u8]) -> Result<SegmentHeader, Flaw> {
        let bytes = checked_header(page, MAGIC, VERSION).and_then(|bytes| match page.len() {
            PAGE_BYTES.. => Ok(bytes),
            _ => Err(Flaw::Short),
        })?;
        let header = SegmentHeader {
            id: u128::from_le_bytes(bytes_at(bytes, 24)),
            len: u64_at(bytes, 40),
            unit: u32_at(bytes, 20),
            created_s: u64_at(bytes, 48),
        };
        let is_sane = matches!(header.unit, 512 | 4096)
            && header.len.is_power_of_two()
            && (SEGMENT_BYTES_MIN..=SEGMENT_BYTES_MAX).contains(&header.len);
        if is_sane && u32_at(bytes, 56) == 0 { Ok(header) } else { Err(Flaw::Absurd) }
    }

    /// What its records carry, so that no other segment's, and nothing else's, is taken for one of them.
    pub fn mark(&self) -> u64 {
        self.id as u64
    }
}

/// The name of a segment's file.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct SegmentName {
    /// The segment's number.
    pub id: u128,
    /// It is being created, and is not read yet.
    pub new: bool,
}

impl SegmentName {
    /// As [`SegmentHeader::mark`].
    pub fn mark(&self) -> u64 {
        self.id as u64
    }

    /// Reads a file's name. `None` unless it is exactly what [`Display`](fmt::Display) writes.
    pub fn parse(name: &str) -> Option<SegmentName> {
        let rest = name.strip_prefix("fuelrail-")?;
        let (hex, ending) = rest.split_once('.')?;
        let new = match ending {
            "segment" => false,
            "new" => true,
            _ => return None,
        };
        hex_number(hex).map(|id| SegmentName { id, new })
    }
}

impl fmt::Display for SegmentName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "fuelrail-{:032x}.{}", self.id, if self.new { "new" } else { "segment" })
    }
}

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
    /// Start of its segment's number ([`SegmentHeader::mark`]), drawn at random: the content of an object cannot be mistaken for a
    /// record, wherever it is.
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
    pub fn lies_before(&self, end: u64) -> bool {
        let behind = self.place.checked_add(u64::from(self.len));
        self.place >= PAGE_BYTES as u64 && behind.is_some_and(|behind| behind <= end)
    }
}

impl Entry {
    /// What these bytes are.
    pub fn decode(bytes: &[u8; RECORD_BYTES]) -> Entry {
        if *bytes == [0; RECORD_BYTES] {
            return Entry::Empty;
        }
        let (flags, promised) = (u32_at(bytes, 44), u32_at(bytes, 40));
        let record = Record {
            fingerprint: Fingerprint(bytes_at(bytes, 0)),
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
        let behind = record.first.checked_add(u64::from(record.len));
        let is_sane = (1..=BLOCK_BYTES_MAX).contains(&u64::from(record.len))
            && behind.is_some_and(|behind| behind <= OBJECT_BYTES_MAX);
        if is_sealed(bytes) && is_known && is_sane { Entry::Record(record) } else { Entry::Damaged }
    }
}

/// What stands in a journal page, or in several that lie side by side, in the order of their bytes; bytes after the last whole
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

/// Finds the records of a segment: which bytes of its journal to read next, from its end down, and what they say. A segment that was
/// not written to its end does not say how many pages its journal has, and a power cut may have taken any of them. So all pages down to
/// the last block are looked at.
#[derive(Debug)]
pub struct Scan {
    len: u64,
    mark: u64,
    /// The next page to look at.
    next: u64,
    /// Places that are no records, after the last page that has one.
    doubtful: u64,
    scanned: Scanned,
}

/// What a journal said.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Scanned {
    /// Records that prove themselves and whose blocks lie where blocks may.
    pub records: Vec<Record>,
    /// Places of the journal that hold something else than a record.
    pub damaged: u64,
    /// Pages up to the last one with a record. What lies between the last block and them is not looked into: a block
    /// that was written and not recorded may be there.
    pub pages: u64,
    /// First byte after the last block.
    pub end: u64,
}

impl Scan {
    /// Of the segment with this header.
    pub fn new(header: &SegmentHeader) -> Scan {
        Scan::starting_at(header, 0)
    }

    /// The same, of the pages after the first `pages`.
    pub fn starting_at(header: &SegmentHeader, pages: u64) -> Scan {
        let scanned = Scanned { end: PAGE_BYTES as u64, ..Scanned::default() };
        Scan { len: header.len, mark: header.mark(), next: pages, doubtful: 0, scanned }
    }

    /// Records found so far.
    pub fn found(&self) -> usize {
        self.scanned.records.len()
    }

    /// What to read next: the first byte and how many. `None` when everything was.
    pub fn wants(&self) -> Option<(u64, usize)> {
        let top = journal_page(self.len, self.next)?;
        let room = (top + PAGE_BYTES as u64).checked_sub(self.scanned.end)? / PAGE_BYTES as u64;
        let pages = room.min(SCAN_PAGES);
        let first = journal_page(self.len, self.next + pages.checked_sub(1)?)?;
        Some((first, pages as usize * PAGE_BYTES))
    }

    /// Takes the bytes that were wanted.
    ///
    /// # Panics
    /// When they are not as many.
    pub fn take(&mut self, bytes: &[u8]) {
        assert_eq!(self.wants().map(|wanted| wanted.1), Some(bytes.len()), "what is wanted is given");
        for page in bytes.chunks_exact(PAGE_BYTES).rev() {
            let Some(place) = journal_page(self.len, self.next).filter(|place| *place >= self.scanned.end) else {
                return;
            };
            self.next += 1;
            self.page(page, place);
        }
    }

    /// Passes over the bytes that were wanted, which were never written: as taking zeros.
    pub fn skip(&mut self) {
        self.next += self.wants().map_or(0, |(_, len)| (len / PAGE_BYTES) as u64);
    }

    fn page(&mut self, page: &[u8], place: u64) {
        let Scanned { records, damaged, pages, end } = &mut self.scanned;
        for entry in entries(page) {
            match entry {
                Entry::Empty => continue,
                Entry::Record(record) if record.mark == self.mark && record.lies_before(place) => {
                    *end = (*end).max(record.place + u64::from(record.len));
                    records.push(record);
                    *pages = self.next;
                }
                Entry::Record(_) | Entry::Damaged => self.doubtful += 1,
            }
        }
        if *pages == self.next {
            *damaged += core::mem::take(&mut self.doubtful);
        }
    }

    /// What was found.
    #[must_use]
    pub fn finish(self) -> Scanned {
        self.scanned
    }
}
