//! Mutation testing: how many of the changes that cargo-mutants thinks of do an area's tests notice?
//!
//! Tries a sample: every n-th of all mutants, from where the seed says. cargo-mutants works on a copy of the working tree, compiled into the
//! same target folder, so that the dependencies are compiled once.

use super::session::{Finding, Session};
use crate::steps::{Outcome, cargo_in, need, run as run_command, say, target};
use serde_json::{Value, json};
use std::process::Command;

/// Areas of the code, their files, and the packages whose tests should notice what is wrong with them.
const AREAS: [(&str, &str, &str); 4] = [
    ("flow", "engine/flow/src/**", "fuelrail-flow fuelrail-sim"),
    ("wire/tls", "engine/wire/src/tls/**", "fuelrail-wire"),
    ("wire/sign", "engine/wire/src/sign/**", "fuelrail-wire"),
    ("plan/brain", "engine/plan/src/brain/**", "fuelrail-plan fuelrail-sim"),
];
pub(super) const NAMES: [&str; 4] = [AREAS[0].0, AREAS[1].0, AREAS[2].0, AREAS[3].0];

/// What only tests run.
const NOT_SHIPPED: [&str; 2] = ["engine/wire/src/tls/trial.rs", "engine/flow/src/models.rs"];
/// Fails when a smaller share is noticed.
const SHARE_MIN: f64 = 0.85;
/// Tests that take so many times as long as without a change, and so many seconds, are stopped: the change is noticed.
const PATIENCE: [&str; 4] = ["--timeout-multiplier", "5", "--minimum-test-timeout", "60"];

/// Tries the areas asked for, each with a record of its own.
pub(super) fn run(session: &Session<'_>, draws: u64, wanted: &[String]) -> Outcome {
    need(session.root, "mutants")?;
    need(session.root, "nextest")?;
    let mut outcome = Ok(());
    for (name, files, packages) in
        AREAS.iter().filter(|(name, ..)| wanted.is_empty() || wanted.iter().any(|w| w == name))
    {
        let tried = session.record(&format!("mutants {name}"), || area(session, draws, files, packages));
        outcome = outcome.and(tried.inspect_err(|why| say(why)));
    }
    outcome
}

fn area(session: &Session<'_>, draws: u64, files: &str, packages: &str) -> Finding {
    let output = mutants(session, files).args(["--list", "--json"]).output().map_err(|e| e.to_string())?;
    let all: Vec<Value> = serde_json::from_slice(&output.stdout)
        .map_err(|e| format!("{}{e}", String::from_utf8_lossy(&output.stderr)))?;
    let shards = (all.len() as u64).div_ceil(draws.max(1)).max(1);
    let place = session.target("mutants")?;
    let mut tries = mutants(session, files);
    tries.args(["--shard", &format!("{}/{shards}", session.seed % shards), "--sharding", "round-robin", "--shuffle"]);
    tries.args(PATIENCE).args(["--test-tool", "nextest", "--output"]).arg(&place);
    tries.args(packages.split(' ').flat_map(|package| ["--test-package", package]));
    // What an earlier run left must not count for this one.
    let _ = [std::fs::remove_dir_all(&place), std::fs::create_dir_all(&place)];
    // It ends with 2 for mutants that were missed, and with 3 for tests that were stopped: what counts is its report.
    let ended = run_command(&mut limited(tries, session.minutes));
    let report = std::fs::read(place.join("mutants.out/outcomes.json")).map_err(|e| e.to_string());
    let report: Value = serde_json::from_slice(&report?).map_err(|e| e.to_string())?;
    judged(&report, all.len()).ok_or_else(|| format!("no mutant was tried: {ended:?}"))
}

/// Stops a command as Ctrl-C would, after so many minutes.
fn limited(command: Command, minutes: Option<u64>) -> Command {
    let Some(minutes) = minutes else { return command };
    let mut limited = Command::new("timeout");
    limited
        .args(["--foreground", "--signal=INT", &format!("{minutes}m")])
        .arg(command.get_program())
        .args(command.get_args());
    limited.envs(command.get_envs().filter_map(|(name, value)| Some((name, value?))));
    limited.current_dir(command.get_current_dir().unwrap_or(".".as_ref()));
    limited
}

