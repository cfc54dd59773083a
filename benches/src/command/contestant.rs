//! `cargo x bench contestant`: this program as one of the harness's contestants. Hidden: the other
//! commands of `bench` start it; by hand it is useful only to see why a contestant fails.

use std::io;
use std::process::ExitCode;

use crate::floor::{self, Floor, Into, Loop};
use crate::harness::Task;
use crate::own::{self, Own};
use clap::{ArgAction, Args, Subcommand};

use fuelrail_cli::failure::Outcome;

const EXAMPLES: &str = "Examples:
  cargo x bench contestant floor-recv --uri http://127.0.0.1:8080/set/ --manifest set.tsv --batch-size 8 --arena 536870912 --seed 0
  echo go | cargo x bench contestant fuelrail --set shards=1 --uri http://127.0.0.1:8080/set/ --manifest set.tsv --batch-size 8 \\
      --arena 536870912 --seed 0

It says `ready`, does a pass over the set for every line `go` on its input, and prints one line of JSON after each.";

/// Take part in a comparison (started by the harness)
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Contestant {
    #[command(subcommand)]
    who: Who,
}

#[derive(Subcommand, Debug)]
enum Who {
    /// A blocking recv loop on one connection
    FloorRecv(FloorArgs),
    /// An epoll loop over several connections
    FloorEpoll(FloorArgs),
    /// An epoll loop whose kernel drops the payload
    FloorDrop(FloorArgs),
    /// memcpy alone
    FloorCopy(FloorArgs),
    /// The loader itself
    Fuelrail {
        #[command(flatten)]
        own: Own,
        #[command(flatten)]
        task: Task,
    },
}

#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
struct FloorArgs {
    /// Receive into the same mebibyte over and over
    #[arg(long)]
    hot: bool,
    /// Connections of epoll; without it 1, 8 and 32 are tried
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    connections: Option<u16>,
    /// Touch the arena's pages before the first pass
    #[arg(long, value_name = "true|false", action = ArgAction::Set, default_value_t = true)]
    touch: bool,
    /// Hash what comes
    #[arg(long)]
    hash: bool,
    #[command(flatten)]
    task: Task,
}

pub(crate) fn run(args: &Contestant) -> Outcome {
    let (input, output) = (io::stdin().lock(), io::stdout().lock());
    let (looping, into, args) = match &args.who {
        Who::Fuelrail { own, task } => {
            own::run(own, task, input, output)?;
            return Ok(ExitCode::SUCCESS);
        }
        Who::FloorRecv(args) => (Loop::Recv, Into::Arena, args),
        Who::FloorCopy(args) => (Loop::Copy, Into::Arena, args),
        Who::FloorEpoll(args) => (Loop::Epoll(args.connections), Into::Arena, args),
        Who::FloorDrop(args) => (Loop::Epoll(args.connections), Into::Nowhere, args),
    };
    let into = if args.hot { Into::Hot } else { into };
    floor::run(&Floor { looping, into, touch: args.touch, hash: args.hash }, &args.task, input, output)?;
    Ok(ExitCode::SUCCESS)
}
