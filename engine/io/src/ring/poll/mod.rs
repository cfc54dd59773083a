//! The portable back-end: epoll for sockets, a few threads for files. For machines and containers that refuse io_uring.
//!
//! An operation is first tried; only one that finds its socket not ready waits for an edge. No memory is ever in the
//! kernel's hands outside a call, so cancelling is certain and immediate, except for a file operation that a thread has
//! begun: its memory is the pool's until it is done.

mod calls;
mod epoll;
mod lines;
mod pool;

use core::marker::PhantomData;
use std::fs::File;
use std::net::SocketAddr;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;

use fuelrail_base::limits::RING_FILES_MAX;
use fuelrail_base::{Duration, Error, Instant, Kind, Result};

use self::calls::on_socket;
use self::epoll::Epoll;
use self::lines::Lines;
use self::pool::{Job, Outcome, Pool};
use super::desk::Desk;
use super::file::{FileOptions, files_open, open_file};
use super::opening::Opening;
use super::patience::Patience;
use super::socket::{Blocking, sockets_open, tcp_socket};
use super::table::Name;
use super::uring::UringConfig;
use super::wires::Wires;
use super::{Done, FileId, Full, Op, OpId, Ring, RingFacts, SockId};
use crate::clock::monotonic_now;
use crate::directory::OwnDirectory;
use crate::fork::ForkGuard;
use crate::wake::Waker;

/// The waker's number for epoll. No place in the table has it.
const WAKE: u64 = u64::MAX;

/// What the ring holds open.
enum Held {
    Sock(OwnedFd),
    /// Shared with the threads that work on it.
    File(Arc<File>),
}

/// A ring on epoll. Must be used on the thread that made it.
pub struct PollRing {
    desk: Desk<Held>,
    lines: Lines,
    epoll: Epoll,
    pool: Pool,
    /// File operations pushed and not handed over.
    jobs: Vec<Job>,
    outcomes: Vec<Outcome>,
    /// Describes the one operation that is being tried.
    wires: Wires,
    patience: Patience,
    /// The last turn did not look at epoll, because there was something to do anyway.
    overdue: bool,
    waker: Waker,
    guard: ForkGuard,
    not_send: PhantomData<*const ()>,
}

impl PollRing {
    /// Opens a ring. Memory cannot be registered with it: `config.register` is of no consequence here.
    ///
    /// # Errors
    /// As [`UringConfig::validate`]; `Environment` when the process has no file descriptor left.
    pub fn new(config: &UringConfig) -> Result<PollRing> {
        config.validate()?;
        let places = config.sockets + RING_FILES_MAX;
        let (waker, epoll) = (Waker::eventfd()?, Epoll::new()?);
        if let Some(fd) = waker.event_fd() {
            // The counter is never read: every write is an edge.
            epoll.add(fd, WAKE).map_err(|errno| Error::from_errno(Kind::Environment, "polling an eventfd", errno))?;
        }
        Ok(PollRing {
            desk: Desk::new(config.entries, config.sockets, monotonic_now()),
            lines: Lines::new(places),
            epoll,
            pool: Pool::new(waker.clone()),
            jobs: Vec::new(),
            outcomes: Vec::new(),
            wires: Wires::new(1),
            patience: Patience::new(places),
            overdue: false,
            waker,
            guard: ForkGuard::new(),
            not_send: PhantomData,
        })
    }

    /// Tries what waits on every line that is worth a try.
    fn serve(&mut self) {
        while let Some(index) = self.lines.next_due() {
            while self.lines.line(index).inward.open && self.serve_next(index, true) {}
            while self.lines.line(index).outward.open && self.serve_next(index, false) {}
        }
    }

