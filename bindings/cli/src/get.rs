//! `fuelrail get`: one object, resumed at the byte where it broke off.

use std::fs::File;
use std::io::{self, IsTerminal, Write};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Instant;

use clap::Args;
use fuelrail::{ByteSize, Error, Kind};
use serde_json::json;

use crate::failure::{Failure, Outcome, Stop, output, usage};
use crate::screen::{Bar, JsonTo, note};
use crate::settings::Trust;
use crate::signals::interruptible;
use crate::whole::WholeFile;

const EXAMPLES: &str = "Examples:
  fuelrail get http://127.0.0.1:9000/bucket/training/3/00317.png -o 317.png
  fuelrail get http://127.0.0.1:9000/bucket/shard_000000.bin | sha256sum
  fuelrail get http://127.0.0.1:9000/bucket/case_00000.npy -o case.npy --json";

/// Fetch one object
///
/// A download that breaks off goes on from its last byte; without a strong ETag it starts again, and is compared. Checksums that the
/// server sends are verified. FILE appears when the object is whole, never before.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Get {
    /// The object: s3://BUCKET/KEY, gs://, az://ACCOUNT/CONTAINER/KEY, http[s]://HOST:PORT/BUCKET/KEY
    uri: String,
    #[command(flatten)]
    trust: Trust,
    /// Write to FILE instead of standard output
    #[arg(long, short, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Print what was done as one JSON document; needs --output
    #[arg(long, requires = "output")]
    json: bool,
}

impl Get {
    /// Of one object, to standard output.
    fn shown(uri: &str, trust: &Trust) -> Get {
        Get { uri: uri.to_owned(), trust: trust.clone(), output: None, json: false }
    }

    /// Of one object, to a file.
    pub(crate) fn of(uri: &str, trust: &Trust, json: bool) -> Get {
        Get { json, ..Get::shown(uri, trust) }
    }

    /// The file that is meant by `to`: one of the object's name where that is a folder.
    pub(crate) fn place(&self, to: &str) -> Outcome<PathBuf> {
        let path = PathBuf::from(to);
        if !to.ends_with('/') && !path.is_dir() {
            return Ok(path);
        }
        let key = self.trust.access(&self.uri)?.cloud.endpoint(&self.uri)?.prefix;
        let name = key.rsplit('/').next().unwrap_or_default();
        if !is_name(name) {
            let cause = format!("'{}' does not end in the name of a file", self.uri);
            let cure = "name the file to write, too; a URI that ends in / stands for all objects under it";
            return Err(Error::new(Kind::Usage, cause).with_hint(cure).into());
        }
        Ok(path.join(name))
    }
}

/// Whether a part of a key can be the name of a file in its folder.
pub(crate) fn is_name(part: &str) -> bool {
    !matches!(part, "" | "." | "..") && !part.contains('\0')
}

/// Print objects, one after another
///
/// As `get` without -o: what breaks off goes on, and checksums are verified.
#[derive(Args, Debug)]
#[command(after_help = CAT_EXAMPLES)]
pub(crate) struct Cat {
    /// The objects
    #[arg(required = true)]
    uris: Vec<String>,
    #[command(flatten)]
    trust: Trust,
}

const CAT_EXAMPLES: &str = "Examples:
  fuelrail cat s3://bucket/training/labels.csv | head
  fuelrail cat http://127.0.0.1:9000/bucket/a.jsonl http://127.0.0.1:9000/bucket/b.jsonl | wc -l";

pub(crate) fn run_cat(args: &Cat) -> Outcome {
    for uri in &args.uris {
        show(&Get::shown(uri, &args.trust))?;
    }
    Ok(ExitCode::SUCCESS)
}

pub(crate) fn run(args: Get) -> Outcome {
    match args.output.clone() {
        Some(path) => interruptible(move |stop| save(&args, (&path, WholeFile::create(&path)?), stop)),
        None => show(&args),
    }
}

/// Writes the object to standard output.
fn show(args: &Get) -> Outcome {
    if io::stdout().is_terminal() {
        return Err(usage("an object is bytes, not text for a terminal", "add -o FILE, or pipe it into a program"));
    }
    // The bare descriptor: the standard library's handle would look for line ends in the bytes.
    let out = io::stdout().as_fd().try_clone_to_owned().map_err(|error| output(&error))?;
    copy(args, &mut File::from(out), &Stop::default())?;
    Ok(ExitCode::SUCCESS)
}

/// Writes the object to a file, which has been begun.
pub(crate) fn save(args: &Get, (path, mut file): (&Path, WholeFile), stop: &Stop) -> Outcome {
    let start = Instant::now();
    let bytes = copy(args, &mut file, stop)?;
    file.finish()?;
    let (file, wall_s) = (path.display().to_string(), start.elapsed().as_secs_f64());
    if args.json {
        let fetched = json!({ "schema": 1, "uri": args.uri, "file": file, "bytes": bytes, "wall_s": wall_s });
        JsonTo::Output.show(&fetched, String::new)?;
    } else {
        note(&format!("{} in {wall_s:.2} s, written to {file}", ByteSize(bytes)));
    }
    Ok(ExitCode::SUCCESS)
}

/// Copies the object to `out`, which keeps no bytes back, under a progress bar.
fn copy(args: &Get, out: &mut (impl Write + Send), stop: &Stop) -> Outcome<u64> {
    let mut watched = Watched { out, stop, bar: Bar::new(None, "bytes"), bytes: 0, reader_gone: false };
    let copied = fuelrail::get_with(&args.trust.access(&args.uri)?, &args.uri, &mut watched);
    if watched.reader_gone {
        return copied.map_err(|_| Failure::ReaderGone);
    }
    stop.check()?;
    Ok(copied?)
}

/// Counts for the progress bar, and remembers that the reader has gone, which an error from below no longer tells.
struct Watched<'a, W> {
    out: &'a mut W,
    stop: &'a Stop,
    bar: Bar,
    bytes: u64,
    reader_gone: bool,
}

impl<W: Write> Write for Watched<'_, W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.stop.is_asked() {
            return Err(io::Error::other("interrupted"));
        }
        let written = self.out.write(bytes);
        self.reader_gone |= written.as_ref().is_err_and(|error| error.kind() == io::ErrorKind::BrokenPipe);
        self.bytes += *written.as_ref().unwrap_or(&0) as u64;
        self.bar.at(self.bytes, || ByteSize(self.bytes).to_string());
        written
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}
