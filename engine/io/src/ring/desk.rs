//! The books of a ring: which operations are out, on which sockets and files, and which came back.
//!
//! Shared by the back-ends, so that ids, cancellation, closing and accounting mean the same on all of them. Knows nothing
//! of kernels or worlds but the results it is told; `S` is what a back-end keeps per socket
//! or file. Both are in one table, so that one name serves for both, and one table in the kernel.

use std::collections::VecDeque;

use fuelrail_base::Instant;
use fuelrail_base::limits::RING_FILES_MAX;

use super::opening::Opening;
use super::table::{Name, Table};
use super::{Done, FileId, Full, Op, RingCounts, Times};

struct Flight {
    op: Op,
    token: u64,
    times: Times,
    /// Somebody asked for it back.
    cancelled: bool,
    /// Set when it came back.
    result: Option<Result<usize, i32>>,
}

/// A socket or a file.
struct Holding<S> {
    inner: S,
    is_file: bool,
    /// Operations on it that have not come back, and other work of the kernel.
    in_flight: u32,
    closing: bool,
}

pub struct Desk<S> {
    flights: Table<Flight>,
    holdings: Table<Holding<S>>,
    /// Places left for sockets and for files: neither takes the other's.
    sockets_left: u32,
    files_left: u32,
    /// Pushed since the last submission.
    fresh: Vec<Name>,
    ready: VecDeque<Name>,
    /// Closing sockets and files whose last operation came back.
    closable: Vec<Name>,
    pub(super) counts: RingCounts,
    pub(super) in_flight: usize,
    /// When the current turn began: the time of all pushes in it.
    turn: Instant,
}

impl<S> Desk<S> {
    /// Books for so many operations and sockets, and [`RING_FILES_MAX`] files.
    pub(super) fn new(entries: u32, sockets: u32, now: Instant) -> Desk<S> {
        Desk {
            flights: Table::new(entries),
            holdings: Table::new(sockets + RING_FILES_MAX),
            sockets_left: sockets,
            files_left: RING_FILES_MAX,
            fresh: Vec::with_capacity(entries as usize),
            ready: VecDeque::with_capacity(entries as usize),
            closable: Vec::with_capacity((sockets + RING_FILES_MAX) as usize),
            counts: RingCounts::default(),
            in_flight: 0,
            turn: now,
        }
    }

    pub(super) fn has_place_for_file(&self) -> bool {
        self.files_left > 0
    }

    /// Takes a socket or a file in; gives it back when all of its kind are open.
    pub(super) fn take_in(&mut self, inner: S, is_file: bool) -> Result<Name, S> {
        let left = if is_file { &mut self.files_left } else { &mut self.sockets_left };
        if *left == 0 {
            return Err(inner);
        }
        let holding = Holding { inner, is_file, in_flight: 0, closing: false };
        let name = self.holdings.insert(holding).map_err(|holding| holding.inner)?;
        *left -= 1;
        Ok(name)
    }

    /// Books an operation in. The flag says whether it is for the kernel: on a stale socket or file it is ready at once.
    pub(super) fn book(&mut self, op: Op, token: u64) -> Result<(Name, bool), Full> {
        if self.flights.is_full() {
            self.counts.full += 1;
            return Err(Full(op));
        }
        self.counts.ops += 1;
        let times = Times { pushed: self.turn, submitted: self.turn, reaped: self.turn };
        let holding = self.holdings.get_mut(op.holding()).filter(|holding| !holding.closing);
        let flies = holding.is_some() || matches!(op, Op::Open(_));
        self.in_flight += usize::from(flies);
        if let Some(holding) = holding {
            holding.in_flight += 1;
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

    /// An operation that is out, and its socket or file; none where one is to be opened.
    pub(super) fn flight(&mut self, name: Name) -> Option<(&mut Op, Option<&mut S>)> {
        let flight = self.flights.get_mut(name).filter(|flight| flight.result.is_none())?;
        let holding = self.holdings.get_mut(flight.op.holding());
        Some((&mut flight.op, holding.map(|holding| &mut holding.inner)))
    }

    /// A file to be opened that is out.
    pub(super) fn opening(&mut self, name: Name) -> Option<&mut Opening> {
        match self.flight(name) {
            Some((Op::Open(opening), _)) => Some(opening),
            _ => None,
        }
    }

    /// Takes in what an operation opened; gives it back when all files are open.
    pub(super) fn opened(&mut self, name: Name, inner: S) -> Result<FileId, S> {
        let file = FileId::from(self.take_in(inner, true)?);
        if let Some(opening) = self.opening(name) {
            opening.file = Some(file);
        }
        Ok(file)
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

    /// Whether somebody asked for it back.
    #[cfg(feature = "tokio-uring")]
    pub(super) fn is_cancelled(&self, name: Name) -> bool {
        self.flights.get(name).is_some_and(|flight| flight.cancelled)
    }

    /// Starts closing a socket or a file: stale to the caller from now on. Returns the operations to be cancelled.
    pub(super) fn close(&mut self, id: Name) -> Vec<Name> {
        let Some(holding) = self.holdings.get_mut(id).filter(|holding| !holding.closing) else { return Vec::new() };
        holding.closing = true;
        if holding.in_flight == 0 {
            self.closable.push(id);
            return Vec::new();
        }
        self.out(|op| op.holding() == id)
    }

    /// Operations that have not come back and are such.
    pub(super) fn out(&self, such: impl Fn(&Op) -> bool) -> Vec<Name> {
        let out = self.flights.iter().filter(|(_, flight)| flight.result.is_none() && such(&flight.op));
        out.map(|(name, _)| name).collect()
    }

    /// Stamps what the next submission takes along, and starts a turn.
    pub(super) fn submitting(&mut self, now: Instant) {
        self.turn = now;
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
        let result = match (kernel, &flight.op) {
            // What a read brought into the padding is nobody's.
            (0.., Op::ReadAt { into, .. }) => Ok((kernel as usize).min(into.room())),
            (0.., _) => Ok(kernel as usize),
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
            (Op::ReadAt { into, .. }, Ok(n)) => {
                into.fill(n);
                self.counts.read_bytes += n as u64;
            }
            (Op::WriteAt { .. }, Ok(n)) => self.counts.written_bytes += n as u64,
            _ => {}
        }
        flight.result = Some(result);
        flight.times.reaped = self.turn;
        let id = flight.op.holding();
        self.ready.push_back(name);
        self.in_flight -= 1;
        if let Some(holding) = self.holdings.get_mut(id) {
            holding.in_flight -= 1;
            if holding.closing && holding.in_flight == 0 {
                self.closable.push(id);
            }
        }
    }

    /// Takes out the next closing socket or file whose last operation came back: its place in the table and what is kept.
    pub(super) fn take_closable(&mut self) -> Option<(u32, S)> {
        let id = self.closable.pop()?;
        self.discard(id).map(|inner| (id.index, inner))
    }

    /// Takes a socket or file out at once that no operation is on.
    pub(super) fn discard(&mut self, id: Name) -> Option<S> {
        let holding = self.holdings.remove(id)?;
        *(if holding.is_file { &mut self.files_left } else { &mut self.sockets_left }) += 1;
        Some(holding.inner)
    }

    /// What is kept of an open socket or file.
    pub(super) fn held(&self, id: Name) -> Option<&S> {
        self.holdings.get(id).map(|holding| &holding.inner)
    }

    /// Open sockets and files, and what is kept of each.
    pub(super) fn holdings(&self) -> impl Iterator<Item = (Name, &S)> {
        self.holdings.iter().map(|(name, holding)| (name, &holding.inner))
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
