//! One simulated connection, as its client sees it.

use std::collections::VecDeque;

use fuelrail_base::Instant;

use super::host::Reply;

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
