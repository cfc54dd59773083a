//! `cargo x bench contestant`: this program as one of the harness's contestants. Hidden: people start it through the
//! questions of `bench`, and by hand only to see why a contestant fails.

use std::io;
use std::path::PathBuf;
use std::process::ExitCode;

use crate::floor::{self, Floor, Into, Loop};
use crate::harness::Task;
use crate::own::{self, Own};
use clap::{ArgAction, Args, Subcommand};

use fuelrail_cli::bench::setting;
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
    FloorRecv(FloorRecv),
    FloorEpoll(FloorEpoll),
    FloorDrop(FloorEpoll),
    FloorCopy(FloorRecv),
    Fuelrail(OwnLoader),
}

/// A blocking recv loop on one connection
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
struct FloorRecv {
    /// Receive into the same mebibyte over and over
    #[arg(long)]
    hot: bool,
    #[command(flatten)]
    floor: FloorArgs,
}

/// An epoll loop over several connections
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
struct FloorEpoll {
    /// Connections; without it 1, 8 and 32 are tried
    #[arg(long, value_name = "N")]
    connections: Option<usize>,
    #[command(flatten)]
    floor: FloorArgs,
}

/// The loader itself
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
struct OwnLoader {
    /// A setting over the defaults, by the name of its field
    #[arg(long = "set", value_name = "FIELD=VALUE", value_parser = setting)]
    settings: Vec<(String, String)>,
    /// Hash what comes
    #[arg(long)]
    hash: bool,
    /// End with the first pass, and fetch nothing of a next one
    #[arg(long)]
    once: bool,
    #[command(flatten)]
    task: TaskArgs,
}

#[derive(Args, Debug)]
struct FloorArgs {
    /// Touch the arena's pages before the first pass
    #[arg(long, value_name = "true|false", action = ArgAction::Set, default_value_t = true)]
    touch: bool,
    /// Hash what comes
    #[arg(long)]
    hash: bool,
    #[command(flatten)]
    task: TaskArgs,
}

#[derive(Args, Debug)]
struct TaskArgs {
    /// Where the keys begin
    #[arg(long)]
    uri: String,
    /// The objects, as key<TAB>size lines
    #[arg(long, value_name = "FILE")]
    manifest: PathBuf,
    /// Objects a batch
    #[arg(long, value_name = "N")]
    batch_size: u32,
    /// Memory the payload is placed in
    #[arg(long, value_name = "BYTES")]
    arena: u64,
    /// Chooses the order
    #[arg(long)]
    seed: u64,
}

pub(crate) fn run(args: &Contestant) -> Outcome {
    let (input, output) = (io::stdin().lock(), io::stdout().lock());
    let (looping, into, floor) = match &args.who {
        Who::Fuelrail(OwnLoader { settings, hash, once, task }) => {
            let own = Own { settings: settings.clone(), hash: *hash, once: *once };
            own::run(&own, &task.task(), input, output)?;
            return Ok(ExitCode::SUCCESS);
        }
        Who::FloorRecv(FloorRecv { hot, floor }) => (Loop::Recv, into(*hot), floor),
        Who::FloorCopy(FloorRecv { hot, floor }) => (Loop::Copy, into(*hot), floor),
        Who::FloorEpoll(FloorEpoll { connections, floor }) => (Loop::Epoll(*connections), Into::Arena, floor),
        Who::FloorDrop(FloorEpoll { connections, floor }) => (Loop::Epoll(*connections), Into::Nowhere, floor),
    };
    floor::run(&Floor { looping, into, touch: floor.touch, hash: floor.hash }, &floor.task.task(), input, output)?;
    Ok(ExitCode::SUCCESS)
}

fn into(hot: bool) -> Into {
    if hot { Into::Hot } else { Into::Arena }
}

impl TaskArgs {
    fn task(&self) -> Task {
        Task {
            uri: self.uri.clone(),
            manifest: self.manifest.clone(),
            batch_size: self.batch_size,
            arena_bytes: self.arena,
            seed: self.seed,
        }
    }
}
