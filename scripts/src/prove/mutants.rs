//! Mutation testing: how many of the changes that cargo-mutants thinks of do an area's tests notice?
//!
//! Tries a sample: every n-th of all mutants, from where the seed says. An area's packages take turns: what the tests of the first miss is
//! tried again with those of the next, so that most mutants cost one small package. cargo-mutants changes the working tree itself, one
//! mutant at a time, because only at its own path nothing but the mutant is compiled; it changes each back.

use super::session::{Finding, Session};
use crate::steps::{Outcome, cargo_in, need, printed, run as run_command, say};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::process::Command;

/// Areas of the code, their files, and the packages whose tests should notice what is wrong with them, the cheapest first.
const AREAS: [(&str, &str, &str); 4] = [
    ("flow", "engine/flow/src/**", "fuelrail-flow fuelrail-sim"),
    ("wire/tls", "engine/wire/src/tls/**", "fuelrail-wire"),
    ("wire/sign", "engine/wire/src/sign/**", "fuelrail-wire"),
    ("plan/planner", "engine/plan/src/planner/**", "fuelrail-plan fuelrail-sim"),
];
pub(super) const NAMES: [&str; 4] = [AREAS[0].0, AREAS[1].0, AREAS[2].0, AREAS[3].0];

/// What only tests run.
const NOT_SHIPPED: [&str; 2] = ["engine/wire/src/tls/trial.rs", "engine/flow/src/models.rs"];
/// Fails when a smaller share is noticed.
const SHARE_MIN: f64 = 0.85;
/// Fails, too, when a smaller share of the draws was tried (some do not compile): a run that was cut short proves nothing.
const TRIED_MIN: f64 = 0.7;
/// Tests that take so many times as long as without a change, and so many seconds, are stopped: the change is noticed.
const PATIENCE: [&str; 4] = ["--timeout-multiplier", "5", "--minimum-test-timeout", "60"];

/// Tries the areas asked for, each with a record of its own.
pub(super) fn run(session: &Session<'_>, draws: u64, wanted: &[String]) -> Outcome {
    need(session.root, "mutants")?;
    need(session.root, "nextest")?;
    let changed = printed(Command::new("git").args(["status", "--porcelain", "engine"]).current_dir(session.root))?;
    if !changed.is_empty() {
        return Err(format!("commit first, so that changes left by an interrupted run can be recognised:\n{changed}"));
    }
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
    let sample = ["--shard".into(), format!("{}/{shards}", session.seed % shards), "--sharding=round-robin".into()];
    let mut found = Found::new();
    for package in packages.split(' ') {
        let missed: Vec<String> = missed(&found).map(|name| format!("--re=^{}$", escaped(name))).collect();
        if found.is_empty() {
            found.extend(pass(session, files, package, &sample)?);
        } else if !missed.is_empty() {
            // cargo-mutants adds mutants that no expression names: those were not drawn.
            for (name, summary) in pass(session, files, package, &missed)? {
                found.entry(name).and_modify(|before| *before = summary);
            }
        }
    }
    Ok(judged(&found, all.len(), draws))
}

/// What became of each mutant tried, by name: the summary of cargo-mutants.
type Found = BTreeMap<String, String>;

/// Tries these mutants with the tests of one package.
fn pass(session: &Session<'_>, files: &str, package: &str, which: &[String]) -> Result<Found, String> {
    let place = session.target("mutants")?;
    let mut tries = mutants(session, files);
    tries.args(which).args(PATIENCE).args(["--shuffle", "--test-tool", "nextest", "--test-package", package]);
    tries.arg("--output").arg(&place);
    // What an earlier run left must not count for this one.
    let _ = [std::fs::remove_dir_all(&place), std::fs::create_dir_all(&place)];
    // It ends with 2 for mutants that were missed, and with 3 for tests that were stopped: what counts is its report.
    let ended = run_command(&mut limited(tries, session.minutes));
    let report = std::fs::read(place.join("mutants.out/outcomes.json")).map_err(|e| e.to_string());
    let found = outcomes(&serde_json::from_slice(&report?).map_err(|e| e.to_string())?);
    if found.is_empty() { Err(format!("no mutant was tried with {package}: {ended:?}")) } else { Ok(found) }
}

