//! `fuelrail plan`: what training will take and cost, before anything is paid for: a scenario as a whole, and its parts.

mod deli;
mod fit;
mod input;
mod lives;
pub mod loader;
mod run;
mod spot;

use std::path::PathBuf;

use clap::{Args, Subcommand};

use crate::failure::{Outcome, usage};

const EXAMPLES: &str = "Examples:
  fuelrail plan scenario.toml --runs 5000 --json
  fuelrail plan loader run.json
  fuelrail plan fit measured.csv
  fuelrail plan spot --job-hours 48 --deadline-hours 60 --changeover-hours 0.2 --spot-price 0.3 --on-demand-price 1 --trace zone-a.json

Nothing is contacted and no price is built in: prices and measurements come from the files that are named. engine/docs/PLAN.md \
describes a scenario; bindings/cli/examples holds one.";

/// Predict time and cost, and what limits them, before paying for machines
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES, args_conflicts_with_subcommands = true, arg_required_else_help = true)]
pub(crate) struct Plan {
    #[command(subcommand)]
    part: Option<Part>,
    /// The scenario, TOML: the same as `plan run SCENARIO`
    scenario: Option<PathBuf>,
    #[command(flatten)]
    options: run::Options,
}

#[derive(Subcommand, Debug)]
enum Part {
    /// Time, cost and limits of the clusters of a scenario
    #[command(after_help = EXAMPLES)]
    Run {
        /// The scenario, TOML
        scenario: PathBuf,
        #[command(flatten)]
        options: run::Options,
    },
    Fit(fit::Fit),
    Spot(spot::Spot),
    Deli(deli::Deli),
    Loader(loader::LoaderArgs),
    Lives(lives::LivesArgs),
}

pub(crate) fn run(args: &Plan) -> Outcome {
    match (&args.part, &args.scenario) {
        (Some(Part::Run { scenario, options }), _) => run::run(scenario, options),
        (Some(Part::Fit(args)), _) => fit::run(args),
        (Some(Part::Spot(args)), _) => spot::run(args),
        (Some(Part::Deli(args)), _) => deli::run(args),
        (Some(Part::Loader(args)), _) => loader::run(args),
        (Some(Part::Lives(args)), _) => lives::run(args),
        (None, Some(scenario)) => run::run(scenario, &args.options),
        (None, None) => Err(usage("no scenario is given", "give a TOML file, or see --help")),
    }
}
