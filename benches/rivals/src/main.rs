//! `fuelrail-rival`: other people's clients under the harness's protocol, each run as its makers recommend.
//!
//! Owns the command line of that program. It shares no code with what its rivals are compared to, and never measures CPU
//! time: the harness does that from outside.
#![forbid(unsafe_code)]

mod arena;
mod bare_hyper;
mod bucket;
mod curl;
mod flaw;
mod link;
mod manifest;
mod native;
mod protocol;
mod reading;
mod set;
mod store;
mod tool;
mod wrk;

use std::io::{self, Write};
use std::process::ExitCode;

use clap::{Args, Parser, Subcommand};

use crate::arena::Arena;
use crate::bare_hyper::BareHyper;
use crate::bucket::Bucket;
use crate::curl::Curl;
use crate::flaw::{Flaw, Result};
use crate::native::Setup;
use crate::reading::{Placing, Plan};
use crate::set::Set;
use crate::store::Store;
use crate::wrk::Wrk;

const EXAMPLES: &str = "Examples:
  echo go | fuelrail-rival hyper --uri http://127.0.0.1:8080/set/ --manifest set.tsv --batch-size 8 --arena 536870912 --seed 0
  echo go | fuelrail-rival curl --uri http://127.0.0.1:8080/set/ --manifest set.tsv --connections 32

The protocol: `ready` on standard output; then for every line `go` on standard input one pass over the data set and one line of
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
    Hyper(Native),
    /// The object_store crate speaking S3 without signatures, on one thread
    ObjectStore(Native),
    /// curl, one process per pass, writing to /dev/null
    Curl(Tool),
    /// wrk, one process per pass, dropping the bodies
    Wrk(Tool),
}

#[derive(Args, Debug)]
struct Native {
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
struct Tool {
    #[command(flatten)]
    set: Set,
    /// How long a pass of wrk takes, s; it cannot be told to stop after a number of objects
    #[arg(long, value_name = "S", default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..))]
    duration: u32,
}

fn main() -> ExitCode {
    match run(Line::parse().rival) {
        Ok(()) => ExitCode::SUCCESS,
        Err(flaw) => {
            // Nobody is left to be told when this fails.
            let _ = writeln!(io::stderr().lock(), "fuelrail-rival: {flaw}");
            ExitCode::FAILURE
        }
    }
}

fn run(rival: Rival) -> Result<()> {
    let (commands, answers) = (io::stdin().lock(), io::stdout().lock());
    match rival {
        Rival::Hyper(args) => {
            let (bucket, setup) = native(args)?;
            protocol::serve(BareHyper::new(&bucket, setup)?, commands, answers)
        }
        Rival::ObjectStore(args) => {
            let (bucket, setup) = native(args)?;
            protocol::serve(Store::new(&bucket, setup)?, commands, answers)
        }
        Rival::Curl(args) => {
            let bucket = args.set.bucket()?;
            let objects = manifest::read(&args.set.manifest)?;
            protocol::serve(Curl::new(bucket, objects, &args.set)?, commands, answers)
        }
        Rival::Wrk(args) => {
            let bucket = args.set.bucket()?;
            let objects = manifest::read(&args.set.manifest)?;
            protocol::serve(Wrk::new(&bucket, objects, &args.set, args.duration)?, commands, answers)
        }
    }
}

fn native(args: Native) -> Result<(Bucket, Setup)> {
    let Native { set, range, placing, hash } = args;
    if hash && placing == Placing::Drop {
        return Err(Flaw::new("what is dropped cannot be hashed").cure("leave out --hash or --placing drop"));
    }
    if set.batch_size == 0 {
        return Err(Flaw::new("a batch of 0 objects").cure("give --batch-size of at least 1"));
    }
    let bucket = set.bucket()?;
    let objects = manifest::read(&set.manifest)?;
    let largest = objects.iter().map(|object| object.size).max().unwrap_or(0);
    let arena = match placing {
        Placing::Arena => Some(Arena::new(set.arena, largest)?),
        Placing::Drop => None,
    };
    let range = usize::try_from(range).unwrap_or(usize::MAX);
    let plan = Plan { range, batch_size: set.batch_size, seed: set.seed, hash };
    Ok((bucket, Setup { objects, arena, plan, connections: usize::from(set.connections) }))
}
