//! The common part of the back-ends on a real kernel: making sockets, waiting, closing, forks and dropping.
//!
//! Owns the back-end, and with it all memory the kernel may touch: it is freed when the kernel uses none of it, or leaked.

use core::marker::PhantomData;
use core::mem::ManuallyDrop;
use std::net::SocketAddr;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;

use fuelrail_base::{Duration, Error, Instant, Kind, Result};
use rustix::net::{AddressFamily, SocketFlags, SocketType, ipproto, socket_with, sockopt};

use super::file::{FileOptions, files_open, open_file};
use super::op_table::OpTable;
use super::table::Name;
use super::{Done, FileId, Full, Op, OpId, Ring, RingFacts, SockId};
use crate::directory::OwnDirectory;
use crate::process::{ForkGuard, monotonic_now};
use crate::wake::Waker;

/// How long a dropped ring waits for its operations to complete.
const DRAIN_PATIENCE: Duration = Duration::from_secs(5);

/// A way to the kernel. Never called in a forked child. Dropped only when none of its operations is in flight.
pub trait Backend {
    /// What it keeps per socket or file.
    type Held: From<OwnedFd>;
    /// Its name, as in [`RingFacts`].
    const NAME: &'static str;
    /// Which sockets it works with.
    const BLOCKING: Blocking;

    fn ops(&self) -> &OpTable<Self::Held>;

    fn ops_mut(&mut self) -> &mut OpTable<Self::Held>;

    /// What it keeps of a file, which was opened, created and checked as the other arguments say.
    fn hold_file(
        &mut self,
        fd: OwnedFd,
        _directory: Option<&OwnDirectory>,
        _path: &Path,
        _options: &FileOptions,
    ) -> Result<Self::Held> {
        Ok(fd.into())
    }

    /// Called when a socket or file has its place in the table; an error removes it again.
    fn taken_in(&mut self, _id: Name) -> Result<()> {
        Ok(())
    }

    /// Closes what had this place in the table; no operation is on it.
    fn end(&mut self, index: u32, held: Self::Held);

    /// Queues an operation that was just registered.
    fn start(&mut self, name: Name);

    /// Requests the cancellation of an operation that is marked as cancelled; may be called again for the same one.
    fn request_cancel(&mut self, name: Name);

    /// Submits what is queued, where that needs no waiting.
    fn submit(&mut self) {}

    /// Submits the rest and looks for completions; with `sleep` sleeps until there is one, at most for `limit`.
    fn enter(&mut self, sleep: bool, limit: Option<Duration>) -> Result<()>;

    /// Reaps completions that arrive by other ways than the one slept in. Wakes are cleared before this.
    fn reap(&mut self) {}

    /// With no operation in flight: whether the kernel has no other request of this back-end; cancels those it has.
    fn is_quiet(&mut self) -> bool {
        true
    }
}

/// Kernel abilities in use, and those that were refused, with cause and cure.
#[derive(Default)]
pub(super) struct Abilities {
    pub(super) used: Vec<&'static str>,
    pub(super) refusals: Vec<String>,
}

impl Abilities {
    /// Notes an ability as in use, or why it was refused. Whether it is in use.
    pub(super) fn note(&mut self, what: &'static str, given: Result<(), String>) -> bool {
        match given {
            Ok(()) => self.used.push(what),
            Err(why) => {
                self.refusals.push(why);
                return false;
            }
        }
        true
    }
}

/// A ring on a real kernel. Must be used on the thread that made it.
pub struct KernelRing<B: Backend> {
    backend: ManuallyDrop<B>,
    waker: Waker,
    guard: ForkGuard,
    abilities: Abilities,
    /// The kernel ties some rings to the thread that made them.
    not_send: PhantomData<*const ()>,
}

impl<B: Backend> KernelRing<B> {
    pub(super) fn over(backend: B, waker: Waker, abilities: Abilities) -> KernelRing<B> {
        let (backend, guard) = (ManuallyDrop::new(backend), ForkGuard::new());
        KernelRing { backend, waker, guard, abilities, not_send: PhantomData }
    }

