//! Shards of the streaming package (MDS, version 2): `index.json` names columns and shards, a shard begins with the offsets of its samples.
//!
//! A shard is a u32 count, so many u32 offsets and one more, the writer's settings, and samples. A sample is the u32 sizes of its variable
//! columns, then the data of all. The index of records has one range per sample; [`Columns::split`] finds its fields.

pub mod encoding;
#[cfg(test)]
mod tests;

pub use encoding::{Array, Encoding, Value};

use crate::bytes::{take, u32_at};
use crate::index::IndexBuilder;
use crate::{Need, check_given, cut_off, shown, unsound, unsupported};
use fuelrail_base::{Error, Kind, Result};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::io::Read;

/// The shards of a data set, of which all have the same columns.
#[derive(Clone, PartialEq, Debug)]
pub struct DataSet {
    /// What a sample consists of.
    pub columns: Columns,
    /// How whole shards are compressed.
    pub compression: Option<Compression>,
    /// In the order of samples.
    pub shards: Vec<Shard>,
}

/// One shard.
#[derive(Clone, PartialEq, Debug)]
pub struct Shard {
    /// Samples in it.
    pub samples: u32,
    /// As it is read.
    pub raw: File,
    /// As it is stored, if compressed.
    pub zip: Option<File>,
}

impl Shard {
    /// The file that is stored.
    pub fn stored(&self) -> &File {
        self.zip.as_ref().unwrap_or(&self.raw)
    }
}

/// A file that `index.json` names.
#[derive(Clone, PartialEq, Deserialize, Debug)]
pub struct File {
    /// Its path from the folder of `index.json` on.
    pub basename: String,
    /// Its length.
    pub bytes: u64,
    /// Its hashes in hexadecimal, by their algorithms.
    #[serde(default)]
    pub hashes: BTreeMap<String, String>,
}

/// The columns of a data set, in the order of their data.
#[derive(Clone, PartialEq, Default, Debug)]
pub struct Columns {
    document: ColumnsDocument,
    columns: Vec<Column>,
    /// Bytes of a sample but for the data of its variable columns.
    fixed_bytes: u64,
}

/// One column.
#[derive(Clone, PartialEq, Debug)]
pub struct Column {
    /// Its name.
    pub name: String,
    /// What its bytes mean.
    pub encoding: Encoding,
    /// Bytes of each value; `None` where every sample has its own.
    pub size: Option<u32>,
}

#[derive(Deserialize)]
struct Document {
    version: u32,
    shards: Vec<ShardDocument>,
}

#[derive(Deserialize)]
struct ShardDocument {
    version: u32,
    format: String,
    samples: u32,
    compression: Option<String>,
    raw_data: File,
    zip_data: Option<File>,
    #[serde(flatten)]
    columns: ColumnsDocument,
}

#[derive(Clone, PartialEq, Default, Deserialize, Serialize, Debug)]
struct ColumnsDocument {
    column_names: Vec<String>,
    column_encodings: Vec<String>,
    column_sizes: Vec<Option<u32>>,
    /// Whether a sample may lack some.
    #[serde(default, skip_serializing_if = "core::ops::Not::not")]
    nullable: bool,
}

/// The size of a value that a sample lacks.
const ABSENT: u32 = u32::MAX;

impl DataSet {
    /// Reads `index.json`.
    ///
    /// # Errors
    /// [`Kind::Undecodable`] when it is not sound; [`Kind::Usage`] for other versions, formats and compressions, which it names, and when
    /// shards differ in their columns.
    pub fn parse(json: &[u8]) -> Result<DataSet> {
        let document: Document = serde_json::from_slice(json).map_err(|error| flawed(error.to_string()))?;
        if document.version != 2 {
            let flaw = format!("index.json: version {} is not supported, only 2", document.version);
            return Err(unsupported(flaw, "write the data set with a current release of mosaicml-streaming"));
        }
        let mut set: Option<(ColumnsDocument, Option<String>)> = None;
        let mut shards = Vec::with_capacity(document.shards.len());
        for (number, shard) in document.shards.into_iter().enumerate() {
            if shard.format != "mds" || shard.version != 2 {
                let (format, version) = (shown(shard.format.as_bytes()), shard.version);
                let flaw = format!("index.json: shard {number} is {format} of version {version}");
                return Err(unsupported(flaw, "write the data set with MDSWriter"));
            }
            shard.check_files().map_err(|flaw| flawed(format!("shard {number}: {flaw}")))?;
            let (columns, compression) = set.get_or_insert_with(|| (shard.columns.clone(), shard.compression.clone()));
            let is_first = shards.is_empty();
            if !is_first && (shard.columns != *columns || shard.compression != *compression) {
                let flaw = format!("index.json: shard {number} has other columns or another compression than shard 0");
                return Err(unsupported(flaw, "use the two kinds of shards as two data sets"));
            }
            shards.push(Shard { samples: shard.samples, raw: shard.raw_data, zip: shard.zip_data });
        }
        let (columns, compression) = set.unwrap_or_default();
        // Those of Parquet alone may be; what the file says of that is not read.
        let columns = Columns::new(ColumnsDocument { nullable: false, ..columns }).map_err(flawed)?;
        let compression = compression.as_deref().map(Compression::parse).transpose()?;
        Ok(DataSet { columns, compression, shards })
    }

