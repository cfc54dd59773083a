//! `fuelrail put`: one object into a bucket, whole or not at all.

use std::fs::File;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Instant;

use clap::Args;
use fuelrail::{ByteSize, PutOptions, PutOver, Stored};
use serde_json::json;

use crate::failure::{Outcome, file, usage};
use crate::screen::{Bar, JsonTo, note};
use crate::settings::Trust;

const EXAMPLES: &str = "Examples:
  fuelrail put checkpoint-100.pt http://127.0.0.1:9000/bucket/runs/7/checkpoint-100.pt
  fuelrail put model.onnx http://127.0.0.1:9000/bucket/models/ --json
  fuelrail put part-7.tar s3://bucket/packed/part-7.tar --if-new
  fuelrail put 317.png https://bucket.example/set/training/3/00317.png --ca-file ca.pem";

/// Put one file into a bucket as an object
///
/// Replaces the object that was there, unless --if-new; readers see the old one or the new one, never a part of it. Above 64 MiB it
/// goes in parts, four at a time. What fails is sent again. A URI that ends in / gets the file's name. At most 5 TiB.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Put {
    /// The file to read
    file: PathBuf,
    /// The object: s3://BUCKET/KEY, gs://BUCKET/KEY, az://ACCOUNT/CONTAINER/KEY, http[s]://HOST:PORT/BUCKET/KEY
    uri: String,
    /// Only if nothing is there under its key: else nothing is changed, and the exit code is 1
    #[arg(long)]
    if_new: bool,
    #[command(flatten)]
    trust: Trust,
    /// Print what was done as one JSON document
    #[arg(long)]
    json: bool,
}

impl Put {
    /// Of one file, over what is there.
    pub(crate) fn of(file: &str, uri: &str, trust: Trust, json: bool) -> Put {
        Put { file: file.into(), uri: uri.to_owned(), if_new: false, trust, json }
    }
}

pub(crate) fn run(args: &Put) -> Outcome {
    let start = Instant::now();
    let mut source = File::open(&args.file).map_err(|error| file("reading", &args.file, &error))?;
    let about = source.metadata().map_err(|error| file("reading", &args.file, &error))?;
    if !about.is_file() {
        let cause = format!("{} is not a regular file", args.file.display());
        return Err(usage(cause, "an object's length must be known before it is sent: write it to a file first"));
    }
    let name = args.file.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    let uri = if args.uri.ends_with('/') { format!("{}{name}", args.uri) } else { args.uri.clone() };
    let bar = Bar::new(Some(about.len()), "bytes");
    let over = if args.if_new { PutOver::Nothing } else { PutOver::Anything };
    let options = PutOptions { over, ..PutOptions::default() };
    let stored = fuelrail::put_as(&options, &args.trust.access(&uri)?, &uri, &mut source, |sent| {
        bar.at(sent, || ByteSize(sent).to_string());
    })?;
    drop(bar);
    let Stored { bytes, etag, .. } = stored;
    let (file, wall_s) = (args.file.display().to_string(), start.elapsed().as_secs_f64());
    if args.json {
        let sent = json!({ "schema": 1, "uri": uri, "file": file, "bytes": bytes, "etag": etag, "wall_s": wall_s });
        JsonTo::Output.show(&sent, String::new)?;
    } else {
        note(&format!("{} in {wall_s:.2} s, put to {uri}", ByteSize(bytes)));
    }
    Ok(ExitCode::SUCCESS)
}