    /// Tries the oldest operation of one direction. False when there is none or it must wait.
    fn serve_next(&mut self, index: u32, inward: bool) -> bool {
        let line = self.lines.line(index);
        let way = if inward { &mut line.inward } else { &mut line.outward };
        let Some(name) = way.queue.front().copied() else { return false };
        let Some((op, Held::Sock(fd))) = self.desk.flight(name) else { unreachable!("{name:?} waits on a socket") };
        let asked = match op {
            Op::Recv { into, .. } => {
                self.patience.wake_for(index, fd, into.patience_bytes());
                into.asked()
            }
            Op::Send { bytes, from, .. } => bytes.len() - *from,
            _ => 0,
        };
        let mut result = on_socket(op, fd.as_raw_fd(), &mut self.wires);
        if result == -libc::EAGAIN {
            way.open = false;
            if line.watched {
                self.desk.counts.enters += 1;
                return false;
            }
            line.watched = true;
            match self.epoll.add(fd.as_raw_fd(), u64::from(index)) {
                Ok(()) => {
                    self.desk.counts.enters += 2;
                    return false;
                }
                Err(errno) => result = -errno,
            }
        }
        self.desk.counts.enters += 1;
        let drained = line.drained();
        let way = if inward { &mut line.inward } else { &mut line.outward };
        way.queue.pop_front();
        if drained && (1..asked as i64).contains(&i64::from(result)) {
            way.open = false;
        }
        self.desk.land(name, result);
        true
    }

    /// Looks at epoll, and sleeps in it at most `limit`.
    fn look(&mut self, limit: Option<Duration>) -> Result<()> {
        self.desk.counts.enters += 1;
        self.desk.counts.sleeps += u64::from(limit != Some(Duration::ZERO));
        let waited = self.epoll.wait(limit);
        self.desk.begin_turn(monotonic_now());
        waited.map_err(|errno| Error::from_errno(Kind::Environment, "waiting with epoll", errno))?;
        for event in self.epoll.events() {
            match event.number {
                WAKE => self.desk.counts.wakes += 1,
                index => self.lines.note(index as u32, event),
            }
        }
        Ok(())
    }

    /// Takes in what the threads have done.
    fn collect(&mut self) {
        let mut outcomes = core::mem::take(&mut self.outcomes);
        self.pool.collect(&mut outcomes);
        for Outcome { name, op, result } in outcomes.drain(..) {
            self.put_back(name, op);
            let opened = self.desk.opening(name).and_then(Opening::take_fd);
            let file = opened.map(|fd| self.desk.opened(name, Held::File(Arc::new(File::from(fd)))));
            let full = file.is_some_and(|file| file.is_err());
            self.desk.land(name, if full { -libc::EMFILE } else { result });
        }
        self.outcomes = outcomes;
    }

    /// Moves a file operation out of the books; a sync of the same file stands in for it.
    fn job(&mut self, name: Name) -> Option<Job> {
        let file = match self.desk.flight(name) {
            Some((_, Held::File(file))) => Some(file.clone()),
            _ => None,
        };
        let op = self.desk.op(name)?;
        let stand_in = Op::SyncData { file: FileId::from(op.holding()) };
        Some(Job { name, op: core::mem::replace(op, stand_in), file })
    }

    fn put_back(&mut self, name: Name, op: Op) {
        if let Some(place) = self.desk.op(name) {
            *place = op;
        }
    }

    /// Asks for an operation back. In a forked child nothing may be touched: epoll is the parent's, too, and the pool's lock
    /// may be held by a thread that does not exist here.
    fn ask_back(&mut self, name: Name) {
        if self.guard.holds() && self.desk.mark_cancelled(name) {
            self.recall(name);
        }
    }

    /// Brings an operation just marked as asked back home, unless a thread has begun it.
    fn recall(&mut self, name: Name) {
        if let Some((op, Held::Sock(_))) = self.desk.flight(name) {
            let index = op.holding().index;
            self.lines.give_up(index, name);
            return self.desk.land(name, -libc::ECANCELED);
        }
        let pushed = self.jobs.iter().position(|job| job.name == name).map(|at| self.jobs.remove(at));
        if let Some(job) = pushed.or_else(|| self.pool.take_back(name)) {
            self.put_back(name, job.op);
            self.desk.land(name, -libc::ECANCELED);
        }
    }

