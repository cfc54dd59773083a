//! `fuelrail records`: what the records of a data set's shards hold, a line a field.

use std::io::{BufWriter, Write};
use std::process::ExitCode;

use clap::Args;
use fuelrail::{ByteRange, ByteSize, Config, Format, LoaderBuilder};
use fuelrail_format::bytes::Dtype;
use fuelrail_format::tokens::{self, Window, Windows};
use fuelrail_format::{Index, IndexBuilder, Span};
use serde::Serialize;
use serde_json::json;
use xxhash_rust::xxh3::xxh3_64;

use crate::failure::{Outcome, output, usage};
use crate::screen::{Bar, note};
use crate::settings::{Trust, bytes, given, load};

const EXAMPLES: &str = "Examples:
  fuelrail records s3://bucket/train-{000000..000127}.tar
  fuelrail records /data/shards/ --format webdataset | head
  fuelrail records http://127.0.0.1:9000/bucket/ --json | jq -r .field | sort | uniq -c
  fuelrail records /data/tokens/ --format tokens --dtype uint16 --window 2048 --stride 2048 | head";

/// Print every field of every record in a data set's shards, in the data set's own order
///
/// A line is the record's key, the field's name, its length in bytes and the XXH3-64 of its bytes in hexadecimal, with tabs between.
/// Control characters and backslashes in keys and names are escaped as in a Rust string.
#[derive(Args, Serialize, Debug)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Records {
    /// The shards: a URI, or /FOLDER/
    uri: String,
    /// How they hold records: webdataset, mds, tfrecord, objects, or tokens: arrays of numbers without a header [default: as their
    /// names say]
    #[arg(long, value_name = "NAME")]
    format: Option<String>,
    /// Of tokens: their type, by NumPy's name
    #[arg(long, value_name = "TYPE", value_parser = str::parse::<Dtype>, default_value = "uint16")]
    #[serde(skip)]
    dtype: Dtype,
    /// Of tokens: how many make a record [default: all of a file]
    #[arg(long, value_name = "N")]
    #[serde(skip)]
    window: Option<u64>,
    /// Of tokens: how many there are from the begin of a window to that of the next [default: a window]
    #[arg(long, value_name = "N", requires = "window")]
    #[serde(skip)]
    stride: Option<u64>,
    /// Of tokens: what is left at the end of a file is a shorter window
    #[arg(long, requires = "window")]
    #[serde(skip)]
    keep_rest: bool,
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
    let are_tokens = config.format == Some(Format::Tokens);
    let builder = if are_tokens { tokens(args, config)? } else { LoaderBuilder::new(config) };
    let mut loader = builder.shuffle(false).build()?;
    loader.notices().iter().for_each(|notice| note(notice));
    let bar = Bar::new(Some(loader.samples()), "records");
    let mut out = BufWriter::new(std::io::stdout().lock());
    let (mut records, mut fields, mut total) = (0, 0, 0);
    while let Some(batch) = loader.next_batch() {
        let batch = batch?;
        for (i, id) in batch.ids().iter().enumerate() {
            let key = if are_tokens { id.0.to_string().into() } else { loader.record_key(*id) };
            let tokens = are_tokens.then(|| ("tokens", batch.sample(i).into()));
            for (name, bytes) in batch.fields(i).chain(tokens) {
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

/// A loader over windows of tokens, or over whole files.
fn tokens(args: &Records, mut config: Config) -> Outcome<LoaderBuilder> {
    let listed = fuelrail::list_with(config.access(), &config.uri, |_| {})?;
    let mut index = IndexBuilder::new(Format::Tokens, [0; 16], listed.len() as u32).without_keys();
    for (object, listed) in (0..).zip(&listed) {
        let added = tokens::add(object, listed.size, args.dtype, [], &mut index);
        added.map_err(|error| error.with_object(&*listed.key))?;
    }
    let index = Index::open(index.to_bytes())?;
    let range = |span: Span| ByteRange { object: span.object, first: span.offset, len: span.length };
    let ranges: Vec<ByteRange> = match args.window {
        Some(length) => {
            let (dtype, stride) = (args.dtype, args.stride.unwrap_or(length));
            let windows =
                Windows::new(index, Window { dtype, length, target: false, stride, keep_rest: args.keep_rest })?;
            (0..windows.len()).filter_map(|window| windows.get(window)).map(range).collect()
        }
        None => {
            (0_u32..).zip(&listed).flat_map(|(at, file)| ByteRange::pieces(at, file.size, file.size.max(1))).collect()
        }
    };
    if ranges.is_empty() {
        return Err(usage("no window of tokens is in the data set", "lower --window, or add --keep-rest"));
    }
    config.format = None;
    // Files are long.
    config.batch_size = if args.window.is_some() { config.batch_size } else { 1 };
    Ok(LoaderBuilder::new(config).listing(listed).ranges(ranges))
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
