//! The portable back-end: epoll for sockets, a few threads for files. For machines and containers that refuse io_uring.
//!
//! An operation is first tried; only one that finds its socket not ready waits for an edge. The kernel
//! uses memory only during a call, so cancelling is certain and immediate, except for a file operation that a thread has
//! begun: its memory is the pool's until it is done.

mod epoll;
mod pool;

use std::fs::File;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;

use fuelrail_base::limits::RING_FILES_MAX;
use fuelrail_base::{Duration, Error, Kind, Result};

use self::epoll::{Epoll, ReadinessTable};
use self::pool::{Job, Outcome, Pool};
use super::calls::{MsghdrTable, on_socket};
use super::file::{FileOptions, Opening};
use super::kernel::{Abilities, Backend, Blocking, Descriptor, KernelRing};
use super::op_table::OpTable;
use super::table::Name;
use super::uring::UringConfig;
use super::{FileId, Op};
use crate::directory::OwnDirectory;
use crate::wake::Waker;

/// The waker's number for epoll. No place in the table has it.
const WAKE: u64 = u64::MAX;

/// What the ring holds open.
pub enum Held {
    Sock(Descriptor),
    /// Shared with the threads that work on it.
    File(Arc<File>),
}

impl From<OwnedFd> for Held {
    fn from(fd: OwnedFd) -> Held {
        Held::Sock(fd.into())
    }
}

/// A ring on epoll. Must be used on the thread that made it.
pub type PollRing = KernelRing<Poll>;

/// The way to the kernel through epoll.
pub struct Poll {
    ops: OpTable<Held>,
    readiness: ReadinessTable,
    epoll: Epoll,
    pool: Pool,
    /// File operations pushed and not handed over.
    jobs: Vec<Job>,
    outcomes: Vec<Outcome>,
    /// Describes the operation that is being tried.
    msghdrs: MsghdrTable,
    /// The last iteration skipped epoll, because completions were ready.
    overdue: bool,
}

impl PollRing {
    /// Opens a ring. Memory cannot be registered with it: `config.register` is ignored.
    ///
    /// # Errors
    /// As [`UringConfig::validate`]; `Environment` when the process has no file descriptor left.
    pub fn new(config: &UringConfig) -> Result<PollRing> {
        config.validate()?;
        let (waker, epoll) = (Waker::eventfd()?, Epoll::new()?);
        if let Some(fd) = waker.event_fd() {
            // The counter is never read: every write is an edge.
            epoll.add(fd, WAKE).map_err(|errno| Error::from_errno(Kind::Environment, "polling an eventfd", errno))?;
        }
        let poll = Poll {
            ops: OpTable::new(config.entries, config.sockets),
            readiness: ReadinessTable::new(config.sockets + RING_FILES_MAX),
            epoll,
            pool: Pool::new(waker.clone()),
            jobs: Vec::new(),
            outcomes: Vec::new(),
            msghdrs: MsghdrTable::new(1),
            overdue: false,
        };
        let used = vec!["edge-triggered epoll", "file threads"];
        Ok(KernelRing::over(poll, waker, Abilities { used, ..Abilities::default() }))
    }
}

impl Poll {
    /// Tries the waiting operations of every ready socket.
    fn serve(&mut self) {
        while let Some(index) = self.readiness.next_due() {
            for inward in [true, false] {
                while self.readiness.socket(index).direction(inward).ready && self.serve_next(index, inward) {}
            }
        }
    }

    /// Tries the oldest operation of one direction. False when there is none or it must wait.
    fn serve_next(&mut self, index: u32, inward: bool) -> bool {
        let state = self.readiness.socket(index);
        let Some(name) = state.direction(inward).queue.front().copied() else { return false };
        let Some((op, Some(Held::Sock(sock)))) = self.ops.flight(name) else {
            unreachable!("{name:?} waits on a socket")
        };
        let asked = match op {
            Op::Recv { into, .. } => {
                sock.wake_for(into.patience_bytes());
                into.asked()
            }
            Op::Send { bytes, from, .. } => bytes.len() - *from,
            _ => 0,
        };
        let mut result = on_socket(op, sock.fd.as_raw_fd(), &mut self.msghdrs);
        if result == -libc::EAGAIN {
            state.direction(inward).ready = false;
            if state.watched {
                self.ops.counts.enters += 1;
                return false;
            }
            state.watched = true;
            match self.epoll.add(&sock.fd, u64::from(index)) {
                Ok(()) => {
                    self.ops.counts.enters += 2;
                    return false;
                }
                Err(errno) => result = -errno,
            }
        }
        self.ops.counts.enters += 1;
        state.direction(inward).queue.pop_front();
        if state.drained() && (1..asked as i64).contains(&i64::from(result)) {
            state.direction(inward).ready = false;
        }
        self.ops.complete(name, result);
        true
    }

