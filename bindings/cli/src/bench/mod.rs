//! `fuelrail bench`: measurements of one's own bucket, with the machine and the configuration in the result.

pub mod accelerators;
mod feed;
pub mod latency;
pub(crate) mod read;
pub mod reading;

use clap::{Args, Subcommand};

use fuelrail::{Error, Kind};

pub use read::shard_text;
pub(crate) use read::text as read_text;
pub(crate) use reading::{ReadReport, SCHEMA as READ_SCHEMA};

use crate::failure::Outcome;

const EXAMPLES: &str = "Examples:
  fuelrail bench read http://127.0.0.1:9000/bucket/training/ --batch-size 512 --epochs 2
  fuelrail bench read http://127.0.0.1:8080/set/ --manifest set.tsv --shards 1 --memory-limit 512MiB --hash false --json run.json";

/// Measure what reading costs
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Bench {
    #[command(subcommand)]
    benchmark: Benchmark,
}

#[derive(Subcommand, Debug)]
enum Benchmark {
    Read(Box<read::Read>),
    Latency(Box<latency::Latency>),
    Feed(Box<feed::Feed>),
}

pub(crate) fn run(bench: Bench) -> Outcome {
    match bench.benchmark {
        Benchmark::Read(args) => read::run(&args),
        Benchmark::Latency(args) => latency::run(&args),
        Benchmark::Feed(args) => feed::run(&args),
    }
}

/// The file this program was started from.
///
/// # Errors
/// `Environment` when the kernel does not tell.
pub fn this_program() -> fuelrail::Result<std::path::PathBuf> {
    std::env::current_exe().map_err(|error| Error::from_io(Kind::Environment, "finding this program's own file", error))
}

/// Reads `FIELD=VALUE`.
///
/// # Errors
/// What is wrong with it.
pub fn setting(text: &str) -> Result<(String, String), String> {
    let (field, value) = text.split_once('=').ok_or_else(|| format!("`{text}` is not FIELD=VALUE"))?;
    Ok((field.to_owned(), value.to_owned()))
}
