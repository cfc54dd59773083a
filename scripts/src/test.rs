//! `cargo x test`: the steps that every change must pass, one compilation of the workspace, and one closing line.
//!
//! Owns which steps there are and how their results are counted. What a step does is cargo's.

use crate::prove;
use crate::steps::{Log, cargo_in, need, run, say, target};
use crate::tidy::tidy;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::Command;

/// The crate that links libtorch.
const NEEDS_TORCH: &str = "fuelrail-tch";
/// Where, in the target folder, tests that were skipped are recorded: see `engine/tests/common/skip.rs`.
const SKIPS: &str = "skipped-tests.tsv";
/// Where cargo-nextest counts: `[profile.ci.junit]` of `.config/nextest.toml`.
const COUNTS: &str = "nextest/ci/junit.xml";
const TESTS: [&str; 4] = ["nextest", "run", "--profile", "ci"];

/// Runs all steps, also when one fails, so that one round shows everything; the tests come last, so that their count is last. Whether all
/// passed.
pub(crate) fn test(root: &Path) -> bool {
    let mut log = Log::default();
    let torch = std::env::var_os("LIBTORCH").is_some();
    log.step("format", || run(&mut cargo_in(root, ["fmt", "--all", "--", "--check"])));
    log.step("tidy", || tidy(root));
    log.step("dependencies (cargo deny)", || {
        need(root, "deny")?;
        run(&mut cargo_in(root, ["deny", "--config", ".config/deny.toml", "check", "licenses", "bans", "sources"]))
    });
    log.step("compiling, with lints (clippy)", || {
        need(root, "nextest")?;
        run(linted(root, torch, &TESTS).args(["--no-run", "--cargo-quiet"]))
    });
    log.step("the engine without features", || {
        run(lints(&mut cargo_in(root, ["check", "--quiet", "--package", "fuelrail", "--no-default-features"])))
    });
    log.step("examples in the docs", || run(&mut linted(root, torch, &["test", "--doc", "--quiet"])));
    // What an earlier run left must not count for this one.
    let [record, report] = [SKIPS, COUNTS].map(|name| target(root).join(name));
    let _ = [&record, &report].map(std::fs::remove_file);
    let (mut all, mut failed) = (0, 0);
    log.step("tests (cargo nextest)", || {
        let mut tests = linted(root, torch, &TESTS);
        // A change is judged by the change, not by what was drawn; `cargo x prove worlds` draws anew.
        tests.arg("--no-tests=fail").env("FUELRAIL_SKIPPED_TO", &record).env("PROPTEST_RNG_SEED", "1");
        let outcome = run(&mut tests);
        let counts = counted(&std::fs::read_to_string(&report).unwrap_or_default());
        (all, failed) = counts.unwrap_or_default();
        outcome.and_then(|()| counts.map(drop).ok_or_else(|| format!("no counts in {}", report.display())))
    });
    let skipped = skips(&std::fs::read_to_string(&record).unwrap_or_default());
    let sum = skipped.values().sum::<u64>();
    let passed = log.close() && failed == 0;
    if !torch {
        say(&format!("{NEEDS_TORCH} was skipped: LIBTORCH is not set; eval \"$(./scripts/libtorch)\""));
    }
    let names: Vec<_> = skipped.iter().map(|(name, count)| format!("{name} ({count})")).collect();
    let named = if names.is_empty() { String::new() } else { format!(": {}", names.join(", ")) };
    say(&format!("tests: {} passed, {failed} failed, {sum} skipped{named}", all.saturating_sub(failed + sum)));
    say(if passed { "cargo x test: all passed" } else { "cargo x test: FAILED" });
    say(&prove::ages(root));
    passed
}

/// A cargo command over the workspace whose compiler lints as it compiles: clippy's driver is rustc with more lints, so one
/// compilation serves the lints, the examples and the tests.
fn linted(root: &Path, torch: bool, args: &[&str]) -> Command {
    let mut command = cargo_in(root, args.iter().copied());
    command.arg("--workspace").args(if torch { [].as_slice() } else { &["--exclude", NEEDS_TORCH] });
    lints(&mut command);
    command
}

fn lints(command: &mut Command) -> &mut Command {
    command.env("RUSTC_WORKSPACE_WRAPPER", "clippy-driver").env("CLIPPY_ARGS", "-Dwarnings")
}

/// Tests and failures, as the first line of a JUnit report counts them.
fn counted(report: &str) -> Option<(u64, u64)> {
    let head = report.split_once("<testsuites ")?.1.split_once('>')?.0;
    let number = |name: &str| head.split_once(&format!("{name}=\""))?.1.split_once('"')?.0.parse::<u64>().ok();
    Some((number("tests")?, number("failures")? + number("errors")?))
}

/// How many tests were skipped for the want of each thing.
fn skips(record: &str) -> BTreeMap<String, u64> {
    let mut all = BTreeMap::new();
    for (name, _) in record.lines().collect::<BTreeSet<_>>().iter().filter_map(|line| line.split_once('\t')) {
        *all.entry(name.to_owned()).or_default() += 1;
    }
    all
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