    /// An empty index of its records, `objects` objects being listed.
    pub fn index(&self, source: [u8; 16], objects: u32) -> IndexBuilder {
        let mut index = IndexBuilder::new(crate::Format::Mds, source, objects).without_keys();
        index.describe(self.columns.description());
        index
    }
}

impl ShardDocument {
    fn check_files(&self) -> Result<(), String> {
        if self.compression.is_some() != self.zip_data.is_some() {
            return Err("it needs both a compression and a compressed file, or neither".into());
        }
        for file in [Some(&self.raw_data), self.zip_data.as_ref()].into_iter().flatten() {
            if file.basename.starts_with('/')
                || file.basename.split('/').any(|part| part == ".." || file.basename.is_empty())
            {
                return Err(format!("the file '{}' lies outside the data set", shown(file.basename.as_bytes())));
            }
        }
        Ok(())
    }
}

impl Columns {
    fn new(document: ColumnsDocument) -> Result<Columns, String> {
        let ColumnsDocument { column_names: names, column_encodings: encodings, column_sizes: sizes, .. } = &document;
        if names.len() != encodings.len() || names.len() != sizes.len() {
            let (encodings, sizes) = (encodings.len(), sizes.len());
            return Err(format!("{} columns have {encodings} encodings and {sizes} sizes", names.len()));
        }
        let mut known = BTreeSet::new();
        if let Some(name) = names.iter().find(|name| !known.insert(*name)) {
            return Err(format!("two columns are named '{}'", shown(name.as_bytes())));
        }
        let columns = names.iter().zip(encodings).zip(sizes).map(|((name, encoding), size)| {
            // As in the package, 0 means variable.
            Column { name: name.clone(), encoding: Encoding::parse(encoding), size: size.filter(|size| *size > 0) }
        });
        let columns: Vec<Column> = columns.collect();
        let fixed_bytes = columns.iter().map(|column| u64::from(column.size.unwrap_or(4))).sum();
        Ok(Columns { document, columns, fixed_bytes })
    }

