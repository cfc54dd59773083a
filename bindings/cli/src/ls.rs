//! `fuelrail ls`: what a prefix holds, and manifests for servers that cannot list.

use std::io::{BufWriter, Write};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::Args;
use fuelrail::{ByteSize, Listed, ListingDir};
use serde::Serialize;
use serde_json::json;

use crate::failure::{Outcome, output};
use crate::screen::{Bar, JsonTo, note};
use crate::settings::Trust;

const EXAMPLES: &str = "Examples:
  fuelrail ls http://127.0.0.1:9000/bucket/training/
  fuelrail ls http://127.0.0.1:9000/bucket --long
  fuelrail ls https://127.0.0.1:9443/bucket --ca-file fuelrail-ca.pem
  fuelrail ls http://127.0.0.1:9000/bucket/training/ --manifest train.tsv
  fuelrail ls s3://bucket/{train,val}/ --count
  fuelrail ls s3://bucket/millions/ --count --listing-dir ~/.cache/fuelrail
  fuelrail ls http://127.0.0.1:9000/bucket --json | jq .bytes";

/// List the objects under a prefix
///
/// Prints one key per line in the order of the keys' bytes, or writes a manifest: lines of `key<TAB>size`, or of JSON with
/// `key`, `size` and `etag` where there are entity tags. A prefix without objects is an error (exit code 2); with --count it has 0.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Ls {
    /// Where to look: s3://BUCKET/PREFIX, gs://, az://ACCOUNT/CONTAINER/PREFIX, http[s]://HOST:PORT/BUCKET/PREFIX, or /FOLDER/
    uri: String,
    #[command(flatten)]
    trust: Trust,
    /// Write the list to FILE as a manifest instead of printing it
    #[arg(long, value_name = "FILE")]
    manifest: Option<PathBuf>,
    /// Print size and entity tag before each key
    #[arg(long, short)]
    long: bool,
    /// Keep the listing in DIR, and use the one that is there while a few of its pages, asked for again, are as they were; one that
    /// was interrupted goes on
    #[arg(long, value_name = "DIR")]
    listing_dir: Option<PathBuf>,
    /// List anew what is kept and older than this, s
    #[arg(long, value_name = "N", default_value_t = 86_400, requires = "listing_dir")]
    listing_max_age_s: u64,
    /// Print only how many objects there are, their length together, and what listing them took
    #[arg(long, conflicts_with_all = ["long", "manifest"])]
    count: bool,
    /// Print one JSON document
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Listing<'a> {
    schema: u32,
    uri: &'a str,
    count: usize,
    bytes: u64,
    objects: Vec<Object<'a>>,
}

#[derive(Serialize)]
struct Object<'a> {
    key: &'a str,
    size: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    etag: Option<&'a str>,
}

pub(crate) fn run(args: &Ls) -> Outcome {
    if args.count {
        return count(args);
    }
    let objects: Vec<Listed> = listed(args)?.iter().collect();
    if objects.is_empty() {
        return Err(fuelrail::internal::no_objects(&args.uri).into());
    }
    let bytes = objects.iter().map(|object| object.size).sum();
    if let Some(path) = &args.manifest {
        fuelrail::write_manifest(path, &objects)?;
    }
    if args.json {
        let shown = objects.iter().map(|o| Object { key: &o.key, size: o.size, etag: o.etag.as_deref() });
        let listing = Listing { schema: 1, uri: &args.uri, count: objects.len(), bytes, objects: shown.collect() };
        JsonTo::Output.show(&listing, String::new)?;
    } else if let Some(path) = &args.manifest {
        note(&format!("{} objects, {}, written to {}", objects.len(), ByteSize(bytes), path.display()));
    } else {
        print_keys(&objects, args.long).map_err(|error| output(&error))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// What the bucket says, or what is kept of it.
fn listed(args: &Ls) -> Outcome<fuelrail::Listing> {
    let access = args.trust.access(&args.uri)?;
    let bar = Bar::new(None, "objects");
    let progress = |count| bar.at(count, String::new);
    let Some(path) = args.listing_dir.clone() else {
        return Ok(fuelrail::list_packed(access, &args.uri, progress)?);
    };
    let dir = ListingDir { path, max_age: Duration::from_secs(args.listing_max_age_s) };
    let kept = fuelrail::list_kept(access, &args.uri, &dir, progress)?;
    drop(bar);
    kept.notices.iter().for_each(|notice| note(notice));
    Ok(kept.listing)
}

/// As little as a loader holds, so that what is measured is what a loader takes.
fn count(args: &Ls) -> Outcome {
    let (start, before) = (Instant::now(), cpu());
    let listing = listed(args)?;
    let (count, bytes, uri) = (listing.len(), listing.total_bytes(), &args.uri);
    let (wall_s, cpu_s) = (start.elapsed().as_secs_f64(), cpu().saturating_sub(before).as_secs_f64());
    let peak_rss_bytes = fuelrail::internal::memory_use().peak_rss_bytes;
    let counted = json!({
        "schema": 1, "uri": uri, "count": count, "bytes": bytes, "wall_s": wall_s, "cpu_s": cpu_s, "peak_rss_bytes": peak_rss_bytes,
    });
    let text = || {
        let (bytes, peak) = (ByteSize(bytes), ByteSize(peak_rss_bytes));
        format!(
            "{count} objects, {bytes}; listed in {wall_s:.2} s with {cpu_s:.2} s of processor time, at most {peak} of memory\n"
        )
    };
    JsonTo::output(args.json).show(&counted, text)
}

fn cpu() -> Duration {
    let (user, system) = fuelrail::internal::process_cpu();
    user + system
}

/// Line by line, not as one text: a bucket may hold more keys than a terminal's reader wants.
fn print_keys(objects: &[Listed], long: bool) -> std::io::Result<()> {
    let mut out = BufWriter::new(std::io::stdout().lock());
    let etag_chars = objects.iter().filter_map(|o| o.etag.as_ref()).map(|etag| etag.chars().count()).max().unwrap_or(1);
    for object in objects {
        if long {
            write!(out, "{:>14}  {:etag_chars$}  ", object.size, object.etag.as_deref().unwrap_or("-"))?;
        }
        // A key may hold line ends and escape sequences of terminals; neither may pass for something else.
        if object.key.contains(char::is_control) {
            writeln!(out, "{}", object.key.escape_default())?;
        } else {
            writeln!(out, "{}", object.key)?;
        }
    }
    out.flush()
}
