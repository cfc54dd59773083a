//! Writing shards: tar archives as WebDataset has them, MDS, TFRecord of `tf.Example`, Parquet, and arrays of tokens.
//!
//! A [`Writer`] holds one shard in memory, and the same records always make the same bytes: there is no time, user or random number in
//! them. All but archives have types; bytes without one are taken as the webdataset package takes them by the name of their field: `cls` is
//! an integer, `txt` and `json` are text. The record's key, where it has one, is the name of its members in a tar archive, and the field
//! [`KEY`] elsewhere.

pub mod mds;
#[cfg(feature = "parquet")]
mod parquet;
mod tar;
#[cfg(test)]
mod tests;
mod tfrecord;
mod value;

pub use value::Value;

use crate::{Format, shown, unsupported};
use fuelrail_base::{Error, Result};
use value::two_fields;

/// The field of MDS, TFRecord and Parquet that holds a record's key; webdataset calls it so, too.
pub const KEY: &str = "__key__";
/// Longest shard, bytes: offsets of MDS have 32 bits, and a shard is held in memory.
pub const SHARD_BYTES_MAX: u64 = 2 << 30;
/// Longest record, bytes of its fields: a protocol buffer is shorter than 2 GiB.
pub const RECORD_BYTES_MAX: u64 = 1 << 30;

/// A shard that is being written.
#[derive(Debug)]
pub struct Writer {
    format: Format,
    limit: u64,
    columns: Option<mds::Columns>,
    /// Of MDS and Parquet the samples of MDS alone, until the shard is finished.
    bytes: Vec<u8>,
    /// Where each record ends in them.
    ends: Vec<u32>,
    records: u64,
    /// The key of the last record.
    last: String,
}

impl Writer {
    /// A writer of shards of at most `limit` bytes, or of one record where that is longer. `columns` are those of the shards of MDS or
    /// Parquet that are there already; else the first record has them.
    ///
    /// # Errors
    /// [`Usage`](fuelrail_base::Kind::Usage) for a format that is not written, and a limit above [`SHARD_BYTES_MAX`].
    pub fn new(format: Format, limit: u64, columns: Option<mds::Columns>) -> Result<Writer> {
        let is_parquet = cfg!(feature = "parquet") && format == Format::Parquet;
        if !(matches!(format, Format::WebDataset | Format::Mds | Format::TfRecord | Format::Tokens) || is_parquet) {
            return Err(unsupported(
                format!("{format} is not written"),
                "use webdataset, mds, tfrecord, parquet or tokens",
            ));
        }
        if !(1..=SHARD_BYTES_MAX).contains(&limit) {
            return Err(unsupported(
                format!("a shard of {limit} bytes is outside 1 byte to 2 GiB"),
                "a shard is held in memory while it is written: 64MiB to 1GiB are usual",
            ));
        }
        Ok(Writer { format, limit, columns, bytes: Vec::new(), ends: Vec::new(), records: 0, last: String::new() })
    }

