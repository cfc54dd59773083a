//! The program of a test and what it came to.

use super::PROGRAM;
use serde_json::Value;
use std::path::Path;
use std::process::{Command, Output, Stdio};

/// How the program ended and what it said.
pub(crate) struct Ended {
    pub(crate) code: i32,
    pub(crate) out: String,
    pub(crate) err: String,
}

impl Ended {
    pub(crate) fn new(output: Output) -> Ended {
        let text = |bytes| String::from_utf8(bytes).expect("the program speaks UTF-8");
        let code = output.status.code().expect("the program ends by itself");
        Ended { code, out: text(output.stdout), err: text(output.stderr) }
    }

    /// The output, of a program that must have succeeded.
    pub(crate) fn done(self) -> String {
        assert_eq!(self.code, 0, "{}", self.err);
        self.out
    }

    /// The JSON document on the output of a program that must have succeeded.
    pub(crate) fn json(self) -> Value {
        serde_json::from_str(&self.done()).expect("one JSON document and nothing else")
    }
}

/// A program with nothing of this process's settings.
pub(crate) fn cleared(mut command: Command) -> Command {
    for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("FUELRAIL_")) {
        command.env_remove(name);
    }
    command.stdin(Stdio::null());
    command
}

/// Runs the program to its end, which must come within a minute: a program that hangs is a failure, not a hanging test.
pub(crate) fn fuelrail(args: &[&str]) -> Ended {
    fuelrail_with(&[], args)
}

/// The same with these variables.
pub(crate) fn fuelrail_with(variables: &[(&str, &str)], args: &[&str]) -> Ended {
    let mut command = cleared(Command::new("timeout"));
    command.envs(variables.iter().copied());
    let ended = Ended::new(command.arg("60").arg(PROGRAM).args(args).output().expect("coreutils are there"));
    assert_ne!(ended.code, 124, "hangs: {args:?}\n{}", ended.err);
    ended
}

pub(crate) fn utf8(path: &Path) -> &str {
    path.to_str().expect("temporary folders have plain names")
}
