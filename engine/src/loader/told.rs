//! What is told of disks and of other ranks while the run goes on, kept to be read later.

use crate::watch::Report;
use std::sync::{Arc, Mutex, PoisonError};

/// Lines that were told. Clones share them.
#[derive(Clone, Default)]
pub(crate) struct Told {
    lines: Arc<Mutex<Vec<String>>>,
    /// So many are among the notices already.
    heard: usize,
}

impl Told {
    /// A report that keeps what it passes on.
    pub(crate) fn through(&self, report: &Arc<Report>) -> Arc<Report> {
        let (lines, report) = (Arc::clone(&self.lines), Arc::clone(report));
        Arc::new(move |line: &str| {
            lines.lock().unwrap_or_else(PoisonError::into_inner).push(line.to_owned());
            report(line);
        })
    }

    /// Adds to the notices what was told since the last time.
    pub(super) fn hear(&mut self, notices: &mut Vec<String>) {
        let lines = self.lines.lock().unwrap_or_else(PoisonError::into_inner);
        notices.extend_from_slice(&lines[self.heard..]);
        self.heard = lines.len();
    }

    /// All of them so far.
    pub(super) fn lines(&self) -> impl Fn() -> Vec<String> + Send + Sync + use<> {
        let lines = Arc::clone(&self.lines);
        move || lines.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}
