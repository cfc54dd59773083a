//! What this machine can do for the engine, with cause and cure for all it cannot.

use fuelrail_base::{Error, Result};

/// io_uring abilities of this kernel.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Features {
    /// Completions run on the submitting thread only, when it asks (kernel 6.1).
    pub defer_taskrun: bool,
    /// Completions do not interrupt the thread (kernel 5.19).
    pub coop_taskrun: bool,
    /// Waits take a time limit (kernel 5.11).
    pub ext_arg: bool,
}

/// How good a finding is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Grade {
    /// As good as it gets.
    Good,
    /// Works, slower or with less.
    Degraded,
    /// Does not work.
    Refused,
}

/// One line for `fuelrail doctor`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Finding {
    /// What was looked at.
    pub name: &'static str,
    /// What was found.
    pub value: String,
    /// How good that is.
    pub grade: Grade,
    /// What to do when it is not good.
    pub cure: Option<String>,
}

/// Everything that was found.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Probe {
    /// Kernel release, as `uname -r` says it.
    pub kernel: String,
    /// io_uring, or why not.
    pub io_uring: Result<Features, Error>,
}

impl Probe {
    /// One line each, in the order to be printed.
    #[must_use]
    pub fn findings(&self) -> Vec<Finding> {
        Vec::new()
    }
}

/// Looks at the machine.
#[must_use]
pub fn probe() -> Probe {
    unreachable!()
}
