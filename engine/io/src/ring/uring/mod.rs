//! The io_uring back-end: one ring per shard, one system call per turn of its loop.
//!
//! Operations live in a table of fixed capacity that never moves; their index and generation travel through the kernel
//! as user data. The memory an operation names belongs to the operation, which stays in the table until its completion
//! is reaped: neither a cancellation nor a drop of the ring frees it earlier.

mod config;
mod descriptors;
mod files;
mod marks;
pub(super) mod setup;

pub use config::UringConfig;
pub use setup::{Kernel, io_uring_refusal};
pub(crate) use setup::{Mode, memlock_bytes, refusal};

use core::marker::PhantomData;
use core::mem::ManuallyDrop;
use std::collections::VecDeque;
use std::net::SocketAddr;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;

use fuelrail_base::limits::RING_FILES_MAX;
use fuelrail_base::{Duration, Error, Instant, Kind, Result};
use io_uring::{IoUring, cqueue, opcode, squeue, types};

use self::descriptors::Descriptors;
use self::marks::{CANCEL, WAKE};
use self::setup::{BUFFER_BYTES_MAX, Opened};
use super::desk::Desk;
use super::file::{FileOptions, files_open, open_file};
use super::patience::Patience;
use super::socket::{Blocking, sockets_open, tcp_socket};
use super::table::Name;
use super::wires::Wires;
use super::{Done, FileId, Full, Op, OpId, Ring, RingFacts, SockId};
use crate::arena::Mapping;
use crate::clock::monotonic_now;
use crate::directory::OwnDirectory;
use crate::fork::ForkGuard;
use crate::wake::Waker;

/// Longest single receive or send handed to the kernel; it may be cut short anyway.
const TRANSFER_BYTES_MAX: usize = 1 << 30;
/// How long a dropped ring waits for the kernel to give its operations back.
const DRAIN_PATIENCE: Duration = Duration::from_secs(5);

/// A ring on io_uring. Must be made on the thread that uses it.
pub struct UringRing {
    ring: IoUring,
    desk: ManuallyDrop<Desk<OwnedFd>>,
    wires: ManuallyDrop<Wires>,
    /// Keeps registered memory mapped until `ring` is closed.
    registered: ManuallyDrop<Option<Arc<Mapping>>>,
    descriptors: Descriptors,
    patience: Patience,
    /// Requests that found the submission queue full; they go first at the next submission.
    backlog: VecDeque<squeue::Entry>,
    waker: Waker,
    /// Whether the kernel polls the waker's eventfd.
    wake_polled: bool,
    guard: ForkGuard,
    abilities: Vec<&'static str>,
    refusals: Vec<String>,
    /// The kernel ties a ring to the thread that made it.
    not_send: PhantomData<*const ()>,
}

impl UringRing {
    /// Opens a ring for the calling thread.
    ///
    /// # Errors
    /// As [`UringConfig::validate`]; `Environment`, with cause and cure, when the kernel refuses.
    pub fn new(config: &UringConfig) -> Result<UringRing> {
        UringRing::as_on(config, Kernel::Running)
    }

    /// The same with the abilities of an older kernel, so that every fallback can be tested on a new one.
    ///
    /// # Errors
    /// As [`UringRing::new`].
    #[doc(hidden)]
    pub fn as_on(config: &UringConfig, kernel: Kernel) -> Result<UringRing> {
        config.validate()?;
        let Opened { ring, fixed_files, registered, abilities, refusals } = setup::open(config, kernel)?;
        Ok(UringRing {
            ring,
            desk: ManuallyDrop::new(Desk::new(config.entries, config.sockets, monotonic_now())),
            wires: ManuallyDrop::new(Wires::new(config.entries)),
            registered: ManuallyDrop::new(registered),
            descriptors: Descriptors::new(fixed_files, config.entries),
            patience: Patience::new(config.sockets + RING_FILES_MAX),
            backlog: VecDeque::with_capacity(config.entries as usize),
            waker: Waker::eventfd()?,
            wake_polled: false,
            guard: ForkGuard::new(),
            abilities,
            refusals,
            not_send: PhantomData,
        })
    }

