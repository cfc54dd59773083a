//! Mutation testing: how many of the changes that cargo-mutants makes to an area do its tests notice?
//!
//! Works on a copy of the commit, so that the working tree stays as it is; compiles into the same target folder, so that the
//! dependencies are compiled once. Tries a sample of the mutants, drawn by the seed, one by one.

use crate::prove::session::{Finding, Session, passed};
use crate::steps::{run as run_command, say, target};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// A part of the code, and the packages whose tests should notice what is wrong with it.
struct Area {
    name: &'static str,
    files: &'static str,
    packages: &'static [&'static str],
}

const AREAS: &[Area] = &[
    Area { name: "flow", files: "engine/flow/src/**", packages: &["fuelrail-flow", "fuelrail-sim"] },
    Area { name: "wire/tls", files: "engine/wire/src/tls/**", packages: &["fuelrail-wire"] },
    Area { name: "wire/sign", files: "engine/wire/src/sign/**", packages: &["fuelrail-wire"] },
    Area { name: "plan/brain", files: "engine/plan/src/brain/**", packages: &["fuelrail-plan", "fuelrail-sim"] },
];

/// What only tests run.
const NOT_SHIPPED: [&str; 2] = ["engine/wire/src/tls/trial.rs", "engine/flow/src/models.rs"];
/// Fails when a smaller share is noticed.
const SHARE_MIN: f64 = 0.85;
/// Tests that take so many times as long as without a change count as stopped: the change is noticed.
const TIMES_SLOWER: u32 = 5;
const PATIENCE_MIN: Duration = Duration::from_secs(60);

/// What became of one mutant.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Fate {
    Caught,
    Missed,
    Timeout,
    /// It does not compile, and counts for nothing.
    Unviable,
}

/// Tries the areas asked for, each with a record of its own.
pub(super) fn run(session: &Session<'_>, draws: usize, wanted: &[String]) -> Result<(), String> {
    session.need("mutants")?;
    session.need("nextest")?;
    if let Some(unknown) = wanted.iter().find(|name| AREAS.iter().all(|area| area.name != **name)) {
        return Err(format!(
            "no area {unknown}: {}",
            AREAS.iter().map(|area| area.name).collect::<Vec<_>>().join(", ")
        ));
    }
    let areas = AREAS.iter().filter(|area| wanted.is_empty() || wanted.iter().any(|name| name == area.name));
    let tree = Copy::make(session, draws)?;
    let results: Vec<_> = areas
        .map(|area| session.record(&format!("mutants {}", area.name), || tree.area(area)).inspect_err(|why| say(why)))
        .collect();
    results.into_iter().collect()
}

/// A copy of the commit, to be changed.
struct Copy<'a> {
    session: &'a Session<'a>,
    tree: PathBuf,
    target: PathBuf,
    /// Mutants to try in each area.
    draws: usize,
}

