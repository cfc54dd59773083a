//! `cargo x bench rings`: what the back-ends of the ring cost beside each other.

use std::path::PathBuf;
use std::process::ExitCode;

use crate::harness::Transport;
use crate::line::Line;
use crate::rings::{Rings, rings};
use clap::Args;
use fuelrail::{ByteSize, RingChoice};

use super::findings::{holds, text};
use super::given::{blocks, names, ring_name};
use super::venue::{Turns, VenueArgs};
use fuelrail_cli::bench::this_program;
use fuelrail_cli::failure::{Outcome, usage};
use fuelrail_cli::screen::{JsonTo, note};
use fuelrail_cli::stop::stop_on_signals;

const EXAMPLES: &str = "Examples:
  cargo x bench rings
  cargo x bench rings --rings uring,poll --venue netns --shapes large,mid,tiny --json rings.json
  cargo x bench rings --disk /mnt/nvme --block-size 1MiB --depth 8 --bytes 2GiB

Every ring is a process of its own: the loader with --ring NAME in each shape, and a loop of blocks through a file (O_DIRECT,
registered memory where the ring can) when --disk names a folder. Rounds go A B A B with the floors. Exit code 1 when a
ring fails.";

/// Measure the loader on every back-end of the ring
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(crate) struct RingsArgs {
    /// Rings, with commas [default: all of this build]
    #[arg(long, value_name = "NAMES", value_delimiter = ',', value_parser = ring_name)]
    rings: Vec<RingChoice>,
    #[command(flatten)]
    venue: VenueArgs,
    /// Under how many names a pass reads every object [default: 4, first 1]
    #[arg(long, value_name = "N")]
    repeats: Option<u32>,
    /// A setting of the loader over its defaults, by the name of its field
    #[arg(long = "set", value_name = "FIELD=VALUE", value_parser = fuelrail_cli::bench::setting)]
    settings: Vec<(String, String)>,
    /// Also move blocks to and from a file in this folder
    #[arg(long, value_name = "FOLDER")]
    disk: Option<PathBuf>,
    /// Bytes a block
    #[arg(long, value_name = "SIZE", default_value = "1MiB", requires = "disk")]
    block_size: ByteSize,
    /// Blocks under way at once
    #[arg(long, value_name = "N", default_value_t = 8, requires = "disk")]
    depth: u32,
    /// Bytes of the file
    #[arg(long, value_name = "SIZE", default_value = "2GiB", requires = "disk")]
    bytes: ByteSize,
    /// Print the result as one JSON document, or write it to FILE beside the table
    #[arg(long, value_name = "FILE", num_args = 0..=1, default_missing_value = "-")]
    json: Option<String>,
}

pub(crate) fn run(args: &RingsArgs) -> Outcome {
    if args.venue.rounds == 0 || args.repeats == Some(0) {
        return Err(usage("nothing is measured in 0 rounds or 0 repeats", "give at least 1; 5 rounds are the default"));
    }
    let disk = match &args.disk {
        Some(folder) => Some((folder.clone(), blocks(args.block_size, args.depth, args.bytes, true)?)),
        None => None,
    };
    let plan = Rings {
        rings: names(&args.rings),
        line: Line {
            question: "rings".to_owned(),
            shapes: args.venue.shapes.clone(),
            transports: vec![Transport::Plain],
            scale: args.venue.scale,
            rounds: args.venue.rounds,
            repeats: args.repeats,
            seed: args.venue.seed,
            loader: Some(args.settings.clone()),
            all_floors: false,
            program: this_program()?,
            stop: stop_on_signals()?,
        },
        disk,
    };
    let turns = Turns::new();
    let findings = rings(&plan, &args.venue.config(&[Transport::Plain]), &mut |step| turns.show(step))?;
    drop(turns);
    findings.notices.iter().for_each(|notice| note(notice));
    JsonTo::asked(args.json.as_deref()).show(&findings, || text(&findings))?;
    Ok(if holds(&findings) { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
