//! The back-end on the tokio-uring runtime, for programs that use that runtime, and for comparison.
//!
//! The runtime is entered by each wait and left after an event; completions come through its driver. Requests
//! are the same as those of the ring on plain io_uring, but for what the runtime does not have: registered files and memory,
//! deferred completions, and one system call per iteration (it sleeps in epoll and enters io_uring besides).
//!
//! The runtime's driver frees what an operation owns before the kernel has cancelled it, so here operations own nothing:
//! their memory stays in the op table until they complete, and the runtime is dropped only when all have.

#[cfg(test)]
mod tests;

use core::pin::{Pin, pin};
use core::task::{Context, Poll};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};

use fuelrail_base::{Duration, Error, Kind, Result};
use io_uring_06 as io_uring;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio_uring::{InFlightOneshot, OneshotOutputTransform, Runtime, UnsubmittedOneshot};

use super::calls::MsghdrTable;
use super::file::patient;
use super::kernel::{Abilities, Backend, Blocking, Descriptor, KernelRing};
use super::op_table::OpTable;
use super::requests::request;
use super::table::Name;
use super::uring::{UringConfig, refusal};
use super::wake_bridge::WakeBridge;
use crate::wake::Waker;

/// A ring on tokio-uring. Must be made on the thread that uses it, outside every other async runtime.
pub type TokioUringRing = KernelRing<TokioUring>;

/// The way to the kernel through tokio-uring.
pub struct TokioUring {
    inside: Inside,
    runtime: Runtime,
}

/// What an iteration of the runtime works on.
struct Inside {
    ops: OpTable<Descriptor>,
    /// What the kernel reads while an operation is in flight.
    msghdrs: MsghdrTable,
    /// Operations submitted to the runtime, by their place in the table. They own nothing: no drop of one, or of the runtime,
    /// frees what the kernel writes to.
    flights: Box<[Option<InFlightOneshot<(), Outcome>>]>,
    bridge: WakeBridge,
    /// Numbers of the woken tasks, kept for its memory.
    notified: Vec<u32>,
    /// Operations to be submitted by the next iteration.
    backlog: Vec<Name>,
    /// Descriptors whose operations the next iteration is to cancel.
    unwanted: Vec<RawFd>,
    wakes: AsyncFd<WakeEvent>,
}

/// The descriptor a waker writes to. Its counter is never read: every write is an edge.
struct WakeEvent(Waker);

impl AsRawFd for WakeEvent {
    fn as_raw_fd(&self) -> RawFd {
        self.0.event_fd().expect("made by Waker::eventfd").as_raw_fd()
    }
}

/// Maps a completion to the operation's name and the kernel's result.
struct Outcome(Name);

impl OneshotOutputTransform for Outcome {
    type Output = (Name, i32);
    type StoredData = ();

    fn transform_oneshot_output(self, (): (), entry: io_uring::cqueue::Entry) -> (Name, i32) {
        (self.0, entry.result())
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
                .with_hint("use kernel 5.19 or later, or another ring"),
            errno => refusal(errno.unwrap_or(libc::EIO)),
        })?;
        let waker = Waker::eventfd()?;
        let event = WakeEvent(waker.clone());
        // SAFETY: the descriptor belongs to the waker inside `event`, which keeps it open, and the same, until the
        // registration is dropped with it.
        let wakes = runtime.block_on(async { unsafe { AsyncFd::register_with_interest(event, Interest::READABLE) } });
        let watching = "watching an eventfd with tokio";
        let wakes =
            wakes.map_err(|refused| Error::from_io(Kind::Environment, watching, std::io::Error::from(refused)))?;
        let mut abilities = Abilities { used: vec!["coop_taskrun"], ..Abilities::default() };
        if config.register.is_some() {
            abilities
                .refusals
                .push("the arena is not registered with tokio-uring; the ring uring does that".to_owned());
        }
        let entries = config.entries as usize;
        let inside = Inside {
            ops: OpTable::new(config.entries, config.sockets),
            msghdrs: MsghdrTable::new(config.entries),
            flights: (0..entries).map(|_| None).collect(),
            bridge: WakeBridge::new(config.entries),
            notified: Vec::with_capacity(entries),
            backlog: Vec::with_capacity(entries),
            unwanted: Vec::with_capacity(config.sockets as usize),
            wakes,
        };
        Ok(KernelRing::over(TokioUring { inside, runtime }, waker, abilities))
    }
}