fn mutants(session: &Session<'_>, files: &str) -> Command {
    let mut command = cargo_in(session.root, ["mutants", "--workspace", "--file", files]);
    command.args(NOT_SHIPPED.iter().flat_map(|file| ["--exclude", file])).env("CARGO_TARGET_DIR", target(session.root));
    // The time goes into compiling, unless the caller knows better.
    for (name, value) in [
        ("CARGO_PROFILE_DEV_OPT_LEVEL", "0"),
        ("CARGO_PROFILE_TEST_OPT_LEVEL", "0"),
        ("CARGO_PROFILE_DEV_DEBUG", "0"),
        ("CARGO_PROFILE_TEST_DEBUG", "0"),
        ("NEXTEST_PROFILE", "prove"),
    ] {
        command.env(name, std::env::var_os(name).unwrap_or_else(|| value.into()));
    }
    command
}

/// What the report of cargo-mutants comes to; none when it tried none.
fn judged(report: &Value, all: usize) -> Option<(bool, Value)> {
    let [caught, timeouts, missed, unviable] =
        ["caught", "timeout", "missed", "unviable"].map(|name| report[name].as_u64().unwrap_or(0));
    let (noticed, tried) = (caught + timeouts, caught + timeouts + missed);
    let outcomes = report["outcomes"].as_array()?.iter().filter(|outcome| outcome["summary"] == "MissedMutant");
    let names: Vec<&Value> = outcomes.map(|outcome| &outcome["scenario"]["Mutant"]["name"]).collect();
    if tried == 0 {
        return None;
    }
    let share = noticed as f64 / tried as f64;
    let (low, high) = wilson(noticed, tried);
    let rounded = |share: f64| (1000.0 * share).round() / 1000.0;
    say(&format!("{:.0} % of {tried} noticed ({low:.3} to {high:.3})", 100.0 * share));
    let counts = json!({
        "mutants": all, "tried": tried, "noticed": noticed, "timeouts": timeouts, "unviable": unviable,
        "share": rounded(share), "share_low": rounded(low), "share_high": rounded(high), "missed": names,
    });
    Some((share >= SHARE_MIN, counts))
}

/// Wilson's 95 % interval for a share.
fn wilson(hits: u64, of: u64) -> (f64, f64) {
    const Z: f64 = 1.959_964;
    let (n, p) = (of as f64, hits as f64 / of as f64);
    let middle = p + Z * Z / (2.0 * n);
    let half = Z * (p * (1.0 - p) / n + Z * Z / (4.0 * n * n)).sqrt();
    let scale = 1.0 + Z * Z / n;
    (((middle - half) / scale).max(0.0), ((middle + half) / scale).min(1.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_interval_is_wilsons() {
        // Newcombe (1998), table I: 81 of 263, and 0 of 20.
        let (low, high) = wilson(81, 263);
        assert!((low - 0.2553).abs() < 1e-4 && (high - 0.3662).abs() < 1e-4, "{low} {high}");
        let (low, high) = wilson(0, 20);
        assert!(low == 0.0 && (high - 0.1611).abs() < 1e-4, "{low} {high}");
    }

    #[test]
    fn missed_mutants_are_named_and_few_enough_pass() {
        let missed = |name: &str| json!({ "summary": "MissedMutant", "scenario": { "Mutant": { "name": name } } });
        let report = |caught: u64| {
            let outcomes = [json!({ "summary": "Success", "scenario": "Baseline" }), missed("replace f -> u8 with 0")];
            json!({ "caught": caught, "timeout": 1, "missed": 1, "unviable": 2, "outcomes": outcomes })
        };
        let (passed, counts) = judged(&report(4), 50).expect("some were tried");
        assert!(!passed && counts["missed"][0] == "replace f -> u8 with 0" && counts["tried"] == 6, "{counts}");
        assert!(judged(&report(5), 50).expect("some were tried").0);
        assert!(judged(&json!({ "caught": 0, "outcomes": [] }), 50).is_none());
    }
}
