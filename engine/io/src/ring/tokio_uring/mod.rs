//! The back-end on the tokio-uring runtime, for programs that live in that runtime, and to compare with.
//!
//! The runtime is entered by each wait and left when something happened; completions come through its driver. Requests
//! are the same as those of the ring on plain io_uring, but for what the runtime does not have: registered files and
//! deferred completions, and one system call a turn (it sleeps in epoll and enters io_uring besides).
//!
//! The runtime's driver frees what an operation owns before it has asked the kernel to let go, so here operations own
//! nothing: their memory stays in the ring's books until they come back, and the runtime is dropped only when all have.

mod memory;
mod requests;
#[cfg(test)]
mod tests;

use core::mem::ManuallyDrop;
use core::pin::{Pin, pin};
use core::task::{Context, Poll};
use std::net::SocketAddr;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::path::Path;
use std::sync::Arc;

use fuelrail_base::{Duration, Error, Instant, Kind, Result};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio_uring::Runtime;

use self::requests::{Flight, Registered};
use super::bells::Bells;
use super::desk::Desk;
use super::file::{FileOptions, files_open, open_file};
use super::opening::patient;
use super::socket::{Blocking, sockets_open, tcp_socket};
use super::table::Name;
use super::uring::{UringConfig, refusal};
use super::wires::Wires;
use super::{Done, FileId, Full, Op, OpId, Ring, RingFacts, SockId};
use crate::arena::Mapping;
use crate::clock::monotonic_now;
use crate::directory::OwnDirectory;
use crate::fork::ForkGuard;
use crate::wake::Waker;

/// How long a dropped ring waits for the kernel to give its operations back.
const DRAIN_PATIENCE: Duration = Duration::from_secs(5);

/// A ring on tokio-uring. Must be made on the thread that uses it, outside every other async runtime.
pub struct TokioUringRing {
    runtime: ManuallyDrop<Runtime>,
    inside: ManuallyDrop<Inside>,
    waker: Waker,
    guard: ForkGuard,
    abilities: Vec<&'static str>,
    refusals: Vec<String>,
}

/// What a turn of the runtime works on.
struct Inside {
    desk: Desk<OwnedFd>,
    /// What the kernel reads while an operation flies.
    wires: Wires,
    /// The operations in the runtime's hands, by their place in the table.
    flights: Box<[Option<Flight>]>,
    bells: Bells,
    /// Bells that rang, kept for its memory.
    rung: Vec<u32>,
    /// Operations to be submitted by the next turn.
    backlog: Vec<Name>,
    /// Descriptors whose operations are to be asked back by the next turn.
    unwanted: Vec<RawFd>,
    /// The mapping registered with the runtime's ring, which keeps it too.
    registered: Option<Arc<Mapping>>,
    wakes: AsyncFd<WakeEvent>,
}

/// The descriptor a waker writes to. Its counter is never read: every write is an edge.
struct WakeEvent(Waker);

impl AsRawFd for WakeEvent {
    fn as_raw_fd(&self) -> RawFd {
        self.0.event_fd().expect("made by Waker::eventfd")
    }
}

impl TokioUringRing {
    /// Opens a runtime and its ring for the calling thread.
    ///
    /// # Errors
    /// As [`UringConfig::validate`]; `Environment`, with cause and cure, when the kernel refuses.
    pub fn new(config: &UringConfig) -> Result<TokioUringRing> {
        config.validate()?;
        let entries = config.entries.next_power_of_two();
        let mut builder = tokio_uring::uring_builder();
        // Every operation and one cancellation each fit without overflow. The flags, like cancelling by descriptor, came
        // with kernel 5.19. Deferred completions would be better still, but the runtime hangs with them.
        builder.setup_clamp().setup_cqsize(entries.saturating_mul(4)).setup_coop_taskrun().setup_taskrun_flag();
        let built = Runtime::new(tokio_uring::builder().entries(entries).uring_builder(&builder));
        let runtime = built.map_err(|error| match error.raw_os_error() {
            Some(libc::EINVAL) => Error::from_errno(Kind::Environment, "opening the ring of tokio-uring", libc::EINVAL)
                .cure("use kernel 5.19 or later, or another ring"),
            errno => refusal(errno.unwrap_or(libc::EIO)),
        })?;
        let waker = Waker::eventfd()?;
        let event = WakeEvent(waker.clone());
        // SAFETY: the descriptor belongs to the waker inside `event`, which keeps it open, and the same, until the
        // registration is dropped with it.
        let wakes = runtime.block_on(async { unsafe { AsyncFd::register_with_interest(event, Interest::READABLE) } });
        let wakes = wakes.map_err(|refused| {
            let errno = std::io::Error::from(refused).raw_os_error().unwrap_or(libc::EIO);
            Error::from_errno(Kind::Environment, "watching an eventfd with tokio", errno)
        })?;
        let (mut abilities, mut refusals) = (vec!["coop_taskrun"], Vec::new());
        let registered = config.register.as_ref().map(crate::arena::Arena::mapping);
        let registered = registered.filter(|mapping| match memory::register(&runtime, mapping) {
            Ok(()) => {
                abilities.push("registered memory");
                true
            }
            Err(why) => {
                refusals.push(why);
                false
            }
        });
        let entries = config.entries as usize;
        let inside = Inside {
            desk: Desk::new(config.entries, config.sockets, monotonic_now()),
            wires: Wires::new(config.entries),
            flights: (0..entries).map(|_| None).collect(),
            bells: Bells::new(config.entries),
            rung: Vec::with_capacity(entries),
            backlog: Vec::with_capacity(entries),
            unwanted: Vec::with_capacity(config.sockets as usize),
            registered,
            wakes,
        };
        Ok(TokioUringRing {
            runtime: ManuallyDrop::new(runtime),
            inside: ManuallyDrop::new(inside),
            waker,
            guard: ForkGuard::new(),
            abilities,
            refusals,
        })
    }

