//! `cargo x bench rivals`: the loader beside other people's clients and loaders, in the same run.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use crate::harness::{Findings, Transport};
use crate::line::{LOADER, Line};
use crate::rivals::{Programs, Python, Question, RIVALS, Rival, folders, rivals};
use clap::Args;

use super::findings::text;
use super::line::TransportName;
use super::venue::{Turns, VenueArgs};
use fuelrail_cli::bench::this_program;
use fuelrail_cli::failure::{Outcome, usage};
use fuelrail_cli::screen::{JsonTo, note};
use fuelrail_cli::stop::stop_on_signals;

const EXAMPLES: &str = "Examples:
  cargo x bench rivals
  cargo x bench rivals hyper object-store --venue netns --shapes large,mid,tiny --json rivals.json
  cargo x bench rivals hyper object-store curl --shapes large --transport tls
  cargo x bench rivals --python

Rivals: hyper, object-store, hyper-drop (native); curl, wrk (commands); boto3, dataloader-boto3, s3torchconnector, s3dlio, webdataset,
mosaicml-streaming, runai-model-streamer (Python). Each is a process of its own with the settings its makers recommend, which are in
the result; rounds go A B A B with the floor and the loader. Who is not there is listed with the reason and how to install it. The native
ones come from the program fuelrail-rival (cargo build --release -p fuelrail-rivals). A pass of a Python rival goes over the set once:
they are slow. Exit code 1 when a bar that could be judged does not hold, or the loader fails.";

/// Measure the loader beside other people's clients and loaders
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Rivals {
    /// Who is asked to take part [default: all]
    #[arg(value_name = "NAME")]
    names: Vec<&'static Rival>,
    #[command(flatten)]
    venue: VenueArgs,
    /// Over what, with commas
    #[arg(long, value_name = "NAMES", value_enum, value_delimiter = ',', default_value = "plain")]
    transport: Vec<TransportName>,
    /// Under how many names a pass reads every object [default: 4, first 1; Python rivals always 1]
    #[arg(long, value_name = "N")]
    repeats: Option<u32>,
    /// A setting of the loader over its defaults, by the name of its field
    #[arg(long = "set", value_name = "FIELD=VALUE", value_parser = fuelrail_cli::bench::setting)]
    settings: Vec<(String, String)>,
    /// Install the Python rivals first: some 7 GB, minutes
    #[arg(long)]
    python: bool,
    /// Where the Python rivals are installed [default: fuelrail/rivals in the user's cache folder]
    #[arg(long, value_name = "FOLDER")]
    python_dir: Option<PathBuf>,
    /// The program with the native rivals [default: fuelrail-rival beside this one]
    #[arg(long, value_name = "FILE")]
    rival_program: Option<PathBuf>,
    /// Print the result as one JSON document, or write it to FILE beside the table
    #[arg(long, value_name = "FILE", num_args = 0..=1, default_missing_value = "-")]
    json: Option<String>,
}

pub(crate) fn run(args: &Rivals) -> Outcome {
    if args.venue.rounds == 0 || args.repeats == Some(0) {
        return Err(usage("nothing is measured in 0 rounds or 0 repeats", "give at least 1; 5 rounds are the default"));
    }
    let program = this_program()?;
    let natives = args.rival_program.clone().unwrap_or_else(|| program.with_file_name("fuelrail-rival"));
    let python = Python::in_folder(python_folder(args)?);
    if args.python {
        python.install(&mut |step| note(step))?;
    }
    let rivals_asked: Vec<&Rival> = if args.names.is_empty() { RIVALS.iter().collect() } else { args.names.clone() };
    let transports: Vec<Transport> = args.transport.iter().map(|name| (*name).into()).collect();
    let question = Question {
        line: Line {
            question: "rivals".to_owned(),
            shapes: args.venue.shapes.clone(),
            scale: args.venue.scale,
            rounds: args.venue.rounds,
            repeats: args.repeats,
            seed: args.venue.seed,
            loader: Some(args.settings.clone()),
            all_floors: false,
            program,
            stop: stop_on_signals()?,
            transports: transports.clone(),
        },
        rivals: rivals_asked,
        programs: Programs { natives, python, path: folders(&std::env::var_os("PATH").unwrap_or_default()) },
    };
    let turns = Turns::new();
    let findings = rivals(&question, &args.venue.config(&transports), &mut |step| turns.show(step))?;
    drop(turns);
    findings.notices.iter().for_each(|notice| note(notice));
    JsonTo::asked(args.json.as_deref()).show(&findings, || text(&findings))?;
    Ok(if holds(&findings) { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Whether the loader came through and no bar that could be judged is broken: nobody need have every rival.
fn holds(findings: &Findings) -> bool {
    let through =
        |name: &str| findings.contests.iter().all(|c| c.contestant(name).is_some_and(|s| s.failure.is_none()));
    let broken = findings.contests.iter().flat_map(|contest| &contest.bars).any(|bar| bar.holds == Some(false));
    through(LOADER) && !broken
}

fn python_folder(args: &Rivals) -> Outcome<PathBuf> {
    if let Some(folder) = &args.python_dir {
        return Ok(folder.clone());
    }
    let set = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty());
    let cache = set("XDG_CACHE_HOME").map(PathBuf::from).or_else(|| Some(Path::new(&set("HOME")?).join(".cache")));
    let cache = cache.ok_or_else(|| {
        usage("there is no cache folder: neither XDG_CACHE_HOME nor HOME is set", "give --python-dir")
    })?;
    Ok(cache.join("fuelrail/rivals"))
}
