//! `fuelrail records`: what the records of a data set's shards hold, a line a field.

use std::io::{BufWriter, Write};
use std::process::ExitCode;

use clap::Args;
use fuelrail::internal::PackedRecords;
use fuelrail::{ByteSize, Format, LoaderBuilder};
use fuelrail_format::is_named;
use serde::Serialize;
use serde_json::json;
use xxhash_rust::xxh3::xxh3_64;

use crate::failure::{Outcome, output};
use crate::screen::{Bar, note};
use crate::settings::{Trust, bytes, given, load, once};

const EXAMPLES: &str = "Examples:
  fuelrail records s3://bucket/train-{000000..000127}.tar
  fuelrail records /data/shards/ --format webdataset | head
  fuelrail records hf/train.parquet --fields image.bytes,label
  fuelrail records http://127.0.0.1:9000/bucket/ --json | jq -r .field | sort | uniq -c
  fuelrail records /data/tokens/ --format tokens --token-window 2049 --token-stride 2048 | head";

/// Print every field of every record in a data set's shards, in the data set's own order
///
/// A line is the record's key, the field's name, its length in bytes and the XXH3-64 of its bytes in hexadecimal, with tabs between.
/// Control characters and backslashes in keys and names are escaped as in a Rust string.
#[derive(Args, Serialize, Debug)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Records {
    /// The shards: a URI, or /FOLDER/
    uri: String,
    /// How they hold records: webdataset, mds, tfrecord, parquet, objects, tokens (arrays of numbers without a header), or manifest (as a file
    /// says) [default: as their names say]
    #[arg(long, value_name = "NAME")]
    format: Option<String>,
    /// Only the fields of these names and those below them, with commas between; of Parquet no other columns are read
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    #[serde(skip)]
    fields: Vec<String>,
    /// Of tokens: how many make a record [default: all of an object]
    #[arg(long, value_name = "N")]
    token_window: Option<u64>,
    /// Of tokens: how many there are from the begin of a window to that of the next [default: a window]
    #[arg(long, value_name = "N")]
    token_stride: Option<u64>,
    /// Of tokens: bytes of one [default: 2]
    #[arg(long, value_name = "N")]
    token_bytes: Option<u32>,
    /// Of tokens: the one that ends each document, which no window goes beyond
    #[arg(long, value_name = "N")]
    token_document_end: Option<u64>,
    /// Of a manifest: a CSV or JSONL file of key, offset, length and any other fields
    #[arg(long, value_name = "PATH")]
    record_file: Option<std::path::PathBuf>,
    /// All buffers together [default: half of the cgroup's limit]
    #[arg(long = "memory-limit", value_name = "SIZE", value_parser = bytes)]
    memory_limit_bytes: Option<u64>,
    #[command(flatten)]
    #[serde(flatten)]
    trust: Trust,
    /// Print each line as a JSON object: record, field, bytes, xxh3
    #[arg(long)]
    #[serde(skip)]
    json: bool,
}

pub(crate) fn run(args: &Records) -> Outcome {
    let config = load(None, &given(args))?;
    let format = match config.format {
        Some(format) => format,
        None => {
            let listed = fuelrail::list_packed(config.access(), &config.uri, |_| {})?;
            Format::of_keys((0..listed.len()).map(|at| listed.key(at)))
        }
    };
    let mut out = BufWriter::new(std::io::stdout().lock());
    let (mut records, mut fields, mut total) = (0, 0, 0);
    each_record(once(config, Some(format)), &args.fields, &mut |key, read| {
        for (name, bytes) in read {
            line(&mut out, args.json, (key, name), bytes).map_err(|error| output(&error))?;
            fields += 1;
            total += bytes.len() as u64;
        }
        records += 1;
        Ok(())
    })?;
    out.flush().map_err(|error| output(&error))?;
    note(&format!("{records} records, {fields} fields, {}", ByteSize(total)));
    Ok(ExitCode::SUCCESS)
}

/// Takes a record: its key, and name and bytes of its fields.
type Take<'t> = &'t mut dyn FnMut(&str, &[(&str, &[u8])]) -> Outcome<()>;

/// Reads every record of a data set in its own order, with the fields of these names, or all where there is none. Returns the loader's notices,
/// which have been shown.
pub(crate) fn each_record(builder: LoaderBuilder, fields: &[String], take: Take<'_>) -> Outcome<Vec<String>> {
    if let Some(packed) = PackedRecords::open(&builder, fields)? {
        let bar = Bar::new(Some(packed.count()), "records");
        packed.read(0..packed.count(), &mut |number, read| {
            bar.at(number, String::new);
            take(&number.to_string(), read)
        })?;
        return Ok(Vec::new());
    }
    let mut loader = builder.build()?;
    loader.notices().iter().for_each(|notice| note(notice));
    let bar = Bar::new(Some(loader.samples()), "records");
    let mut records = 0;
    while let Some(batch) = loader.next_batch() {
        let batch = batch?;
        for (i, id) in batch.ids().iter().enumerate() {
            let read: Vec<_> = batch.fields(i).filter(|(name, _)| is_named(fields, name)).collect();
            let lent: Vec<(&str, &[u8])> = read.iter().map(|(name, bytes)| (*name, &**bytes)).collect();
            take(&loader.record_key(*id), &lent)?;
        }
        records += batch.len() as u64;
        bar.at(records, String::new);
    }
    Ok(loader.notices().to_vec())
}

fn line(out: &mut impl Write, json: bool, (key, field): (&str, &str), bytes: &[u8]) -> std::io::Result<()> {
    let hash = format!("{:016x}", xxh3_64(bytes));
    if json {
        let line = json!({ "record": key, "field": field, "bytes": bytes.len(), "xxh3": hash });
        return writeln!(out, "{line}");
    }
    writeln!(out, "{}\t{}\t{}\t{hash}", escaped(key), escaped(field), bytes.len())
}

/// A name on one line, without tabs.
fn escaped(name: &str) -> String {
    let plain = |c: char| if c.is_control() || c == '\\' { c.escape_default().to_string() } else { c.into() };
    name.chars().map(plain).collect()
}
