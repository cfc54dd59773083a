//! `cargo x bench line` and `cargo x bench floor`: what reading costs beside the kernel's own copy.

use std::path::PathBuf;
use std::process::ExitCode;

use crate::external::{External, external};
use crate::harness::Transport;
use crate::line::{Line, line};
use clap::{Args, ValueEnum};
use fuelrail::{ByteSize, Overrides, list, read_manifest};

use super::findings::{holds, text};
use super::venue::{Turns, VenueArgs};
use fuelrail_cli::bench::this_program;
use fuelrail_cli::failure::{Outcome, usage};
use fuelrail_cli::screen::{JsonTo, note};
use fuelrail_cli::stop::stop_on_signals;

const EXAMPLES: &str = "Examples:
  cargo x bench line
  cargo x bench line --venue netns --shapes large,volumes,mid,tiny,first --json line.json
  cargo x bench line --venue netns --link 10gbit --shapes large
  cargo x bench line --shapes large --transport tls --set register=true
  cargo x bench line --uri http://127.0.0.1:9000/bucket/training/ --batch-size 512

Every contestant is a process of its own. Rounds go A B A B; ratios are taken within a round; the figures are medians with
their range. Processor time is that of the whole process tree, from a cgroup where we may make one (root). Exit code 1 when a bar
does not hold or a contestant fails.";

const FLOOR_EXAMPLES: &str = "Examples:
  cargo x bench floor
  cargo x bench floor --venue netns --shapes large,tiny --rounds 7 --json floor.json
  cargo x bench floor --shapes large --transport tls

The floors are plain loops with no parsing beyond Content-Length: blocking recv into an arena of the same size and into a hot
mebibyte, epoll at the best of 1, 8 and 32 connections, the kernel dropping the payload (MSG_TRUNC), memcpy alone; over TLS
OpenSSL's SSL_read in C, compiled on the spot.";

/// Plain or encrypted.
#[derive(ValueEnum, Clone, Copy, Debug)]
pub(crate) enum TransportName {
    /// HTTP
    Plain,
    /// HTTPS: TLS 1.3 with AES-128-GCM
    Tls,
}

impl From<TransportName> for Transport {
    fn from(name: TransportName) -> Transport {
        match name {
            TransportName::Plain => Transport::Plain,
            TransportName::Tls => Transport::Tls,
        }
    }
}

/// Measure the loader beside the floors: the kernel's own copy and plain loops around it
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(crate) struct LineArgs {
    #[command(flatten)]
    common: Common,
    /// A setting of the loader over its defaults, by the name of its field
    #[arg(long = "set", value_name = "FIELD=VALUE", value_parser = fuelrail_cli::bench::setting)]
    settings: Vec<(String, String)>,
    /// All floors, those included that no bar needs
    #[arg(long)]
    all_floors: bool,
}

/// Measure the floors alone: what the kernel's copy costs a program that does nothing else
#[derive(Args, Debug)]
#[command(after_help = FLOOR_EXAMPLES)]
pub(crate) struct FloorArgs {
    #[command(flatten)]
    common: Common,
}

#[derive(Args, Debug)]
struct Common {
    #[command(flatten)]
    venue: VenueArgs,
    /// Read a bucket that is there already instead: http[s]://HOST:PORT/BUCKET/PREFIX
    #[arg(long, conflicts_with_all = ["venue", "link", "dir", "shapes", "scale", "repeats", "transport"])]
    uri: Option<String>,
    /// Its objects, as key<TAB>size lines, for servers that cannot list
    #[arg(long, value_name = "FILE", requires = "uri")]
    manifest: Option<PathBuf>,
    /// Samples a batch of it
    #[arg(long, value_name = "N", requires = "uri", default_value_t = 64)]
    batch_size: u32,
    /// Memory its payload is placed in
    #[arg(long, value_name = "SIZE", requires = "uri", default_value = "512MiB")]
    arena: ByteSize,
    /// Over what, with commas
    #[arg(long, value_name = "NAMES", value_enum, value_delimiter = ',', default_value = "plain")]
    transport: Vec<TransportName>,
    /// Under how many names a pass reads every object [default: 4, first 1]
    #[arg(long, value_name = "N")]
    repeats: Option<u32>,
    /// Print the result as one JSON document, or write it to FILE beside the table
    #[arg(long, value_name = "FILE", num_args = 0..=1, default_missing_value = "-")]
    json: Option<String>,
}

pub(crate) fn run(args: &LineArgs) -> Outcome {
    ask("line", &args.common, Some(args.settings.clone()), args.all_floors)
}

pub(crate) fn run_floor(args: &FloorArgs) -> Outcome {
    ask("floor", &args.common, None, true)
}

fn ask(question: &str, args: &Common, loader: Option<Overrides>, all_floors: bool) -> Outcome {
    if args.venue.rounds == 0 || args.repeats == Some(0) {
        return Err(usage("nothing is measured in 0 rounds or 0 repeats", "give at least 1; 5 rounds are the default"));
    }
    let transports: Vec<Transport> = args.transport.iter().map(|name| (*name).into()).collect();
    let plan = Line {
        question: question.to_owned(),
        shapes: args.venue.shapes.clone(),
        scale: args.venue.scale,
        rounds: args.venue.rounds,
        repeats: args.repeats,
        seed: args.venue.seed,
        loader,
        all_floors,
        program: this_program()?,
        stop: stop_on_signals()?,
        transports: transports.clone(),
    };
    let turns = Turns::new();
    let config = args.venue.config(&transports);
    let findings = match external_of(args)? {
        Some(bucket) => external(&plan, &bucket, &config.client_cores, &mut |step| turns.show(step))?,
        None => line(&plan, &config, &mut |step| turns.show(step))?,
    };
    drop(turns);
    findings.notices.iter().for_each(|notice| note(notice));
    JsonTo::asked(args.json.as_deref()).show(&findings, || text(&findings))?;
    Ok(if holds(&findings) { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// The bucket asked for, listed.
fn external_of(args: &Common) -> Outcome<Option<External>> {
    let Some(uri) = &args.uri else { return Ok(None) };
    let listing = match &args.manifest {
        Some(path) => read_manifest(path)?,
        None => list(uri, |_| {})?,
    };
    Ok(Some(External { uri: uri.clone(), listing, batch_size: args.batch_size, arena_bytes: args.arena.0 }))
}
