//! A ring probe: the simulated ring with counters, and whether a shard asleep in it would be woken at this instant.
//!
//! Also holds the ring's canaries.

use crate::canary::Canary;
use fuelrail_base::{Duration, Instant, Result};
use fuelrail_io::{Done, FileId, FileOptions, Full, Op, OpId, OwnDirectory, Ring, RingFacts, SimRing, SockId, Waker};
use std::net::SocketAddr;
use std::path::Path;

/// Which receive the ring with the planted bug loses.
const LOST_RECEIVE: u64 = 7;
/// How late its timers are.
const LATENESS: Duration = Duration::from_secs(600);

/// A simulated ring that counts.
pub(crate) struct ProbedRing {
    inner: SimRing,
    pushes: u64,
    pops: u64,
    receives: u64,
    /// Until when the last wait wanted to sleep.
    until: Option<Instant>,
    canary: Option<Canary>,
}

impl ProbedRing {
    pub(crate) fn new(inner: SimRing, canary: Option<Canary>) -> ProbedRing {
        ProbedRing { inner, pushes: 0, pops: 0, receives: 0, until: None, canary }
    }

    /// Whether the shard that sleeps in this ring would be woken now: by a completion, a wake or its timer. If so the
    /// waker is disarmed, as the shard does first when it wakes; a shard must not iterate without this, or wakes that
    /// it loses would be found by chance.
    pub(crate) fn wakes(&mut self) -> bool {
        let waker = self.inner.waker();
        if waker.is_notified() {
            waker.disarm();
            return true;
        }
        if self.until.is_some_and(|until| until <= self.now()) || self.ready() > 0 {
            return true;
        }
        // Looks for completions; a simulated ring never refuses to wait.
        let waited = self.inner.wait(self.until);
        debug_assert!(waited.is_ok(), "a simulated ring never refuses to wait");
        self.ready() > 0
    }

    /// Operations begun and ended: stays the same while nothing moves.
    pub(crate) fn moves(&self) -> u64 {
        self.pushes + self.pops
    }

    /// Completions that have been reaped and not popped.
    fn ready(&self) -> u64 {
        self.pushes - self.pops - self.inner.in_flight() as u64
    }
}

impl Ring for ProbedRing {
    fn now(&self) -> Instant {
        self.inner.now()
    }

    fn socket(&mut self, addr: &SocketAddr) -> Result<SockId> {
        self.inner.socket(addr)
    }

    fn close(&mut self, sock: SockId) {
        self.inner.close(sock);
    }

    fn open_in(&mut self, own: Option<&OwnDirectory>, path: &Path, options: &FileOptions) -> Result<FileId> {
        self.inner.open_in(own, path, options)
    }

    fn close_file(&mut self, file: FileId) {
        self.inner.close_file(file);
    }

    fn push(&mut self, op: Op, token: u64) -> Result<OpId, Full> {
        let id = self.inner.push(op, token)?;
        self.pushes += 1;
        Ok(id)
    }

    fn cancel(&mut self, op: OpId) {
        self.inner.cancel(op);
    }

    fn wait(&mut self, until: Option<Instant>) -> Result<()> {
        let late = self.canary == Some(Canary::LateTimer) && until.is_some_and(|until| until > self.now());
        self.until = if late { until.map(|until| until.after(LATENESS)) } else { until };
        self.inner.wait(self.until)
    }

    fn pop(&mut self) -> Option<Done> {
        loop {
            let done = self.inner.pop()?;
            self.pops += 1;
            self.receives += u64::from(matches!(done.op, Op::Recv { .. }));
            if self.canary != Some(Canary::LostCompletion) || self.receives != LOST_RECEIVE {
                return Some(done);
            }
            self.receives += 1;
        }
    }

    fn in_flight(&self) -> usize {
        self.inner.in_flight()
    }

    fn waker(&self) -> Waker {
        self.inner.waker()
    }

    fn facts(&self) -> RingFacts {
        self.inner.facts()
    }
}