impl Inside {
    /// Gives everything queued to the runtime, in whose context this must be called. Requests that found the submission
    /// queue full make the driver flush it; all others go to the kernel when the thread parks. Whether there were any.
    fn submit(&mut self) -> bool {
        let Inside { ops, msghdrs, flights, bridge, backlog, unwanted, .. } = self;
        let any = !backlog.is_empty() || !unwanted.is_empty();
        for name in backlog.drain(..) {
            // Completed already: cancelled before it was submitted.
            let Some((op, held)) = ops.flight(name) else { continue };
            let entry = request(name, op, held, false, msghdrs, None);
            // SAFETY: each version's entry is the kernel's `struct io_uring_sqe` and nothing else, which is plain numbers.
            let entry: io_uring::squeue::Entry = unsafe { core::mem::transmute(entry) };
            let mut flight = UnsubmittedOneshot::new((), Outcome(name), entry).submit();
            let mut context = Context::from_waker(bridge.waker(name.index));
            let early = Pin::new(&mut flight).poll(&mut context);
            debug_assert!(early.is_pending(), "completions are seen by the driver's task only");
            flights[name.index as usize] = Some(flight);
        }
        for fd in unwanted.drain(..) {
            // The result is not needed: the cancelled operations complete themselves.
            let all = io_uring::types::CancelBuilder::fd(io_uring::types::Fd(fd)).all();
            let cancel = io_uring::opcode::AsyncCancel2::new(all).build();
            drop(UnsubmittedOneshot::new((), Outcome(Name::NONE), cancel).submit());
        }
        any
    }

    /// Reaps completions. False when there were none.
    fn collect(&mut self) -> bool {
        self.bridge.take(&mut self.notified);
        if self.notified.is_empty() {
            return false;
        }
        for number in self.notified.drain(..) {
            let Some(flight) = &mut self.flights[number as usize] else { continue };
            let mut context = Context::from_waker(self.bridge.waker(number));
            let Poll::Ready((name, result)) = Pin::new(flight).poll(&mut context) else { continue };
            self.flights[number as usize] = None;
            if result == -libc::ECANCELED && !self.ops.is_cancelled(name) {
                // It was on the same descriptor as a cancelled one, and nothing was moved: it is submitted again.
                self.backlog.push(name);
                continue;
            }
            let opened = result >= 0 && self.ops.opening(name).is_some();
            // SAFETY: the kernel has opened it for this request, and no other owner exists.
            let fd = opened.then(|| unsafe { OwnedFd::from_raw_fd(result) });
            let result = fd.map_or(result, |fd| {
                patient(&fd);
                self.ops.opened(name, fd.into()).map_or(-libc::EMFILE, |_| 0)
            });
            self.ops.complete(name, result);
        }
        true
    }

    /// Waits for a completion or a wake, at most for `limit`.
    async fn stay(&mut self, limit: Option<Duration>) {
        let mut limit = pin!(limit.map(tokio::time::sleep));
        core::future::poll_fn(|context| {
            self.bridge.listen(context.waker());
            let over = limit.as_mut().as_pin_mut().is_some_and(|sleep| sleep.poll(context).is_ready());
            // All three are polled, so that all three are armed.
            if self.woken(context) | self.collect() | over { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
    }

    /// Passes once through the driver without sleeping. A completion meanwhile may be seen by the next iteration only.
    async fn pass(&mut self, submitted: bool) {
        let mut passed = false;
        core::future::poll_fn(|context| {
            self.bridge.listen(context.waker());
            if core::mem::replace(&mut passed, true) {
                return Poll::Ready(());
            }
            match submitted {
                // Only a thread that parks flushes the queue, and it parks only when it was not woken. So it parks and finds
                // an event.
                true => {
                    self.wakes.get_ref().0.signal();
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

    /// Whether another thread woke this ring.
    fn woken(&mut self, context: &mut Context<'_>) -> bool {
        match self.wakes.poll_read_ready(context) {
            Poll::Pending => false,
            Poll::Ready(Ok(mut guard)) => {
                guard.clear_ready();
                // Polled again, so that the next edge wakes this stay.
                let _ = self.wakes.poll_read_ready(context);
                true
            }
            // The runtime is shutting down, which only our own drop does.
            Poll::Ready(Err(_)) => true,
        }
    }
}

impl Backend for TokioUring {
    type Held = Descriptor;
    const NAME: &'static str = "tokio-uring";
    const BLOCKING: Blocking = Blocking::Yes;

    fn ops(&self) -> &OpTable<Descriptor> {
        &self.inside.ops
    }

    fn ops_mut(&mut self) -> &mut OpTable<Descriptor> {
        &mut self.inside.ops
    }

    fn end(&mut self, _: u32, held: Descriptor) {
        drop(held);
    }

    fn start(&mut self, name: Name) {
        self.inside.backlog.push(name);
    }

    /// Completes it at once when it is not submitted yet.
    fn request_cancel(&mut self, name: Name) {
        let Inside { ops, flights, unwanted, .. } = &mut self.inside;
        if flights[name.index as usize].is_none() {
            ops.complete(name, -libc::ECANCELED);
        } else if let Some((_, Some(held))) = ops.flight(name)
            && !unwanted.contains(&held.fd.as_raw_fd())
        {
            unwanted.push(held.fd.as_raw_fd());
        }
    }

    /// Submits what is queued and reaps completions.
    fn enter(&mut self, sleep: bool, limit: Option<Duration>) -> Result<()> {
        let inside = &mut self.inside;
        inside.ops.counts.enters += 1;
        inside.ops.counts.sleeps += u64::from(sleep);
        self.runtime.block_on(async {
            let submitted = inside.submit();
            if sleep {
                inside.stay(limit).await;
            } else {
                inside.pass(submitted).await;
            }
        });
        self.inside.bridge.unlisten();
        Ok(())
    }
}
