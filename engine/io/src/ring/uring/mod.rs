//! The io_uring back-end: one ring per shard, one system call per iteration of its loop.
//!
//! Operations live in a table of fixed capacity that never moves; their index and generation travel through the kernel
//! as user data. The memory an operation names belongs to the operation, which stays in the table until its completion
//! is reaped: neither a cancellation nor a drop of the ring frees it earlier.

pub(super) mod setup;

pub use setup::{Kernel, UringConfig, io_uring_refusal};
pub(crate) use setup::{Mode, refusal};

use std::collections::VecDeque;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::Arc;

use fuelrail_base::{Duration, Error, Kind, Result};
use io_uring::{IoUring, cqueue, opcode, squeue, types};

use self::setup::Opened;
use super::calls::MsghdrTable;
use super::file::patient;
use super::kernel::{Backend, Blocking, Descriptor, KernelRing};
use super::op_table::OpTable;
use super::requests::request;
use super::table::Name;
use crate::arena::Mapping;
use crate::wake::Waker;

/// User data of the poll of the waker. No operation has such a number, nor the next: indices are below 2^15.
const WAKE: u64 = u64::MAX;
/// User data of requests whose completions are ignored.
const CANCEL: u64 = u64::MAX - 1;

/// A ring on io_uring. Must be made on the thread that uses it.
pub type UringRing = KernelRing<Uring>;

/// The way to the kernel through io_uring.
pub struct Uring {
    ops: OpTable<Descriptor>,
    msghdrs: MsghdrTable,
    /// Keeps registered memory mapped.
    registered: Option<Arc<Mapping>>,
    /// Descriptors are registered with the kernel, each at its place in the ring's table.
    fixed: bool,
    /// Files that operations have opened, until they are in the ring's table.
    opened: Vec<(Name, OwnedFd)>,
    /// Requests that found the submission queue full; they go first at the next submission.
    backlog: VecDeque<squeue::Entry>,
    waker: Waker,
    /// Whether the kernel polls the waker's eventfd.
    wake_polled: bool,
    /// The poll is not to be renewed.
    closing: bool,
    ring: IoUring,
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
        let Opened { ring, fixed_files, registered, abilities } = setup::open(config, kernel)?;
        let waker = Waker::eventfd()?;
        let uring = Uring {
            ops: OpTable::new(config.entries, config.sockets),
            msghdrs: MsghdrTable::new(config.entries),
            registered,
            fixed: fixed_files,
            opened: Vec::with_capacity(config.entries as usize),
            backlog: VecDeque::with_capacity(config.entries as usize),
            waker: waker.clone(),
            wake_polled: false,
            closing: false,
            ring,
        };
        Ok(KernelRing::over(uring, waker, abilities))
    }
}

impl Uring {
    fn enqueue(&mut self, entry: squeue::Entry) {
        if self.backlog.is_empty() {
            // SAFETY: every address in `entry` belongs to an operation in `ops`, to `msghdrs` or to `waker`; the ring
            // keeps all of them, unmoved, until the completion is reaped, and leaks them if it never is.
            if unsafe { self.ring.submission().push(&entry) }.is_ok() {
                return;
            }
        }
        self.backlog.push_back(entry);
    }

    fn enter_once(&mut self, sleep: bool, limit: Option<Duration>) -> core::result::Result<(), i32> {
        self.ops.counts.enters += 1;
        let queued = self.ring.submission().len() as u32;
        let submitter = self.ring.submitter();
        let outcome = if sleep {
            self.ops.counts.sleeps += 1;
            let spec = limit.map(|limit| types::Timespec::new().sec(limit.as_secs()).nsec(limit.subsec_nanos()));
            let mut args = types::SubmitArgs::new();
            if let Some(spec) = &spec {
                args = args.timespec(spec);
            }
            submitter.submit_with_args(1, &args)
        } else {
            let flags = io_uring::EnterFlags::GETEVENTS.bits();
            // SAFETY: no argument is passed; what the queued requests point to is kept as stated in `enqueue`.
            unsafe { submitter.enter::<libc::sigset_t>(queued, 0, flags, None) }
        };
        outcome.map(drop).map_err(|error| error.raw_os_error().unwrap_or(libc::EIO))
    }

