//! The threads that unpack, as the loader sees them.

use crate::watch::{Counts, Watched, snapshots};
use fuelrail_base::Duration;
use fuelrail_flow::Snapshot;
use fuelrail_io::Waker;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

/// The threads of a loader that unpacks, as the loader sees them.
pub(crate) struct Unpacker {
    pub(super) shared: Arc<Shared>,
    pub(super) threads: Vec<JoinHandle<()>>,
}

pub(super) struct Shared {
    pub stop: AtomicBool,
    /// Wakes the thread that fills batches.
    pub waker: Waker,
    /// The next batch waits for memory that only the consumer can give back.
    pub starved: AtomicBool,
    /// What loaders of ranges that are over have counted, and the shards of the one that reads.
    read: Mutex<Read>,
}

type Read = (Vec<Snapshot>, Vec<Watched>);

impl Shared {
    pub(super) fn new() -> Shared {
        let (stop, starved) = (AtomicBool::new(false), AtomicBool::new(false));
        Shared { stop, waker: Waker::sleeper(), starved, read: Mutex::default() }
    }

    fn snapshots(&self, patience: Duration) -> Vec<Snapshot> {
        let (mut found, reading) = self.read().clone();
        found.extend(snapshots(&reading, patience));
        found
    }

    pub(super) fn read(&self) -> MutexGuard<'_, Read> {
        self.read.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Unpacker {
    /// Whether only the consumer can make room for the next batch.
    pub(crate) fn is_starved(&self) -> bool {
        self.shared.starved.load(Ordering::Relaxed)
    }

    pub(crate) fn waker(&self) -> &Waker {
        &self.shared.waker
    }

    /// What was counted of reading.
    pub(crate) fn snapshots(&self, patience: Duration) -> Vec<Snapshot> {
        self.shared.snapshots(patience)
    }

    /// [`snapshots`](Unpacker::snapshots) as a function, for the page of metrics.
    pub(crate) fn counts(&self) -> Counts {
        let shared = Arc::clone(&self.shared);
        Box::new(move |patience| shared.snapshots(patience))
    }
}

impl Drop for Unpacker {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Relaxed);
        self.shared.waker.wake();
        for thread in self.threads.drain(..) {
            // The run's failure has the cause.
            let _ = thread.join();
        }
    }
}
