//! The deliver stage and the outlet: finished batches reach the consumer in order.
//!
//! A shard sends its batches in the order of their numbers; the outlet merges the shards, batch by batch, so order never
//! depends on which shard was faster. Owns the hand-off channels. Never touches payload.

use crate::assemble::Finished;
use crate::failure::Failure;
use crate::gate::Gate;
use fuelrail_base::canary::{self, Mistake};
use fuelrail_base::sync::Mutex;
use fuelrail_base::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use fuelrail_base::{Instant, ReorderWindow};
use fuelrail_io::{Receiver, Sender, Waker};
use fuelrail_plan::importance::Known;
use std::sync::{Arc, PoisonError};

/// What the consumer and all shards of a run share: batches taken, epochs drawn, and why the run has failed. All loads and stores of
/// numbers are relaxed: waking a shard, or the lock, makes visible what comes with them.
#[derive(Debug, Default)]
pub struct Consumer {
    /// Batches taken so far, over all shards.
    taken: AtomicU64,
    /// The consumer is blocked in `next_batch`.
    waits: AtomicBool,
    /// Which epochs are drawn. The lock is taken once an epoch: shards look at the count.
    known: Mutex<Option<Known>>,
    /// How often `known` was set.
    told: AtomicU64,
    /// Why the run has failed, if it has.
    pub failure: Failure,
}

impl Consumer {
    /// Tells all shards which epochs are drawn. They check when they are woken.
    pub fn tell(&self, known: Known) {
        let mut place = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        *place = Some(known);
        self.told.fetch_add(1, Ordering::Relaxed);
    }

    /// The epochs drawn, if that changed since `seen`, which is brought up to date.
    pub(crate) fn news(&self, seen: &mut u64) -> Option<Known> {
        let told = self.told.load(Ordering::Relaxed);
        if told == *seen {
            return None;
        }
        *seen = told;
        self.known.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Batches of `shard` among the first `taken` of all.
    pub(crate) fn taken_of(&self, shard: u64, shards: u64) -> u64 {
        let taken = self.taken.load(Ordering::Relaxed);
        taken / shards + u64::from(taken % shards > shard)
    }

    /// The consumer is blocked.
    pub fn waits(&self) -> bool {
        self.waits.load(Ordering::Relaxed)
    }
}

/// The deliver stage of one shard.
pub(crate) struct DeliverStage {
    out: Sender<Finished>,
    /// Finished before earlier batches.
    early: ReorderWindow<Finished>,
    next: u64,
    stride: u64,
    pub gate: Gate,
}

impl DeliverStage {
    pub(crate) fn new(out: Sender<Finished>, shard: u16, shards: u16, capacity: usize) -> DeliverStage {
        DeliverStage {
            out,
            early: ReorderWindow::with_capacity(capacity),
            next: u64::from(shard),
            stride: u64::from(shards),
            gate: Gate::new("deliver", capacity),
        }
    }

    pub(crate) fn put(&mut self, finished: Finished) {
        let neighbour = u64::from(canary::on(Mistake::DeliverSwaps));
        self.early.insert(finished.seq.0 ^ neighbour, finished);
    }

    /// Sends what is due. False when the consumer is gone.
    pub(crate) fn flush(&mut self, now: Instant, taken: u64) -> bool {
        while let Some(finished) = self.early.remove(self.next) {
            match self.out.send(finished) {
                Ok(()) => {
                    self.next += self.stride;
                    self.gate.entered(now);
                }
                Err(finished) => {
                    self.early.insert(finished.seq.0, finished);
                    break;
                }
            }
        }
        self.gate.left(now, taken);
        !self.out.is_closed()
    }

    #[cfg(all(test, loom))]
    pub(crate) fn is_empty(&self) -> bool {
        self.early.is_empty()
    }

    /// One line for the watchdog.
    pub(crate) fn describe(&self) -> String {
        format!("deliver: next {}, {} finished early, {}", self.next, self.early.len(), self.gate)
    }
}

/// The consumer's end of all shards' channels: their batches, merged in order.
pub struct Outlet {
    channels: Vec<Receiver<Finished>>,
    shards: Vec<Waker>,
    consumer: Arc<Consumer>,
    next: u64,
    end: u64,
}

impl Outlet {
    /// Merges `channels`, one per shard in order of shard, of a run of `end` batches.
    pub fn new(channels: Vec<Receiver<Finished>>, shards: Vec<Waker>, consumer: Arc<Consumer>, end: u64) -> Outlet {
        Outlet { channels, shards, consumer, next: 0, end }
    }

    /// All batches have been taken.
    pub fn is_finished(&self) -> bool {
        self.next >= self.end
    }

    /// The next batch in order, if it is there.
    pub fn try_take(&mut self) -> Option<Finished> {
        if self.is_finished() {
            return None;
        }
        let shard = (self.next % self.channels.len() as u64) as usize;
        let finished = self.channels[shard].recv()?;
        debug_assert_eq!(finished.seq.0, self.next, "a shard sends its batches in order");
        self.next += 1;
        self.consumer.taken.store(self.next, Ordering::Relaxed);
        // The freed place is in this shard's channel: the others need not wake.
        self.shards[shard].wake();
        Some(finished)
    }

    /// What it shares with the shards.
    pub fn consumer(&self) -> &Arc<Consumer> {
        &self.consumer
    }

    /// Tells the shards whether the consumer is blocked. A starving consumer deepens the look-ahead, and its waits are no part
    /// of its steps: all shards are woken when a wait begins and when it ends.
    pub fn set_waiting(&self, waits: bool) {
        if self.consumer.waits.swap(waits, Ordering::Relaxed) != waits {
            self.wake_shards();
        }
    }

    /// Sets the waker that is called when a batch arrives.
    pub fn set_waker(&self, waker: &Waker) {
        for channel in &self.channels {
            channel.set_waker(waker.clone());
        }
    }

    fn wake_shards(&self) {
        for waker in &self.shards {
            waker.wake();
        }
    }
}
