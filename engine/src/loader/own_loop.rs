//! The loader in programs with a loop of their own: looks that never wait, the eventfd that says when to look, and the stream.

use super::{Loader, Taken};
use crate::batch::Batch;
use fuelrail_base::{Duration, Result};
use futures_core::Stream;
use std::os::fd::{AsFd, AsRawFd};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

impl Loader {
    /// Takes the next batch if it is there. Where it is not, [`event`](Loader::event) becomes readable when it may be, and the task of
    /// a [`Stream`] is woken: for programs that have a loop of their own. That batches are held which leave no room is not found out here, which
    /// takes time: there is nothing until some are dropped.
    ///
    /// # Errors
    /// As [`next_batch`](Loader::next_batch); afterwards the run is [`Taken::Over`], but for `Budget` where batches are held.
    pub fn try_next_batch(&mut self) -> Result<Taken> {
        // A forked child shares the eventfd: what it reads, the parent would miss.
        if self.guard.holds() {
            self.waker.drain();
        }
        self.stays_armed = true;
        let taken = self.guarded(Some(Duration::ZERO));
        self.stays_armed = false;
        taken
    }

    /// An eventfd for `epoll`, `select` or an asynchronous runtime: readable unless the latest call was a
    /// [`try_next_batch`](Loader::try_next_batch) that has found nothing, and nothing has come since. Made at the first call; it stays the same.
    ///
    /// # Errors
    /// `Environment` when the process has no file descriptor left.
    pub fn event(&self) -> Result<Arc<impl AsFd + AsRawFd + use<>>> {
        self.waker.event()
    }
}

/// As the iterator, for asynchronous programs; but where batches that are held leave no room it is pending until some are dropped.
/// Decoding and fetching go on whatever the executor does.
impl Stream for Loader {
    type Item = Result<Batch>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Result<Batch>>> {
        if self.guard.holds() {
            self.waker.set_task(context.waker());
        }
        match self.try_next_batch() {
            Ok(Taken::NotYet) => Poll::Pending,
            Ok(Taken::Batch(batch)) => Poll::Ready(Some(Ok(batch))),
            Ok(Taken::Over) => Poll::Ready(None),
            Err(error) => Poll::Ready(Some(Err(error))),
        }
    }
}