    /// Registers a descriptor with the kernel, or with -1 clears its place: the kernel's reference would keep a connection open.
    fn register(&self, index: u32, raw: i32) -> Result<()> {
        if !self.fixed {
            return Ok(());
        }
        let updated = self.ring.submitter().register_files_update(index, &[raw]);
        let failed = |error| Error::from_io(Kind::Environment, "registering a descriptor with io_uring", error);
        updated.map(drop).map_err(failed)
    }

    /// Adds the files that operations have opened to the table.
    fn take_in_opened(&mut self) {
        while let Some((name, fd)) = self.opened.pop() {
            patient(&fd);
            let raw = fd.as_raw_fd();
            let file = self.ops.opened(name, fd.into()).ok();
            let registered = file.filter(|file| self.register(file.index, raw).is_ok());
            if registered.is_none()
                && let Some(opening) = self.ops.opening(name)
            {
                opening.file = None;
            }
            if registered.is_none()
                && let Some(file) = file
            {
                self.ops.discard(file.into());
            }
            self.ops.complete(name, if registered.is_some() { 0 } else { -libc::EMFILE });
        }
    }
}

impl Backend for Uring {
    type Held = Descriptor;
    const NAME: &'static str = "uring";
    const BLOCKING: Blocking = Blocking::Yes;

    fn ops(&self) -> &OpTable<Descriptor> {
        &self.ops
    }

    fn ops_mut(&mut self) -> &mut OpTable<Descriptor> {
        &mut self.ops
    }

    fn taken_in(&mut self, id: Name) -> Result<()> {
        self.ops.held(id).map_or(Ok(()), |held| self.register(id.index, held.fd.as_raw_fd()))
    }

    fn end(&mut self, index: u32, held: Descriptor) {
        // Fails only for an index out of range.
        let cleared = self.register(index, -1);
        debug_assert!(cleared.is_ok(), "{cleared:?}");
        drop(held);
    }

    fn start(&mut self, name: Name) {
        let Some((op, held)) = self.ops.flight(name) else { unreachable!("{name:?} was just registered") };
        let entry = request(name, op, held, self.fixed, &mut self.msghdrs, self.registered.as_deref());
        self.enqueue(entry);
    }

    fn request_cancel(&mut self, name: Name) {
        self.enqueue(opcode::AsyncCancel::new(name.to_bits()).build().user_data(CANCEL));
    }

    /// Keeps one multishot poll on the waker's eventfd. The counter is never read: every write is an edge.
    fn submit(&mut self) {
        if self.wake_polled || self.closing {
            return;
        }
        if let Some(fd) = self.waker.event_fd() {
            let poll = opcode::PollAdd::new(types::Fd(fd.as_raw_fd()), libc::POLLIN as u32).multi(true).build();
            self.enqueue(poll.user_data(WAKE));
            self.wake_polled = true;
        }
    }

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
                    // A timeout, a signal, or the kernel needs completions reaped or memory freed first.
                    libc::ETIME | libc::EINTR | libc::EAGAIN | libc::EBUSY => return Ok(()),
                    // A seccomp filter may let a ring be made and not entered.
                    libc::EPERM | libc::EACCES | libc::ENOSYS => return Err(refusal(errno)),
                    _ => return Err(Error::from_errno(Kind::Environment, "entering io_uring", errno)),
                },
            }
        }
    }

    /// Reaps all completions the kernel has posted.
    fn reap(&mut self) {
        for entry in self.ring.completion() {
            let result = entry.result();
            match entry.user_data() {
                CANCEL => {}
                WAKE => self.wake_polled = cqueue::more(entry.flags()),
                bits => {
                    let name = Name::from_bits(bits);
                    if result >= 0 && self.ops.opening(name).is_some() {
                        // SAFETY: the kernel has opened it for this request, and no other owner exists.
                        self.opened.push((name, unsafe { OwnedFd::from_raw_fd(result) }));
                    } else {
                        self.ops.complete(name, result);
                    }
                }
            }
        }
        self.take_in_opened();
    }

    fn is_quiet(&mut self) -> bool {
        self.closing = true;
        if self.wake_polled {
            self.enqueue(opcode::AsyncCancel::new(WAKE).build().user_data(CANCEL));
        }
        !self.wake_polled
    }
}
