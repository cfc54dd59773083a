//! Admission control: holds requests back for the request rate after a 503 or 429, and while the server is down.
//!
//! Owns the pace and the outage. Never sees the queue: it admits one request at a time, and says when to try again.

use super::types::{Attempt, PlannerConfig};
use crate::outage::Outage;
use crate::pace::Pace;
use core::fmt;
use fuelrail_base::{BlockId, Duration, Instant, Kind};

pub(super) struct Admission {
    pace: Pace,
    outage: Outage,
    /// The last request was not admitted: try again then.
    again_at: Option<Instant>,
    now: Instant,
}

impl Admission {
    pub(super) fn new(config: &PlannerConfig) -> Admission {
        let limit = Duration::from_micros(config.retry.outage_limit_us);
        Admission {
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

    /// A fetch failed. True when the server is down, so that it does not count as an attempt of its block.
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
                self.outage.unsent(now);
                false
            }
        }
    }

    /// The server is down: one request at a time is sent as a probe.
    pub(super) fn is_down(&self) -> bool {
        self.outage.is_open()
    }

    /// Admits one request now, or sets the time to try again.
    pub(super) fn admit(&mut self, now: Instant, round_trip: Duration) -> bool {
        self.now = now;
        self.again_at = if self.outage.is_open() {
            if self.outage.probe(now) { None } else { self.outage.deadline() }
        } else {
            self.pace.take(now, round_trip).err()
        };
        self.again_at.is_none()
    }

    /// The queue waits to be admitted, and for nothing else.
    pub(super) fn holds_back(&self, now: Instant) -> bool {
        self.again_at.is_some_and(|at| at > now)
    }

    /// Forgets the time to try again, before the queue is tried anew.
    pub(super) fn clear(&mut self) {
        self.again_at = None;
    }

    pub(super) fn deadline(&self) -> Option<Instant> {
        self.again_at
    }

    /// How long nothing was served, once that exceeds the limit: everything requested is then given up. Returned once.
    pub(super) fn take_end(&mut self, now: Instant) -> Option<Duration> {
        self.outage.take_end(now)
    }
}

impl fmt::Display for Admission {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.outage.is_open() {
            write!(f, ", nothing served for {:.1} s", self.outage.age(self.now).as_secs_f64())?;
        }
        if self.pace.is_in_force() { write!(f, ", {:.1} requests a second", self.pace.rate()) } else { Ok(()) }
    }
}
