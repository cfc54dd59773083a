//! The loader's hold on the thread of its relay.

use crate::memory::Memory;
use crate::system::spawn_guarded;
use fuelrail_base::Result;
use fuelrail_flow::Consumer;
use fuelrail_io::Waker;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

/// What a relay and its loader share.
#[derive(Clone)]
pub(super) struct RelayEnds {
    stop: Arc<AtomicBool>,
    /// Wakes the relay.
    pub waker: Waker,
    /// What the relay's next batches lie in.
    memory: Arc<Mutex<Option<Memory>>>,
}

impl RelayEnds {
    pub(super) fn new() -> RelayEnds {
        RelayEnds { stop: Arc::default(), waker: Waker::sleeper(), memory: Arc::default() }
    }

    pub(super) fn lies_in(&self, memory: Memory) {
        *self.memory.lock().unwrap_or_else(PoisonError::into_inner) = Some(memory);
    }

    pub(super) fn is_stopped(&self) -> bool {
        self.stop.load(Ordering::Acquire)
    }
}

/// The thread of a relay. It ends when this is dropped.
pub(crate) struct RelayThread {
    ends: RelayEnds,
    thread: Option<JoinHandle<()>>,
}

impl RelayThread {
    /// Runs `relay` on a thread of its own. Its error is the run's.
    pub(super) fn start(
        ends: RelayEnds,
        consumer: &Arc<Consumer>,
        relay: impl FnOnce() -> Result<()> + Send + 'static,
    ) -> Result<RelayThread> {
        let thread = Some(spawn_guarded(consumer, "fuelrail-relay", "shared_read", relay)?);
        Ok(RelayThread { ends, thread })
    }

    /// What its next batches lie in.
    pub(crate) fn memory(&self) -> Option<Memory> {
        self.ends.memory.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl Drop for RelayThread {
    fn drop(&mut self) {
        self.ends.stop.store(true, Ordering::Release);
        self.ends.waker.wake();
        if let Some(thread) = self.thread.take() {
            // A panic of it has failed the run.
            let _ = thread.join();
        }
    }
}
