//! The loader's hold on the thread of its relay.

use crate::memory::Memory;
use crate::system::spawn_guarded;
use fuelrail_base::Result;
use fuelrail_flow::Consumer;
use fuelrail_io::Waker;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
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
    pub progress: Arc<Progress>,
}

/// Where a relay is, for the watchdog.
pub(super) struct Progress {
    /// The process that reads, and where it listens.
    pub reader: String,
    /// The next batch to be received.
    pub next: AtomicU64,
    /// How long the job has waited for that process to answer, ms.
    pub silence_ms: AtomicU64,
    pub is_alone: AtomicBool,
}

impl Progress {
    fn describe(&self) -> String {
        let Progress { reader, next, silence_ms, is_alone } = self;
        let (next, silence_s) = (next.load(Ordering::Relaxed), silence_ms.load(Ordering::Relaxed) / 1000);
        if is_alone.load(Ordering::Relaxed) {
            return format!("shared_read: this job reads batch {next} alone");
        }
        // One that lives has answered before the second look.
        let silence = (silence_s > 1).then(|| {
            format!(
                ", which has not answered for {silence_s} s: continue it (kill -CONT) if it is stopped; this job reads alone \
                 if it ends, or does not answer for too long"
            )
        });
        format!("shared_read: batch {next} comes from {reader}{}", silence.unwrap_or_default())
    }
}

impl RelayEnds {
    /// `reader` is the process that reads, and where it listens.
    pub(super) fn new(reader: String) -> RelayEnds {
        let (next, silence_ms, is_alone) = (AtomicU64::new(0), AtomicU64::new(0), AtomicBool::new(false));
        let progress = Arc::new(Progress { reader, next, silence_ms, is_alone });
        RelayEnds { stop: Arc::default(), waker: Waker::sleeper(), memory: Arc::default(), progress }
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

    /// A function that tells where it is, in one line for the watchdog.
    pub(crate) fn progress(&self) -> Box<dyn Fn() -> String + Send> {
        let progress = Arc::clone(&self.ends.progress);
        Box::new(move || progress.describe())
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
