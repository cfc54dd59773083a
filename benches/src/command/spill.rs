//! `cargo x bench spill`: what a disk gives to blocks, and what they cost, beside fio.

use std::path::PathBuf;
use std::process::ExitCode;

use crate::spill::{Spill, spill};
use clap::{ArgAction, Args};
use fuelrail::{ByteSize, RingChoice};

use super::findings::{holds, text};
use super::given::{blocks, names, ring_name};
use super::venue::Turns;
use fuelrail_cli::bench::this_program;
use fuelrail_cli::failure::{Outcome, usage};
use fuelrail_cli::screen::{JsonTo, note};
use fuelrail_cli::stop::stop_on_signals;

const EXAMPLES: &str = "Examples:
  cargo x bench spill /mnt/nvme
  cargo x bench spill /mnt/nvme --block-size 256KiB --depth 32 --bytes 8GiB --rings uring,poll --json spill.json
  cargo x bench spill . --direct false --rounds 3

Every contestant writes a file of its own in a folder below FOLDER, block by block in order with DEPTH blocks under way, and syncs
it; then it reads it, and checks that every block is the one that was written. fio does the same with io_uring, registered
buffers and a registered file, when it is installed. Rounds go A B A B. The files are removed at the end. Exit code 1 when a
contestant fails.";

/// Measure what a disk gives to blocks and what they cost
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(crate) struct SpillArgs {
    /// A folder on the disk
    #[arg(value_name = "FOLDER")]
    folder: PathBuf,
    /// Rings, with commas
    #[arg(long, value_name = "NAMES", value_delimiter = ',', value_parser = ring_name, default_value = "uring")]
    rings: Vec<RingChoice>,
    /// Bytes a block
    #[arg(long, value_name = "SIZE", default_value = "1MiB")]
    block_size: ByteSize,
    /// Blocks under way at once
    #[arg(long, value_name = "N", default_value_t = 8)]
    depth: u32,
    /// Bytes of each contestant's file
    #[arg(long, value_name = "SIZE", default_value = "2GiB")]
    bytes: ByteSize,
    /// Around the page cache (O_DIRECT)
    #[arg(long, value_name = "true|false", action = ArgAction::Set, default_value_t = true)]
    direct: bool,
    /// Let fio take part, if it is installed
    #[arg(long, value_name = "true|false", action = ArgAction::Set, default_value_t = true)]
    fio: bool,
    /// Rounds measured, after one for warmth
    #[arg(long, value_name = "N", default_value_t = 5)]
    rounds: u32,
    /// Print the result as one JSON document, or write it to FILE beside the table
    #[arg(long, value_name = "FILE", num_args = 0..=1, default_missing_value = "-")]
    json: Option<String>,
}

pub(crate) fn run(args: &SpillArgs) -> Outcome {
    if args.rounds == 0 {
        return Err(usage("nothing is measured in 0 rounds", "give at least 1; 5 are the default"));
    }
    let plan = Spill {
        folder: args.folder.clone(),
        blocks: blocks(args.block_size, args.depth, args.bytes, args.direct)?,
        rings: names(&args.rings),
        fio: args.fio,
        rounds: args.rounds,
        program: this_program()?,
        stop: stop_on_signals()?,
    };
    let turns = Turns::new();
    let findings = spill(&plan, &mut |way, turn| turns.turn(way, turn))?;
    drop(turns);
    findings.notices.iter().for_each(|notice| note(notice));
    JsonTo::asked(args.json.as_deref()).show(&findings, || text(&findings))?;
    Ok(if holds(&findings) { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
