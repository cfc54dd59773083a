//! Running other programs as named steps, with what they cost and how they ended said at the end.
//!
//! Owns the words printed around a step. Never decides which steps there are: `main` does.

use std::ffi::OsString;
use std::fmt::Write as _;
use std::io::{self, BufRead, BufReader, Write as _};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// How a step ended.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Outcome {
    /// As it should.
    Passed,
    /// The program ran and said no, or could not be started.
    Failed(String),
    /// Not run, with the reason.
    Skipped(String),
}

/// The steps run so far.
#[derive(Debug, Default)]
pub struct Log {
    rows: Vec<(String, Outcome, Duration)>,
}

impl Log {
    /// Runs `act` as a step of this name.
    pub fn step(&mut self, name: &str, act: impl FnOnce() -> Outcome) {
        say(&format!("== {name}"));
        let start = Instant::now();
        let outcome = act();
        match &outcome {
            Outcome::Passed => {}
            Outcome::Failed(why) => say(&format!("== {name}: FAILED: {why}")),
            Outcome::Skipped(why) => say(&format!("== {name}: skipped: {why}")),
        }
        self.rows.push((name.to_owned(), outcome, start.elapsed()));
    }

    /// Whether no step failed.
    #[must_use]
    pub fn sound(&self) -> bool {
        !self.rows.iter().any(|(_, outcome, _)| matches!(outcome, Outcome::Failed(_)))
    }

    /// One line a step: name, outcome, seconds.
    #[must_use]
    pub fn summary(&self) -> String {
        let width = self.rows.iter().map(|(name, ..)| name.len()).max().unwrap_or(0);
        let mut text = String::new();
        for (name, outcome, time) in &self.rows {
            let outcome = match outcome {
                Outcome::Passed => "passed".to_owned(),
                Outcome::Failed(why) => format!("FAILED: {why}"),
                Outcome::Skipped(why) => format!("skipped: {why}"),
            };
            writeln!(text, "  {name:width$}  {:>6.1} s  {outcome}", time.as_secs_f64())
                .expect("a string takes all that is written to it");
        }
        text
    }
}

/// Prints one line. A closed standard output is no reason to stop a check.
pub fn say(line: &str) {
    let mut out = io::stdout().lock();
    let _ = writeln!(out, "{line}");
    let _ = out.flush();
}

/// A cargo command: the cargo that runs us, so that the toolchain stays one.
#[must_use]
pub fn cargo<I: IntoIterator<Item = S>, S: Into<OsString>>(args: I) -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.args(args.into_iter().map(Into::into));
    command
}

/// Cargo's target folder.
pub(crate) fn target(root: &Path) -> std::path::PathBuf {
    std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), Into::into)
}

/// A cargo command in the workspace's root.
#[must_use]
pub fn cargo_in<I: IntoIterator<Item = S>, S: Into<OsString>>(root: &Path, args: I) -> Command {
    let mut command = cargo(args);
    command.current_dir(root);
    command
}

/// Runs a command that owns the terminal.
pub fn run(mut command: Command) -> Outcome {
    match command.status() {
        Ok(status) if status.success() => Outcome::Passed,
        Ok(status) => Outcome::Failed(format!("{} ended with {status}", shown(&command))),
        Err(error) => Outcome::Failed(format!("{} could not be started: {error}", shown(&command))),
    }
}

/// Runs a command, shows every line of its standard output as it comes and hands it to `see`.
pub fn run_watched(mut command: Command, mut see: impl FnMut(&str)) -> Outcome {
    let mut child = match command.stdout(Stdio::piped()).spawn() {
        Ok(child) => child,
        Err(error) => return Outcome::Failed(format!("{} could not be started: {error}", shown(&command))),
    };
    if let Some(out) = child.stdout.take() {
        let mut lines = BufReader::new(out);
        let mut line = Vec::new();
        // Bytes, not text: a test may print anything.
        while lines.read_until(b'\n', &mut line).is_ok_and(|n| n > 0) {
            let text = String::from_utf8_lossy(&line);
            say(text.trim_end_matches('\n'));
            see(&text);
            line.clear();
        }
    }
    match child.wait() {
        Ok(status) if status.success() => Outcome::Passed,
        Ok(status) => Outcome::Failed(format!("{} ended with {status}", shown(&command))),
        Err(error) => Outcome::Failed(format!("{}: {error}", shown(&command))),
    }
}

/// Whether `cargo NAME` is there.
#[must_use]
pub fn has_subcommand(name: &str) -> bool {
    let mut command = cargo([name, "--version"]);
    command.stdout(Stdio::null()).stderr(Stdio::null()).status().is_ok_and(|s| s.success())
}

fn shown(command: &Command) -> String {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    words.map(|w| w.to_string_lossy().rsplit('/').next().unwrap_or_default().to_owned()).collect::<Vec<_>>().join(" ")
}

/// The sums over the closing lines of `cargo test` (`test result: ok. 3 passed; 0 failed; 1 ignored; …`).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Tally {
    /// Tests that passed.
    pub passed: u64,
    /// Tests that failed.
    pub failed: u64,
    /// Tests not run.
    pub ignored: u64,
}

impl Tally {
    /// Adds what this line says, if it is a closing line.
    pub fn see(&mut self, line: &str) {
        let Some(rest) = line.trim().strip_prefix("test result: ") else { return };
        for part in rest.split([';', '.']) {
            let mut words = part.split_whitespace();
            let (Some(count), Some(what)) = (words.next().and_then(|n| n.parse::<u64>().ok()), words.next()) else {
                continue;
            };
            match what {
                "passed" => self.passed += count,
                "failed" => self.failed += count,
                "ignored" => self.ignored += count,
                _ => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_the_closing_lines() {
        let mut tally = Tally::default();
        tally.see("test result: ok. 12 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out; finished in 0.02s\n");
        tally
            .see("test result: FAILED. 3 passed; 2 failed; 0 ignored; 0 measured; 0 filtered out; finished in 1.50s\n");
        tally.see("test says::test result ... ok");
        assert_eq!(tally, Tally { passed: 15, failed: 2, ignored: 1 });
    }

    #[test]
    fn one_failed_step_fails_the_log_and_shows() {
        let mut log = Log::default();
        log.step("first", || Outcome::Passed);
        log.step("second", || Outcome::Skipped("not there".to_owned()));
        assert!(log.sound());
        log.step("third", || run(Command::new("false")));
        assert!(!log.sound());
        let summary = log.summary();
        assert!(summary.contains("third") && summary.contains("FAILED: false ended with"), "{summary}");
        assert!(summary.contains("skipped: not there"), "{summary}");
    }

    #[test]
    fn a_watched_command_is_seen_line_by_line() {
        let mut seen = Vec::new();
        let mut command = Command::new("printf");
        command.arg("one\\ntwo");
        assert_eq!(run_watched(command, |line| seen.push(line.trim_end().to_owned())), Outcome::Passed);
        assert_eq!(seen, ["one", "two"]);
        let missing = run_watched(Command::new("no-such-program-here"), |_| {});
        assert!(matches!(missing, Outcome::Failed(why) if why.contains("could not be started")));
    }
}
