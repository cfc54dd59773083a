//! `cargo x prove`: the checks that take longer than a change may: model checking, sanitizers, fuzzing, mutation testing, the large
//! swarm of simulated worlds, the soak.
//!
//! Owns which parts there are, and runs them one after the other, also when one fails.

use crate::steps::{Log, Outcome, run, say};
use clap::ValueEnum;
use serde_json::json;
use session::{Finding, Session, finding};
use std::hash::{BuildHasher as _, RandomState};
use std::path::Path;
use std::process::ExitCode;

mod models;
mod mutants;
mod session;

/// One kind of proof.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum Part {
    /// Every order of what threads hand each other, by a model checker (loom).
    Models,
    /// Mutation testing: which changes of the code the tests notice (cargo-mutants).
    Mutants,
    /// The simulator's tests with ten times as many seeds.
    Worlds,
    /// A loader at full speed under faults: `fuelrail bench soak`.
    Soak,
}

/// What to prove, and how thoroughly.
#[derive(Debug, clap::Args)]
pub struct Wanted {
    /// What to run [default: all]
    #[arg(value_name = "PART")]
    parts: Vec<Part>,
    /// Minutes for each part that can go on for ever [default: fuzz and soak 30, mutants until all are drawn]
    #[arg(long, value_name = "N")]
    minutes: Option<u64>,
    /// Seed of what is drawn at random [default: another one each time]
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
    /// Mutants to try in each area
    #[arg(long, value_name = "N", default_value_t = 60)]
    draws: usize,
    /// Areas to mutate: flow, wire/tls, wire/sign, plan/brain [default: all]
    #[arg(long = "area", value_name = "AREA")]
    areas: Vec<String>,
}

/// Runs the parts and records each outcome as soon as it is there. Fails when one of them does.
pub fn prove(root: &Path, wanted: &Wanted) -> ExitCode {
    let drawn = RandomState::new().hash_one("prove") >> 32;
    let session = Session { root, seed: wanted.seed.unwrap_or(drawn), minutes: wanted.minutes };
    say(&format!("prove: seed {}", session.seed));
    let parts = if wanted.parts.is_empty() { Part::value_variants() } else { &wanted.parts };
    let mut log = Log::default();
    for &part in parts {
        log.step(name(part), || run_part(&session, part, wanted).map_or_else(Outcome::Failed, |()| Outcome::Passed));
    }
    say("");
    say(log.summary().trim_end());
    if log.sound() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn name(part: Part) -> &'static str {
    match part {
        Part::Models => "models",
        Part::Mutants => "mutants",
        Part::Worlds => "worlds",
        Part::Soak => "soak",
    }
}

fn run_part(session: &Session<'_>, part: Part, wanted: &Wanted) -> Result<(), String> {
    match part {
        Part::Models => session.record(name(part), || models::run(session)),
        Part::Mutants => mutants::run(session, wanted.draws, &wanted.areas),
        Part::Worlds => session.record(name(part), || worlds(session)),
        Part::Soak => session.record(name(part), || soak(session)),
    }
}

fn worlds(session: &Session<'_>) -> Result<Finding, String> {
    let mut command =
        session.cargo(["nextest", "run", "--package", "fuelrail-sim", "--profile", "prove", "--no-fail-fast"]);
    command.env("FUELRAIL_PROVE", "1").env("FUELRAIL_SEED", session.seed.to_string());
    finding(run(command), json!({}))
}

fn soak(session: &Session<'_>) -> Result<Finding, String> {
    let minutes = session.minutes.unwrap_or(30).to_string();
    let seed = session.seed.to_string();
    let program = ["run", "--release", "--quiet", "--package", "fuelrail-cli", "--bin", "fuelrail", "--"];
    let soak = ["bench", "soak", "--minutes", &minutes, "--seed", &seed];
    finding(run(session.cargo(program.into_iter().chain(soak))), json!({ "minutes": minutes }))
}
