//! The io_uring back-end.

use std::net::SocketAddr;

use fuelrail_base::{Instant, Result};

use super::{Done, Full, Op, OpId, Ring, RingFacts, SockId};
use crate::arena::Arena;
use crate::wake::Waker;

/// How to make an io_uring ring.
#[derive(Clone, Debug)]
pub struct UringConfig {
    /// Operations that can be in flight.
    pub entries: u32,
    /// Sockets that can be open.
    pub sockets: u32,
    /// Arena to register with the kernel, so that receives into one window skip the page look-up.
    pub register: Option<Arena>,
}

impl Default for UringConfig {
    fn default() -> UringConfig {
        UringConfig { entries: 512, sockets: 512, register: None }
    }
}

/// A ring on io_uring.
pub struct UringRing;

impl UringRing {
    /// Opens a ring for the calling thread.
    ///
    /// # Errors
    /// `Environment`, with cause and cure, when the kernel refuses.
    pub fn new(_config: &UringConfig) -> Result<UringRing> {
        unreachable!()
    }
}

impl Ring for UringRing {
    fn now(&self) -> Instant {
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
