//! The deliver stage and the outlet: finished batches reach the consumer in order.
//!
//! A shard sends its batches in the order of their numbers; the outlet merges the shards, batch by batch, so order never
//! depends on who was faster. Owns the hand-off lanes. Never touches payload.

use crate::assemble::Finished;
use crate::gate::Gate;
use fuelrail_base::canary::{self, Mistake};
use fuelrail_base::{Instant, Turns};
use fuelrail_io::{Receiver, Sender, Waker};
use fuelrail_plan::importance::Known;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// What the consumer tells all shards.
#[derive(Debug, Default)]
pub struct Consumer {
    /// Batches taken so far, over all shards.
    taken: AtomicU64,
    /// Someone is blocked in `next_batch`.
    waits: AtomicBool,
    /// Which epochs are drawn. The lock is taken once an epoch: shards look at the count.
    known: Mutex<Option<Known>>,
    /// How often `known` was told.
    told: AtomicU64,
}

impl Consumer {
    /// Tells all shards that more epochs are drawn. They look when they are woken.
    pub fn tell(&self, known: Known) {
        let mut place = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        *place = Some(known);
        self.told.fetch_add(1, Ordering::Release);
    }

    /// What was told since `seen`, which is brought up to date.
    pub(crate) fn news(&self, seen: &mut u64) -> Option<Known> {
        let told = self.told.load(Ordering::Acquire);
        if told == *seen {
            return None;
        }
        *seen = told;
        self.known.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Batches of `shard` among the first `taken` of all.
    pub(crate) fn taken_of(&self, shard: u64, shards: u64) -> u64 {
        let taken = self.taken.load(Ordering::Acquire);
        taken / shards + u64::from(taken % shards > shard)
    }

    pub(crate) fn waits(&self) -> bool {
        self.waits.load(Ordering::Acquire)
    }
}

/// The deliver stage of one shard.
pub(crate) struct DeliverStage {
    out: Sender<Finished>,
    /// Finished before their turn.
    early: Turns<Finished>,
    next: u64,
    stride: u64,
    pub gate: Gate,
}

impl DeliverStage {
    pub(crate) fn new(out: Sender<Finished>, shard: u16, shards: u16, capacity: usize) -> DeliverStage {
        DeliverStage {
            out,
            early: Turns::with_capacity(capacity),
            next: u64::from(shard),
            stride: u64::from(shards),
            gate: Gate::new("deliver", capacity),
        }
    }

    pub(crate) fn put(&mut self, finished: Finished) {
        let neighbour = u64::from(canary::on(Mistake::DeliverSwaps));
        self.early.insert(finished.seq.0 ^ neighbour, finished);
    }

    /// Sends what is due. Returns whether the consumer is still there.
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

    /// One line for the watchdog.
    pub(crate) fn describe(&self) -> String {
        format!("deliver: next {}, {} finished early, {}", self.next, self.early.len(), self.gate)
    }
}

/// The consumer's end: all shards' batches, merged in order.
pub struct Outlet {
    lanes: Vec<Receiver<Finished>>,
    shards: Vec<Waker>,
    consumer: Arc<Consumer>,
    next: u64,
    end: u64,
}

impl Outlet {
    /// Merges `lanes`, one per shard in order of shard, of a run of `end` batches.
    #[must_use]
    pub fn new(lanes: Vec<Receiver<Finished>>, shards: Vec<Waker>, consumer: Arc<Consumer>, end: u64) -> Outlet {
        Outlet { lanes, shards, consumer, next: 0, end }
    }

    /// All batches have been taken.
    #[must_use]
    pub fn is_finished(&self) -> bool {
        self.next >= self.end
    }

    /// The next batch in order, if it is there.
    pub fn try_take(&mut self) -> Option<Finished> {
        if self.is_finished() {
            return None;
        }
        let lane = (self.next % self.lanes.len() as u64) as usize;
        let finished = self.lanes[lane].recv()?;
        debug_assert_eq!(finished.seq.0, self.next, "a shard sends its batches in order");
        self.next += 1;
        self.consumer.taken.store(self.next, Ordering::Release);
        self.wake_shards();
        Some(finished)
    }

    /// The next batch can never come: its shard is gone.
    #[must_use]
    pub fn is_cut_off(&self) -> bool {
        let lane = &self.lanes[(self.next % self.lanes.len() as u64) as usize];
        !self.is_finished() && lane.is_closed() && lane.is_empty()
    }

    /// Tells the shards whether the consumer is blocked. A starving consumer opens the look-ahead.
    pub fn set_waiting(&self, waits: bool) {
        if self.consumer.waits.swap(waits, Ordering::AcqRel) != waits && waits {
            self.wake_shards();
        }
    }

    /// Sets who is woken when a batch arrives.
    pub fn set_waker(&self, waker: &Waker) {
        for lane in &self.lanes {
            lane.set_waker(waker.clone());
        }
    }

    fn wake_shards(&self) {
        for waker in &self.shards {
            waker.wake();
        }
    }
}