    /// Enters the runtime: submits what is queued and looks at what came back; stays until something did when `sleep`, at
    /// most for `limit`.
    fn turn(&mut self, sleep: bool, limit: Option<Duration>) {
        let inside = &mut *self.inside;
        inside.desk.counts.enters += 1;
        inside.desk.counts.sleeps += u64::from(sleep);
        self.runtime.block_on(async {
            let submitted = inside.submit();
            if sleep {
                inside.stay(limit).await;
            } else {
                inside.pass(submitted).await;
            }
        });
        inside.bells.unlisten();
        inside.close_idle();
    }

    /// Cancels everything and waits until the kernel owns nothing, within limits. Returns whether it does.
    fn drain(&mut self) -> bool {
        let deadline = monotonic_now().after(DRAIN_PATIENCE);
        while self.inside.desk.in_flight > 0 {
            if monotonic_now() > deadline {
                return false;
            }
            let flying: Vec<Name> = self.inside.desk.flying().map(|(name, _)| name).collect();
            for name in flying {
                self.inside.ask_back(name);
            }
            self.turn(true, Some(Duration::from_millis(50)));
        }
        true
    }
}

impl Inside {
    /// Gives everything queued to the runtime, in whose context this must be called. Requests that found the submission
    /// queue full make the driver flush it; all others go to the kernel when the thread parks. Whether there were any.
    fn submit(&mut self) -> bool {
        let Inside { desk, wires, flights, bells, backlog, unwanted, registered, .. } = self;
        desk.submitting(monotonic_now());
        let any = !backlog.is_empty() || !unwanted.is_empty();
        let registered = Registered(registered.as_ref());
        for name in backlog.drain(..) {
            // Landed already: asked back before it was submitted.
            let (entry, fixed) = if let Some(opening) = desk.opening(name) {
                (requests::open(opening), false)
            } else if let Some((op, fd)) = desk.flight(name) {
                requests::entry(name, op, fd, wires, &registered)
            } else {
                continue;
            };
            desk.counts.fixed_receives += u64::from(fixed);
            let mut flight = requests::submit(name, entry);
            let mut context = Context::from_waker(bells.waker(name.index));
            let early = Pin::new(&mut flight).poll(&mut context);
            debug_assert!(early.is_pending(), "completions are seen by the driver's task only");
            flights[name.index as usize] = Some(flight);
        }
        for fd in unwanted.drain(..) {
            requests::submit_cancel(fd);
        }
        any
    }

    /// Takes what came back. False when nothing did.
    fn collect(&mut self) -> bool {
        self.bells.take(&mut self.rung);
        if self.rung.is_empty() {
            return false;
        }
        self.desk.begin_turn(monotonic_now());
        for number in self.rung.drain(..) {
            let Some(flight) = &mut self.flights[number as usize] else { continue };
            let mut context = Context::from_waker(self.bells.waker(number));
            let Poll::Ready((name, result)) = Pin::new(flight).poll(&mut context) else { continue };
            self.flights[number as usize] = None;
            if result == -libc::ECANCELED && !self.desk.is_cancelled(name) {
                // It was on the same descriptor as one that was asked back, and nothing was moved: it goes again.
                self.backlog.push(name);
                continue;
            }
            let opened = result >= 0 && self.desk.opening(name).is_some();
            // SAFETY: the kernel has opened it for this request, and nobody else knows of it.
            let fd = opened.then(|| unsafe { OwnedFd::from_raw_fd(result) });
            let result = fd.map_or(result, |fd| {
                patient(&fd);
                self.desk.opened(name, fd).map_or(-libc::EMFILE, |_| 0)
            });
            self.desk.land(name, result);
        }
        true
    }

