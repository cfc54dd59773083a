//! The clock of a shard. While its thread does not run (it is stopped, has no share of a core, or its machine is moved), it all but stands
//! still: what the shard waits for came meanwhile and was not seen, or stood still as well. Nobody is slow for that.

use fuelrail_base::{Duration, Instant};

/// A pass of the loop does not take so long, and no timer comes so late, unless the thread does not run.
const AWAY: Duration = Duration::from_millis(50);
/// So much of the time in which it did not run counts: the clock of a thread that is late every time still gets ahead.
const COUNTED: Duration = Duration::from_millis(10);
/// The end of time.
const NEVER: Instant = Instant(u64::MAX);

/// A clock that is behind the ring's.
pub(super) struct Clock {
    /// As last read: once for everything that one pass of the loop takes in.
    pub(super) now: Instant,
    /// When it is read again at the latest, if the thread runs.
    due: Instant,
    /// How far it is behind.
    pub(super) behind: Duration,
    /// When the last wait began: what had come by then has been taken in since.
    pub(super) waited_at: Instant,
}

impl Clock {
    pub(super) fn new() -> Clock {
        Clock { now: Instant::ZERO, due: NEVER, behind: Duration::ZERO, waited_at: Instant::ZERO }
    }

    /// What it shows when the ring's shows this.
    pub(super) fn at(&self, ring: Instant) -> Instant {
        Instant(ring.0 - self.behind.as_nanos() as u64)
    }

    /// Reads it. True when the thread had not run for a while.
    pub(super) fn read(&mut self, ring: Instant) -> bool {
        let (before, now) = (self.now, self.at(ring));
        let away = now.since(self.due) > AWAY;
        self.now = if away { self.due.after(COUNTED) } else { now };
        self.behind += now.since(self.now);
        self.due = self.now;
        debug_assert!(before <= self.now, "the clock goes back from {before:?} to {:?}", self.now);
        away
    }

    /// A wait begins, until then at most; returns when that is by the ring's clock.
    pub(super) fn waits(&mut self, until: Option<Instant>) -> Option<Instant> {
        self.waited_at = self.now;
        // A deadline may have passed: nothing is late before now.
        self.due = until.map_or(NEVER, |until| until.max(self.now));
        until.map(|until| until.after(self.behind))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: u64) -> Instant {
        Instant::ZERO.after(Duration::from_millis(ms))
    }

    #[test]
    fn time_in_which_the_thread_does_not_run_hardly_counts() {
        let mut clock = Clock::new();
        assert!(!clock.read(at(7_000)), "the first reading is no interruption");
        assert_eq!(clock.waits(Some(at(7_100))), Some(at(7_100)));
        assert!(!clock.read(at(7_150)), "a busy machine");
        assert!(clock.read(at(19_150)), "stopped between two readings");
        assert_eq!((clock.now, clock.behind), (at(7_160), Duration::from_millis(11_990)));
        assert_eq!(clock.waits(Some(at(7_200))), Some(at(19_190)), "by the ring's clock");
        assert!(clock.read(at(25_000)), "stopped in a wait");
        assert_eq!((clock.now, clock.at(at(25_001)), clock.waited_at), (at(7_210), at(7_211), at(7_160)));
        clock.waits(None);
        assert!(!clock.read(at(45_000)), "nothing was due");
        assert_eq!(clock.now, at(27_210));
    }

    #[test]
    fn a_deadline_that_has_passed_sets_nothing_back() {
        let mut clock = Clock::new();
        clock.read(at(9_000));
        clock.waits(Some(at(2_000)));
        assert!(!clock.read(at(9_001)));
        assert_eq!((clock.now, clock.behind), (at(9_001), Duration::ZERO));
    }

    #[test]
    fn one_that_is_late_every_time_gets_ahead() {
        let mut clock = Clock::new();
        (0..100).for_each(|n| assert_eq!(clock.read(at(n * 200)), n > 0));
        assert_eq!(clock.now, at(990));
    }
}