    /// The request for an operation just booked.
    fn request(&mut self, name: Name) -> squeue::Entry {
        let desk = &mut *self.desk;
        if let Some(opening) = desk.opening(name) {
            return files::open(opening).user_data(name.to_bits());
        }
        let Some((op, fd)) = desk.flight(name) else { unreachable!("{name:?} was just booked") };
        if let Op::Recv { sock, into } = op {
            self.patience.wake_for(sock.index, fd, into.patience_bytes());
        }
        // Facts are asked for by a descriptor of the process.
        let (fd, flags) = if self.descriptors.fixed && !matches!(op, Op::Stat { .. }) {
            (types::Fd(op.holding().index as i32), squeue::Flags::FIXED_FILE)
        } else {
            (types::Fd(fd.as_raw_fd()), squeue::Flags::empty())
        };
        let entry = match op {
            Op::Connect { addr, .. } => {
                let (addr, len) = self.wires.address(name.index, addr);
                opcode::Connect::new(fd, addr, len).build()
            }
            Op::Send { bytes, from, .. } => {
                let rest = &bytes[*from..];
                let len = rest.len().min(TRANSFER_BYTES_MAX) as u32;
                opcode::Send::new(fd, rest.as_ptr(), len).flags(libc::MSG_NOSIGNAL).build()
            }
            Op::Recv { into, .. } if into.pieces() > 1 => {
                opcode::RecvMsg::new(fd, self.wires.receive(name.index, into.targets())).build()
            }
            Op::Recv { into, .. } if into.patience_bytes() > 0 => {
                let Some((target, len)) = into.targets().next() else { unreachable!("checked to ask for bytes") };
                let len = len.min(TRANSFER_BYTES_MAX) as u32;
                opcode::Recv::new(fd, target, len).flags(libc::MSG_WAITALL).build()
            }
            Op::Recv { into, .. } => {
                let fixed = self.registered.as_ref().filter(|_| into.is_one_body());
                let Some((target, len)) = into.targets().next() else { unreachable!("checked to ask for bytes") };
                let len = len.min(TRANSFER_BYTES_MAX);
                match fixed {
                    Some(mapping) => {
                        // A piece that crosses from one registered buffer into the next is cut short there.
                        let offset = target as usize - mapping.range().0 as usize;
                        let len = len.min(BUFFER_BYTES_MAX - offset % BUFFER_BYTES_MAX);
                        desk.counts.fixed_receives += 1;
                        opcode::ReadFixed::new(fd, target, len as u32, (offset / BUFFER_BYTES_MAX) as u16).build()
                    }
                    None => opcode::Recv::new(fd, target, len as u32).build(),
                }
            }
            Op::ReadAt { .. } | Op::WriteAt { .. } | Op::Open(_) | Op::Stat { .. } | Op::SyncData { .. } => {
                files::entry(op, fd, self.registered.as_deref())
            }
        };
        entry.flags(flags).user_data(name.to_bits())
    }

    fn enqueue(&mut self, entry: squeue::Entry) {
        if !self.guard.holds() {
            // The queue is shared with the parent, which would submit this.
            return;
        }
        if self.backlog.is_empty() {
            // SAFETY: every address in `entry` belongs to an operation in `desk.flights`, to `wires` or to `waker`; the ring
            // keeps all of them, unmoved, until the completion is reaped, and leaks them if it never is.
            if unsafe { self.ring.submission().push(&entry) }.is_ok() {
                return;
            }
        }
        self.backlog.push_back(entry);
    }

    /// Asks an operation back that is marked as cancelled.
    fn ask_back(&mut self, name: Name) {
        self.enqueue(opcode::AsyncCancel::new(name.to_bits()).build().user_data(CANCEL));
    }

