//! Mutation testing: how many of the changes that cargo-mutants thinks of do an area's tests notice?
//!
//! cargo-mutants lists the changes, as patches; they are made and judged here, because it cannot be told to try exactly one.
//! Works on a copy of the commit, so that the working tree stays as it is; compiles into the same target folder, so that the
//! dependencies are compiled once. Tries a sample of the mutants, drawn by the seed, one by one.

use crate::prove::session::{Finding, Session, passed};
use crate::steps::{run as run_command, say, target};
use serde_json::{Value, json};
use std::io::Write as _;
use std::path::PathBuf;
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
/// What `timeout` ends with when time is up.
const TIMED_OUT: i32 = 124;
const PATIENCE_MIN: Duration = Duration::from_secs(60);

/// One change.
struct Mutant {
    /// File, line, column and what is changed.
    name: String,
    patch: String,
}

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
                missed.push(mutant.name.clone());
            }
            let (of, seconds) = (self.draws, started.elapsed().as_secs());
            say(&format!("{} {tried}/{of}: {fate:?} in {seconds} s: {}", area.name, mutant.name));
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

    /// All mutants of an area.
    fn list(&self, area: &Area) -> Result<Vec<Mutant>, String> {
        let args = ["mutants", "--list", "--json", "--diff", "--workspace", "--file", area.files];
        let excluded = NOT_SHIPPED.iter().flat_map(|file| ["--exclude", file]);
        let output = self.cargo(&args).args(excluded).output().map_err(|e| e.to_string())?;
        let parsed: Result<Vec<Value>, _> = serde_json::from_slice(&output.stdout);
        let all = parsed.map_err(|e| format!("{}{e}", String::from_utf8_lossy(&output.stderr)))?;
        Ok(all.iter().filter_map(mutant).collect())
    }

    /// Runs the tests without any change: they must pass, and how long they take says when a changed one hangs.
    fn baseline(&self, area: &Area) -> Result<Duration, String> {
        passed(run_command(self.tests(area, &["--no-run"])))?;
        let begun = Instant::now();
        passed(run_command(self.tests(area, &[])))?;
        Ok((TIMES_SLOWER * begun.elapsed()).max(PATIENCE_MIN))
    }

    fn tests(&self, area: &Area, args: &[&str]) -> Command {
        let mut command = self.cargo(&["nextest", "run"]);
        command.args(area.packages.iter().flat_map(|package| ["--package", package])).args(args);
        command
    }

    fn attempt(&self, area: &Area, mutant: &Mutant, patience: Duration) -> Result<Fate, String> {
        self.patch(mutant, &[])?;
        let fate = self.judge(area, patience);
        self.patch(mutant, &["--reverse"])?;
        fate
    }

    fn judge(&self, area: &Area, patience: Duration) -> Result<Fate, String> {
        let ended = |mut command: Command| {
            let output = command
                .output()
                .map_err(|e| format!("{} could not be started: {e}", command.get_program().display()))?;
            Ok::<_, String>(output.status)
        };
        if !ended(self.tests(area, &["--no-run"]))?.success() {
            return Ok(Fate::Unviable);
        }
        let tests = self.tests(area, &[]);
        let mut limited = Command::new("timeout");
        limited.arg(patience.as_secs().to_string()).arg(tests.get_program()).args(tests.get_args());
        limited.current_dir(&self.tree).envs(tests.get_envs().filter_map(|(name, value)| Some((name, value?))));
        Ok(match ended(limited)? {
            status if status.success() => Fate::Missed,
            status if status.code() == Some(TIMED_OUT) => Fate::Timeout,
            _ => Fate::Caught,
        })
    }

    fn patch(&self, mutant: &Mutant, args: &[&str]) -> Result<(), String> {
        let mut git = Command::new("git");
        git.args(["apply", "--whitespace=nowarn"]).args(args).current_dir(&self.tree).stdin(Stdio::piped());
        let mut git = git.spawn().map_err(|e| format!("git could not be started: {e}"))?;
        let written = git.stdin.take().expect("piped above").write_all(mutant.patch.as_bytes());
        let ended = git.wait().map_err(|e| e.to_string())?;
        if written.is_ok() && ended.success() { Ok(()) } else { Err(format!("cannot patch {}", mutant.name)) }
    }
}

/// A mutant as cargo-mutants lists it, its patch with the names that git wants.
fn mutant(listed: &Value) -> Option<Mutant> {
    let [name, file, diff] = ["name", "file", "diff"].map(|field| listed[field].as_str());
    let (_, hunk) = diff?.split_once("@@")?;
    Some(Mutant { name: name?.to_owned(), patch: format!("--- a/{0}\n+++ b/{0}\n@@{hunk}", file?) })
}

/// The order of Fisher and Yates, by SplitMix64: the same one for the same seed.
fn shuffle<T>(all: &mut [T], seed: u64) {
    let mut state = seed;
    for end in (1..all.len()).rev() {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        all.swap(end, ((z ^ (z >> 31)) % (end as u64 + 1)) as usize);
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
    fn a_mutant_becomes_a_patch_that_git_takes() {
        let listed = json!({ "name": "src/a.rs:1:2: replace f -> u8 with 0", "file": "src/a.rs",
            "diff": "--- src/a.rs\n+++ replace f -> u8 with 0\n@@ -1 +1 @@\n-1\n+0\n" });
        let mutant = mutant(&listed).expect("it has all fields");
        assert_eq!(mutant.patch, "--- a/src/a.rs\n+++ b/src/a.rs\n@@ -1 +1 @@\n-1\n+0\n");
        assert_eq!(mutant.name, "src/a.rs:1:2: replace f -> u8 with 0");
    }
}