    /// Columns of records that are laid out as samples of MDS are: all of any length, and a record may lack some.
    ///
    /// # Errors
    /// [`Kind::Undecodable`] when two have one name.
    pub fn nullable<'a>(columns: impl Iterator<Item = (&'a str, &'a Encoding)>) -> Result<Columns> {
        let (names, encodings): (Vec<_>, Vec<_>) = columns.map(|(name, of)| (name.to_owned(), of.to_text())).unzip();
        let (column_sizes, nullable) = (vec![None; names.len()], true);
        Columns::new(ColumnsDocument { column_names: names, column_encodings: encodings, column_sizes, nullable })
            .map_err(flawed)
    }

    /// Appends a sample of nullable columns: those of them that it has, in their order.
    ///
    /// # Errors
    /// [`Kind::Undecodable`] for a value of 4 GiB.
    ///
    /// # Panics
    /// If there is another field, or they are in another order.
    pub fn join(&self, fields: &[(&str, &[u8])], out: &mut Vec<u8>) -> Result<()> {
        let mut left = fields.iter().peekable();
        for column in &self.columns {
            let field = left.next_if(|(name, _)| *name == column.name);
            let size = field.map_or(Ok(ABSENT), |(_, bytes)| u32::try_from(bytes.len()));
            let size = size.map_err(|_| flawed(format!("a value of '{}' has 4 GiB", column.name)))?;
            out.extend_from_slice(&size.to_le_bytes());
        }
        assert!(left.next().is_none(), "fields are in the order of the columns");
        fields.iter().for_each(|(_, bytes)| out.extend_from_slice(bytes));
        Ok(())
    }

    /// The columns, in the order of their data.
    pub fn all(&self) -> &[Column] {
        &self.columns
    }

    /// What [`IndexBuilder::describe`] keeps of them.
    pub fn description(&self) -> Vec<u8> {
        serde_json::to_vec(&self.document).expect("strings and numbers fit JSON")
    }

    /// Reads a description.
    ///
    /// # Errors
    /// [`Kind::Undecodable`] when it is none.
    pub fn parse(description: &[u8]) -> Result<Columns> {
        let document = serde_json::from_slice(description).map_err(|error| flawed(error.to_string()))?;
        Columns::new(document).map_err(flawed)
    }

    /// Splits a sample into its columns, without those that it lacks. Allocates nothing.
    ///
    /// # Errors
    /// [`Kind::Undecodable`] when its sizes do not add up to its length.
    pub fn split<'a>(&'a self, sample: &'a [u8]) -> Result<impl Iterator<Item = (&'a Column, &'a [u8])>> {
        let variable = self.columns.iter().filter(|column| column.size.is_none()).count();
        let is_absent = |size: u32| self.document.nullable && size == ABSENT;
        let sizes =
            (0..variable).map(|n| u32_at(sample, n * 4).map(|size| if is_absent(size) { 0 } else { size.into() }));
        let total = sizes.sum::<Option<u64>>().map(|sizes| sizes + self.fixed_bytes);
        if total != Some(sample.len() as u64) {
            let flaw = format!("the sample has {} bytes, its columns do not", sample.len());
            return Err(Error::new(Kind::Undecodable, flaw).with_hint("write the shard again, or leave the sample out"));
        }
        let (mut sizes, mut data) = sample.split_at(variable * 4);
        let columns = self.columns.iter().map_while(move |column| {
            let size = match column.size {
                Some(size) => size,
                None => u32_at(take(&mut sizes, 4)?, 0)?,
            };
            if is_absent(size) { Some(None) } else { Some(Some((column, take(&mut data, size.into())?))) }
        });
        Ok(columns.flatten())
    }
}

/// Scans one shard that is not, or no longer, compressed. Needs the offsets that it begins with only.
#[derive(Debug)]
pub struct Scan {
    object: u32,
    size: u64,
    samples: u64,
    fixed_bytes: u64,
    /// Offsets read, the first of them included, and the last one.
    read: u64,
    last: u64,
}

impl Scan {
    /// A scan of a shard of `size` bytes that is listed as `shard`.
    ///
    /// # Errors
    /// [`Kind::Undecodable`] when its size is not the listed one.
    pub fn new(object: u32, size: u64, shard: &Shard, columns: &Columns) -> Result<Scan> {
        if size != shard.raw.bytes {
            let flaw = format!("the shard has {size} bytes, index.json says {}", shard.raw.bytes);
            return Err(
                Error::new(Kind::Undecodable, flaw).with_hint("upload the shard again, or write index.json anew")
            );
        }
        Ok(Scan { object, size, samples: shard.samples.into(), fixed_bytes: columns.fixed_bytes, read: 0, last: 0 })
    }

    /// The first byte that is not read, and the fewest to read.
    fn place(&self) -> (u64, u64) {
        if self.last == 0 { (0, 8) } else { (4 + 4 * self.read, 4) }
    }

    /// The count and the first offset.
    fn begin(&mut self, bytes: &[u8]) -> Result<()> {
        let count = u32_at(bytes, 0).unwrap_or_default();
        let begin = u64::from(u32_at(bytes, 4).unwrap_or_default());
        if u64::from(count) != self.samples {
            return Err(unsound(0, format_args!("the shard holds {count} samples, index.json says {}", self.samples)));
        }
        let table = 4 * (self.samples + 2);
        if begin < table || begin > self.size {
            let size = self.size;
            let flaw = format_args!(
                "the first sample begins at byte {begin}: its offsets end at {table}, the shard at {size}"
            );
            return Err(unsound(4, flaw));
        }
        (self.read, self.last) = (1, begin);
        Ok(())
    }
}

