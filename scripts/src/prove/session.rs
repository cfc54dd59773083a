//! One run of `cargo x prove`: what is common to all parts, and the record of their latest outcomes, `benches/results/proof.json`.

use crate::steps::{Outcome, cargo_in, need, printed, run, say, target};
use serde_json::{Map, Value, json};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

/// Where the latest outcome of every part is kept, from the root.
const RECORD: &str = "benches/results/proof.json";

/// One run of `cargo x prove`.
pub(super) struct Session<'a> {
    pub(super) root: &'a Path,
    /// Of what is drawn at random.
    pub(super) seed: u64,
    /// For each part that could go on for ever.
    pub(super) minutes: Option<u64>,
}

/// What a part came to: whether it passed, and what was counted, by name. An error is nothing found.
pub(super) type Finding = Result<(bool, Value), String>;

impl Session<'_> {
    /// Runs `act` and writes what it found to the record, under `key`. An error leaves the record as it was.
    pub(super) fn record(&self, key: &str, act: impl FnOnce() -> Finding) -> Outcome {
        let commit = printed(Command::new("git").args(["rev-parse", "--short=12", "HEAD"]).current_dir(self.root))?;
        let begun = Instant::now();
        let (passed, counts) = act()?;
        let mut all = read(self.root)?;
        let record = json!({
            "commit": commit,
            "date": printed(Command::new("date").args(["-u", "+%F"]))?,
            "time_s": now_s(),
            "seconds": begun.elapsed().as_secs(),
            "seed": self.seed,
            "passed": passed,
            "counts": counts,
        });
        all.insert(key.to_owned(), record);
        let text = serde_json::to_string_pretty(&all).map_err(|e| e.to_string())?;
        std::fs::write(self.root.join(RECORD), text + "\n").map_err(|e| format!("cannot write {RECORD}: {e}"))?;
        if passed { Ok(()) } else { Err(format!("{key}: see {RECORD}")) }
    }

    /// The tests of these packages, with one more setting each.
    pub(super) fn tests(&self, packages: &[&str], set: impl FnOnce(&mut Command) -> &mut Command) -> Finding {
        need(self.root, "nextest")?;
        let mut command = cargo_in(self.root, ["nextest", "run", "--no-fail-fast", "--profile", "prove"]);
        command.args(packages.iter().flat_map(|package| ["--package", package]));
        finding(set(&mut command), json!({ "packages": packages }))
    }

    /// The interpreter of the virtual environment `inside` cargo's target folder, with these packages of PyPI.
    pub(super) fn python(&self, inside: &str, packages: &[&str]) -> Result<PathBuf, String> {
        let place = self.target(inside)?;
        let python = place.join("bin/python");
        if !python.exists() {
            run(Command::new("python3").args(["-m", "venv"]).arg(&place))?;
        }
        let install = ["-m", "pip", "install", "--quiet", "--disable-pip-version-check"];
        run(Command::new(&python).args(install).args(packages))?;
        Ok(python)
    }

    /// Installs the Debian packages that are missing, or says which: calls of `need` in `scripts/ready.bash`.
    pub(super) fn ready(&self, needs: &str) -> Outcome {
        run(Command::new("bash").args(["-c", &format!(". scripts/ready.bash && {needs}")]).current_dir(self.root))
    }

    /// A place in cargo's target folder, from the file system's root.
    pub(super) fn target(&self, inside: &str) -> Result<PathBuf, String> {
        std::path::absolute(target(self.root).join(inside)).map_err(|e| e.to_string())
    }
}

/// What the outcome of one command proves.
pub(super) fn finding(command: &mut Command, counts: Value) -> Finding {
    Ok((passes(command)?, counts))
}

/// Whether a command succeeds. It is an error if it cannot be started, or exits with 3 as our scripts do where a tool is missing.
pub(super) fn passes(command: &mut Command) -> Result<bool, String> {
    let status = command.status().map_err(|e| format!("{command:?} could not be started: {e}"))?;
    if status.code() == Some(3) {
        return Err(format!("{command:?}: a tool is missing"));
    }
    if !status.success() {
        say(&format!("{command:?} ended with {status}"));
    }
    Ok(status.success())
}

/// The machine's own target. Named, it keeps a sanitizer away from build scripts and procedural macros.
pub(super) fn host() -> String {
    format!("{}-unknown-linux-gnu", std::env::consts::ARCH)
}

/// Seconds since 1970.
pub(super) fn now_s() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
}

/// The records of all parts.
pub(super) fn read(root: &Path) -> Result<Map<String, Value>, String> {
    match std::fs::read_to_string(root.join(RECORD)) {
        Ok(text) => serde_json::from_str(&text).map_err(|e| format!("{RECORD}: {e}")),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(Map::new()),
        Err(error) => Err(format!("cannot read {RECORD}: {error}")),
    }
}
