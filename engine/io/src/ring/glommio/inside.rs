//! What one stay in the executor works on: the op table, the connections' queues, the files' jobs and the wake bridge of all of them.
//!
//! Tasks of the bridge are numbered: two for each place of the table of sockets and files (receives, and connects and sends), then one
//! for each operation (its job, when it is on a file), then one for the waker. Operations on one side of a connection
//! take turns; each job is on its own.

use core::future::{Future, poll_fn};
use core::pin::{Pin, pin};
use core::task::{Context, Poll};
use std::collections::VecDeque;
use std::os::fd::{AsRawFd, FromRawFd, IntoRawFd, OwnedFd};

use fuelrail_base::Duration;
use fuelrail_base::limits::RING_FILES_MAX;
use futures_io::{AsyncRead, AsyncWrite};
use glommio::net::{TcpStream, UnixStream};
use glommio::timer::Timer;

use super::files::{FileHandle, Job, JobOutput};
use crate::ring::Op;
use crate::ring::calls::{MsghdrTable, on_socket};
use crate::ring::op_table::OpTable;
use crate::ring::table::Name;
use crate::ring::uring::UringConfig;
use crate::ring::wake_bridge::WakeBridge;

/// A socket or a file.
pub enum Holding {
    Conn(Conn),
    File(FileHandle),
}

impl From<OwnedFd> for Holding {
    fn from(fd: OwnedFd) -> Holding {
        Holding::Conn(Conn::new(fd))
    }
}

pub(super) struct Inside {
    pub(super) ops: OpTable<Holding>,
    /// Describes the one operation that is being tried.
    msghdrs: MsghdrTable,
    /// Operations on each side of each connection, the first of them active, at their task's number. May name
    /// operations that have completed.
    queues: Box<[VecDeque<Name>]>,
    /// Jobs on files, at their operation's place.
    jobs: Box<[Option<(Name, Job)>]>,
    bridge: WakeBridge,
    /// Numbers of the woken tasks, kept for its memory.
    notified: Vec<u32>,
    /// Operations to be begun by the next iteration.
    pub(super) backlog: Vec<Name>,
    /// The end that wakers write to.
    wakes: UnixStream,
    woken: bool,
    /// Files closed by the caller; glommio closes them when it is entered.
    closing: Vec<FileHandle>,
}

impl Inside {
    /// In the executor's context. `wakes` is the end of a pair of non-blocking sockets that wakers write to.
    pub(super) fn new(config: &UringConfig, wakes: OwnedFd) -> Inside {
        let (entries, places) = (config.entries, config.sockets + RING_FILES_MAX);
        // SAFETY: the descriptor is open and given up here: the stream is its only owner from now on.
        let wakes = unsafe { UnixStream::from_raw_fd(wakes.into_raw_fd()) };
        let mut inside = Inside {
            ops: OpTable::new(entries, config.sockets),
            msghdrs: MsghdrTable::new(1),
            queues: (0..2 * places).map(|_| VecDeque::new()).collect(),
            jobs: (0..entries).map(|_| None).collect(),
            bridge: WakeBridge::new(2 * places + entries + 1),
            notified: Vec::with_capacity((2 * places + entries + 1) as usize),
            backlog: Vec::with_capacity(entries as usize),
            wakes,
            woken: false,
            closing: Vec::with_capacity(RING_FILES_MAX as usize),
        };
        inside.hear_wakes();
        inside
    }

    fn first_job(&self) -> u32 {
        self.queues.len() as u32
    }

    /// Begins everything queued. In the executor's context.
    pub(super) fn submit(&mut self) {
        let mut backlog = core::mem::take(&mut self.backlog);
        for name in backlog.drain(..) {
            // Completed already: cancelled before it was begun.
            let Some((op, held)) = self.ops.flight(name) else { continue };
            let copied = match op {
                Op::WriteAt { from, start, .. } => from.len() - *start,
                _ => 0,
            };
            let started = match (op, held) {
                (op, Some(Holding::Conn(_))) => {
                    let number = 2 * op.holding().index + u32::from(!matches!(op, Op::Recv { .. }));
                    self.queues[number as usize].push_back(name);
                    self.work(number);
                    continue;
                }
                (Op::Open(opening), _) => Ok(FileHandle::start_open(opening)),
                (op, Some(Holding::File(handle))) => handle.start(op),
                (op, None) => unreachable!("{op:?} is on something open"),
            };
            match started {
                Ok(job) => {
                    self.ops.counts.copied_bytes += copied as u64;
                    self.jobs[name.index as usize] = Some((name, job));
                    self.look_at_job(name.index);
                }
                Err(errno) => self.ops.complete(name, -errno),
            }
        }
        self.backlog = backlog;
    }

