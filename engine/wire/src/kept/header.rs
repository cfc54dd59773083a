//! The first bytes of a kept listing: what it holds, of which data set, and since when. And the names of its files.

use core::fmt;

use aws_lc_rs::digest::{Context, SHA256};

use super::{Flaw, VERSION, u32_at, u64_at};
use crate::uri::{Dialect, Source};

/// Bytes of the header.
pub const HEADER_BYTES: usize = 64;
const MAGIC: &[u8; 16] = b"fuelrail listing";
const WHOLE: u32 = 1;
const JOURNAL: u32 = 2;

/// Names a data set: 16 bytes of a SHA-256 over server, bucket and prefixes.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct SourceId(pub [u8; 16]);

impl SourceId {
    /// Of what a URI means, asked of a server that is `verified`, or of whoever answers over TLS. How it was written does not count.
    #[must_use]
    pub fn of(source: &Source, verified: bool) -> SourceId {
        let endpoint = &source.endpoint;
        let authority = endpoint.authority();
        let dialect = match endpoint.dialect {
            Dialect::S3 => "s3",
            Dialect::Gcs => "gcs",
            Dialect::Azure => "azure",
        };
        let scheme = if verified { endpoint.scheme.word() } else { "unverified" };
        let fields = [scheme, dialect, &authority, &endpoint.base, &endpoint.bucket];
        let mut hash = Context::new(&SHA256);
        for field in fields.into_iter().chain(source.prefixes.iter().map(String::as_str)) {
            hash.update(&(field.len() as u64).to_le_bytes());
            hash.update(field.as_bytes());
        }
        let digest = hash.finish();
        let mut id = [0; 16];
        id.copy_from_slice(&digest.as_ref()[..16]);
        SourceId(id)
    }
}

/// What a file holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Holds {
    /// So many objects: all there were.
    Whole(u64),
    /// What came of a listing under way.
    Journal,
}

/// What a file says of itself.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Header {
    /// What it holds.
    pub holds: Holds,
    /// Of which data set.
    pub source: SourceId,
    /// When its first page was asked for, s since 1970.
    pub begun_s: u64,
}

impl Header {
    /// Its bytes.
    #[must_use]
    pub fn encode(&self) -> [u8; HEADER_BYTES] {
        let (word, objects) = match self.holds {
            Holds::Whole(objects) => (WHOLE, objects),
            Holds::Journal => (JOURNAL, 0),
        };
        let mut bytes = [0; HEADER_BYTES];
        bytes[..16].copy_from_slice(MAGIC);
        bytes[16..20].copy_from_slice(&VERSION.to_le_bytes());
        bytes[20..24].copy_from_slice(&word.to_le_bytes());
        bytes[24..40].copy_from_slice(&self.source.0);
        bytes[40..48].copy_from_slice(&self.begun_s.to_le_bytes());
        bytes[48..56].copy_from_slice(&objects.to_le_bytes());
        let sum = crc32c::crc32c(&bytes[..HEADER_BYTES - 4]);
        bytes[HEADER_BYTES - 4..].copy_from_slice(&sum.to_le_bytes());
        bytes
    }

    /// Reads a header; what follows it is not looked at.
    ///
    /// # Errors
    /// Why it is none.
    pub fn decode(bytes: &[u8]) -> Result<Header, Flaw> {
        let bytes = bytes.first_chunk::<HEADER_BYTES>().ok_or(Flaw::Short)?;
        if !bytes.starts_with(MAGIC) {
            return Err(Flaw::Foreign);
        }
        // A later version may keep its checksum elsewhere.
        let version = u32_at(bytes, 16);
        if version != VERSION {
            return Err(Flaw::Version(version));
        }
        if crc32c::crc32c(&bytes[..HEADER_BYTES - 4]) != u32_at(bytes, HEADER_BYTES - 4) {
            return Err(Flaw::Damaged);
        }
        let holds = match (u32_at(bytes, 20), u64_at(bytes, 48)) {
            (WHOLE, objects) => Holds::Whole(objects),
            (JOURNAL, 0) => Holds::Journal,
            _ => return Err(Flaw::Absurd),
        };
        if u32_at(bytes, 56) != 0 {
            return Err(Flaw::Absurd);
        }
        let mut source = [0; 16];
        source.copy_from_slice(&bytes[24..40]);
        Ok(Header { holds, source: SourceId(source), begun_s: u64_at(bytes, 40) })
    }
}

/// Which of a listing's files a name is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NameKind {
    /// The whole listing.
    Whole,
    /// The same, being written.
    New,
    /// The journal of one under way.
    Journal,
}

/// The name of a kept listing's file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Name {
    /// Which data set's.
    pub source: SourceId,
    /// Which of its files.
    pub kind: NameKind,
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ending = match self.kind {
            NameKind::Whole => "listing",
            NameKind::New => "listing-new",
            NameKind::Journal => "journal",
        };
        write!(f, "fuelrail-{:032x}.{ending}", u128::from_be_bytes(self.source.0))
    }
}
