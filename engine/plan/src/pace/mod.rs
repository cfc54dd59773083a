//! The pace: a request rate that comes into force with the first response that asks to slow down.
//!
//! A bound on requests in flight alone goes up and down around a limit of the *rate* by a factor of two, and how far depends
//! on the round trip; a rate does not. Owns one shard's hold on the rate and what it has counted since it was written down last;
//! the rate itself lies in a [`Ledger`], which shards of a process, and processes of a machine, may share. Never waits: it returns
//! when to try again.

mod law;
mod ledger;

pub use ledger::{LEDGER_WORDS, Ledger, PROCESSES_MAX, SLOT_WORDS, SLOTS_FROM};

use fuelrail_base::{Duration, Instant};

/// Time that "lately" means for one half of what is remembered.
const HALF: Duration = Duration::from_millis(500);
/// Least time requests served are divided by: what came in the first moment says nothing of a rate.
const LATELY_LEAST: Duration = Duration::from_millis(1);

/// Requests served lately: of the present half second and the one before.
#[derive(Clone, Copy, Debug, Default)]
struct Lately {
    begun: Option<Instant>,
    now: u64,
    before: u64,
    /// The half before the present one was a whole one.
    whole: bool,
}

impl Lately {
    fn count(&mut self, now: Instant) {
        let begun = *self.begun.get_or_insert(now);
        let elapsed = now.since(begun);
        if elapsed >= HALF {
            let fresh = elapsed < HALF * 2;
            *self = Lately { begun: Some(now), now: 0, before: if fresh { self.now } else { 0 }, whole: true };
        }
        self.now += 1;
    }

    /// Requests, and the time they took.
    fn sum(&self, now: Instant) -> (u64, Duration) {
        let since = self.begun.map_or(Duration::ZERO, |begun| now.since(begun));
        let time = if self.whole { since + HALF } else { since };
        (self.now + self.before, time.max(LATELY_LEAST))
    }
}

/// One shard's hold on the rate.
#[derive(Clone, Debug)]
pub struct Pace {
    ledger: Ledger,
    /// Shards that share the ledger: when the rate comes into force, one speaks for all of its process.
    shards: u16,
    lately: Lately,
    /// How far the caller's clock is behind the machine's, by which the ledger goes.
    behind: Duration,
}

impl Pace {
    /// A hold on this ledger, one of `shards` of this process.
    pub fn new(ledger: Ledger, shards: u16) -> Pace {
        Pace { ledger, shards, lately: Lately::default(), behind: Duration::ZERO }
    }

    /// The clock by which it is called is so far behind the machine's.
    pub fn falls_behind(&mut self, behind: Duration) {
        self.behind = behind;
    }

    /// The rate is in force: call [`Pace::take`] before every request.
    pub fn is_in_force(&self) -> bool {
        self.ledger.is_in_force()
    }

    /// Requests a second that this process may send now; infinite while the rate is not in force.
    pub fn rate(&self) -> f64 {
        self.ledger.share()
    }

    /// Takes the permission to send one request.
    ///
    /// # Errors
    /// When to try again, where it is too soon.
    pub fn take(&mut self, now: Instant, round_trip: Duration) -> Result<(), Instant> {
        if !self.ledger.is_in_force() {
            return Ok(());
        }
        let real = now.after(self.behind);
        self.ledger.close_round(real, round_trip);
        self.ledger.take(real).map_err(|at| now.after(at.since(real)))
    }

    /// A request was served.
    pub fn served(&mut self, now: Instant, round_trip: Duration) {
        self.lately.count(now);
        if self.ledger.is_in_force() {
            self.ledger.served();
            self.ledger.close_round(now.after(self.behind), round_trip);
        }
    }

    /// The server asked to slow down.
    pub fn refused(&mut self, now: Instant, round_trip: Duration) {
        let real = now.after(self.behind);
        if !self.ledger.is_in_force() {
            let (served, time) = self.lately.sum(now);
            self.ledger.engage(real, served.max(1) as f64 * f64::from(self.shards), time);
        }
        self.ledger.refused();
        self.ledger.close_round(real, round_trip);
    }
}
