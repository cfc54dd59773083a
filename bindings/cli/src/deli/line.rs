//! Where the ranks of a row wait for each other: before every epoch and after the last.
//!
//! Owns a count. Unlike a plain barrier it can be abandoned: a rank that fails lets the others go instead of hanging them.

use std::sync::{Condvar, Mutex, PoisonError};

use fuelrail_base::{Error, Kind, Result};

/// A line that `ranks` threads reach together.
#[derive(Debug)]
pub(super) struct StartLine {
    ranks: u32,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    here: u32,
    round: u64,
    abandoned: bool,
}

impl StartLine {
    pub(super) fn new(ranks: u32) -> StartLine {
        StartLine { ranks, state: Mutex::default(), changed: Condvar::new() }
    }

    /// Waits for all ranks. The last one runs `at_line` before any goes on.
    ///
    /// # Errors
    /// `Cancelled` when a rank abandoned the row.
    pub(super) fn wait(&self, at_line: impl FnOnce()) -> Result<()> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.here += 1;
        if state.here == self.ranks && !state.abandoned {
            at_line();
            state.here = 0;
            state.round += 1;
            self.changed.notify_all();
            return Ok(());
        }
        let round = state.round;
        let waiting = |state: &mut State| state.round == round && !state.abandoned;
        let state = self.changed.wait_while(state, waiting).unwrap_or_else(PoisonError::into_inner);
        if state.round == round { Err(Error::new(Kind::Cancelled, "another rank of the row failed")) } else { Ok(()) }
    }

    /// Lets everyone go: this rank will not come again.
    pub(super) fn abandon(&self) {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).abandoned = true;
        self.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU32, Ordering};

    #[test]
    fn all_go_together_and_one_acts_per_round() {
        let (line, acts) = (StartLine::new(3), AtomicU32::new(0));
        std::thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    for round in 0..100 {
                        line.wait(|| assert_eq!(acts.fetch_add(1, Ordering::SeqCst), round)).unwrap();
                        assert!(acts.load(Ordering::SeqCst) > round);
                    }
                });
            }
        });
        assert_eq!(acts.into_inner(), 100);
    }

    #[test]
    fn a_rank_that_fails_hangs_nobody() {
        let line = StartLine::new(2);
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| line.wait(|| {}));
            line.abandon();
            assert_eq!(waiting.join().unwrap().unwrap_err().kind(), Kind::Cancelled);
            assert!(line.wait(|| {}).is_err());
        });
    }
}