    fn take_in(&mut self, held: B::Held, is_file: bool) -> Result<Name> {
        let full = |_| if is_file { files_open() } else { sockets_open() };
        let id = self.backend.ops_mut().take_in(held, is_file).map_err(full)?;
        self.backend.taken_in(id).inspect_err(|_| drop(self.backend.ops_mut().discard(id)))?;
        Ok(id)
    }

    fn request_cancel(&mut self, name: Name) {
        if self.backend.ops_mut().mark_cancelled(name) {
            self.backend.request_cancel(name);
        }
    }

    /// Closes a socket or a file; in a forked child it stays open, because the parent's may be registered under it.
    fn put_away(&mut self, id: Name) {
        if self.guard.holds() {
            self.backend.ops_mut().close(id).into_iter().for_each(|name| self.request_cancel(name));
            self.close_idle();
        }
    }

    fn close_idle(&mut self) {
        while let Some((index, held)) = self.backend.ops_mut().take_closable() {
            self.backend.end(index, held);
        }
    }

    /// Enters the back-end, and with `may_sleep` sleeps until a completion or a wake, at most for `limit`.
    fn enter_and_reap(&mut self, may_sleep: bool, limit: Option<Duration>) -> Result<()> {
        let sleep = may_sleep && self.waker.arm();
        let outcome = self.backend.enter(sleep, limit);
        if may_sleep {
            self.waker.disarm();
        }
        self.backend.reap();
        outcome
    }

    /// Cancels everything and waits, within a limit, until no operation is in flight. Returns whether none is.
    fn drain(&mut self) -> bool {
        let deadline = monotonic_now().after(DRAIN_PATIENCE);
        loop {
            let out = self.backend.ops().out(|_| true);
            if out.is_empty() && self.backend.is_quiet() {
                return true;
            }
            out.into_iter().for_each(|name| self.request_cancel(name));
            self.backend.submit();
            if monotonic_now() > deadline || self.enter_and_reap(true, Some(Duration::from_millis(50))).is_err() {
                return false;
            }
        }
    }
}

impl<B: Backend> Ring for KernelRing<B> {
    fn now(&self) -> Instant {
        monotonic_now()
    }

    fn socket(&mut self, addr: &SocketAddr) -> Result<SockId> {
        self.guard.check()?;
        let fd = tcp_socket(addr, B::BLOCKING)?;
        self.take_in(fd.into(), false).map(SockId::from)
    }

    fn close(&mut self, sock: SockId) {
        self.put_away(sock.into());
    }

    fn open_in(&mut self, directory: Option<&OwnDirectory>, path: &Path, options: &FileOptions) -> Result<FileId> {
        self.guard.check()?;
        if !self.backend.ops_mut().has_place_for_file() {
            return Err(files_open());
        }
        let fd = open_file(directory, path, options)?;
        let held = self.backend.hold_file(fd, directory, path, options)?;
        self.take_in(held, true).map(FileId::from)
    }

    fn close_file(&mut self, file: FileId) {
        self.put_away(file.into());
    }

    fn push(&mut self, op: Op, token: u64) -> Result<OpId, Full> {
        op.check();
        let (name, submits) = self.backend.ops_mut().register(op, token)?;
        // The parent would submit what a forked child queues.
        if submits && self.guard.holds() {
            self.backend.start(name);
        }
        Ok(name.into())
    }

    fn cancel(&mut self, op: OpId) {
        if self.guard.holds() {
            self.request_cancel(op.into());
        }
    }

    fn wait(&mut self, until: Option<Instant>) -> Result<()> {
        self.guard.check()?;
        self.backend.submit();
        let limit = until.map(|until| until.since(monotonic_now()));
        let may_sleep = !self.backend.ops_mut().has_ready() && limit != Some(Duration::ZERO);
        let outcome = self.enter_and_reap(may_sleep, limit);
        self.close_idle();
        outcome
    }