impl<'a> Copy<'a> {
    fn make(session: &'a Session<'a>, draws: usize) -> Result<Copy<'a>, String> {
        let target = std::path::absolute(target(session.root)).map_err(|e| e.to_string())?;
        let tree = target.join("mutants/tree");
        let unwritable = |e: std::io::Error| format!("{}: {e}", tree.display());
        if tree.exists() {
            std::fs::remove_dir_all(&tree).map_err(unwritable)?;
        }
        std::fs::create_dir_all(&tree).map_err(unwritable)?;
        let mut archive = Command::new("git");
        archive.args(["archive", "HEAD"]).current_dir(session.root).stdout(Stdio::piped());
        let mut archive = archive.spawn().map_err(|e| format!("git could not be started: {e}"))?;
        let mut unpack = Command::new("tar");
        // Times of now: cargo must not take a file for older than what an earlier mutant left.
        unpack.args(["-x", "-m"]).current_dir(&tree).stdin(archive.stdout.take().expect("piped above"));
        passed(run_command(unpack))?;
        if !archive.wait().is_ok_and(|status| status.success()) {
            return Err("git archive failed".to_owned());
        }
        Ok(Copy { session, tree, target, draws })
    }

    fn cargo(&self, args: &[&str]) -> Command {
        let mut command = self.session.cargo(args.iter().copied());
        command.current_dir(&self.tree).env("CARGO_TARGET_DIR", &self.target);
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

    fn area(&self, area: &Area) -> Result<Finding, String> {
        let mut all = self.list(area)?;
        shuffle(&mut all, self.session.seed);
        let patience = self.baseline(area)?;
        let begun = Instant::now();
        let (mut tried, mut missed, mut timeouts, mut unviable) = (0, Vec::new(), 0, 0);
        for mutant in &all {
            if tried == self.draws || self.session.limit().is_some_and(|limit| begun.elapsed() >= limit) {
                break;
            }
            let started = Instant::now();
            let fate = self.attempt(area, mutant, patience)?;
            tried += usize::from(fate != Fate::Unviable);
            unviable += usize::from(fate == Fate::Unviable);
            timeouts += usize::from(fate == Fate::Timeout);
            if fate == Fate::Missed {
                missed.push(mutant.clone());
            }
            let (of, seconds) = (self.draws, started.elapsed().as_secs());
            say(&format!("{} {tried}/{of}: {fate:?} in {seconds} s: {mutant}", area.name));
        }
        if tried == 0 {
            return Err(format!("{}: none of {} mutants was tried", area.name, all.len()));
        }
        let (low, high) = wilson(tried - missed.len(), tried);
        let share = (tried - missed.len()) as f64 / tried as f64;
        say(&format!("{}: {:.0} % of {tried} noticed ({low:.3} to {high:.3})", area.name, 100.0 * share));
        let counts = json!({
            "mutants": all.len(), "tried": tried, "noticed": tried - missed.len(), "timeouts": timeouts, "unviable": unviable,
            "share": rounded(share), "share_low": rounded(low), "share_high": rounded(high), "missed": missed,
        });
        Ok(Finding { passed: share >= SHARE_MIN, counts })
    }

    /// The names of all mutants of an area: file, line, column and what is changed.
    fn list(&self, area: &Area) -> Result<Vec<String>, String> {
        let args = ["mutants", "--list", "--json", "--workspace", "--file", area.files];
        let excluded = NOT_SHIPPED.iter().flat_map(|file| ["--exclude", file]);
        let output = self.cargo(&args).args(excluded).output().map_err(|e| e.to_string())?;
        let parsed: Result<Vec<Value>, _> = serde_json::from_slice(&output.stdout);
        let all = parsed.map_err(|e| format!("{}{e}", String::from_utf8_lossy(&output.stderr)))?;
        let names = all.iter().filter_map(|mutant| mutant["name"].as_str().map(str::to_owned));
        Ok(names.collect())
    }

    /// Runs the tests without any change: they must pass, and how long they take says when a changed one hangs.
    fn baseline(&self, area: &Area) -> Result<Duration, String> {
        let mut args = vec!["nextest", "run"];
        args.extend(area.packages.iter().flat_map(|package| ["--package", package]));
        let mut compile = self.cargo(&args);
        compile.arg("--no-run");
        passed(run_command(compile))?;
        let begun = Instant::now();
        passed(run_command(self.cargo(&args)))?;
        Ok((TIMES_SLOWER * begun.elapsed()).max(PATIENCE_MIN))
    }

    fn attempt(&self, area: &Area, mutant: &str, patience: Duration) -> Result<Fate, String> {
        let (out, seconds) = (self.target.join("mutants"), patience.as_secs().to_string());
        let (only, packages) = (format!("^{}$", escaped(mutant)), area.packages.join(","));
        let mut command = self.cargo(&["mutants", "--in-place", "--baseline", "skip", "--workspace", "--no-shuffle"]);
        command.args(["--test-tool", "nextest", "--test-package", &packages, "--timeout", &seconds]);
        command.args(["--file", area.files, "--re", &only, "--output"]).arg(&out);
        // What an earlier mutant left must not count for this one.
        let _ = std::fs::remove_dir_all(out.join("mutants.out"));
        let output = command.output().map_err(|e| e.to_string())?;
        let outcomes = read(&out.join("mutants.out/outcomes.json"));
        outcomes.as_ref().and_then(fate).ok_or_else(|| {
            let [said, complained] = [&output.stdout, &output.stderr].map(|text| String::from_utf8_lossy(text));
            format!("cargo mutants ended with {} over {mutant}: {said}{complained}", output.status)
        })
    }
}