    /// Looks at the notified tasks. Whether an operation completed or a waker woke this ring.
    pub(super) fn collect(&mut self) -> bool {
        let mut notified = core::mem::take(&mut self.notified);
        self.bridge.take(&mut notified);
        if notified.is_empty() {
            self.notified = notified;
            return false;
        }
        let before = self.ops.in_flight;
        let (first_job, wake) = (self.first_job(), self.first_job() + self.jobs.len() as u32);
        for number in notified.drain(..) {
            if number < first_job {
                self.work(number);
            } else if number < wake {
                self.look_at_job(number - first_job);
            } else {
                self.hear_wakes();
            }
        }
        self.notified = notified;
        core::mem::take(&mut self.woken) | (self.ops.in_flight < before)
    }

    /// Waits for a completion or a wake, at most for `limit`.
    pub(super) async fn stay(&mut self, limit: Option<Duration>) {
        let mut limit = pin!(limit.map(Timer::new));
        poll_fn(|context| {
            self.bridge.listen(context.waker());
            let over = limit.as_mut().as_pin_mut().is_some_and(|timer| timer.poll(context).is_ready());
            if self.collect() || over { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
    }

    pub(super) fn unlisten(&self) {
        self.bridge.unlisten();
    }

    /// Advances the operations on one side of a connection until none is left or one has to wait.
    fn work(&mut self, number: u32) {
        while let Some(name) = self.queues[number as usize].front().copied() {
            let step = match self.ops.flight(name) {
                // Completed already: cancelled.
                None => Poll::Ready(None),
                Some((op, Some(Holding::Conn(conn)))) => {
                    let mut context = Context::from_waker(self.bridge.waker(number));
                    conn.advance(op, &mut self.msghdrs, &mut context).map(Some)
                }
                Some((op, _)) => unreachable!("{op:?} is on a file"),
            };
            let Poll::Ready(result) = step else { return };
            self.queues[number as usize].pop_front();
            if let Some(result) = result {
                self.ops.complete(name, result);
            }
        }
    }

    fn look_at_job(&mut self, index: u32) {
        let Some((name, job)) = &mut self.jobs[index as usize] else { return };
        let name = *name;
        let mut context = Context::from_waker(self.bridge.waker(self.queues.len() as u32 + index));
        let Poll::Ready(result) = job.as_mut().poll(&mut context) else { return };
        self.jobs[index as usize] = None;
        let result = match (result, self.ops.flight(name).map(|(op, _)| op)) {
            (Ok(JobOutput::Bytes(bytes)), Some(Op::ReadAt { into, .. })) => {
                // The op table moves the cursor.
                into.read_in(&bytes);
                self.ops.counts.copied_bytes += bytes.len() as u64;
                bytes.len() as i32
            }
            (Ok(JobOutput::Count(n)), _) => n as i32,
            (Ok(JobOutput::Facts(found, result)), Some(Op::Stat { facts, .. })) => {
                *facts = found;
                result
            }
            (Ok(JobOutput::Opened(handle)), _) => match self.ops.opened(name, Holding::File(handle)) {
                Ok(_) => 0,
                Err(holding) => {
                    self.end(holding);
                    -libc::EMFILE
                }
            },
            (Err(errno), _) => -errno,
            (Ok(JobOutput::Bytes(_) | JobOutput::Facts(..)), other) => unreachable!("a result of {other:?}"),
        };
        self.ops.complete(name, result);
    }

    /// Reads what wakers wrote, and polls for more.
    fn hear_wakes(&mut self) {
        let number = self.first_job() + self.jobs.len() as u32;
        let mut context = Context::from_waker(self.bridge.waker(number));
        let mut written = [0; 64];
        while let Poll::Ready(Ok(1..)) = Pin::new(&mut self.wakes).poll_read(&mut context, &mut written) {
            self.woken = true;
        }
    }

    /// Cancels an operation: at once, unless it is on a file and in flight, when it completes by itself.
    pub(super) fn request_cancel(&mut self, name: Name) {
        if self.jobs[name.index as usize].is_none() {
            self.ops.complete(name, -libc::ECANCELED);
        }
    }

    /// Closes what had this place in the table.
    pub(super) fn end_at(&mut self, index: u32, holding: Holding) {
        for side in 0..2 {
            self.queues[(2 * index + side) as usize].clear();
        }
        self.end(holding);
    }

    fn end(&mut self, holding: Holding) {
        match holding {
            Holding::Conn(conn) => drop(conn),
            Holding::File(handle) => self.closing.push(handle),
        }
    }

    /// Lets glommio close the files that have ended. In the executor's context.
    pub(super) async fn close_ended(&mut self) {
        for handle in self.closing.drain(..) {
            handle.close().await;
        }
    }

    /// Closes everything. No operation may be in flight. In the executor's context.
    pub(super) async fn close_all(&mut self) {
        let all: Vec<Name> = self.ops.holdings().map(|(id, _)| id).collect();
        for id in all {
            self.ops.discard(id).into_iter().for_each(|holding| self.end(holding));
        }
        self.close_ended().await;
    }
}

/// A socket, from its making to its end.
///
/// Tried without blocking, and polled for readiness only when it is not ready. Never lets the kernel keep an address: every transfer is
/// over when its call returns, so an operation can be cancelled at any moment.
pub struct Conn {
    /// The descriptor until the first operation, which runs in the executor's context.
    fresh: Option<OwnedFd>,
    /// Owned by glommio, which closes it.
    stream: Option<TcpStream>,
    /// The last receive drained the socket: the next one polls for readiness first.
    dry: bool,
}

impl Conn {
    pub(super) fn new(fd: OwnedFd) -> Conn {
        Conn { fresh: Some(fd), stream: None, dry: false }
    }

    /// Works on an operation, in the executor's context: how many bytes it moved (zero for a connect), or a negative
    /// error number. While pending, the context's waker is woken when to call again.
    pub(super) fn advance(&mut self, op: &mut Op, msghdrs: &mut MsghdrTable, context: &mut Context<'_>) -> Poll<i32> {
        if let Some(fd) = self.fresh.take() {
            // SAFETY: `fd` is open and given up here: the stream is its only owner from now on.
            self.stream = Some(unsafe { TcpStream::from_raw_fd(fd.into_raw_fd()) });
        }
        let stream = self.stream.as_mut().expect("made of the descriptor just now, or earlier");
        let receives = matches!(op, Op::Recv { .. });
        if !(receives && core::mem::take(&mut self.dry)) {
            // Ours first: glommio's send would raise SIGPIPE in programs that do not ignore it, and its receive takes one piece.
            let moved = on_socket(op, stream.as_raw_fd(), msghdrs);
            if moved != -libc::EAGAIN {
                self.dry = matches!(op, Op::Recv { into, .. } if moved < into.asked() as i32);
                return Poll::Ready(moved);
            }
        }
        let stream = Pin::new(stream);
        let outcome = match op {
            Op::Recv { into, .. } => {
                let (target, len) = into.first_target();
                // SAFETY: the scatter, borrowed until after this call, owns these bytes, and is the only way to them; they are
                // initialised, like all memory of the arena.
                let first = unsafe { core::slice::from_raw_parts_mut(target, len) };
                stream.poll_read(context, first).map_ok(|got| {
                    self.dry = got < len;
                    got
                })
            }
            Op::Send { bytes, from, .. } => stream.poll_write(context, &bytes[*from..]),
            // An empty write waits until the socket is connected.
            _ => stream.poll_write(context, &[]),
        };
        outcome.map(|result| result.map_or_else(|error| -error.raw_os_error().unwrap_or(libc::EIO), |n| n as i32))
    }
}
