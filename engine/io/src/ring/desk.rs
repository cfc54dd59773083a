//! The books of a ring: which operations are out, on which sockets, and which came back.
//!
//! Shared by the back-ends, so that ids, cancellation, closing and accounting mean the same on all of them. Knows nothing
//! of kernels or worlds but the results it is told; `S` is what a back-end keeps per socket.

use std::collections::VecDeque;

use fuelrail_base::Instant;

use super::table::{Name, Table};
use super::{Done, Full, Op, OpId, RingCounts, SockId, Times};

impl From<SockId> for Name {
    fn from(id: SockId) -> Name {
        Name { index: id.index, generation: id.generation }
    }
}

impl From<OpId> for Name {
    fn from(id: OpId) -> Name {
        Name { index: id.index, generation: id.generation }
    }
}

struct Flight {
    op: Op,
    token: u64,
    times: Times,
    /// Somebody asked for it back.
    cancelled: bool,
    /// Set when it came back.
    result: Option<Result<usize, i32>>,
}

pub(super) struct Sock<S> {
    pub(super) inner: S,
    /// Operations on it that have not come back.
    in_flight: u32,
    closing: bool,
}

pub(super) struct Desk<S> {
    flights: Table<Flight>,
    socks: Table<Sock<S>>,
    /// Pushed since the last submission.
    fresh: Vec<Name>,
    ready: VecDeque<Name>,
    /// Closing sockets whose last operation came back.
    closable: Vec<SockId>,
    pub(super) counts: RingCounts,
    pub(super) in_flight: usize,
    /// When the current turn began: the time of all pushes in it.
    turn: Instant,
}

impl<S> Desk<S> {
    pub(super) fn new(entries: u32, sockets: u32, now: Instant) -> Desk<S> {
        Desk {
            flights: Table::new(entries),
            socks: Table::new(sockets),
            fresh: Vec::with_capacity(entries as usize),
            ready: VecDeque::with_capacity(entries as usize),
            closable: Vec::with_capacity(sockets as usize),
            counts: RingCounts::default(),
            in_flight: 0,
            turn: now,
        }
    }

    pub(super) fn open(&mut self, inner: S) -> Result<SockId, S> {
        match self.socks.insert(Sock { inner, in_flight: 0, closing: false }) {
            Ok(name) => Ok(SockId { index: name.index, generation: name.generation }),
            Err(sock) => Err(sock.inner),
        }
    }

    /// Books an operation in. The flag says whether it is for the kernel: on a stale socket it is ready at once.
    pub(super) fn book(&mut self, op: Op, token: u64) -> Result<(Name, bool), Full> {
        if self.flights.is_full() {
            self.counts.full += 1;
            return Err(Full(op));
        }
        self.counts.ops += 1;
        let times = Times { pushed: self.turn, submitted: self.turn, reaped: self.turn };
        let sock = self.socks.get_mut(op.sock().into()).filter(|sock| !sock.closing);
        let flies = sock.is_some();
        if let Some(sock) = sock {
            sock.in_flight += 1;
            self.in_flight += 1;
        }
        let result = if flies { None } else { Some(Err(libc::EBADF)) };
        let flight = Flight { op, token, times, cancelled: false, result };
        let Ok(name) = self.flights.insert(flight) else { unreachable!("room was checked above") };
        if flies {
            self.fresh.push(name);
        } else {
            self.ready.push_back(name);
        }
        Ok((name, flies))
    }

    /// An operation that is out, and its socket.
    pub(super) fn flight(&mut self, name: Name) -> Option<(&mut Op, &S)> {
        let flight = self.flights.get_mut(name).filter(|flight| flight.result.is_none())?;
        let sock = self.socks.get(flight.op.sock().into())?;
        Some((&mut flight.op, &sock.inner))
    }

    /// Marks an operation as asked back; false when it came back already.
    pub(super) fn mark_cancelled(&mut self, name: Name) -> bool {
        match self.flights.get_mut(name) {
            Some(flight) if flight.result.is_none() => {
                flight.cancelled = true;
                true
            }
            _ => false,
        }
    }

