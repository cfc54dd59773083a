//! The servers of the simulated network, and their replies.

use std::net::SocketAddr;

use fuelrail_base::{Duration, Instant};

/// The servers of a simulated world: called for every connection, reply with [`Replies`].
pub trait Host {
    /// A socket connects to `addr` as connection `conn` (a number never used before). Returns how long that takes and
    /// whether it succeeds; the error is an error number such as `ECONNREFUSED`.
    fn connect(&mut self, conn: u64, addr: SocketAddr, now: Instant) -> (Duration, Result<(), i32>);

    /// Bytes arrived on a connection; they may be any part of what was sent, in order.
    fn receive(&mut self, conn: u64, bytes: &[u8], now: Instant, out: &mut Replies);

    /// An accepted connection is gone: the client closed it, or an injected fault broke it. Called once.
    fn closed(&mut self, conn: u64, now: Instant);
}

/// The replies of a host, in order.
#[derive(Debug, Default)]
pub struct Replies {
    pub(super) list: Vec<(Duration, Reply)>,
}

#[derive(Debug)]
pub(super) enum Reply {
    Bytes(Vec<u8>),
    Finish,
    Reset,
    Stall,
}

impl Replies {
    /// These bytes reach the client `after` now, and after all earlier replies on this connection.
    pub fn send(&mut self, after: Duration, bytes: Vec<u8>) {
        self.list.push((after, Reply::Bytes(bytes)));
    }

    /// The connection ends in order, `after` now and after all earlier replies.
    pub fn finish(&mut self, after: Duration) {
        self.list.push((after, Reply::Finish));
    }

    /// The connection is reset `after` now, and after all earlier replies; unread bytes are lost.
    pub fn reset(&mut self, after: Duration) {
        self.list.push((after, Reply::Reset));
    }

    /// The connection stalls: no later reply arrives.
    pub fn stall(&mut self) {
        self.list.push((Duration::ZERO, Reply::Stall));
    }
}