    /// Closes a socket or a file; in a forked child it stays open, as said above.
    fn put_away(&mut self, id: Name) {
        if !self.guard.holds() {
            return;
        }
        let mut flying = Vec::new();
        self.desk.close(id, &mut flying);
        for name in flying {
            self.recall(name);
        }
        self.close_idle();
    }

    fn close_idle(&mut self) {
        while let Some((index, held)) = self.desk.take_closable() {
            if let Held::Sock(fd) = held
                && self.lines.line(index).watched
            {
                self.epoll.remove(fd.as_raw_fd());
            }
        }
    }
}

impl Ring for PollRing {
    fn now(&self) -> Instant {
        monotonic_now()
    }

    fn socket(&mut self, addr: &SocketAddr) -> Result<SockId> {
        self.guard.check()?;
        let id = self.desk.open(Held::Sock(tcp_socket(addr, Blocking::No)?)).map_err(|_| sockets_open())?;
        self.lines.begin(id.index);
        self.patience.reset(id.index);
        Ok(id)
    }

    fn close(&mut self, sock: SockId) {
        self.put_away(sock.into());
    }

    fn open_in(&mut self, directory: Option<&OwnDirectory>, path: &Path, options: &FileOptions) -> Result<FileId> {
        self.guard.check()?;
        self.pool.start()?;
        let file = Arc::new(File::from(open_file(directory, path, options)?));
        self.desk.open_file(Held::File(file)).map_err(|_| files_open())
    }

    fn close_file(&mut self, file: FileId) {
        self.put_away(file.into());
    }

    fn push(&mut self, op: Op, token: u64) -> Result<OpId, Full> {
        op.check();
        let (inward, on_file) = (matches!(op, Op::Recv { .. }), op.sock().is_none());
        let index = op.holding().index;
        if matches!(op, Op::Open(_)) && self.pool.start().is_err() {
            // As when the ring has no room: later there may be a thread to be had.
            return Err(Full(op));
        }
        let (name, flies) = self.desk.book(op, token)?;
        if flies && on_file {
            let job = self.job(name);
            self.jobs.extend(job);
        } else if flies {
            let line = self.lines.line(index);
            let way = if inward { &mut line.inward } else { &mut line.outward };
            way.queue.push_back(name);
            self.lines.list(index);
        }
        Ok(name.into())
    }

    fn cancel(&mut self, op: OpId) {
        self.ask_back(op.into());
    }

    fn wait(&mut self, until: Option<Instant>) -> Result<()> {
        self.guard.check()?;
        let now = monotonic_now();
        self.desk.begin_turn(now);
        self.desk.submitting(now);
        self.pool.submit(&mut self.jobs);
        self.serve();
        let limit = until.map(|until| until.since(now));
        let busy = self.desk.has_ready();
        // What is done already is handed over first; but never twice without a look at what else has come.
        self.overdue = busy && !self.overdue;
        if !self.overdue {
            let sleeps = !busy && limit != Some(Duration::ZERO);
            let asleep = sleeps && self.waker.arm();
            let looked = self.look(if asleep { limit } else { Some(Duration::ZERO) });
            if sleeps {
                self.waker.disarm();
            }
            looked?;
            self.serve();
        }
        self.collect();
        self.close_idle();
        Ok(())
    }

    fn pop(&mut self) -> Option<Done> {
        self.desk.pop()
    }

    fn in_flight(&self) -> usize {
        self.desk.in_flight
    }

    fn waker(&self) -> Waker {
        self.waker.clone()
    }

    fn facts(&self) -> RingFacts {
        RingFacts {
            backend: "poll",
            abilities: vec!["edge-triggered epoll", "file threads"],
            refusals: Vec::new(),
            counts: self.desk.counts,
        }
    }
}

impl Drop for PollRing {
    fn drop(&mut self) {
        if !self.guard.holds() {
            // The threads, and what they work on, are the parent's.
            self.pool.forget();
        }
    }
}