/// What the report of cargo-mutants says of each mutant.
fn outcomes(report: &Value) -> Found {
    let outcomes = report["outcomes"].as_array().into_iter().flatten();
    let named = |outcome: &Value| {
        let name = outcome["scenario"]["Mutant"]["name"].as_str()?;
        Some((name.to_owned(), outcome["summary"].as_str()?.to_owned()))
    };
    outcomes.filter_map(named).collect()
}

fn missed(found: &Found) -> impl Iterator<Item = &str> {
    found.iter().filter(|(_, summary)| *summary == "MissedMutant").map(|(name, _)| name.as_str())
}

/// A regular expression that matches this text alone.
fn escaped(text: &str) -> String {
    text.chars().flat_map(|c| r"\.+*?()|[]{}^$".contains(c).then_some('\\').into_iter().chain([c])).collect()
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
    let mut command = cargo_in(session.root, ["mutants", "--in-place", "--workspace", "--file", files]);
    command.args(NOT_SHIPPED.iter().flat_map(|file| ["--exclude", file])).env("NEXTEST_PROFILE", "mutants");
    command
}

/// What all passes come to: whether enough was noticed, and the counts.
fn judged(found: &Found, all: usize, draws: u64) -> (bool, Value) {
    let count = |summary: &str| found.values().filter(|of| *of == summary).count() as u64;
    let missed: Vec<&str> = missed(found).collect();
    let (timeouts, unviable) = (count("Timeout"), count("Unviable"));
    let noticed = count("CaughtMutant") + timeouts;
    let tried = noticed + missed.len() as u64;
    let share = noticed as f64 / tried.max(1) as f64;
    let (low, high) = wilson(noticed, tried.max(1));
    let rounded = |share: f64| (1000.0 * share).round() / 1000.0;
    say(&format!("{:.0} % of {tried} noticed ({low:.3} to {high:.3})", 100.0 * share));
    let counts = json!({
        "mutants": all, "tried": tried, "noticed": noticed, "timeouts": timeouts, "unviable": unviable,
        "share": rounded(share), "share_low": rounded(low), "share_high": rounded(high), "missed": missed,
    });
    let enough = tried as f64 >= TRIED_MIN * draws.min(all as u64) as f64;
    if !enough {
        say(&format!("{tried} of {draws} draws are too few to judge by"));
    }
    (enough && tried > 0 && share >= SHARE_MIN, counts)
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
    fn a_mutant_counts_as_the_last_package_found_it_and_few_enough_missed_pass() {
        let report = |outcomes: &[(&str, &str)]| {
            let outcome = |(name, summary): &(&str, &str)| json!({ "summary": summary, "scenario": { "Mutant": { "name": name } } });
            let baseline = json!({ "summary": "Success", "scenario": "Baseline" });
            json!({ "outcomes": outcomes.iter().map(outcome).chain([baseline]).collect::<Vec<_>>() })
        };
        let mut found = outcomes(&report(&[("a", "MissedMutant"), ("b", "MissedMutant"), ("c", "Unviable")]));
        found.extend(outcomes(&report(&["d", "e", "f", "g"].map(|name| (name, "CaughtMutant")))));
        let (passed, counts) = judged(&found, 50, 6);
        assert!(!passed && counts["missed"] == json!(["a", "b"]) && counts["tried"] == 6, "{counts}");
        found.extend(outcomes(&report(&[("b", "Timeout"), ("h", "CaughtMutant")])));
        let (passed, counts) = judged(&found, 50, 9);
        assert!(passed && counts["missed"] == json!(["a"]) && counts["noticed"] == 6, "{counts}");
        assert!(!judged(&found, 50, 12).0, "seven of twelve draws are a run that was cut short");
        assert!(!judged(&Found::new(), 50, 0).0, "none tried is none noticed");
        assert_eq!(
            escaped("a.rs:1:2: replace <T<'_>>::f -> (u8, [u8; 2])"),
            r"a\.rs:1:2: replace <T<'_>>::f -> \(u8, \[u8; 2\]\)"
        );
    }
}