    /// Looks at epoll, and sleeps in it at most `limit`.
    fn look(&mut self, limit: Option<Duration>) -> Result<()> {
        self.ops.counts.enters += 1;
        self.ops.counts.sleeps += u64::from(limit != Some(Duration::ZERO));
        let waited = self.epoll.wait(limit);
        waited.map_err(|errno| Error::from_errno(Kind::Environment, "waiting with epoll", errno))?;
        for event in self.epoll.events().filter(|event| event.number != WAKE) {
            self.readiness.note(event.number as u32, event);
        }
        Ok(())
    }

    /// Completes the operations that the threads have done.
    fn collect(&mut self) {
        let mut outcomes = core::mem::take(&mut self.outcomes);
        self.pool.collect(&mut outcomes);
        for Outcome { name, op, result } in outcomes.drain(..) {
            self.put_back(name, op);
            let opened = self.ops.opening(name).and_then(Opening::take_fd);
            let file = opened.map(|fd| self.ops.opened(name, Held::File(Arc::new(File::from(fd)))));
            let full = file.is_some_and(|file| file.is_err());
            self.ops.complete(name, if full { -libc::EMFILE } else { result });
        }
        self.outcomes = outcomes;
    }

    fn put_back(&mut self, name: Name, op: Op) {
        if let Some((place, _)) = self.ops.flight(name) {
            *place = op;
        }
    }
}

impl Backend for Poll {
    type Held = Held;
    const NAME: &'static str = "poll";
    const BLOCKING: Blocking = Blocking::No;

    fn ops(&self) -> &OpTable<Held> {
        &self.ops
    }

    fn ops_mut(&mut self) -> &mut OpTable<Held> {
        &mut self.ops
    }

    fn hold_file(&mut self, fd: OwnedFd, _: Option<&OwnDirectory>, _: &Path, _: &FileOptions) -> Result<Held> {
        self.pool.start()?;
        Ok(Held::File(Arc::new(File::from(fd))))
    }

    fn taken_in(&mut self, id: Name) -> Result<()> {
        self.readiness.begin(id.index);
        Ok(())
    }

    fn end(&mut self, index: u32, held: Held) {
        if let Held::Sock(sock) = held
            && self.readiness.socket(index).watched
        {
            self.epoll.remove(&sock.fd);
        }
    }

    fn start(&mut self, name: Name) {
        let Some((op, held)) = self.ops.flight(name) else { unreachable!("{name:?} was just registered") };
        let file = match held {
            Some(Held::File(file)) => Some(file.clone()),
            Some(Held::Sock(_)) => {
                let (index, inward) = (op.holding().index, matches!(op, Op::Recv { .. }));
                self.readiness.socket(index).direction(inward).queue.push_back(name);
                return self.readiness.list(index);
            }
            // An opening needs a thread, and fails where none can be started.
            None if self.pool.start().is_err() => return self.ops.complete(name, -libc::EAGAIN),
            None => None,
        };
        // A sync of the same file stands in for the operation, which moves to the thread.
        let stand_in = Op::SyncData { file: FileId::from(op.holding()) };
        self.jobs.push(Job { name, op: core::mem::replace(op, stand_in), file });
    }

    /// Cancels an operation, unless a thread has begun it.
    fn request_cancel(&mut self, name: Name) {
        if let Some((op, Some(Held::Sock(_)))) = self.ops.flight(name) {
            let index = op.holding().index;
            self.readiness.give_up(index, name);
            return self.ops.complete(name, -libc::ECANCELED);
        }
        let pushed = self.jobs.iter().position(|job| job.name == name).map(|at| self.jobs.remove(at));
        if let Some(job) = pushed.or_else(|| self.pool.take_back(name)) {
            self.put_back(name, job.op);
            self.ops.complete(name, -libc::ECANCELED);
        }
    }

    fn submit(&mut self) {
        self.pool.submit(&mut self.jobs);
        self.serve();
    }

    fn enter(&mut self, sleep: bool, limit: Option<Duration>) -> Result<()> {
        // Ready completions are handed over first; but never twice in a row without a look at epoll.
        self.overdue = self.ops.has_ready() && !self.overdue;
        if self.overdue {
            return Ok(());
        }
        self.look(if sleep { limit } else { Some(Duration::ZERO) })?;
        self.serve();
        Ok(())
    }

    fn reap(&mut self) {
        self.collect();
    }
}
