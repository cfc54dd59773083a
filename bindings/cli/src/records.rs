//! `fuelrail records`: what the records of a data set's shards hold, a line a field.

use std::io::{BufWriter, Write};
use std::process::ExitCode;

use clap::Args;
use fuelrail::{ByteSize, Format, LoaderBuilder};
use serde::Serialize;
use serde_json::json;
use xxhash_rust::xxh3::xxh3_64;

use crate::failure::{Outcome, output};
use crate::screen::{Bar, note};
use crate::settings::{Trust, bytes, given, load};

const EXAMPLES: &str = "Examples:
  fuelrail records s3://bucket/train-{000000..000127}.tar
  fuelrail records /data/shards/ --format webdataset | head
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
    /// How they hold records: webdataset, mds, tfrecord, objects, tokens (arrays of numbers without a header), or manifest (as a file
    /// says) [default: as their names say]
    #[arg(long, value_name = "NAME")]
    format: Option<String>,
    /// Of tokens: how many make a record [default: all of an object]
    #[arg(long, value_name = "N")]
    token_window: Option<u64>,
    /// Of tokens: how many there are from the begin of a window to that of the next [default: a window]
    #[arg(long, value_name = "N")]
    token_stride: Option<u64>,
    /// Of tokens: bytes of one [default: 2]
    #[arg(long, value_name = "N")]
    token_bytes: Option<u32>,
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
    let mut config = load(None, &given(args))?;
    if config.format.is_none() {
        let listed = fuelrail::list_packed(config.access(), &config.uri, |_| {})?;
        config.format = Some(Format::of_keys((0..listed.len()).map(|at| listed.key(at))));
    }
    let mut loader = LoaderBuilder::new(config).shuffle(false).build()?;
    loader.notices().iter().for_each(|notice| note(notice));
    let bar = Bar::new(Some(loader.samples()), "records");
    let mut out = BufWriter::new(std::io::stdout().lock());
    let (mut records, mut fields, mut total) = (0, 0, 0);
    while let Some(batch) = loader.next_batch() {
        let batch = batch?;
        for (i, id) in batch.ids().iter().enumerate() {
            let key = loader.record_key(*id);
            for (name, bytes) in batch.fields(i) {
                line(&mut out, args.json, (&key, name), &bytes).map_err(|error| output(&error))?;
                fields += 1;
                total += bytes.len() as u64;
            }
            records += 1;
        }
        bar.at(records, || ByteSize(total).to_string());
    }
    out.flush().map_err(|error| output(&error))?;
    drop(bar);
    note(&format!("{records} records, {fields} fields, {}", ByteSize(total)));
    Ok(ExitCode::SUCCESS)
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
