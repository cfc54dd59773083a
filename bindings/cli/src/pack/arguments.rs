//! The arguments of `fuelrail pack`.

use clap::Args;
use fuelrail::Format;
use serde::Serialize;

use crate::settings::{Trust, bytes};

const EXAMPLES: &str = "Examples:
  fuelrail pack ./photos/ ./shards/ --format webdataset
  fuelrail pack s3://bucket/photos/ s3://bucket/shards/ --format webdataset --shuffle --seed 7
  fuelrail pack s3://bucket/train-{000..127}.tar ./mds/ --source-format webdataset --format mds
  fuelrail pack ./hf/ ./tars/ --source-format parquet --format webdataset --fields image.bytes,label
  fuelrail pack ./hf/ ./tokens/ --source-format parquet --format tokens --fields input_ids
  fuelrail pack gs://bucket/photos/ ./records/ --format tfrecord --shard-size 64MiB --json

Objects whose names are the same up to the first dot of the file name are one record: a/1.jpg and \
a/1.json are the fields jpg and json of the record a/1. An object without an extension is the field \
data. Where all objects lie in two or more folders, the number of the folder, by name, is the field \
cls. Run the same command again after an interruption: it writes what is missing.";

/// Pack objects, or the records of shards, into shards: tar archives as WebDataset reads them, MDS, TFRecord, Parquet, or arrays of tokens
///
/// Shards are named shard-000000 and so on, and appear when they are whole. The same source and seed make the same bytes. TARGET/pack.json
/// says what they were made of, and their sizes and checksums. A shard is held in memory until it is written.
#[derive(Args, Serialize, Debug)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Pack {
    /// What to pack: a folder, or a URI as other commands take it
    #[serde(skip)]
    pub(super) source: String,
    /// Where the shards go: a folder, or the URI of a prefix, outside of the source
    #[serde(skip)]
    pub(super) target: String,
    /// What to write: webdataset, mds, tfrecord, parquet, or tokens (the numbers of one field, one record after another)
    #[arg(long, value_name = "NAME", value_parser = str::parse::<Format>)]
    #[serde(skip)]
    pub(super) format: Format,
    /// Longest shard; a longer record is a shard of its own. At most 2GiB
    #[arg(long, value_name = "SIZE", value_parser = bytes, default_value = "256MiB")]
    #[serde(skip)]
    pub(super) shard_size: u64,
    /// How the source holds records: objects, webdataset, mds, tfrecord or parquet
    #[arg(long, value_name = "NAME", value_parser = str::parse::<Format>, default_value = "objects")]
    #[serde(skip)]
    pub(super) source_format: Format,
    /// Take only the fields of these names and those below them, with commas between; of a source of Parquet no other columns are read
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    #[serde(skip)]
    pub(super) fields: Vec<String>,
    /// Write the records in the order of the seed instead of the listing's
    #[arg(long)]
    #[serde(skip)]
    pub(super) shuffle: bool,
    /// The seed of the order
    #[arg(long, value_name = "N", default_value_t = 0, requires = "shuffle")]
    #[serde(skip)]
    pub(super) seed: u64,
    /// All buffers that the source is read into, together [default: half of the cgroup's limit]
    #[arg(long = "memory-limit", value_name = "SIZE", value_parser = bytes)]
    memory_limit_bytes: Option<u64>,
    #[command(flatten)]
    #[serde(flatten)]
    pub(super) trust: Trust,
    /// Print what was done as one JSON document
    #[arg(long)]
    #[serde(skip)]
    pub(super) json: bool,
}
