//! A ring in virtual time: a whole network in one thread, exactly repeatable by seed.

mod faults;
mod host;

pub use faults::{SimCounts, SimFaults};
pub use host::{Host, Replies};

use std::cell::RefCell;
use std::net::SocketAddr;
use std::rc::Rc;

use fuelrail_base::{Instant, Result};

use super::{Done, Full, Op, OpId, Ring, RingFacts, SockId};
use crate::wake::Waker;

struct World;

/// The world all simulated rings of a test share. Clones are the same world.
#[derive(Clone)]
pub struct SimWorld {
    world: Rc<RefCell<World>>,
}

impl SimWorld {
    /// A world whose every choice follows from `seed`.
    #[must_use]
    pub fn new(_seed: u64, _faults: SimFaults, _host: Box<dyn Host>) -> SimWorld {
        SimWorld { world: Rc::new(RefCell::new(World)) }
    }

    /// Virtual time.
    #[must_use]
    pub fn now(&self) -> Instant {
        unreachable!()
    }

    /// Jumps to the next event or the next wake-up a ring waits for. False when nothing is pending.
    pub fn advance(&self) -> bool {
        unreachable!()
    }

    /// What was injected so far.
    #[must_use]
    pub fn counts(&self) -> SimCounts {
        unreachable!()
    }
}

/// One shard's ring in a simulated world.
pub struct SimRing {
    world: Rc<RefCell<World>>,
}

impl SimRing {
    /// A ring of 1024 operations.
    #[must_use]
    pub fn new(world: &SimWorld) -> SimRing {
        SimRing::with_entries(world, 1024)
    }

    /// A ring of so many operations.
    #[must_use]
    pub fn with_entries(world: &SimWorld, _entries: u32) -> SimRing {
        SimRing { world: world.world.clone() }
    }
}

impl Ring for SimRing {
    fn now(&self) -> Instant {
        let _ = &self.world;
        unreachable!()
    }
    fn socket(&mut self, _addr: &SocketAddr) -> Result<SockId> {
        unreachable!()
    }
    fn close(&mut self, _sock: SockId) {}
    fn push(&mut self, _op: Op, _token: u64) -> Result<OpId, Full> {
        unreachable!()
    }
    fn cancel(&mut self, _op: OpId) {}
    fn wait(&mut self, _until: Option<Instant>) -> Result<()> {
        unreachable!()
    }
    fn pop(&mut self) -> Option<Done> {
        unreachable!()
    }
    fn in_flight(&self) -> usize {
        unreachable!()
    }
    fn waker(&self) -> Waker {
        unreachable!()
    }
    fn facts(&self) -> RingFacts {
        unreachable!()
    }
}
