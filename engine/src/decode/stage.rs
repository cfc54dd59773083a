//! The loader's side of the decode stage: its threads, the feeder that admits batches, and the consumer's end, which
//! takes decoded batches in order.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, OnceLock};
use std::thread::JoinHandle;

use crossbeam_queue::ArrayQueue;
use fuelrail_base::{ReorderWindow, Result};
use fuelrail_flow::{Assembled, Finished, Objects, Outlet};
use fuelrail_io::{Region, Slot, Waker};

use super::Decode;
use super::facts::Facts;
use super::pool::{Job, LOOK_AGAIN, Shared, Work, serve};
use crate::config::Config;
use crate::memory::decoded_batch_bytes;
use crate::records::Records;
use crate::system::spawn_guarded;

/// What its threads are called in errors.
const DECODING: &str = "a decoding thread";

/// The decode stage: yields decoded batches in order.
pub(crate) struct DecodeStage {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
    /// Batches that finished before earlier ones.
    early: ReorderWindow<Finished>,
    next: u64,
    end: u64,
}

impl DecodeStage {
    /// Starts the threads that decode the `end` batches from `outlet`. `region` holds the pixels.
    pub(crate) fn start(
        config: &Config,
        (decode, region): (Decode, Region),
        (objects, records): (Arc<Objects>, Option<Arc<Records>>),
        outlet: Outlet,
        end: u64,
    ) -> Result<DecodeStage> {
        let (threads, depth) = (config.decode.threads.unwrap_or(1), config.decode.depth);
        let (batch_size, seed) = (config.batch_size, config.order.seed);
        let feeder = Waker::sleeper();
        outlet.set_waker(&feeder);
        region.set_waker(feeder.clone());
        let shared = Arc::new(Shared {
            wanted: decode,
            function: config.decode.function.clone(),
            seed,
            bad_samples: config.bad_samples,
            objects,
            records,
            jobs: ArrayQueue::new((depth * batch_size as usize).max(1)),
            finished: ArrayQueue::new(depth),
            feeder,
            consumer: OnceLock::new(),
            waits: AtomicBool::new(false),
            stop: AtomicBool::new(false),
            is_warned: AtomicBool::new(false),
            facts: Arc::new(Facts::new(threads, depth)),
            quarantine: Mutex::default(),
            rest: (Mutex::new(()), Condvar::new()),
        });
        let run = Arc::clone(outlet.consumer());
        let batch_bytes = decoded_batch_bytes(config, shared.records.as_deref()) as usize;
        let feed = Feed { shared: Arc::clone(&shared), outlet, region, batch_bytes, depth: depth as u64, slot: None };
        let early = ReorderWindow::with_capacity(depth);
        // From here on a failure stops and joins the threads already started.
        let mut stage = DecodeStage { shared, threads: Vec::new(), early, next: 0, end };
        for n in 0..threads {
            let shared = Arc::clone(&stage.shared);
            let work = move || {
                serve(&shared);
                Ok(())
            };
            stage.threads.push(spawn_guarded(&run, &format!("fuelrail-d{n}"), DECODING, work)?);
        }
        let work = move || {
            feed.run();
            Ok(())
        };
        stage.threads.push(spawn_guarded(&run, "fuelrail-feed", DECODING, work)?);
        Ok(stage)
    }

    pub(crate) fn facts(&self) -> &Arc<Facts> {
        &self.shared.facts
    }

    pub(crate) fn is_finished(&self) -> bool {
        self.next >= self.end
    }

    pub(crate) fn try_take(&mut self) -> Option<Finished> {
        while let Some(finished) = self.shared.finished.pop() {
            self.early.insert(finished.seq.0, finished);
        }
        let finished = self.early.remove(self.next)?;
        self.next += 1;
        self.shared.facts.batch_taken();
        self.shared.feeder.wake();
        Some(finished)
    }

    /// Whether only the consumer can make room for the next batch.
    pub(crate) fn is_starved(&self) -> bool {
        self.shared.facts.starved.load(Ordering::Acquire)
    }

    pub(crate) fn set_waiting(&self, waits: bool) {
        self.shared.waits.store(waits, Ordering::Release);
        if waits {
            self.shared.feeder.wake();
        }
    }

    /// Sets the waker to call when a batch is decoded. May be set once.
    pub(crate) fn set_waker(&self, waker: &Waker) {
        let set = self.shared.consumer.set(waker.clone());
        debug_assert!(set.is_ok(), "a stage has one consumer for life");
    }

