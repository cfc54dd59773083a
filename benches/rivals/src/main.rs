//! `fuelrail-rival`: other people's clients under the harness's protocol, each run as its makers recommend.
//!
//! Owns the command line of that program. It shares no code with what its rivals are compared to, and never measures CPU
//! time: the harness does that from outside.
#![forbid(unsafe_code)]

mod bucket;
mod native;
mod reading;
mod tools;

use std::io::{self, BufRead, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Error, Result, ensure};
use clap::{Args, Parser, Subcommand};
use serde::Serialize;

use self::bucket::{Bucket, Object};
use self::native::{BareHyper, Native, Setup, Store};
use self::reading::{Arena, Placing, Plan};
use self::tools::{Curl, Wrk};

const EXAMPLES: &str = "Examples:
  echo go | fuelrail-rival hyper --uri http://127.0.0.1:8080/set/ --manifest set.tsv --batch-size 8 --arena 536870912 --seed 0
  echo go | fuelrail-rival curl --uri http://127.0.0.1:8080/set/ --manifest set.tsv --connections 32

The protocol: `ready` on standard output; then for every line `go` on standard input one pass over the data set and one line of \
JSON; the end of standard input ends it.";

/// Other people's clients under the harness's protocol
#[derive(Parser, Debug)]
#[command(name = "fuelrail-rival", version, after_help = EXAMPLES)]
struct Line {
    #[command(subcommand)]
    rival: Rival,
}

#[derive(Subcommand, Debug)]
enum Rival {
    /// Bare hyper on one thread
    Hyper(NativeArgs),
    /// The object_store crate speaking S3 without signatures, on one thread
    ObjectStore(NativeArgs),
    /// curl, one process per pass, writing to /dev/null
    Curl(ToolArgs),
    /// wrk, one process per pass, dropping the bodies
    Wrk(ToolArgs),
}

/// What to read, and how the harness wants it read.
#[derive(Args, Debug)]
struct Set {
    /// Where the objects are: http[s]://HOST:PORT/BUCKET/
    #[arg(long)]
    uri: String,
    /// The objects, as key<TAB>size lines
    #[arg(long, value_name = "FILE")]
    manifest: PathBuf,
    /// Objects per batch
    #[arg(long, value_name = "N", default_value_t = 8)]
    batch_size: usize,
    /// Memory the bytes are placed in, bytes
    #[arg(long, value_name = "BYTES", default_value_t = 512 << 20)]
    arena: usize,
    /// Chooses the order
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// The authorities to trust, as PEM, instead of the system's
    #[arg(long, value_name = "FILE")]
    ca_file: Option<PathBuf>,
    /// Connections, or requests at a time
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = clap::value_parser!(u16).range(1..=1024))]
    connections: u16,
}

impl Set {
    fn open(&self) -> Result<(Bucket, Vec<Object>)> {
        let bucket = Bucket { ca_file: self.ca_file.clone(), ..self.uri.parse()? };
        Ok((bucket, bucket::read(&self.manifest)?))
    }
}

#[derive(Args, Debug)]
struct NativeArgs {
    #[command(flatten)]
    set: Set,
    /// Longest piece asked for with one request, bytes
    #[arg(long, value_name = "BYTES", default_value_t = 8 << 20, value_parser = clap::value_parser!(u64).range(1..))]
    range: u64,
    /// What becomes of the bytes
    #[arg(long, value_enum, default_value_t = Placing::Arena)]
    placing: Placing,
    /// Hash what has landed; the pass pays for it
    #[arg(long)]
    hash: bool,
}

#[derive(Args, Debug)]
struct ToolArgs {
    #[command(flatten)]
    set: Set,
    /// How long a pass of wrk takes, s; it cannot be told to stop after a number of objects
    #[arg(long, value_name = "S", default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..))]
    duration: u32,
}

fn main() -> ExitCode {
    match run(Line::parse().rival) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // There is no one left to report a failure to.
            let _ = writeln!(io::stderr().lock(), "fuelrail-rival: {}", one_line(&error));
            ExitCode::FAILURE
        }
    }
}

