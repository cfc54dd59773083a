//! What the back-ends on a real kernel have in common: how they are waited in, closed, forked and dropped.
//!
//! Owns the back-end, and with it all memory the kernel may touch: it is given up when the kernel owns nothing of it, or never.

use core::marker::PhantomData;
use core::mem::ManuallyDrop;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::path::Path;

use fuelrail_base::{Duration, Instant, Result};

use super::file::{FileOptions, files_open, open_file};
use super::op_table::OpTable;
use super::socket::{Blocking, sockets_open, tcp_socket};
use super::table::Name;
use super::{Done, FileId, Full, Op, OpId, Ring, RingFacts, SockId};
use crate::clock::monotonic_now;
use crate::directory::OwnDirectory;
use crate::fork::ForkGuard;
use crate::wake::Waker;

/// How long a dropped ring waits for the kernel to give its operations back.
const DRAIN_PATIENCE: Duration = Duration::from_secs(5);

/// One way to the kernel. Never called in a forked child. Dropped only when none of its operations is out.
pub trait Backend {
    /// What it keeps per socket or file.
    type Held: From<OwnedFd>;
    /// Its name, as in [`RingFacts`].
    const NAME: &'static str;
    /// Which sockets it works with.
    const BLOCKING: Blocking;

    fn ops(&self) -> &OpTable<Self::Held>;

    fn ops_mut(&mut self) -> &mut OpTable<Self::Held>;

    /// What it keeps of a file, which was opened, made and checked as the other arguments say.
    fn hold_file(
        &mut self,
        fd: OwnedFd,
        _directory: Option<&OwnDirectory>,
        _path: &Path,
        _options: &FileOptions,
    ) -> Result<Self::Held> {
        Ok(fd.into())
    }

    /// A socket or file has its place in the table; a refusal takes it out again.
    fn taken_in(&mut self, _id: Name) -> Result<()> {
        Ok(())
    }

    /// Closes what had this place in the table; no operation is on it.
    fn end(&mut self, index: u32, held: Self::Held);

    /// Whether there is what this operation needs besides room in the table.
    fn admits(&mut self, _op: &Op) -> bool {
        true
    }

    /// Queues an operation that was just registered.
    fn start(&mut self, name: Name);

    /// Asks for an operation back that is marked as cancelled; perhaps not for the first time.
    fn request_cancel(&mut self, name: Name);

    /// Hands over what is queued, where that can be done without waiting.
    fn submit(&mut self) {}

    /// Hands over the rest, and looks at what came back; sleeps until something did when `sleep`, at most for `limit`.
    fn enter(&mut self, sleep: bool, limit: Option<Duration>) -> Result<()>;

    /// Takes in what came back by other ways than the one slept in. Wakes are forgotten before this.
    fn reap(&mut self) {}

    /// With no operation out, whether nothing else is with the kernel, either; asks for it back.
    fn is_quiet(&mut self) -> bool {
        true
    }
}

/// Kernel abilities in use, and what was wanted and not given, with cause and cure.
#[derive(Default)]
pub(super) struct Abilities {
    pub(super) used: Vec<&'static str>,
    pub(super) refusals: Vec<String>,
}

impl Abilities {
    /// Whether this was given; otherwise why not.
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

    /// Cancels everything and waits until the kernel owns nothing, within limits. Returns whether it does.
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
        if !self.backend.admits(&op) {
            return Err(Full(op));
        }
        let (name, submits) = self.backend.ops_mut().register(op, token)?;
        // What a forked child queues would be submitted by the parent.
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
        let now = monotonic_now();
        self.backend.ops_mut().submitting(now);
        self.backend.submit();
        let limit = until.map(|until| until.since(now));
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
        // In a forked child the kernel works for the parent's memory: even taking the back-end apart would disturb it.
        if !self.guard.holds() {
            return;
        }
        if self.drain() {
            // SAFETY: no operation is out, so nothing the kernel may write to is freed here; it is not used after this.
            unsafe { ManuallyDrop::drop(&mut self.backend) };
        } else {
            tracing::warn!(
                "ring {}: {} operations did not come back within {DRAIN_PATIENCE:?}; their memory is leaked, because the \
                 kernel may still write to it",
                B::NAME,
                self.in_flight()
            );
        }
    }
}
