//! The simulated network: the servers with their replies, and connections as their clients see them.

use std::collections::VecDeque;
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

/// An operation of one of the rings: ring number and name as bits, which sort.
pub(super) type FlightKey = (usize, u64);

#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) enum Phase {
    #[default]
    Fresh,
    Connecting,
    Open,
    /// Broken for good, with the error number every operation on it gets.
    Broken(i32),
}

/// A connection.
///
/// One simulated connection, as its client sees it.
#[derive(Debug, Default)]
pub(super) struct Conn {
    pub(super) phase: Phase,
    /// The host accepted it and is not informed of its end yet.
    pub(super) host_knows: bool,
    /// Bytes arrived and not received.
    inbox: VecDeque<u8>,
    /// The peer has finished: after the inbox, zero.
    finished: bool,
    /// The peer sends nothing more.
    pub(super) stalled: bool,
    /// When the last scheduled reply arrives: replies keep their order.
    pub(super) last_arrival: Instant,
    /// Receives waiting for bytes, oldest first.
    pub(super) receivers: VecDeque<FlightKey>,
}

impl Conn {
    /// A reply of the peer arrives. A broken connection ignores it.
    pub(super) fn arrive(&mut self, reply: Reply) {
        if matches!(self.phase, Phase::Broken(_)) {
            return;
        }
        match reply {
            Reply::Bytes(bytes) => self.inbox.extend(bytes),
            Reply::Finish => self.finished = true,
            Reply::Reset => self.break_with(libc::ECONNRESET),
            Reply::Stall => self.stalled = true,
        }
    }

    /// Breaks the connection; unread bytes are lost.
    pub(super) fn break_with(&mut self, errno: i32) {
        self.phase = Phase::Broken(errno);
        self.inbox.clear();
    }

    /// The result of a receive: the number of bytes that can be taken (zero: finished), an error number, or `None` for none yet.
    pub(super) fn readable(&self) -> Option<Result<usize, i32>> {
        match self.phase {
            Phase::Broken(errno) => Some(Err(errno)),
            Phase::Fresh | Phase::Connecting => Some(Err(libc::ENOTCONN)),
            Phase::Open if !self.inbox.is_empty() => Some(Ok(self.inbox.len())),
            Phase::Open => self.finished.then_some(Ok(0)),
        }
    }

    /// Takes the next `n` bytes.
    pub(super) fn take(&mut self, n: usize) -> Vec<u8> {
        self.inbox.drain(..n).collect()
    }
}
