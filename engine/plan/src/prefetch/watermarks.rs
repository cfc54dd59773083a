//! DELI's prefetch as published (IC2E 2021): when the queue falls to the threshold T, request the next F samples.
//!
//! Speaks in samples only, as DELI does: it knows no bytes, and the caller's memory budget is what stops it.

use super::View;
use fuelrail_base::{Error, Kind, Result};

/// Fetch size F and threshold T.
#[derive(Clone, Debug)]
pub struct Watermarks {
    fetch_size: u64,
    threshold: u64,
    /// Samples requested since the run began. Opening them may take several calls; they are requested once.
    asked: u64,
}

impl Watermarks {
    /// Requests `fetch_size` samples whenever no more than `threshold` of those requested are left.
    ///
    /// # Errors
    /// [`Kind::Usage`] when `fetch_size` is zero: nothing would ever be fetched.
    pub fn new(fetch_size: u64, threshold: u64) -> Result<Watermarks> {
        if fetch_size == 0 {
            return Err(
                Error::new(Kind::Usage, "prefetch fetch size is 0 samples").with_hint("ask for at least one sample")
            );
        }
        Ok(Watermarks { fetch_size, threshold, asked: 0 })
    }

    /// As [`Strategy::credit`](super::Strategy::credit).
    pub fn credit(&mut self, view: &View) -> u64 {
        let taken = view.opened_samples - view.queued_samples;
        // The queue is what has been requested and not taken. The sampler checks it after every sample; here a whole batch
        // is taken at once, so several fetches may be due. At the start it is empty: F = T requests twice.
        let short = (taken + self.threshold).checked_sub(self.asked);
        if let Some(short) = short {
            self.asked += (short / self.fetch_size + 1) * self.fetch_size;
        }
        self.asked - view.opened_samples.min(self.asked)
    }
}
