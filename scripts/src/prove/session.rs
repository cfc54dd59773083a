//! One run of `cargo x prove`: what is common to all parts, and the record of their latest outcomes.
//!
//! Owns `benches/results/proof.json`. Installs tools where they are missing. Never decides what is run.

use crate::steps::{Outcome, cargo_in, run, say, target};
use serde_json::{Map, Value, json};
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Where the latest outcome of every part is kept, from the root.
pub(super) const RECORD: &str = "benches/results/proof.json";

/// One run of `cargo x prove`.
pub(super) struct Session<'a> {
    pub(super) root: &'a Path,
    /// Of what is drawn at random.
    pub(super) seed: u64,
    /// For each part that could go on for ever.
    pub(super) minutes: Option<u64>,
}

/// What a part, or one subject of it, came to.
pub(super) struct Finding {
    pub(super) passed: bool,
    /// What was counted, by name.
    pub(super) counts: Value,
}

impl Session<'_> {
    /// Runs `act` and writes what it found to the record, under `key`. An error is nothing found, and leaves the record as it was.
    pub(super) fn record(&self, key: &str, act: impl FnOnce() -> Result<Finding, String>) -> Result<(), String> {
        let (commit, begun) = (head(self.root)?, Instant::now());
        let Finding { passed, counts } = act()?;
        let path = self.root.join(RECORD);
        let mut all = read(&path)?;
        let record = json!({
            "commit": commit,
            "date": printed(self.root, "date", &["-u", "+%F"])?,
            "time_s": now_s(),
            "seconds": begun.elapsed().as_secs(),
            "seed": self.seed,
            "passed": passed,
            "counts": counts,
        });
        all.insert(key.to_owned(), record);
        let text = serde_json::to_string_pretty(&all).map_err(|e| e.to_string())?;
        std::fs::write(&path, text + "\n").map_err(|e| format!("cannot write {}: {e}", path.display()))?;
        if passed { Ok(()) } else { Err(format!("{key}: see {RECORD}")) }
    }

    /// When a part that could go on for ever stops.
    pub(super) fn limit(&self) -> Option<Duration> {
        self.minutes.map(|minutes| Duration::from_secs(60 * minutes))
    }

    /// Cargo in the root, with the project's own tools on the path.
    pub(super) fn cargo<I: IntoIterator<Item = S>, S: Into<OsString>>(&self, args: I) -> Command {
        let mut command = cargo_in(self.root, args);
        let path = std::env::var_os("PATH").unwrap_or_default();
        let bin = self.tools().join("bin");
        if let Ok(path) = std::env::join_paths(std::iter::once(bin).chain(std::env::split_paths(&path))) {
            command.env("PATH", path);
        }
        command
    }

    /// Where tools and servers are installed: as `scripts/test` does.
    pub(super) fn tools(&self) -> PathBuf {
        target(self.root).join("servers")
    }

    /// Makes sure that `cargo NAME` is there.
    pub(super) fn need(&self, name: &str) -> Result<(), String> {
        if self.cargo([name, "--version"]).output().is_ok_and(|output| output.status.success()) {
            return Ok(());
        }
        say(&format!("installing cargo-{name} (some minutes, once)"));
        let mut install = self.cargo(["install", "--quiet", "--locked", "--debug", "--root"]);
        install.arg(self.tools()).arg(format!("cargo-{name}"));
        passed(run(install))
    }
}

/// What the outcome of one command proves.
pub(super) fn finding(outcome: Outcome, counts: Value) -> Result<Finding, String> {
    if let Outcome::Failed(why) = &outcome {
        say(why);
    }
    Ok(Finding { passed: outcome == Outcome::Passed, counts })
}

/// A step without which there is nothing to find.
pub(super) fn passed(outcome: Outcome) -> Result<(), String> {
    match outcome {
        Outcome::Passed => Ok(()),
        Outcome::Failed(why) | Outcome::Skipped(why) => Err(why),
    }
}

/// What a command prints, without the line's end.
fn printed(root: &Path, program: &str, args: &[&str]) -> Result<String, String> {
    let output = Command::new(program).args(args).current_dir(root).output();
    let output = output.map_err(|e| format!("{program} could not be started: {e}"))?;
    if !output.status.success() {
        return Err(format!("{program} {}: {}", args.join(" "), String::from_utf8_lossy(&output.stderr).trim()));
    }
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

/// Seconds since 1970.
pub(super) fn now_s() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
}

/// The commit checked out.
fn head(root: &Path) -> Result<String, String> {
    printed(root, "git", &["rev-parse", "--short=12", "HEAD"])
}

pub(super) fn read(path: &Path) -> Result<Map<String, Value>, String> {
    let text = match std::fs::read_to_string(path) {
        Ok(text) => text,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Map::new()),
        Err(error) => return Err(format!("cannot read {}: {error}", path.display())),
    };
    serde_json::from_str(&text).map_err(|e| format!("{}: {e}", path.display()))
}
