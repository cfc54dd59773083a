//! Record indexes of the shard formats people have.
//!
//! A sample is a *record*: one or several byte ranges of objects, each a named field. A format is a [`Scan`] that finds the records of an
//! object and appends them to an [`IndexBuilder`]; the [`Index`] it writes is flat bytes that can be memory-mapped. A scan says which bytes
//! it needs and skips the bodies, so an index of a large shard is made from its headers alone. The readers of [`mds`] and [`tfrecord`] split
//! the bytes of one record into fields. The other way round, a [`write::Writer`] makes shards of records.
//!
//! Owns no resource: no file, socket, clock or thread. Every parser takes hostile bytes and returns a value or a typed error, never a panic,
//! within memory that its input justifies. Errors name the byte or line; the caller, who knows the object's key, adds it.
#![forbid(unsafe_code)]

pub mod bytes;
#[doc(hidden)]
pub mod fuzz;
pub mod index;
pub mod manifest;
pub mod mds;
pub mod objects;
#[cfg(feature = "parquet")]
pub mod parquet;
pub mod tar;
pub mod tfrecord;
pub mod tokens;
pub mod write;

pub use index::{Field, Index, IndexBuilder, Place, Record, Span};

use core::fmt;
use fuelrail_base::{Error, Kind, Result};

/// How the bytes of a data set are arranged.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Format {
    /// Every object is a record; the key's extension is the field.
    Objects,
    /// tar archives; members with the same basename are the fields of a record.
    WebDataset,
    /// Shards of the streaming package.
    Mds,
    /// Frames with checksums, usually of `tf.Example`.
    TfRecord,
    /// Row groups of Parquet files.
    Parquet,
    /// Arrays of token ids without a header.
    Tokens,
    /// A CSV or JSONL file that lists keys or ranges.
    Manifest,
}

fuelrail_base::named!(Format, "a format":
    Objects = "objects", WebDataset = "webdataset", Mds = "mds", TfRecord = "tfrecord", Parquet = "parquet", Tokens = "tokens",
    Manifest = "manifest");

/// What a scan does next.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Need {
    /// It must be given the object's bytes from `offset` on: `at_least` so many, never beyond the object's end. More saves reads.
    Read {
        /// First byte.
        offset: u64,
        /// Fewest bytes.
        at_least: u64,
    },
    /// All records are in the index.
    Done,
}

/// Whether a field is one of these, or lies below one, as `image.bytes` below `image`; all are where none is named.
pub fn is_named(fields: &[String], name: &str) -> bool {
    fields.is_empty() || fields.iter().any(|field| is_below(field, name))
}

/// Whether a field is this one, or lies below it.
pub fn is_below(field: &str, name: &str) -> bool {
    name.strip_prefix(field).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
}

/// Takes the fields of a record that was unpacked: name and bytes of each.
pub type TakeFields<'t> = &'t mut dyn FnMut(&[(&str, &[u8])]) -> Result<()>;

/// Finds the records of one object.
///
/// A scan that returned an error is over: what it does next is unspecified, but safe.
pub trait Scan {
    /// What it needs.
    fn need(&self) -> Need;

    /// Takes the object's bytes from the needed offset on, and appends the records it finds.
    ///
    /// # Errors
    /// [`Kind::Undecodable`] where the object is not sound, with the byte or line; [`Kind::Truncated`] where fewer bytes came than
    /// were needed; [`Kind::Usage`] where the format's variant is not supported, or the index cannot hold a record.
    fn give(&mut self, bytes: &[u8], index: &mut IndexBuilder) -> Result<()>;
}

/// Scans an object that is in memory as a whole.
///
/// # Errors
/// Those of the scan.
pub fn scan_whole(scan: &mut impl Scan, object: &[u8], index: &mut IndexBuilder) -> Result<()> {
    while let Need::Read { offset, .. } = scan.need() {
        let rest = usize::try_from(offset).ok().and_then(|offset| object.get(offset..));
        scan.give(rest.unwrap_or_default(), index)?;
    }
    Ok(())
}

/// The object breaks its format at a byte.
fn unsound(at: u64, cause: impl fmt::Display) -> Error {
    Error::new(Kind::Undecodable, format!("at byte {at}: {cause}")).with_hint("write the shard again, or leave it out")
}

/// The object ends before what it announces.
fn cut_off(at: u64, what: impl fmt::Display, needed: u64, size: u64) -> Error {
    unsound(at, format_args!("the object is truncated: {what} ends at byte {needed}, the object at byte {size}"))
}

/// A variant of the format that is not read.
fn unsupported(cause: impl Into<String>, hint: impl Into<String>) -> Error {
    Error::new(Kind::Usage, cause).with_hint(hint)
}

/// The bytes of a read, of which at least `needed` must have come.
fn check_given(bytes: &[u8], at: u64, needed: u64) -> Result<()> {
    let given = bytes.len() as u64;
    if given >= needed {
        return Ok(());
    }
    Err(Error::new(Kind::Truncated, format!("a read at byte {at} gave {given} bytes, needed are {needed}")))
}

/// What a scan needs that is `at` a byte of an object of `size` bytes, and done at its end.
fn need_from(at: u64, at_least: u64, size: u64) -> Need {
    if at == size { Need::Done } else { Need::Read { offset: at, at_least: at_least.min(size - at) } }
}

/// At most 256 bytes of a name, escaped for printing.
fn shown(name: &[u8]) -> String {
    name[..name.len().min(256)].escape_ascii().to_string()
}

impl Format {
    /// The format that the names of a data set's objects tell: that of the first which has an extension of one.
    pub fn of_keys<'k>(mut keys: impl Iterator<Item = &'k str>) -> Format {
        let of_key = |key: &str| {
            let name = key.rsplit('/').next().unwrap_or(key);
            let (is_mds, is_records) = (name.contains(".mds"), name.contains(".tfrecord"));
            match name.rsplit_once('.').map(|(_, extension)| extension) {
                Some("tar") => Some(Format::WebDataset),
                Some("parquet") => Some(Format::Parquet),
                _ if is_mds => Some(Format::Mds),
                _ if is_records => Some(Format::TfRecord),
                _ => None,
            }
        };
        keys.find_map(of_key).unwrap_or(Format::Objects)
    }
}