fn read(path: &Path) -> Option<Value> {
    serde_json::from_slice(&std::fs::read(path).ok()?).ok()
}

/// What cargo-mutants counted over one mutant.
fn fate(outcomes: &Value) -> Option<Fate> {
    let names =
        [("caught", Fate::Caught), ("missed", Fate::Missed), ("timeout", Fate::Timeout), ("unviable", Fate::Unviable)];
    names.into_iter().find(|(name, _)| outcomes[name] == 1).map(|(_, fate)| fate)
}

/// A regular expression for exactly this text.
fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(2 * text.len());
    for c in text.chars() {
        // Not `<` and `>`: escaped, they mean the borders of a word.
        if c.is_ascii_punctuation() && !matches!(c, '<' | '>') {
            out.push('\\');
        }
        out.push(c);
    }
    out
}

/// The order of Fisher and Yates, by SplitMix64: the same one for the same seed.
fn shuffle(names: &mut [String], seed: u64) {
    let mut state = seed;
    for end in (1..names.len()).rev() {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        names.swap(end, ((z ^ (z >> 31)) % (end as u64 + 1)) as usize);
    }
}

/// Wilson's 95 % interval for a share.
fn wilson(hits: usize, of: usize) -> (f64, f64) {
    const Z: f64 = 1.959_964;
    let (n, p) = (of as f64, hits as f64 / of as f64);
    let middle = p + Z * Z / (2.0 * n);
    let half = Z * (p * (1.0 - p) / n + Z * Z / (4.0 * n * n)).sqrt();
    let scale = 1.0 + Z * Z / n;
    (((middle - half) / scale).max(0.0), ((middle + half) / scale).min(1.0))
}

fn rounded(share: f64) -> f64 {
    (1000.0 * share).round() / 1000.0
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
    fn a_seed_draws_the_same_mutants_and_another_one_others() {
        let drawn = |seed| {
            let mut all: Vec<String> = (0..100).map(|n: u32| n.to_string()).collect();
            shuffle(&mut all, seed);
            all
        };
        assert_eq!(drawn(7), drawn(7));
        assert_ne!(drawn(7), drawn(8));
        let mut sorted = drawn(7);
        sorted.sort_by_key(|name| name.parse::<u32>().expect("a number"));
        assert_eq!(sorted, (0..100).map(|n: u32| n.to_string()).collect::<Vec<_>>());
    }

    #[test]
    fn a_mutant_is_named_exactly() {
        assert_eq!(escaped("a.rs:1:2: replace f -> u8 with 0"), "a\\.rs\\:1\\:2\\: replace f \\-> u8 with 0");
    }

    #[test]
    fn the_fate_is_read_from_the_counts() {
        let counts = |text: &str| fate(&serde_json::from_str(text).expect("JSON"));
        assert_eq!(counts(r#"{"caught":0,"missed":1,"timeout":0,"unviable":0}"#), Some(Fate::Missed));
        assert_eq!(counts(r#"{"caught":0,"missed":0,"timeout":1,"unviable":0}"#), Some(Fate::Timeout));
        assert_eq!(counts(r#"{"caught":0}"#), None);
    }
}
