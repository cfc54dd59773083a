//! `cargo x bench line`: what reading costs beside the kernel's own copy, on each ring, and beside other people's loaders.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Args;
use fuelrail::{Backend, ByteSize, RingChoice, list, read_manifest};

use super::findings::text;
use super::venue::{Turns, VenueArgs, ring_name};
use crate::harness::{Findings, Transport, VenueConfig, VenueKind};
use crate::line::{External, Line, line};
use crate::rivals::{Programs, Python, RIVALS, Rival, folders};
use fuelrail_cli::bench::this_program;
use fuelrail_cli::failure::{Outcome, usage};
use fuelrail_cli::screen::{JsonTo, note};
use fuelrail_cli::stop::stop_on_signals;

const EXAMPLES: &str = "Examples:
  cargo x bench line
  cargo x bench line --venue netns --shapes large,volumes,mid,tiny,first --json line.json
  cargo x bench line --venue netns --link 10gbit --shapes large
  cargo x bench line --shapes large --transport tls --set register=true
  cargo x bench line --floors-only --rounds 7
  cargo x bench line --rings uring,poll --shapes large,mid,tiny
  cargo x bench line --rivals hyper,object-store --shapes large,mid,tiny
  cargo x bench line --uri http://127.0.0.1:9000/bucket/training/ --batch-size 512

Every contestant is a process of its own. Rounds go A B A B; ratios are taken within a round; the figures are medians with
their range. Processor time is that of the whole process tree, from a cgroup where we may make one (root). Exit code 1 when a bar
that could be judged does not hold, or a floor or the loader fails.

Floors are plain loops with no parsing beyond Content-Length: blocking recv into an arena of the same size and into a hot
mebibyte, epoll at the best of 1, 8 and 32 connections, the kernel dropping the payload (MSG_TRUNC), memcpy alone; over TLS
OpenSSL's SSL_read in C, compiled on the spot.

Rivals: hyper, object-store, hyper-drop (native); curl, wrk (commands); boto3, dataloader-boto3, s3torchconnector, s3dlio, webdataset,
mosaicml-streaming, runai-model-streamer (Python). Each runs with the settings its makers recommend, which are in the result. One
that is not there is listed with the reason and how to install it. The native ones come from the program fuelrail-rival (cargo build
--release -p fuelrail-rivals). A pass of a Python rival goes over the set once: they are slow.";

/// Measure the loader beside the floors, on each ring, or beside other people's loaders
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(crate) struct LineArgs {
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
    transport: Vec<Transport>,
    /// Under how many names a pass reads every object [default: 4, first 1; Python rivals always 1]
    #[arg(long, value_name = "N")]
    repeats: Option<u32>,
    /// A setting of the loader over its defaults, by the name of its field
    #[arg(long = "set", value_name = "FIELD=VALUE", value_parser = fuelrail_cli::bench::setting)]
    settings: Vec<(String, String)>,
    /// All floors, those included that no bar needs
    #[arg(long)]
    all_floors: bool,
    /// All floors and nothing else: what the kernel's copy costs a program that does nothing else
    #[arg(long, conflicts_with_all = ["settings", "rings", "rivals"])]
    floors_only: bool,
    /// The loader on each of these rings, with commas [default: all of this build]
    #[arg(long, value_name = "NAMES", num_args = 0.., value_delimiter = ',', conflicts_with = "rivals")]
    rings: Option<Vec<RingChoice>>,
    /// Other people's loaders as well, with commas [default: all]
    #[arg(long, value_name = "NAMES", num_args = 0.., value_delimiter = ',')]
    rivals: Option<Vec<&'static Rival>>,
    /// Install the Python rivals first: some 7 GB, minutes
    #[arg(long, requires = "rivals")]
    python: bool,
    /// Where the Python rivals are installed [default: fuelrail/rivals in the user's cache folder]
    #[arg(long, value_name = "FOLDER", requires = "rivals")]
    python_dir: Option<PathBuf>,
    /// The program with the native rivals [default: fuelrail-rival beside this one]
    #[arg(long, value_name = "FILE", requires = "rivals")]
    rival_program: Option<PathBuf>,
    /// Print the result as one JSON document, or write it to FILE beside the table
    #[arg(long, value_name = "FILE", num_args = 0..=1, default_missing_value = "-")]
    json: Option<String>,
}

