//! The first page of a segment, and the segment's name as a file.

use core::fmt;

use fuelrail_base::limits::{SEGMENT_BYTES_MAX, SEGMENT_BYTES_MIN};

use super::{PAGE_BYTES, RECORD_BYTES, is_sealed, sealed, u32_at, u64_at};

const MAGIC: &[u8; 16] = b"fuelrail segment";
const VERSION: u32 = 2;

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

/// Why a page is not the header of a segment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum HeaderFlaw {
    /// It is shorter than a page.
    Short,
    /// It is something else's.
    Foreign,
    /// It is of another version of this format.
    Version(u32),
    /// Its checksum does not fit.
    Damaged,
    /// It says what no segment is.
    Absurd,
}

impl fmt::Display for HeaderFlaw {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            HeaderFlaw::Short => f.write_str("it is shorter than its header"),
            HeaderFlaw::Foreign => f.write_str("it does not begin as a segment does"),
            HeaderFlaw::Version(version) => write!(f, "it is of version {version}, and this program knows {VERSION}"),
            HeaderFlaw::Damaged => f.write_str("its header is damaged"),
            HeaderFlaw::Absurd => f.write_str("its header says what no segment is"),
        }
    }
}

impl SegmentHeader {
    /// The header page.
    #[must_use]
    pub fn encode(&self) -> [u8; PAGE_BYTES] {
        let mut bytes = [0; RECORD_BYTES];
        bytes[..16].copy_from_slice(MAGIC);
        bytes[16..20].copy_from_slice(&VERSION.to_le_bytes());
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
    pub fn decode(page: &[u8]) -> Result<SegmentHeader, HeaderFlaw> {
        let bytes = page.first_chunk::<RECORD_BYTES>().filter(|_| page.len() >= PAGE_BYTES).ok_or(HeaderFlaw::Short)?;
        if !bytes.starts_with(MAGIC) {
            return Err(HeaderFlaw::Foreign);
        }
        // A later version may keep its checksum elsewhere.
        let version = u32_at(bytes, 16);
        if version != VERSION {
            return Err(HeaderFlaw::Version(version));
        }
        if !is_sealed(bytes) {
            return Err(HeaderFlaw::Damaged);
        }
        let header = SegmentHeader {
            id: u128::from(u64_at(bytes, 24)) | u128::from(u64_at(bytes, 32)) << 64,
            len: u64_at(bytes, 40),
            unit: u32_at(bytes, 20),
            created_s: u64_at(bytes, 48),
        };
        let is_known = bytes[56..60] == [0; 4];
        if is_known && header.is_sane() { Ok(header) } else { Err(HeaderFlaw::Absurd) }
    }

    /// What its records carry, so that no other segment's, and nothing else's, is taken for one of them.
    #[must_use]
    pub fn mark(&self) -> u64 {
        mark(self.id)
    }

    fn is_sane(&self) -> bool {
        matches!(self.unit, 512 | 4096)
            && self.len.is_power_of_two()
            && (SEGMENT_BYTES_MIN..=SEGMENT_BYTES_MAX).contains(&self.len)
    }
}

pub(super) fn mark(id: u128) -> u64 {
    id as u64
}

/// The name of a segment's file.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct SegmentName {
    /// The segment's number.
    pub id: u128,
    /// It is being made, and nobody reads it.
    pub new: bool,
}

impl SegmentName {
    /// As [`SegmentHeader::mark`].
    #[must_use]
    pub fn mark(&self) -> u64 {
        mark(self.id)
    }

    /// Reads a file's name. `None` unless it is exactly what [`Display`](fmt::Display) writes.
    #[must_use]
    pub fn parse(name: &str) -> Option<SegmentName> {
        let rest = name.strip_prefix("fuelrail-")?;
        let (hex, ending) = rest.split_once('.')?;
        let plain = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
        if hex.len() != 32 || !hex.bytes().all(plain) {
            return None;
        }
        let new = match ending {
            "segment" => false,
            "new" => true,
            _ => return None,
        };
        u128::from_str_radix(hex, 16).ok().map(|id| SegmentName { id, new })
    }
}

impl fmt::Display for SegmentName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "fuelrail-{:032x}.{}", self.id, if self.new { "new" } else { "segment" })
    }
}