    /// Until something came back or woke us, or `limit` is over.
    async fn stay(&mut self, limit: Option<Duration>) {
        let mut limit = pin!(limit.map(tokio::time::sleep));
        core::future::poll_fn(|context| {
            self.bells.listen(context.waker());
            let over = limit.as_mut().as_pin_mut().is_some_and(|sleep| sleep.poll(context).is_ready());
            // All three are looked at, so that all three are armed.
            if self.woken(context) | self.collect() | over { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
    }

    /// Once through the driver without sleeping. What completes meanwhile may be seen by the next turn only.
    async fn pass(&mut self, submitted: bool) {
        let mut passed = false;
        core::future::poll_fn(|context| {
            self.bells.listen(context.waker());
            if core::mem::replace(&mut passed, true) {
                return Poll::Ready(());
            }
            match submitted {
                // The queue is flushed only by a thread that parks, which it does only when nothing woke it. So it parks,
                // and finds an event.
                true => {
                    self.wakes.get_ref().0.ring_bell();
                    while let Poll::Ready(Ok(mut guard)) = self.wakes.poll_read_ready(context) {
                        guard.clear_ready();
                    }
                }
                false => context.waker().wake_by_ref(),
            }
            Poll::Pending
        })
        .await;
        self.collect();
    }

    /// Whether another thread woke us.
    fn woken(&mut self, context: &mut Context<'_>) -> bool {
        match self.wakes.poll_read_ready(context) {
            Poll::Pending => false,
            Poll::Ready(Ok(mut guard)) => {
                guard.clear_ready();
                self.desk.counts.wakes += 1;
                // Asked again, so that the next edge finds this stay.
                let _ = self.wakes.poll_read_ready(context);
                true
            }
            // The runtime is shutting down, which only our own drop does.
            Poll::Ready(Err(_)) => true,
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
        while let Some((_, fd)) = self.desk.take_closable() {
            drop(fd);
        }
    }

    /// Asks for an operation back: at once when the kernel does not know it yet.
    fn ask_back(&mut self, name: Name) {
        if !self.desk.mark_cancelled(name) {
            return;
        }
        if self.flights[name.index as usize].is_none() {
            self.desk.land(name, -libc::ECANCELED);
            return;
        }
        if let Some((_, fd)) = self.desk.flight(name) {
            let fd = fd.as_raw_fd();
            if !self.unwanted.contains(&fd) {
                self.unwanted.push(fd);
            }
        }
    }
}

impl Ring for TokioUringRing {
    fn now(&self) -> Instant {
        monotonic_now()
    }

    fn socket(&mut self, addr: &SocketAddr) -> Result<SockId> {
        self.guard.check()?;
        self.inside.desk.open(tcp_socket(addr, Blocking::Yes)?).map_err(|_| sockets_open())
    }

    fn close(&mut self, sock: SockId) {
        self.inside.put_away(sock.into());
    }

    fn open_in(&mut self, directory: Option<&OwnDirectory>, path: &Path, options: &FileOptions) -> Result<FileId> {
        self.guard.check()?;
        self.inside.desk.open_file(open_file(directory, path, options)?).map_err(|_| files_open())
    }

    fn close_file(&mut self, file: FileId) {
        self.inside.put_away(file.into());
    }

    fn push(&mut self, op: Op, token: u64) -> Result<OpId, Full> {
        op.check();
        let (name, flies) = self.inside.desk.book(op, token)?;
        if flies {
            self.inside.backlog.push(name);
        }
        Ok(name.into())
    }

    fn cancel(&mut self, op: OpId) {
        self.inside.ask_back(op.into());
    }

    fn wait(&mut self, until: Option<Instant>) -> Result<()> {
        self.guard.check()?;
        let limit = until.map(|until| until.since(monotonic_now()));
        let wants_sleep = !self.inside.desk.has_ready() && limit != Some(Duration::ZERO);
        let sleep = wants_sleep && self.waker.arm();
        self.turn(sleep, limit);
        if wants_sleep {
            self.waker.disarm();
        }
        Ok(())
    }

    fn pop(&mut self) -> Option<Done> {
        self.inside.desk.pop()
    }

    fn in_flight(&self) -> usize {
        self.inside.desk.in_flight
    }

    fn waker(&self) -> Waker {
        self.waker.clone()
    }

    fn facts(&self) -> RingFacts {
        RingFacts {
            backend: "tokio-uring",
            abilities: self.abilities.clone(),
            refusals: self.refusals.clone(),
            counts: self.inside.desk.counts,
        }
    }
}

impl Drop for TokioUringRing {
    fn drop(&mut self) {
        // In a forked child the runtime's ring and epoll are the parent's: even taking them apart would disturb it.
        if !self.guard.holds() {
            return;
        }
        if !self.drain() {
            tracing::warn!(
                "io_uring gave {} operations not back within {DRAIN_PATIENCE:?}; their memory is leaked, \
                 because the kernel may still write to it",
                self.inside.desk.in_flight
            );
            return;
        }
        // SAFETY: the kernel owns no operation any more, so nothing it may touch is freed here. What was registered with
        // the runtime goes before it; neither is used after this.
        unsafe {
            ManuallyDrop::drop(&mut self.inside);
            ManuallyDrop::drop(&mut self.runtime);
        }
    }
}