/// An error with every cause below it that it does not tell itself, on one line whatever the libraries put into theirs.
fn one_line(error: &Error) -> String {
    let mut text = error.to_string();
    for cause in error.chain().skip(1).map(ToString::to_string) {
        if !text.ends_with(&cause) {
            text = format!("{text}: {cause}");
        }
    }
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

fn run(rival: Rival) -> Result<()> {
    match rival {
        Rival::Hyper(args) => {
            let (bucket, setup) = native(&args)?;
            let name = if bucket.tls { "hyper 1, HTTP/1.1, rustls" } else { "hyper 1, HTTP/1.1" };
            let mut client = Native::new(name, setup, |objects| BareHyper::new(&bucket, objects))?;
            serve(|number| client.pass(number))
        }
        Rival::ObjectStore(args) => {
            let (bucket, setup) = native(&args)?;
            let name = "object_store 0.14, S3 unsigned, HTTP/1.1, get into a stream";
            let mut client = Native::new(name, setup, |objects| Store::new(&bucket, objects))?;
            serve(|number| client.pass(number))
        }
        Rival::Curl(ToolArgs { set, .. }) => {
            let (bucket, objects) = set.open()?;
            let curl = Curl::new(bucket, objects, set.seed, set.connections)?;
            serve(|number| curl.pass(number))
        }
        Rival::Wrk(ToolArgs { set, duration }) => {
            let (bucket, objects) = set.open()?;
            let wrk = Wrk::new(&bucket, &objects, set.seed, set.connections, duration)?;
            serve(|_| wrk.pass())
        }
    }
}

fn native(args: &NativeArgs) -> Result<(Bucket, Setup)> {
    let NativeArgs { set, range, placing, hash } = args;
    let is_lost = *hash && *placing == Placing::Drop;
    ensure!(!is_lost, "what is dropped cannot be hashed; leave out --hash or --placing drop");
    ensure!(set.batch_size > 0, "a batch of 0 objects; give --batch-size of at least 1");
    let (bucket, objects) = set.open()?;
    let largest = objects.iter().map(|object| object.size).max().unwrap_or(0);
    let arena = match placing {
        Placing::Arena => Some(Arena::new(set.arena, largest)?),
        Placing::Drop => None,
    };
    let range = usize::try_from(*range).unwrap_or(usize::MAX);
    let plan = Plan { range, batch_size: set.batch_size, seed: set.seed, hash: *hash };
    Ok((bucket, Setup { objects, arena, plan, connections: usize::from(set.connections) }))
}

/// What one pass came to.
#[derive(Clone, PartialEq, Debug, Default, Serialize)]
pub(crate) struct Passed {
    /// Payload delivered, bytes.
    pub(crate) bytes: u64,
    pub(crate) objects: u64,
    /// From `go` to the last byte, s.
    pub(crate) wall_s: f64,
    /// From `go` until the first batch was whole, µs; absent where the client does not tell.
    pub(crate) first_batch_us: Option<u64>,
    /// Sum modulo 2¹²⁸ of XXH3-128 over each object, as 32 hexadecimal digits: the same in any order. Only when asked.
    pub(crate) hash: Option<String>,
    pub(crate) settings: String,
}

/// Serves the harness until it has heard enough: `pass` reads the whole set once, and is given its number, from 0.
pub(crate) fn serve(mut pass: impl FnMut(u64) -> Result<Passed>) -> Result<()> {
    let (mut commands, mut answers) = (io::stdin().lock(), io::stdout().lock());
    let mut say =
        |line: &str| writeln!(answers, "{line}").and_then(|()| answers.flush()).context("telling the harness");
    say("ready")?;
    let mut line = String::new();
    for number in 0.. {
        line.clear();
        if commands.read_line(&mut line).context("listening to the harness")? == 0 {
            break;
        }
        ensure!(line.trim_end() == "go", "expected `go`, got {line:?}");
        let passed = pass(number)?;
        say(&serde_json::to_string(&passed).expect("a pass is a plain structure"))?;
    }
    Ok(())
}
