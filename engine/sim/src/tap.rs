//! A tap on a shard's ring: the simulated ring, and whether its shard has anything left to do at this instant.
//!
//! Also where the ring's canaries sit.

use crate::canary::Canary;
use fuelrail_base::{Duration, Instant, Result};
use fuelrail_io::{Done, Full, Op, OpId, Ring, RingFacts, SimRing, SockId, Waker};
use std::net::SocketAddr;

/// Which receive the ring with the planted bug loses.
const LOST_RECEIVE: u64 = 7;
/// How late its timers are.
const LATENESS: Duration = Duration::from_secs(600);

/// A simulated ring that counts.
pub(crate) struct TapRing {
    inner: SimRing,
    pushes: u64,
    pops: u64,
    receives: u64,
    /// The last wait did not want to sleep.
    restless: bool,
    canary: Option<Canary>,
}

impl TapRing {
    pub(crate) fn new(inner: SimRing, canary: Option<Canary>) -> TapRing {
        TapRing { inner, pushes: 0, pops: 0, receives: 0, restless: false, canary }
    }

    /// Moves whenever the shard pushes or pops.
    pub(crate) fn moves(&self) -> u64 {
        self.pushes + self.pops
    }

    /// The shard has to be turned again before time may pass.
    pub(crate) fn is_due(&self) -> bool {
        let ready = self.pushes - self.pops > self.inner.in_flight() as u64;
        ready || self.restless || self.inner.waker().is_notified()
    }

    /// A wake has come that the shard has not seen.
    pub(crate) fn is_woken(&self) -> bool {
        self.inner.waker().is_notified()
    }
}

impl Ring for TapRing {
    fn now(&self) -> Instant {
        self.inner.now()
    }

    fn socket(&mut self, addr: &SocketAddr) -> Result<SockId> {
        self.inner.socket(addr)
    }

    fn close(&mut self, sock: SockId) {
        self.inner.close(sock);
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
        let now = self.now();
        self.restless = until.is_some_and(|until| until <= now);
        let late = self.canary == Some(Canary::LateTimer) && !self.restless;
        self.inner.wait(if late { until.map(|until| until.after(LATENESS)) } else { until })
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
