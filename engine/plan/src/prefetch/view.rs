//! What a strategy sees and answers. Owns nothing.

use fuelrail_base::{Duration, Instant};

/// The facts a strategy steers by, gathered anew for every question.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct View {
    /// Now.
    pub now: Instant,
    /// Samples opened since the run began.
    pub opened_samples: u64,
    /// Samples opened and not yet taken by the consumer.
    pub queued_samples: u64,
    /// Batches opened and not yet taken, ready ones included.
    pub open_batches: u64,
    /// Batches complete and not yet taken: the occupancy of the last gate.
    pub ready_batches: u64,
    /// Batches taken since the run began.
    pub taken_batches: u64,
    /// Whether the consumer is blocked in `next_batch` right now.
    pub consumer_waits: bool,
    /// Samples of the next batch that are not opened yet; zero when the run has no further batch. (A batch without
    /// samples needs no credit.)
    pub next_batch_samples: u64,
    /// Bytes that opening the next batch takes from the budget.
    pub next_batch_bytes: u64,
    /// Bytes of the budget held by batches: opened, ready or leased.
    pub open_bytes: u64,
    /// The hard budget for batches, bytes.
    pub budget_bytes: u64,
    /// Fetches that wait for a place in the window: work that is open and not being done yet.
    pub queued_fetches: u64,
    /// How long the consumer computes between two batches, smoothed; zero while unknown.
    pub step_time: Duration,
    /// How long a batch takes from being opened to being ready, smoothed; zero while unknown.
    pub fill_time: Duration,
}

/// A strategy of looking ahead.
pub trait Prefetch {
    /// How many more samples may be opened now. Ask again after opening them, and after every fact that changes the view.
    fn credit(&mut self, view: &View) -> u64;

    /// The name used in configuration and reports.
    fn name(&self) -> &'static str;
}