    /// Hands everything queued to the kernel; sleeps until a completion when `sleep`, at most for `limit`.
    fn enter(&mut self, sleep: bool, limit: Option<Duration>) -> Result<()> {
        loop {
            let mut queue = self.ring.submission();
            while let Some(entry) = self.backlog.front() {
                // SAFETY: as in `enqueue`.
                if unsafe { queue.push(entry) }.is_err() {
                    break;
                }
                self.backlog.pop_front();
            }
            queue.sync();
            let idle = queue.is_empty() && !queue.taskrun() && !queue.cq_overflow();
            drop(queue);
            let last = self.backlog.is_empty();
            let sleep = sleep && last;
            if idle && !sleep {
                return Ok(());
            }
            match self.enter_once(sleep, limit) {
                Ok(()) if last => return Ok(()),
                Ok(()) => {}
                Err(errno) => match errno {
                    // Time is up, a signal came, or the kernel wants completions reaped or memory freed first.
                    libc::ETIME | libc::EINTR | libc::EAGAIN | libc::EBUSY => return Ok(()),
                    // A seccomp filter may let a ring be made and not entered.
                    libc::EPERM | libc::EACCES | libc::ENOSYS => return Err(refusal(errno)),
                    _ => return Err(Error::from_errno(Kind::Environment, "entering io_uring", errno)),
                },
            }
        }
    }

    fn enter_once(&mut self, sleep: bool, limit: Option<Duration>) -> core::result::Result<(), i32> {
        self.desk.counts.enters += 1;
        let queued = self.ring.submission().len() as u32;
        let submitter = self.ring.submitter();
        let outcome = if sleep {
            self.desk.counts.sleeps += 1;
            let spec = limit.map(|limit| types::Timespec::new().sec(limit.as_secs()).nsec(limit.subsec_nanos()));
            let mut args = types::SubmitArgs::new();
            if let Some(spec) = &spec {
                args = args.timespec(spec);
            }
            submitter.submit_with_args(1, &args)
        } else {
            let flags = io_uring::EnterFlags::GETEVENTS.bits();
            // SAFETY: no argument is passed; what the queued requests point to is kept as said in `enqueue`.
            unsafe { submitter.enter::<libc::sigset_t>(queued, 0, flags, None) }
        };
        outcome.map(drop).map_err(|error| error.raw_os_error().unwrap_or(libc::EIO))
    }

    /// Takes all completions the kernel has posted.
    fn reap(&mut self) {
        self.desk.begin_turn(monotonic_now());
        let mut seen = false;
        for entry in self.ring.completion() {
            seen = true;
            match entry.user_data() {
                CANCEL => {}
                WAKE => {
                    self.desk.counts.wakes += 1;
                    self.wake_polled = cqueue::more(entry.flags());
                }
                bits => self.descriptors.land(&mut self.desk, Name::from_bits(bits), entry.result()),
            }
        }
        if seen {
            self.descriptors.take_in(&self.ring, &mut self.desk);
            self.close_idle();
        }
    }

    /// Closes a socket or a file.
    fn put_away(&mut self, id: Name) {
        let mut flying = Vec::new();
        self.desk.close(id, &mut flying);
        for name in flying {
            self.ask_back(name);
        }
        self.close_idle();
    }

    fn close_idle(&mut self) {
        while let Some((index, fd)) = self.desk.take_closable() {
            if self.guard.holds() {
                self.descriptors.clear(&self.ring, index);
            }
            drop(fd);
        }
    }

    /// Keeps one multishot poll on the waker's eventfd. The counter is never read: every write is an edge.
    fn poll_wake(&mut self) {
        if self.wake_polled {
            return;
        }
        if let Some(fd) = self.waker.event_fd() {
            let poll = opcode::PollAdd::new(types::Fd(fd), libc::POLLIN as u32).multi(true).build();
            self.enqueue(poll.user_data(WAKE));
            self.wake_polled = true;
        }
    }

