//! Counters of a feed: whether the trainer waits for data.
//!
//! Owns the counters. Reads no clock: durations are passed in.

use core::time::Duration;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// What a feed has done so far.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct FeedStats {
    /// Batches given to the consumer.
    pub batches: u64,
    /// Batches whose copy has ended.
    pub copies: u64,
    /// Bytes of those copies.
    pub copied_bytes: u64,
    /// Time the device spent on those copies, s.
    pub copy_s: f64,
    /// The longest of them, s.
    pub copy_s_max: f64,
    /// Time the consumer spent inside [`Feed::next`](crate::Feed::next), waiting, s.
    pub data_wait_s: f64,
    /// Share of calls of [`Feed::next`](crate::Feed::next) that found a batch on its way to the device; 1 before the first call.
    pub readiness: f64,
    /// Share of batches that were on the device when they were given out; a stream waited for the others. 1 before the first.
    pub landed: f64,
    /// Device buffers the consumer holds.
    pub held: u64,
}

/// The counters of a running feed. Of the shares, the numbers of batches are kept; the lock is taken once or twice a batch.
#[derive(Debug, Default)]
pub(crate) struct Tally(Mutex<FeedStats>);

impl Tally {
    fn counts(&self) -> MutexGuard<'_, FeedStats> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A batch is handed to the consumer.
    pub(crate) fn give(&self, at_once: bool, landed: bool) {
        let mut counts = self.counts();
        counts.held += 1;
        counts.batches += 1;
        counts.readiness += f64::from(at_once);
        counts.landed += f64::from(landed);
    }

    /// A batch is returned.
    pub(crate) fn come_back(&self) {
        self.counts().held -= 1;
    }

    /// Batches the consumer holds.
    pub(crate) fn held(&self) -> usize {
        self.counts().held as usize
    }

    pub(crate) fn wait(&self, time: Duration) {
        self.counts().data_wait_s += time.as_secs_f64();
    }

    pub(crate) fn copy(&self, bytes: usize, time: Duration) {
        let mut counts = self.counts();
        counts.copies += 1;
        counts.copied_bytes += bytes as u64;
        counts.copy_s += time.as_secs_f64();
        counts.copy_s_max = counts.copy_s_max.max(time.as_secs_f64());
    }

    pub(crate) fn stats(&self) -> FeedStats {
        let counts = *self.counts();
        let share = |part: f64| if counts.batches == 0 { 1.0 } else { part / counts.batches as f64 };
        FeedStats { readiness: share(counts.readiness), landed: share(counts.landed), ..counts }
    }
}
