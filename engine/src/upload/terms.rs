//! What is agreed on before an object is put: its source, its limits, and what it may replace.

use fuelrail_base::{Error, Kind, Result};
use fuelrail_wire::Dialect;
use std::io::{Read, Seek};

/// Largest object: what S3 makes of parts.
pub const UPLOAD_BYTES_MAX: u64 = 5 << 40;
/// Longer objects go in parts, unless [`PutOptions`] say otherwise.
pub const PARTS_ABOVE_BYTES: u64 = 64 << 20;
/// Length of a part, unless [`PutOptions`] say otherwise or there would be more than 10 000.
pub const PART_BYTES: u64 = 16 << 20;

/// Largest object that one request may bring: what S3 allows.
pub(super) const PUT_BYTES_MAX: u64 = 5 << 30;

/// Where an object's bytes are read from, from the start as often as it takes: a file, or a cursor over memory.
pub trait Upload: Read + Seek + Send {}

impl<T: Read + Seek + Send> Upload for T {}

/// What the server has taken.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Stored {
    /// Length of the object.
    pub bytes: u64,
    /// The entity tag it has now, if the server tells.
    pub etag: Option<String>,
}

/// What may be there under the key before an object is put.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub enum PutOver {
    /// Whatever it is, it is replaced.
    #[default]
    Anything,
    /// Nothing: of several who put the same key, one succeeds.
    Nothing,
    /// The object with this entity tag, as a listing or [`Stored`] has it. Google's XML interface does not judge these.
    Etag(String),
}

/// How an object is put.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PutOptions {
    /// What it may replace. The server judges it at the moment the object appears.
    pub over: PutOver,
    /// Longer objects go in parts; at most 5 GiB.
    pub parts_above_bytes: u64,
    /// Length of each part but the last: 5 MiB to 5 GiB on S3 and Google. Longer where there would be more than 10 000.
    pub part_bytes: u64,
}

impl Default for PutOptions {
    fn default() -> PutOptions {
        PutOptions { over: PutOver::Anything, parts_above_bytes: PARTS_ABOVE_BYTES, part_bytes: PART_BYTES }
    }
}

impl PutOptions {
    pub(super) fn validate(&self, dialect: Dialect) -> Result<()> {
        let usage = |cause: &str, cure: &str| Err(Error::new(Kind::Usage, cause).cure(cure));
        if self.part_bytes == 0 || self.part_bytes > PUT_BYTES_MAX || self.parts_above_bytes > PUT_BYTES_MAX {
            return usage("part_bytes or parts_above_bytes is 0 or beyond 5 GiB", "use 16 MiB and 64 MiB");
        }
        if let PutOver::Etag(etag) = &self.over {
            if etag.is_empty() || !etag.chars().all(|c| c.is_ascii_graphic()) {
                return usage("the entity tag to be replaced is none", "take it from a listing");
            }
            if dialect == Dialect::Gcs {
                return usage(
                    "Google judges no entity tags of what is replaced",
                    "put it over anything, or over nothing",
                );
            }
        }
        Ok(())
    }
}
