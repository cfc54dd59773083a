//! `cargo x prove`: the checks that take longer than a change may: model checking, sanitizers, fuzzing, mutation testing, the large
//! swarm of simulated worlds, the soak.
//!
//! Owns which parts there are, and runs them one after the other, also when one fails.

use crate::steps::{Log, Outcome, run, say};
use clap::ValueEnum;
use serde_json::{Map, Value, json};
use session::{Finding, Session, finding};
use std::hash::{BuildHasher as _, RandomState};
use std::path::Path;
use std::process::ExitCode;

mod fuzz;
mod models;
mod mutants;
mod sanitizers;
mod session;

/// One kind of proof.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum Part {
    /// Every order of what threads hand each other, by a model checker (loom).
    Models,
    /// The addresses that unsafe code touches, and what it leaves behind: tests under the address sanitizer.
    Sanitizers,
    /// Every parser of foreign bytes against what libFuzzer thinks of (cargo-fuzz).
    Fuzz,
    /// Mutation testing: which changes of the code the tests notice (cargo-mutants).
    Mutants,
    /// The simulator's tests with ten times as many seeds.
    Worlds,
    /// A loader at full speed under faults: `cargo x bench soak`.
    Soak,
}

/// What to prove, and how thoroughly.
#[derive(Debug, clap::Args)]
pub struct Wanted {
    /// What to run [default: all]
    #[arg(value_name = "PART")]
    parts: Vec<Part>,
    /// Minutes for each part that can go on for ever [default: fuzz 60, soak 30, mutants until all are drawn]
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

/// One line: how old the latest outcome of every part is, and which failed or was never there.
pub fn ages(root: &Path) -> String {
    let records = match session::read(&root.join(session::RECORD)) {
        Ok(records) => records,
        Err(why) => return format!("proofs (cargo x prove): {why}"),
    };
    let now = session::now_s();
    let ages: Vec<_> = Part::value_variants().iter().map(|&part| age(name(part), &records, now)).collect();
    format!("proofs (cargo x prove): {}", ages.join(", "))
}

/// The age of a part, which is that of its oldest subject.
fn age(part: &str, records: &Map<String, Value>, now_s: u64) -> String {
    let mine = |key: &str| key.strip_prefix(part).is_some_and(|rest| rest.is_empty() || rest.starts_with(' '));
    let mine: Vec<&Value> = records.iter().filter(|(key, _)| mine(key)).map(|(_, record)| record).collect();
    let Some(oldest) = mine.iter().map(|record| record["time_s"].as_u64().unwrap_or(0)).min() else {
        return format!("{part} never");
    };
    let failed = if mine.iter().all(|record| record["passed"] == true) { "" } else { ", FAILED" };
    let days = now_s.saturating_sub(oldest) / 86_400;
    let days = if days == 1 { "1 day".to_owned() } else { format!("{days} days") };
    format!("{part} {days} old{failed}")
}

fn name(part: Part) -> &'static str {
    match part {
        Part::Models => "models",
        Part::Sanitizers => "sanitizers",
        Part::Fuzz => "fuzz",
        Part::Mutants => "mutants",
        Part::Worlds => "worlds",
        Part::Soak => "soak",
    }
}

fn run_part(session: &Session<'_>, part: Part, wanted: &Wanted) -> Result<(), String> {
    match part {
        Part::Models => session.record(name(part), || models::run(session)),
        Part::Sanitizers => session.record(name(part), || sanitizers::run(session)),
        Part::Fuzz => session.record(name(part), || fuzz::run(session)),
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
    let program = ["run", "--release", "--quiet", "--package", "fuelrail-benches", "--"];
    let soak = ["soak", "--minutes", &minutes, "--seed", &seed];
    finding(run(session.cargo(program.into_iter().chain(soak))), json!({ "minutes": minutes }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_is_as_old_as_its_oldest_subject() {
        let record = |days: u64, passed: bool| json!({ "time_s": 86_400 * days, "passed": passed });
        let records = [
            ("fuzz", record(9, true)),
            ("models", record(8, false)),
            ("mutants flow", record(9, true)),
            ("mutants wire/tls", record(3, true)),
        ];
        let records = records.into_iter().map(|(key, record)| (key.to_owned(), record)).collect();
        let said = |part| age(part, &records, 86_400 * 10 - 1);
        assert_eq!(said("fuzz"), "fuzz 0 days old");
        assert_eq!(said("models"), "models 1 day old, FAILED");
        assert_eq!(said("mutants"), "mutants 6 days old");
        assert_eq!(said("soak"), "soak never");
    }
}
