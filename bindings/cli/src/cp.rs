//! `fuelrail cp`: single objects, and whole prefixes and folders, out of a bucket or into one.
//!
//! A prefix comes through the loader, at the rate it feeds a trainer with; objects too long for its batches come one by one. Files
//! and objects appear when they are whole, never before, so what an earlier run left is complete.

mod down;
mod job;
mod up;

use std::path::Path;
use std::process::ExitCode;
use std::sync::Mutex;
use std::time::Instant;

use clap::Args;
use fuelrail::{Access, ByteSize};
use job::{Job, Root, Totals};
use serde_json::json;

use crate::failure::{Outcome, usage};
use crate::screen::{Bar, JsonTo, note};
use crate::stop::stop_on_signals;
use crate::trust::Trust;
use crate::{get, put};

const EXAMPLES: &str = "Examples:
  fuelrail cp s3://bucket/training/ ./training/                # a whole prefix
  fuelrail cp s3://bucket/training/ ./training/ --resume       # what is missing of it
  fuelrail cp ./checkpoints/ s3://bucket/runs/7/               # a whole folder
  fuelrail cp http://127.0.0.1:9000/bucket/shard_000000.bin .  # one object
  fuelrail cp model.pt gs://bucket/models/                     # one file";

/// Copy objects out of a bucket or into one: single ones, prefixes, folders
///
/// A URI that ends in / or has braces stands for all objects under it, a folder for all files in it. What stands behind the last / of
/// the URI, or in the folder, is kept as the path at the other end.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Cp {
    /// What to copy: a URI, a file or a folder
    from: String,
    /// Where to: a file, a folder or a URI
    to: String,
    /// Skip what is there with the same length: the rest of an interrupted copy
    #[arg(long)]
    resume: bool,
    #[command(flatten)]
    trust: Trust,
    /// Print what was done as one JSON document
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: &Cp) -> Outcome {
    let from_folder = Path::new(&args.from).is_dir();
    match (is_uri(&args.from), is_uri(&args.to)) {
        (true, true) => Err(usage("both ends are URIs", "copy to a folder of this machine first, and from there")),
        (false, false) => Err(usage("neither end is a URI", "write s3://BUCKET/PREFIX/ or http://HOST/BUCKET/KEY")),
        (true, false) if is_tree(&args.from) => tree(args, &args.from, down::copy),
        (true, false) => get::run(&get::Get::of(&args.from, args.trust.clone(), &args.to, args.json)),
        (false, true) if from_folder => tree(args, &format!("{}/", args.to.trim_end_matches('/')), up::copy),
        (false, true) => put::run(&put::Put::of(&args.from, &args.to, args.trust.clone(), args.json)),
    }
}

fn is_uri(text: &str) -> bool {
    text.contains("://")
}

/// Whether a URI stands for all objects under it.
fn is_tree(uri: &str) -> bool {
    uri.ends_with('/') || uri.contains('{')
}

/// Failures that are named; the others are counted.
const NAMED_MAX: usize = 10;

/// Copies a tree, and tells what came of it.
fn tree(args: &Cp, uri: &str, copy: fn(&Job<'_>, &Access, &Root) -> Outcome<()>) -> Outcome {
    let start = Instant::now();
    let access = args.trust.access(uri)?;
    let Cp { from, to, resume, trust, .. } = args;
    let (stop, bar, total) = (stop_on_signals()?, Bar::new(None, "bytes"), Mutex::default());
    let job = Job { from, to, resume: *resume, trust, stop, bar, total };
    copy(&job, &access, &Root::of(&access, uri)?)?;
    let Job { stop, bar, total, .. } = job;
    drop(bar);
    let Totals { objects, bytes, skipped, failed } = total.into_inner().expect("no thread panics in between");
    if failed.is_empty() {
        stop.check().map_err(|error| error.with_hint("the same command with --resume copies the rest"))?;
    }
    let wall_s = start.elapsed().as_secs_f64();
    for (key, error) in failed.iter().take(NAMED_MAX) {
        note(&format!("'{}' was not copied: {error}", key.escape_debug()));
    }
    if args.json {
        let failures: Vec<_> =
            failed.iter().map(|(key, error)| json!({ "key": key, "error": error.to_string() })).collect();
        let done = json!({
            "schema": 1, "from": args.from, "to": args.to, "objects": objects, "bytes": bytes, "skipped": skipped,
            "failed": failures, "wall_s": wall_s,
        });
        JsonTo::Output.show(&done, String::new)?;
    } else {
        let rate = ByteSize((bytes as f64 / wall_s) as u64);
        let skipped = if skipped > 0 { format!(", {skipped} skipped") } else { String::new() };
        note(&format!(
            "{objects} objects, {} in {wall_s:.2} s ({rate}/s){skipped}, {} failed",
            ByteSize(bytes),
            failed.len()
        ));
    }
    Ok(failed.first().map_or(ExitCode::SUCCESS, |(_, error)| ExitCode::from(error.kind().exit_code())))
}
