//! The decode stage as the loader holds it: its threads, and the consumer's end that takes decoded batches in order.

use super::Decode;
use super::facts::Facts;
use super::feed::Feed;
use super::pool::{Shared, serve};
use crate::config::Config;
use crossbeam_queue::ArrayQueue;
use fuelrail_base::canary;
use fuelrail_base::{Error, Kind, Result, Turns};
use fuelrail_flow::{Consumer, Finished, Objects, Outlet};
use fuelrail_io::{Region, Waker};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, OnceLock};
use std::thread::JoinHandle;

/// Decoded batches, in order.
pub(crate) struct DecodeStage {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
    /// Finished before their turn.
    early: Turns<Finished>,
    next: u64,
    end: u64,
    wanted: Decode,
}

impl DecodeStage {
    /// Starts the threads between `outlet`, of a run of `end` batches, and the consumer. `region` holds the pixels.
    pub(crate) fn start(
        config: &Config,
        (decode, region): (Decode, Region),
        objects: Arc<Objects>,
        outlet: Outlet,
        end: u64,
    ) -> Result<DecodeStage> {
        let &Config { decode_threads: threads, decode_depth: depth, batch_size, seed, .. } = config;
        let feeder = Waker::sleeper();
        outlet.set_waker(&feeder);
        region.set_waker(feeder.clone());
        let shared = Arc::new(Shared {
            wanted: decode,
            seed,
            bad_samples: config.bad_samples()?,
            objects,
            jobs: ArrayQueue::new((depth * batch_size as usize).max(1)),
            finished: ArrayQueue::new(depth),
            feeder,
            consumer: OnceLock::new(),
            waits: AtomicBool::new(false),
            stop: AtomicBool::new(false),
            facts: Arc::new(Facts::new(threads, depth)),
            quarantine: Mutex::default(),
            rest: (Mutex::new(()), Condvar::new()),
        });
        let run = Arc::clone(outlet.consumer());
        let batch_bytes = decode.sample_bytes() as usize * batch_size as usize;
        let feed = Feed { shared: Arc::clone(&shared), outlet, region, batch_bytes, depth: depth as u64, slot: None };
        let early = Turns::with_capacity(depth);
        // From here on a failure stops and joins what stands.
        let mut stage = DecodeStage { shared, threads: Vec::new(), early, next: 0, end, wanted: decode };
        for n in 0..threads {
            let shared = Arc::clone(&stage.shared);
            stage.threads.push(spawn(&run, format!("fuelrail-d{n}"), move || serve(&shared))?);
        }
        stage.threads.push(spawn(&run, "fuelrail-feed".into(), move || feed.run())?);
        Ok(stage)
    }

    pub(crate) fn decode(&self) -> &Decode {
        &self.wanted
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

    /// Only the consumer can make room for the next batch.
    pub(crate) fn is_starved(&self) -> bool {
        self.shared.facts.starved.load(Ordering::Acquire)
    }

    pub(crate) fn set_waiting(&self, waits: bool) {
        self.shared.waits.store(waits, Ordering::Release);
        if waits {
            self.shared.feeder.wake();
        }
    }

    /// Who is woken when a batch is decoded. Set once.
    pub(crate) fn set_waker(&self, waker: &Waker) {
        let set = self.shared.consumer.set(waker.clone());
        debug_assert!(set.is_ok(), "a stage has one consumer for life");
    }

    /// In a forked child the threads do not exist: nothing of theirs may be waited for or touched.
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
        for thread in self.threads.drain(..) {
            // Its panics are the run's failure, not its own.
            let _ = thread.join();
        }
    }
}

/// A thread whose panic ends the run: what it held will never come.
fn spawn(run: &Arc<Consumer>, name: String, work: impl FnOnce() + Send + 'static) -> Result<JoinHandle<()>> {
    let run = Arc::clone(run);
    let guarded = canary::inherited(move || {
        run.failure.guard("a decoding thread", || {
            work();
            Ok(())
        });
    });
    let thread = std::thread::Builder::new().name(name).spawn(guarded);
    thread.map_err(|e| {
        Error::new(Kind::Environment, format!("starting a decoding thread: {e}"))
            .cure("ask for fewer with decode_threads, or raise the limit of processes (ulimit -u)")
    })
}