    /// Drops the stage in a forked child, where its threads do not exist: nothing of theirs may be joined or touched.
    pub(crate) fn forget(&mut self) {
        self.threads.drain(..).for_each(core::mem::forget);
        core::mem::forget(Arc::clone(&self.shared));
    }
}

impl Drop for DecodeStage {
    fn drop(&mut self) {
        if self.threads.is_empty() {
            return;
        }
        self.shared.end();
        let here = std::thread::current().id();
        // A program's function may drop the loader that calls it: its thread ends after that. A panic has already failed the run.
        for thread in self.threads.drain(..).filter(|thread| thread.thread().id() != here) {
            let _ = thread.join();
        }
    }
}

/// The feeder thread: takes batches from the shards in order, gives each a slot for its pixels, and queues their samples.
/// Owns the shards' outlet and the region of the decoded batches. Never decodes.
struct Feed {
    shared: Arc<Shared>,
    outlet: Outlet,
    region: Region,
    /// Bytes of a full decoded batch. All slots have this size, so that the region does not fragment.
    batch_bytes: usize,
    /// Most batches admitted and not yet taken by the consumer.
    depth: u64,
    /// Memory for the next batch.
    slot: Option<Slot>,
}

impl Feed {
    fn run(mut self) {
        let shared = Arc::clone(&self.shared);
        while !shared.is_stopped() {
            let sleeps = shared.feeder.arm();
            if !self.turn() && sleeps {
                shared.feeder.sleep(LOOK_AGAIN);
            }
            shared.feeder.disarm();
        }
    }

    /// Admits available batches, up to the depth and the memory. Returns whether any was admitted.
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
        // Only a consumer that waits for the bucket extends the look-ahead; one that waits for decoders would not gain.
        self.outlet.set_waiting(room && empty && more && shared.waits.load(Ordering::Acquire));
        moved
    }

    /// Queues the samples of a batch.
    fn open(&mut self, raw: Assembled, slot: Slot) {
        let (samples, bytes) = (raw.samples.len(), self.shared.wanted.sample_bytes() as usize);
        let mut filling = slot.fill();
        // As many samples to a job: one, or all.
        let together = self.shared.function.as_ref().is_some_and(|function| function.takes_batches);
        let step = if together { samples.max(1) } else { 1 };
        let windows: Vec<_> = (0..samples / step).map_while(|_| filling.carve(step * bytes)).collect();
        debug_assert_eq!(windows.len(), samples / step, "the slot has the batch's room");
        let Assembled { spec, slot, samples: placed, left_out } = raw;
        let work = Work { spec, samples: placed, left_out, raw: Arc::new(slot), filling, bad: Mutex::default() };
        if samples == 0 {
            return self.shared.finish(work);
        }
        let work = Arc::new(work);
        let jobs = windows.into_iter().enumerate().map(|(n, window)| {
            let work = Arc::clone(&work);
            Job { work, index: n * step, window }
        });
        self.shared.push(jobs);
        // The threads may have finished all samples already.
        if let Some(work) = Arc::into_inner(work) {
            self.shared.finish(work);
        }
    }
}

/// The source of the consumer's batches: shards, or the decoding stage.
pub(crate) enum Supply {
    Raw(Outlet),
    Decoded(DecodeStage),
}

impl Supply {
    /// All batches have been taken.
    pub(crate) fn is_finished(&self) -> bool {
        match self {
            Supply::Raw(outlet) => outlet.is_finished(),
            Supply::Decoded(stage) => stage.is_finished(),
        }
    }

    /// The next batch in order, if it is there.
    pub(crate) fn try_take(&mut self) -> Option<Finished> {
        match self {
            Supply::Raw(outlet) => outlet.try_take(),
            Supply::Decoded(stage) => stage.try_take(),
        }
    }

    pub(crate) fn set_waiting(&mut self, waits: bool) {
        match self {
            Supply::Raw(outlet) => outlet.set_waiting(waits),
            Supply::Decoded(stage) => stage.set_waiting(waits),
        }
    }

    pub(crate) fn set_waker(&self, waker: &Waker) {
        match self {
            Supply::Raw(outlet) => outlet.set_waker(waker),
            Supply::Decoded(stage) => stage.set_waker(waker),
        }
    }

    /// What decodes, where anything is decoded.
    pub(crate) fn stage(&self) -> Option<&DecodeStage> {
        match self {
            Supply::Raw(_) => None,
            Supply::Decoded(stage) => Some(stage),
        }
    }

    /// In a forked child: lets go without waiting for threads that do not exist there.
    pub(crate) fn forget(&mut self) {
        if let Supply::Decoded(stage) = self {
            stage.forget();
        }
    }
}
