//! The thread that lets batches in: it takes them from the shards in order, gives each a slot for its pixels, and queues
//! their samples.
//!
//! Owns the outlet of the shards and the region of the decoded batches. Never decodes.

use super::pool::{Job, LOOK_AGAIN, Shared, Work};
use fuelrail_flow::{Assembled, Finished, Outlet};
use fuelrail_io::{Region, Slot};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};

pub(super) struct Feed {
    pub shared: Arc<Shared>,
    pub outlet: Outlet,
    pub region: Region,
    /// Bytes of a full decoded batch. Every slot has as many, so that no gap between two is too short for a third.
    pub batch_bytes: usize,
    /// Batches let in and not taken by the consumer, at most.
    pub depth: u64,
    /// Memory for the next batch.
    pub slot: Option<Slot>,
}

impl Feed {
    pub(super) fn run(mut self) {
        let shared = Arc::clone(&self.shared);
        while !shared.is_stopped() {
            let sleeps = shared.feeder.arm();
            if !self.turn() && sleeps {
                shared.feeder.sleep(LOOK_AGAIN);
            }
            shared.feeder.disarm();
        }
    }

    /// Lets in what there is, up to the depth and the memory. True when something was let in.
    fn turn(&mut self) -> bool {
        let (shared, mut moved) = (Arc::clone(&self.shared), false);
        let mut room = true;
        while !shared.is_stopped() && shared.facts.inside() < self.depth {
            if self.slot.is_none() {
                self.slot = self.region.alloc(self.batch_bytes);
            }
            room = self.slot.is_some();
            if !room {
                break;
            }
            let Some(Finished { seq, result }) = self.outlet.try_take() else { break };
            moved = true;
            shared.facts.batch_opened();
            match (result, self.slot.take()) {
                (Ok(raw), Some(slot)) => self.open(raw, slot),
                (Err(error), slot) => {
                    self.slot = slot;
                    shared.hand_over(Finished { seq, result: Err(error) });
                }
                (Ok(_), None) => unreachable!("there was room"),
            }
        }
        let empty = shared.facts.inside() == 0;
        let more = !self.outlet.is_finished();
        shared.facts.starved.store(!room && empty && more, Ordering::Release);
        // Only a consumer that waits for the bucket opens the look-ahead; one that waits for decoders would not be helped.
        self.outlet.set_waiting(room && empty && more && shared.waits.load(Ordering::Acquire));
        moved
    }

    /// Queues the samples of a batch.
    fn open(&mut self, raw: Assembled, slot: Slot) {
        let (samples, bytes) = (raw.samples.len(), self.shared.wanted.sample_bytes() as usize);
        let mut filling = slot.fill();
        let windows: Vec<_> = (0..samples).map_while(|_| filling.carve(bytes)).collect();
        debug_assert_eq!(windows.len(), samples, "the slot has the batch's room");
        let work = Work { raw, filling, bad: Mutex::default() };
        if samples == 0 {
            return self.shared.finish(work);
        }
        let work = Arc::new(work);
        let jobs = windows.into_iter().enumerate().map(|(index, window)| {
            let work = Arc::clone(&work);
            Job { work, index, window }
        });
        self.shared.push(jobs);
        // The threads may have been faster than this one.
        if let Some(work) = Arc::into_inner(work) {
            self.shared.finish(work);
        }
    }
}
