//! `cargo x test`: the steps that every change must pass, one compilation of the workspace, and one closing line.
//!
//! Owns which steps there are and how their results are counted. What a step does is cargo's.

use crate::prove;
use crate::steps::{self, Log, Outcome, Tally, cargo_in, run, run_watched, say, target};
use std::collections::BTreeMap;
use std::path::Path;
use std::process::{Command, ExitCode};

/// The crate that links libtorch.
const NEEDS_TORCH: &str = "fuelrail-tch";
/// Where, in the target folder, tests that were skipped are recorded: see `engine/tests/common/skip.rs`.
const SKIPS: &str = "skipped-tests.tsv";
/// Where cargo-nextest counts: `[profile.ci.junit]` of `.config/nextest.toml`.
const COUNTS: &str = "nextest/ci/junit.xml";

/// Runs all steps, also when one fails, so that one round shows everything; the tests come last, so that their count is last.
pub fn run_steps(root: &Path, tidy: impl FnOnce() -> Outcome) -> ExitCode {
    let mut log = Log::default();
    let torch = std::env::var_os("LIBTORCH").is_some();
    if !torch {
        let why = format!("LIBTORCH is not set, so {NEEDS_TORCH} is left out: eval \"$(./scripts/libtorch)\"");
        log.step("libtorch", || Outcome::Skipped(why));
    }
    log.step("format", || run(cargo_in(root, ["fmt", "--all", "--", "--check"])));
    log.step("tidy", tidy);
    log.step("dependencies (cargo deny)", || {
        if !steps::has_subcommand("deny") {
            return Outcome::Failed("cargo-deny is not installed: cargo install --locked cargo-deny".to_owned());
        }
        run(cargo_in(root, ["deny", "--config", ".config/deny.toml", "check", "licenses", "bans", "sources"]))
    });
    let mut tally = Tally::default();
    if !steps::has_subcommand("nextest") {
        let why = "cargo-nextest is not installed: cargo install --locked cargo-nextest";
        log.step("tests", || Outcome::Failed(why.to_owned()));
        return close(root, &log, tally, &BTreeMap::new());
    }
    let nextest = ["nextest", "run", "--profile", "ci"];
    log.step("compiling, with lints (clippy)", || {
        run(linted(root, torch, nextest.iter().copied().chain(["--no-run", "--cargo-quiet"])))
    });
    log.step("examples in the docs", || {
        run_watched(linted(root, torch, ["test", "--doc", "--quiet"]), |line| tally.see(line))
    });
    // What an earlier run left must not count for this one.
    let [record, report] = [SKIPS, COUNTS].map(|name| target(root).join(name));
    let _ = [&record, &report].map(std::fs::remove_file);
    let (mut all, mut failed) = (0, 0);
    log.step("tests (cargo nextest)", || {
        let mut command = linted(root, torch, nextest.iter().copied().chain(["--no-tests=fail"]));
        command.env("FUELRAIL_SKIPPED_TO", &record);
        match (run(command), counted(&std::fs::read_to_string(&report).unwrap_or_default())) {
            (Outcome::Passed, None) => Outcome::Failed(format!("no counts in {}", report.display())),
            (outcome, counts) => {
                (all, failed) = counts.unwrap_or_default();
                outcome
            }
        }
    });
    let skipped = skips(&std::fs::read_to_string(&record).unwrap_or_default());
    tally.failed += failed;
    tally.passed += all.saturating_sub(failed + skipped.values().sum::<u64>());
    close(root, &log, tally, &skipped)
}

/// A cargo command over the workspace whose compiler lints as it compiles: clippy's driver is rustc with more lints, so one
/// compilation serves the lints, the examples and the tests.
fn linted<'a>(root: &Path, torch: bool, args: impl IntoIterator<Item = &'a str>) -> Command {
    let mut command = cargo_in(root, args);
    command.arg("--workspace").args(if torch { [].as_slice() } else { &["--exclude", NEEDS_TORCH] });
    command.env("RUSTC_WORKSPACE_WRAPPER", "clippy-driver").env("CLIPPY_ARGS", "-Dwarnings");
    command
}

/// Tests and failures, as the first line of a JUnit report counts them.
fn counted(report: &str) -> Option<(u64, u64)> {
    let head = report.split_once("<testsuites ")?.1.split_once('>')?.0;
    let number = |name: &str| head.split_once(&format!("{name}=\""))?.1.split_once('"')?.0.parse::<u64>().ok();
    Some((number("tests")?, number("failures")? + number("errors")?))
}

/// How many tests were skipped for the want of each thing.
fn skips(record: &str) -> BTreeMap<String, u64> {
    let mut tests: Vec<&str> = record.lines().collect();
    tests.sort_unstable();
    tests.dedup();
    let mut all = BTreeMap::new();
    for (name, _) in tests.iter().filter_map(|line| line.split_once('\t')) {
        *all.entry(name.to_owned()).or_default() += 1;
    }
    all
}

/// Says how it ended: the steps with their seconds, one line of counts, and how old the proofs are that take longer.
fn close(root: &Path, log: &Log, tally: Tally, skipped: &BTreeMap<String, u64>) -> ExitCode {
    say("");
    say(log.summary().trim_end());
    let names: Vec<_> = skipped.iter().map(|(name, count)| format!("{name} ({count})")).collect();
    let named = if names.is_empty() { String::new() } else { format!(": {}", names.join(", ")) };
    let Tally { passed, failed, .. } = tally;
    say(&format!("tests: {passed} passed, {failed} failed, {} skipped{named}", skipped.values().sum::<u64>()));
    let sound = log.sound() && failed == 0;
    say(if sound { "cargo x test: all passed" } else { "cargo x test: FAILED" });
    say(&prove::ages(root));
    if sound { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_are_read_from_the_report() {
        let report = "<?xml version=\"1.0\"?>\n<testsuites name=\"nextest-run\" tests=\"12\" failures=\"2\" errors=\"1\" uuid=\"x\">";
        assert_eq!(counted(report), Some((12, 3)));
        assert_eq!(counted("<testsuite tests=\"1\">"), None);
    }

    #[test]
    fn a_test_skipped_for_two_reasons_counts_for_each_and_twice_for_none() {
        let counted = skips("nginx\ta\nnginx\ta\nroot\ta\nroot\tb\n");
        assert_eq!(counted, BTreeMap::from([("nginx".to_owned(), 1), ("root".to_owned(), 2)]));
    }
}