    /// Adds a record. `false` where it does not fit after those that are there: the shard is as it was and has to be finished first.
    ///
    /// # Errors
    /// [`Usage`](fuelrail_base::Kind::Usage) for a record that the format cannot hold, which it names: a key or field name that would not be read back, two
    /// fields of one name, other columns than the records before, more than [`RECORD_BYTES_MAX`]. The shard is as it was.
    pub fn push(&mut self, key: Option<&str>, fields: &[(&str, Value<'_>)]) -> Result<bool> {
        let before = self.bytes.len();
        let pushed = self.append(key, fields);
        let fits = pushed.is_ok() && (self.records == 0 || self.len() <= self.limit);
        if !fits {
            self.bytes.truncate(before);
            let named = |error: Error| error.within(format_args!("record '{}'", shown(key.unwrap_or("?").as_bytes())));
            return pushed.map(|()| false).map_err(named);
        }
        self.records += 1;
        self.ends.push(self.bytes.len() as u32);
        self.last.replace_range(.., key.unwrap_or_default());
        Ok(true)
    }

    fn append(&mut self, key: Option<&str>, fields: &[(&str, Value<'_>)]) -> Result<()> {
        if fields.iter().map(|(_, value)| value.bytes().len() as u64).sum::<u64>() > RECORD_BYTES_MAX {
            return Err(unsupported(
                "it is longer than 1 GiB",
                "shards are for many small records: leave it an object",
            ));
        }
        if self.format == Format::WebDataset {
            let key = key.ok_or_else(|| unsupported("it has no key", "members of a tar archive are named by one"))?;
            if self.records > 0 && self.last == key {
                let hint =
                    "readers take members of one key that follow each other as one record: rename one of the two";
                return Err(unsupported("the record before it has the same key", hint));
            }
            return tar::record(key, fields, &mut self.bytes);
        }
        if self.format == Format::Tokens {
            if let [(name, value)] = fields
                && let Value::Bytes(tokens) = value.typed(name)
            {
                self.bytes.extend_from_slice(tokens);
                return Ok(());
            }
            let names = fields.iter().map(|(name, _)| *name).collect::<Vec<_>>().join(", ");
            let cause = format!("tokens are one field of numbers, and it has {}", shown(names.as_bytes()));
            return Err(unsupported(cause, "name the field of the tokens in `fields`; text has no tokens yet"));
        }
        let key = key.map(|key| (KEY, Value::Text(key)));
        // A column of bytes takes them as they are.
        let columns = self.columns.iter().flat_map(|columns| &columns.columns);
        let is_bytes = |field: &str| columns.clone().any(|(name, kind)| name == field && *kind == mds::Kind::Bytes);
        let typed = fields.iter().map(|(name, value)| (*name, if is_bytes(name) { *value } else { value.typed(name) }));
        let mut fields: Vec<_> = typed.chain(key).collect();
        fields.sort_unstable_by_key(|(name, _)| *name);
        if let Some(two) = fields.windows(2).find(|two| two[0].0 == two[1].0) {
            return Err(two_fields(two[0].0));
        }
        if matches!(self.format, Format::Mds | Format::Parquet) {
            let columns = self.columns.get_or_insert_with(|| mds::Columns::of(&fields));
            return columns.sample(&fields, &mut self.bytes);
        }
        tfrecord::record(&fields, &mut self.bytes);
        Ok(())
    }

    /// Bytes of the shard if it were finished with the record that was appended.
    fn len(&self) -> u64 {
        let rest = match (self.format, &self.columns) {
            (Format::WebDataset, _) => tar::END_BYTES,
            (Format::Mds, Some(columns)) => columns.head_bytes(self.records as usize + 1),
            #[cfg(feature = "parquet")]
            (Format::Parquet, Some(columns)) => parquet::overhead(columns, self.bytes.len()),
            _ => 0,
        };
        (self.bytes.len() + rest) as u64
    }

    /// How many records the shard has.
    pub fn records(&self) -> u64 {
        self.records
    }

    /// The columns of MDS and Parquet, once there was a record.
    pub fn columns(&self) -> Option<&mds::Columns> {
        self.columns.as_ref()
    }

    /// The whole shard. [`Writer::clear`] begins the next one.
    pub fn finish(&mut self) -> &[u8] {
        match (self.format, &self.columns) {
            (Format::WebDataset, _) => self.bytes.resize(self.bytes.len() + tar::END_BYTES, 0),
            (Format::Mds, Some(columns)) => drop(self.bytes.splice(0..0, columns.head(&self.ends))),
            #[cfg(feature = "parquet")]
            (Format::Parquet, Some(columns)) => self.bytes = parquet::file(columns, &self.bytes, &self.ends),
            _ => {}
        }
        &self.bytes
    }

    /// An empty shard, in the memory of the last one.
    pub fn clear(&mut self) {
        self.bytes.clear();
        self.ends.clear();
        self.records = 0;
    }
}