pub(crate) fn run(args: &LineArgs) -> Outcome {
    if args.venue.rounds == 0 || args.repeats == Some(0) {
        return Err(usage("nothing is measured in 0 rounds or 0 repeats", "give at least 1; 5 rounds are the default"));
    }
    let program = this_program()?;
    let all = |asked: Vec<&'static Rival>| if asked.is_empty() { RIVALS.iter().collect() } else { asked };
    let plan = Line {
        shapes: args.venue.shapes.clone(),
        transports: args.transport.clone(),
        bucket: bucket(args)?,
        scale: args.venue.scale,
        rounds: args.venue.rounds,
        repeats: args.repeats,
        seed: args.venue.seed,
        loader: (!args.floors_only).then(|| args.settings.clone()),
        rings: args.rings.as_deref().map_or_else(Vec::new, rings),
        rivals: args.rivals.clone().map_or_else(Vec::new, all),
        programs: Programs {
            natives: args.rival_program.clone().unwrap_or_else(|| program.with_file_name("fuelrail-rival")),
            python: Python::in_folder(python_folder(args)?),
            path: folders(&std::env::var_os("PATH").unwrap_or_default()),
        },
        all_floors: args.all_floors || args.floors_only,
        program,
        stop: stop_on_signals()?,
    };
    if args.python {
        plan.programs.python.install(&mut |step| note(step))?;
    }
    let mut venue = args.venue.config(&args.transport);
    if plan.bucket.is_some() {
        venue = VenueConfig { kind: VenueKind::External, server_core: None, ..venue };
    }
    let turns = Turns::new();
    let findings = line(&plan, &venue, &mut |step| turns.show(step))?;
    drop(turns);
    findings.notices.iter().for_each(|notice| note(notice));
    JsonTo::asked(args.json.as_deref()).show(&findings, || text(&findings))?;
    Ok(if holds(&findings) { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// The rings asked for by name; all of this build when none is.
fn rings(asked: &[RingChoice]) -> Vec<String> {
    if asked.is_empty() {
        return Backend::ALL.iter().map(ToString::to_string).collect();
    }
    asked.iter().map(|choice| ring_name(*choice).to_owned()).collect()
}

/// Whether every bar holds and every floor and the loader came through. A rival need not be there.
fn holds(findings: &Findings) -> bool {
    let is_rival = |name: &String| RIVALS.iter().any(|rival| rival.name == name);
    findings.contests.iter().all(|contest| {
        let through = contest.contestants.iter().all(|scored| scored.failure.is_none() || is_rival(&scored.name));
        let absent = |holds: Option<bool>, to: &[String]| holds.is_none() && to.iter().any(is_rival);
        through && contest.bars.iter().all(|bar| bar.holds == Some(true) || absent(bar.holds, &bar.bar.to))
    })
}

/// The bucket asked for, listed.
fn bucket(args: &LineArgs) -> Outcome<Option<External>> {
    let Some(uri) = &args.uri else { return Ok(None) };
    let listing = match &args.manifest {
        Some(path) => read_manifest(path)?,
        None => list(uri, |_| {})?,
    };
    Ok(Some(External { uri: uri.clone(), listing, batch_size: args.batch_size, arena_bytes: args.arena.0 }))
}

fn python_folder(args: &LineArgs) -> Outcome<PathBuf> {
    if let Some(folder) = &args.python_dir {
        return Ok(folder.clone());
    }
    let set = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty());
    let cache = set("XDG_CACHE_HOME").map(PathBuf::from).or_else(|| Some(Path::new(&set("HOME")?).join(".cache")));
    let cache = match cache {
        None if args.rivals.is_some() => {
            let cause = "there is no cache folder: neither XDG_CACHE_HOME nor HOME is set";
            return Err(usage(cause, "give --python-dir"));
        }
        cache => cache.unwrap_or_default(),
    };
    Ok(cache.join("fuelrail/rivals"))
}
