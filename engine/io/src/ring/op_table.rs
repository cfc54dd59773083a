//! The op table of a ring: operations in flight, the sockets and files they are on, and completions to be popped.
//!
//! Shared by the back-ends, so that ids, cancellation, closing and accounting mean the same on all of them. Of the kernel or the
//! simulated world it knows only results; `S` is what a back-end keeps per socket or file. Both kinds are in one table, so that
//! one name serves for both, and one table in the kernel.

use std::collections::VecDeque;

use fuelrail_base::limits::RING_FILES_MAX;

use super::file::Opening;
use super::table::{Name, Table};
use super::{Done, FileId, Full, Op, RingCounts};

struct Flight {
    op: Op,
    token: u64,
    /// Its cancellation was requested.
    cancelled: bool,
    /// Set when it completed.
    result: Option<Result<usize, i32>>,
}

/// A socket or a file.
struct Holding<S> {
    inner: S,
    is_file: bool,
    /// Operations on it that have not completed.
    in_flight: u32,
    closing: bool,
}

pub struct OpTable<S> {
    flights: Table<Flight>,
    holdings: Table<Holding<S>>,
    /// Free places for sockets and for files: two separate limits.
    sockets_left: u32,
    files_left: u32,
    ready: VecDeque<Name>,
    /// Closing sockets and files whose last operation has completed.
    closable: Vec<Name>,
    pub(super) counts: RingCounts,
    pub(super) in_flight: usize,
}

impl<S> OpTable<S> {
    /// A table for so many operations and sockets, and [`RING_FILES_MAX`] files.
    pub(super) fn new(entries: u32, sockets: u32) -> OpTable<S> {
        OpTable {
            flights: Table::new(entries),
            holdings: Table::new(sockets + RING_FILES_MAX),
            sockets_left: sockets,
            files_left: RING_FILES_MAX,
            ready: VecDeque::with_capacity(entries as usize),
            closable: Vec::with_capacity((sockets + RING_FILES_MAX) as usize),
            counts: RingCounts::default(),
            in_flight: 0,
        }
    }

    pub(super) fn has_place_for_file(&self) -> bool {
        self.files_left > 0
    }

    /// Adds a socket or a file; gives it back when all places of its kind are taken.
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

    /// Registers an operation. The flag says whether it goes to the kernel: on a stale socket or file it is complete at once.
    pub(super) fn register(&mut self, op: Op, token: u64) -> Result<(Name, bool), Full> {
        if self.flights.is_full() {
            return Err(Full(op));
        }
        self.counts.ops += 1;
        let holding = self.holdings.get_mut(op.holding()).filter(|holding| !holding.closing);
        let submits = holding.is_some() || matches!(op, Op::Open(_));
        self.in_flight += usize::from(submits);
        if let Some(holding) = holding {
            holding.in_flight += 1;
        }
        let result = if submits { None } else { Some(Err(libc::EBADF)) };
        let flight = Flight { op, token, cancelled: false, result };
        let Ok(name) = self.flights.insert(flight) else { unreachable!("room was checked above") };
        if !submits {
            self.ready.push_back(name);
        }
        Ok((name, submits))
    }

    /// An operation in flight, and its socket or file; none where one is to be opened.
    pub(super) fn flight(&mut self, name: Name) -> Option<(&mut Op, Option<&mut S>)> {
        let flight = self.flights.get_mut(name).filter(|flight| flight.result.is_none())?;
        let holding = self.holdings.get_mut(flight.op.holding());
        Some((&mut flight.op, holding.map(|holding| &mut holding.inner)))
    }

    /// The file to be opened by this operation, while it is in flight.
    pub(super) fn opening(&mut self, name: Name) -> Option<&mut Opening> {
        match self.flight(name) {
            Some((Op::Open(opening), _)) => Some(opening),
            _ => None,
        }
    }

    /// Adds the file that an operation opened; gives it back when all files are open.
    pub(super) fn opened(&mut self, name: Name, inner: S) -> Result<FileId, S> {
        let file = FileId::from(self.take_in(inner, true)?);
        if let Some(opening) = self.opening(name) {
            opening.file = Some(file);
        }
        Ok(file)
    }

    /// Marks an operation as cancelled; false when it has completed.
    pub(super) fn mark_cancelled(&mut self, name: Name) -> bool {
        match self.flights.get_mut(name) {
            Some(flight) if flight.result.is_none() => {
                flight.cancelled = true;
                true
            }
            _ => false,
        }
    }

    /// Whether its cancellation was requested.
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

    /// Operations in flight that `matches` selects.
    pub(super) fn out(&self, matches: impl Fn(&Op) -> bool) -> Vec<Name> {
        let out = self.flights.iter().filter(|(_, flight)| flight.result.is_none() && matches(&flight.op));
        out.map(|(name, _)| name).collect()
    }

    /// Completes an operation with the kernel's result: a count, or a negative error number.
    pub(super) fn complete(&mut self, name: Name, kernel: i32) {
        let Some(flight) = self.flights.get_mut(name).filter(|flight| flight.result.is_none()) else {
            debug_assert!(false, "a completion for {name:?}, which is not in flight");
            return;
        };
        let result = match (kernel, &flight.op) {
            // Bytes read into the padding do not count.
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
            (Op::ReadAt { into, .. }, Ok(n)) => {
                into.fill(n);
                self.counts.read_bytes += n as u64;
            }
            (Op::WriteAt { .. }, Ok(n)) => self.counts.written_bytes += n as u64,
            _ => {}
        }
        flight.result = Some(result);
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

    /// Removes the next closing socket or file whose last operation has completed: its place in the table and what is kept of it.
    pub(super) fn take_closable(&mut self) -> Option<(u32, S)> {
        let id = self.closable.pop()?;
        self.discard(id).map(|inner| (id.index, inner))
    }

    /// Removes a socket or file that has no operation in flight.
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
        Some(Done { token: flight.token, op: flight.op, result })
    }
}