    /// Starts closing a socket: stale to the caller from now on. The operations to be cancelled are put in `out`.
    pub(super) fn close(&mut self, id: SockId, out: &mut Vec<Name>) {
        let Some(sock) = self.socks.get_mut(id.into()).filter(|sock| !sock.closing) else { return };
        sock.closing = true;
        if sock.in_flight == 0 {
            self.closable.push(id);
            return;
        }
        out.extend(self.flying().filter(|(_, op)| op.sock() == id).map(|(name, _)| name));
        for name in out.iter() {
            self.mark_cancelled(*name);
        }
    }

    /// Operations that have not come back.
    pub(super) fn flying(&self) -> impl Iterator<Item = (Name, &Op)> {
        self.flights.iter().filter(|(_, flight)| flight.result.is_none()).map(|(name, flight)| (name, &flight.op))
    }

    /// Stamps what the next submission takes along.
    pub(super) fn submitting(&mut self, now: Instant) {
        for name in self.fresh.drain(..) {
            if let Some(flight) = self.flights.get_mut(name) {
                flight.times.submitted = now;
            }
        }
    }

    /// Starts a turn: completions seen from now on, and pushes, carry this time.
    pub(super) fn begin_turn(&mut self, now: Instant) {
        self.turn = now;
    }

    /// The kernel says how an operation went: a count, or a negative error number.
    pub(super) fn land(&mut self, name: Name, kernel: i32) {
        let Some(flight) = self.flights.get_mut(name).filter(|flight| flight.result.is_none()) else {
            debug_assert!(false, "a completion for {name:?}, which is not in flight");
            return;
        };
        let result = match kernel {
            0.. => Ok(kernel as usize),
            // A worker interrupted by our own cancellation is cancelled; nothing was moved.
            _ if flight.cancelled && kernel == -libc::EINTR => Err(libc::ECANCELED),
            _ => Err(-kernel),
        };
        match (&mut flight.op, result) {
            (Op::Recv { into, .. }, Ok(n)) => {
                into.advance(n);
                self.counts.received_bytes += n as u64;
            }
            (Op::Send { .. }, Ok(n)) => self.counts.sent_bytes += n as u64,
            _ => {}
        }
        flight.result = Some(result);
        flight.times.reaped = self.turn;
        let sock_id = flight.op.sock();
        self.ready.push_back(name);
        self.in_flight -= 1;
        if let Some(sock) = self.socks.get_mut(sock_id.into()) {
            sock.in_flight -= 1;
            if sock.closing && sock.in_flight == 0 {
                self.closable.push(sock_id);
            }
        }
    }

    /// Takes out the next closing socket whose last operation came back: its place in the table and what is kept.
    pub(super) fn take_closable(&mut self) -> Option<(u32, S)> {
        let id = self.closable.pop()?;
        self.socks.remove(id.into()).map(|sock| (id.index, sock.inner))
    }

    /// Takes a socket out at once that no operation was ever on.
    pub(super) fn discard(&mut self, id: SockId) {
        self.socks.remove(id.into());
    }

    /// What is kept per open socket.
    pub(super) fn sockets(&self) -> impl Iterator<Item = &S> {
        self.socks.iter().map(|(_, sock)| &sock.inner)
    }

    pub(super) fn has_ready(&self) -> bool {
        !self.ready.is_empty()
    }

    pub(super) fn pop(&mut self) -> Option<Done> {
        let name = self.ready.pop_front()?;
        let flight = self.flights.remove(name)?;
        let result = flight.result?;
        self.counts.completions += 1;
        match result {
            Ok(_) => {}
            Err(libc::ECANCELED) => self.counts.cancelled += 1,
            Err(_) => self.counts.failures += 1,
        }
        Some(Done { token: flight.token, op: flight.op, result, times: flight.times })
    }
}
