//! What keeps requests back although there is a place for them: the pace that a server asks for, and a server that is down.
//!
//! Owns both. Never sees the queue: it gives leave for one request at a time, and says when to ask again.

use super::types::{Attempt, PlannerConfig};
use crate::outage::Outage;
use crate::pace::Pace;
use core::fmt;
use fuelrail_base::{BlockId, Duration, Instant, Kind};

pub(super) struct Restraint {
    pace: Pace,
    outage: Outage,
    /// Leave was refused: ask again then.
    again_at: Option<Instant>,
    now: Instant,
}

impl Restraint {
    pub(super) fn new(config: &PlannerConfig) -> Restraint {
        let limit = Duration::from_micros(config.retry.outage_limit_us);
        Restraint {
            pace: Pace::new(config.pace.clone(), config.shards),
            outage: Outage::new(limit, config.seed),
            again_at: None,
            now: Instant::ZERO,
        }
    }

    pub(super) fn landed(&mut self, now: Instant, round_trip: Duration) {
        self.pace.served(now, round_trip);
        self.outage.reached();
    }

    /// A fetch failed. True when that is no attempt of its block: the server is down.
    pub(super) fn failed(
        &mut self,
        now: Instant,
        block: BlockId,
        kind: Kind,
        attempt: Attempt,
        round_trip: Duration,
    ) -> bool {
        if kind == Kind::Throttled && !self.outage.is_open() {
            self.pace.refused(now, round_trip);
        }
        match attempt {
            Attempt::Barren => self.outage.failed(now, block, kind),
            Attempt::Progress => {
                self.outage.reached();
                false
            }
            Attempt::Excused => {
                self.outage.unasked(now);
                false
            }
        }
    }

    /// One request at a time is sent, to see whether the server is there again.
    pub(super) fn is_down(&self) -> bool {
        self.outage.is_open()
    }

    /// Takes leave to send one request.
    pub(super) fn leave(&mut self, now: Instant, round_trip: Duration) -> bool {
        self.now = now;
        self.again_at = if self.outage.is_open() {
            if self.outage.probe(now) { None } else { self.outage.deadline() }
        } else {
            self.pace.take(now, round_trip).err()
        };
        self.again_at.is_none()
    }

    /// The queue waits for leave, and for nothing else.
    pub(super) fn holds_back(&self, now: Instant) -> bool {
        self.again_at.is_some_and(|at| at > now)
    }

    /// Nothing waits for leave any more.
    pub(super) fn rest(&mut self) {
        self.again_at = None;
    }

    pub(super) fn deadline(&self) -> Option<Instant> {
        self.again_at
    }

    /// How long nothing was served, when that is too long: all that is asked for is to be given up. Told once.
    pub(super) fn take_end(&mut self, now: Instant) -> Option<Duration> {
        self.outage.take_end(now)
    }
}

impl fmt::Display for Restraint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.outage.is_open() {
            write!(f, ", nothing served for {:.1} s", self.outage.age(self.now).as_secs_f64())?;
        }
        if self.pace.is_in_force() { write!(f, ", {:.1} requests a second", self.pace.rate()) } else { Ok(()) }
    }
}
