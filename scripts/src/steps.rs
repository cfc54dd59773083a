//! Other programs as named steps: runs them, and says at the end what each cost and how it ended.

use std::fmt::Write as _;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

/// How a step ended: well, or why not.
pub(crate) type Outcome = Result<(), String>;

/// The steps run so far.
#[derive(Default)]
pub(crate) struct Log {
    rows: Vec<(String, Outcome, Duration)>,
}

impl Log {
    pub(crate) fn step(&mut self, name: &str, act: impl FnOnce() -> Outcome) {
        say(&format!("== {name}"));
        let start = Instant::now();
        let outcome = act().inspect_err(|why| say(&format!("== {name}: FAILED: {why}")));
        self.rows.push((name.to_owned(), outcome, start.elapsed()));
    }

    /// Prints one line a step: name, seconds, outcome. Whether none failed.
    pub(crate) fn close(&self) -> bool {
        say(&format!("\n{}", self.summary()));
        self.rows.iter().all(|(_, outcome, _)| outcome.is_ok())
    }

    fn summary(&self) -> String {
        let mut text = String::new();
        for (name, outcome, time) in &self.rows {
            let outcome = outcome.as_ref().map_or_else(|why| format!("FAILED: {why}"), |()| "passed".to_owned());
            let _ = writeln!(text, "  {name:30}  {:>6.1} s  {outcome}", time.as_secs_f64());
        }
        text
    }
}

/// Prints one line. A closed standard output is no reason to stop a check.
pub(crate) fn say(line: &str) {
    let _ = writeln!(io::stdout(), "{line}");
}

/// Cargo's target folder.
pub(crate) fn target(root: &Path) -> PathBuf {
    std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), Into::into)
}

/// A cargo command in the workspace's root: by the cargo that runs us, so that the toolchain stays one, and with the tools on the path
/// that `scripts/test` and [`need`] install.
pub(crate) fn cargo_in<'a>(root: &Path, args: impl IntoIterator<Item = &'a str>) -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.args(args).current_dir(root);
    let path = std::env::var_os("PATH").unwrap_or_default();
    if let Ok(path) = std::env::join_paths([tools(root).join("bin")].into_iter().chain(std::env::split_paths(&path))) {
        command.env("PATH", path);
    }
    command
}

fn tools(root: &Path) -> PathBuf {
    target(root).join("servers")
}

/// Makes sure that `cargo-NAME` is there.
pub(crate) fn need(root: &Path, name: &str) -> Outcome {
    if cargo_in(root, [name, "--version"]).output().is_ok_and(|output| output.status.success()) {
        return Ok(());
    }
    say(&format!("installing cargo-{name} (some minutes, once)"));
    let mut install = cargo_in(root, ["install", "--quiet", "--locked", "--debug", "--root"]);
    run(install.arg(tools(root)).arg(format!("cargo-{name}")))
}

/// Runs a command that owns the terminal.
pub(crate) fn run(command: &mut Command) -> Outcome {
    let words = || {
        [command.get_program()].into_iter().chain(command.get_args()).map(|word| word.to_string_lossy().into_owned())
    };
    let shown = words().collect::<Vec<_>>().join(" ");
    match command.status() {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(format!("{shown} ended with {status}")),
        Err(error) => Err(format!("{shown} could not be started: {error}")),
    }
}

/// What a command prints, without the line's end.
pub(crate) fn printed(command: &mut Command) -> Result<String, String> {
    let output = command.output().map_err(|e| format!("{command:?} could not be started: {e}"))?;
    if !output.status.success() {
        return Err(format!("{command:?}: {}", String::from_utf8_lossy(&output.stderr).trim()));
    }
    Ok(String::from_utf8_lossy(&output.stdout).trim_end().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_failed_step_fails_the_log_and_shows() {
        let mut log = Log::default();
        log.step("first", || run(Command::new("printf").arg("")));
        assert!(log.close());
        log.step("second", || run(&mut Command::new("false")));
        log.step("third", || run(&mut Command::new("no-such-program-here")));
        assert!(!log.close());
        let summary = log.summary();
        assert!(summary.contains("FAILED: false ended with") && summary.contains("could not be started"), "{summary}");
    }
}
