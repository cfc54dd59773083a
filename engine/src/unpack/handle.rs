//! The threads that unpack, as the loader sees them.

use fuelrail_io::Waker;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
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
}

impl Shared {
    pub(super) fn new() -> Shared {
        let (stop, starved) = (AtomicBool::new(false), AtomicBool::new(false));
        Shared { stop, waker: Waker::sleeper(), starved }
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
