//! Running a command-line tool for one pass and reading what it says.
//!
//! Owns the child for as long as it runs. Never interprets its output.

use std::ffi::OsStr;
use std::io;
use std::process::{Command, Stdio};

use crate::flaw::{Flaw, Result};

/// A program with its arguments.
pub(crate) struct Tool {
    program: &'static str,
    package: &'static str,
    command: Command,
}

impl Tool {
    /// `program` of the Debian package `package`. It inherits nothing but the environment.
    pub(crate) fn new(program: &'static str, package: &'static str) -> Tool {
        let mut command = Command::new(program);
        command.stdin(Stdio::null());
        Tool { program, package, command }
    }

    pub(crate) fn args<S: AsRef<OsStr>>(mut self, args: impl IntoIterator<Item = S>) -> Tool {
        self.command.args(args);
        self
    }

    /// Runs it to its end and returns its standard output.
    ///
    /// # Errors
    /// When it is not installed, or fails: with the last line it said.
    pub(crate) fn run(mut self) -> Result<String> {
        let output = self.command.output().map_err(|error| {
            let flaw = Flaw::of(format!("running {}", self.program), &error);
            match error.kind() {
                io::ErrorKind::NotFound => flaw.cure(format!("install the Debian package {}", self.package)),
                _ => flaw,
            }
        })?;
        if !output.status.success() {
            let said = String::from_utf8_lossy(&output.stderr);
            let last = said.lines().rfind(|line| !line.trim().is_empty()).unwrap_or("it said nothing");
            return Err(Flaw::new(format!("{} ended with {}: {last}", self.program, output.status)));
        }
        String::from_utf8(output.stdout).map_err(|e| Flaw::of(format!("the output of {}", self.program), e))
    }
}

/// What a tool calls itself: the first two words of its version line.
///
/// # Errors
/// When it is not installed.
pub(crate) fn version(tool: Tool) -> Result<String> {
    let said = tool.run()?;
    Ok(said.split_whitespace().take(2).collect::<Vec<_>>().join(" "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn output_failure_and_absence() {
        assert_eq!(version(Tool::new("echo", "coreutils").args(["a 1.0", "(x)"])).unwrap(), "a 1.0");
        let failed = Tool::new("sh", "dash").args(["-c", "echo a >&2; echo b >&2; exit 3"]).run().unwrap_err();
        assert_eq!(failed.to_string(), "sh ended with exit status: 3: b");
        let absent = Tool::new("no-such-program-here", "nothing").run().unwrap_err().to_string();
        assert!(absent.ends_with("install the Debian package nothing"), "{absent}");
    }
}