    /// Cancels everything and waits until the kernel owns nothing, within limits. Returns whether it does.
    fn drain(&mut self) -> bool {
        let deadline = monotonic_now().after(DRAIN_PATIENCE);
        loop {
            if self.desk.in_flight == 0 && !self.wake_polled {
                return true;
            }
            if monotonic_now() > deadline {
                return false;
            }
            let flying: Vec<Name> = self.desk.flying().map(|(name, _)| name).collect();
            for name in flying {
                self.desk.mark_cancelled(name);
                self.ask_back(name);
            }
            if self.wake_polled {
                self.enqueue(opcode::AsyncCancel::new(WAKE).build().user_data(CANCEL));
            }
            if self.enter(true, Some(Duration::from_millis(50))).is_err() {
                return false;
            }
            self.reap();
        }
    }
}

impl Ring for UringRing {
    fn now(&self) -> Instant {
        monotonic_now()
    }

    fn socket(&mut self, addr: &SocketAddr) -> Result<SockId> {
        self.guard.check()?;
        let fd = tcp_socket(addr, Blocking::Yes)?;
        let raw = fd.as_raw_fd();
        let id = self.desk.open(fd).map_err(|_| sockets_open())?;
        self.descriptors.register(&self.ring, &mut self.desk, id.into(), raw)?;
        self.patience.reset(id.index);
        Ok(id)
    }

    fn close(&mut self, sock: SockId) {
        self.put_away(sock.into());
    }

    fn open_in(&mut self, directory: Option<&OwnDirectory>, path: &Path, options: &FileOptions) -> Result<FileId> {
        self.guard.check()?;
        let fd = open_file(directory, path, options)?;
        let raw = fd.as_raw_fd();
        let id = self.desk.open_file(fd).map_err(|_| files_open())?;
        self.descriptors.register(&self.ring, &mut self.desk, id.into(), raw)?;
        Ok(id)
    }

    fn close_file(&mut self, file: FileId) {
        self.put_away(file.into());
    }

    fn push(&mut self, op: Op, token: u64) -> Result<OpId, Full> {
        op.check();
        let (name, flies) = self.desk.book(op, token)?;
        if flies {
            let entry = self.request(name);
            self.enqueue(entry);
        }
        Ok(name.into())
    }

    fn cancel(&mut self, op: OpId) {
        let name = op.into();
        if self.desk.mark_cancelled(name) {
            self.ask_back(name);
        }
    }

    fn wait(&mut self, until: Option<Instant>) -> Result<()> {
        self.guard.check()?;
        self.poll_wake();
        let now = monotonic_now();
        self.desk.submitting(now);
        let limit = until.map(|until| until.since(now));
        let wants_sleep = !self.desk.has_ready() && limit != Some(Duration::ZERO);
        let sleep = wants_sleep && self.waker.arm();
        let outcome = self.enter(sleep, limit);
        if wants_sleep {
            self.waker.disarm();
        }
        self.reap();
        outcome
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
            backend: "uring",
            abilities: self.abilities.clone(),
            refusals: self.refusals.clone(),
            counts: self.desk.counts,
        }
    }
}

impl Drop for UringRing {
    fn drop(&mut self) {
        // In a forked child the kernel works for the parent's memory, not for this copy: nothing to wait for here.
        if self.guard.holds() && !self.drain() {
            tracing::warn!(
                "io_uring gave {} operations not back within {DRAIN_PATIENCE:?}; their memory is leaked, \
                 because the kernel may still write to it",
                self.desk.in_flight
            );
            return;
        }
        // SAFETY: the kernel owns no operation any more, so nothing it may touch is freed here; none of the three is
        // used after this. Registered pages are pinned by the kernel on its own account until `ring` closes.
        unsafe {
            ManuallyDrop::drop(&mut self.desk);
            ManuallyDrop::drop(&mut self.wires);
            ManuallyDrop::drop(&mut self.registered);
        }
    }
}