    fn pop(&mut self) -> Option<Done> {
        self.backend.ops_mut().pop()
    }

    fn in_flight(&self) -> usize {
        self.backend.ops().in_flight
    }

    fn waker(&self) -> Waker {
        self.waker.clone()
    }

    fn facts(&self) -> RingFacts {
        RingFacts {
            backend: B::NAME,
            abilities: self.abilities.used.clone(),
            refusals: self.abilities.refusals.clone(),
            counts: self.backend.ops().counts,
        }
    }
}

impl<B: Backend> Drop for KernelRing<B> {
    fn drop(&mut self) {
        // In a forked child the kernel still works for the parent: even dropping the back-end would disturb it.
        if !self.guard.holds() {
            return;
        }
        if self.drain() {
            // SAFETY: no operation is in flight, so nothing the kernel may write to is freed here; it is not used after this.
            unsafe { ManuallyDrop::drop(&mut self.backend) };
        } else {
            tracing::warn!(
                "ring {}: {} operations did not complete within {DRAIN_PATIENCE:?}; their memory is leaked, because the \
                 kernel may still write to it",
                B::NAME,
                self.in_flight()
            );
        }
    }
}

/// Whether a call on a socket that is not ready waits, or returns `EAGAIN`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Blocking {
    /// For io_uring, which never blocks on a socket, but returns `EAGAIN` from a non-blocking one.
    Yes,
    /// For back-ends that try and then wait for readiness.
    No,
}

/// A TCP socket of the address's family, with Nagle's algorithm off.
pub(super) fn tcp_socket(addr: &SocketAddr, blocking: Blocking) -> Result<OwnedFd> {
    let family = if addr.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let flags = match blocking {
        Blocking::Yes => SocketFlags::CLOEXEC,
        Blocking::No => SocketFlags::CLOEXEC | SocketFlags::NONBLOCK,
    };
    let failed = |errno: rustix::io::Errno| {
        // Of a host's addresses, those of the other family may do.
        let (kind, hint) = match errno {
            rustix::io::Errno::AFNOSUPPORT => (Kind::Network, "the machine refuses IPv4 or IPv6: use the other one"),
            _ => (Kind::Environment, "raise the limit of open files (ulimit -n)"),
        };
        Error::from_errno(kind, "opening a socket", errno.raw_os_error()).with_hint(hint)
    };
    let fd = socket_with(family, SocketType::STREAM, flags, Some(ipproto::TCP)).map_err(failed)?;
    sockopt::set_tcp_nodelay(&fd, true).map_err(failed)?;
    Ok(fd)
}

/// The error when the ring's table of sockets is full.
pub(super) fn sockets_open() -> Error {
    Error::new(Kind::Budget, "all sockets of this ring are open")
        .with_hint("close some first, or give the ring a larger socket table")
}

/// An open socket or file, and the low-water mark (`SO_RCVLOWAT`) set for it; zero: none.
#[derive(Debug)]
pub struct Descriptor {
    pub(super) fd: OwnedFd,
    low_water: usize,
}

impl From<OwnedFd> for Descriptor {
    fn from(fd: OwnedFd) -> Descriptor {
        Descriptor { fd, low_water: 0 }
    }
}

impl Descriptor {
    /// Sets the low-water mark: the next receive is woken when `step_bytes` have arrived; zero: for any. Where the kernel
    /// refuses, it wakes more often, which only costs time.
    pub(super) fn wake_for(&mut self, step_bytes: usize) {
        if self.low_water == step_bytes {
            return;
        }
        let value = i32::try_from(step_bytes.max(1)).unwrap_or(i32::MAX);
        // SAFETY: the kernel reads `value`, which lives until after the call.
        let rc = unsafe {
            let (at, len) = ((&raw const value).cast(), size_of_val(&value) as libc::socklen_t);
            libc::setsockopt(self.fd.as_raw_fd(), libc::SOL_SOCKET, libc::SO_RCVLOWAT, at, len)
        };
        if rc == 0 {
            self.low_water = step_bytes;
        }
    }
}