impl crate::Scan for Scan {
    fn need(&self) -> Need {
        let (offset, at_least) = self.place();
        if self.read > self.samples {
            Need::Done
        } else {
            Need::Read { offset, at_least: at_least.min(self.size - offset) }
        }
    }

    fn give(&mut self, mut bytes: &[u8], index: &mut IndexBuilder) -> Result<()> {
        let (offset, needed) = self.place();
        if self.size - offset < needed {
            return Err(cut_off(offset, "the table of offsets", offset + needed, self.size));
        }
        check_given(bytes, offset, needed)?;
        if self.last == 0 {
            self.begin(bytes)?;
            bytes = &bytes[8..];
        }
        while self.read <= self.samples {
            let at = self.place().0;
            let Some(end) = take(&mut bytes, 4).and_then(|offset| u32_at(offset, 0)) else { break };
            let length = u64::from(end).checked_sub(self.last).filter(|_| u64::from(end) <= self.size);
            let Some(length) = length else {
                let (begin, size) = (self.last, self.size);
                let flaw = format_args!("a sample ends at byte {end}: it begins at {begin}, the shard ends at {size}");
                return Err(unsound(at, flaw));
            };
            if length < self.fixed_bytes {
                return Err(unsound(
                    at,
                    format_args!("a sample has {length} bytes, its columns need {}", self.fixed_bytes),
                ));
            }
            index.push_range(self.object, self.last, length)?;
            (self.read, self.last) = (self.read + 1, end.into());
        }
        Ok(())
    }
}

/// How whole shards are compressed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Compression {
    /// zstd.
    Zstd,
    /// gzip.
    Gz,
}

impl Compression {
    /// Reads `zstd`, `gz`, and the same with a level: `zstd:7`.
    fn parse(text: &str) -> Result<Compression> {
        match text.split(':').next() {
            Some("zstd") => Ok(Compression::Zstd),
            Some("gz") => Ok(Compression::Gz),
            _ => Err(unsupported(
                format!("index.json: shards are compressed with {}, which is not supported", shown(text.as_bytes())),
                "write them with compression='zstd', 'gz' or none",
            )),
        }
    }

    /// Decompresses a whole shard, into as many bytes as `index.json` says.
    ///
    /// # Errors
    /// As [`Compression::decompress`]; [`Kind::Undecodable`] where it says more than a shard can have.
    pub fn unpacked(self, bytes: &[u8], shard: &Shard) -> Result<Vec<u8>> {
        // Offsets have 32 bits. Memory that is zero is taken when it is written.
        let size = u32::try_from(shard.raw.bytes);
        let size = size.map_err(|_| flawed(format!("a shard has {} bytes, and may have 4 GiB", shard.raw.bytes)))?;
        let mut out = vec![0; size as usize];
        self.decompress(bytes, &mut out)?;
        Ok(out)
    }

    /// Decompresses a whole shard into `out`, which is as long as `index.json` says. Never writes more, whatever the shard claims.
    ///
    /// # Errors
    /// [`Kind::Undecodable`] when it is damaged, shorter or longer.
    pub fn decompress(self, shard: &[u8], out: &mut [u8]) -> Result<()> {
        let expected = out.len();
        let written = match self {
            Compression::Zstd => {
                zstd::bulk::Decompressor::new().and_then(|mut zstd| zstd.decompress_to_buffer(shard, &mut *out))
            }
            Compression::Gz => {
                let mut decoder = flate2::bufread::MultiGzDecoder::new(shard);
                decoder.read_exact(out).and_then(|()| Ok(expected + decoder.read(&mut [0])?))
            }
        };
        let flaw = match written {
            Ok(written) if written == expected => return Ok(()),
            Ok(written) if written > expected => format!("it is longer than the {expected} bytes that index.json says"),
            Ok(written) => format!("it has {written} bytes, index.json says {expected}"),
            Err(error) => format!("{error}, expected are {expected} bytes"),
        };
        Err(Error::new(Kind::Undecodable, format!("the shard cannot be decompressed: {flaw}"))
            .with_hint("upload the shard again, or write index.json anew"))
    }
}

fn flawed(cause: impl Into<String>) -> Error {
    Error::new(Kind::Undecodable, format!("index.json: {}", cause.into())).with_hint("write the data set's index anew")
}
