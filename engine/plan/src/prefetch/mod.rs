//! How far ahead of the consumer samples are opened (requested): two strategies, chosen once per run.
//!
//! Owns what a strategy remembers of the run so far. Never opens anything itself, never sees an epoch (its edge is no
//! edge here), and never looks at which samples come next.

mod lookahead;
mod watermarks;

pub use lookahead::Lookahead;
pub use watermarks::Watermarks;

use fuelrail_base::{Duration, Instant, Result};

/// The facts a strategy decides by, gathered anew for every call.
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
    /// Batches complete and not yet taken: the occupancy of the last queue.
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
    /// Fetches that wait to be sent: work that is open and not being done yet.
    pub queued_fetches: u64,
    /// How long the consumer computes between two batches, smoothed; zero while unknown.
    pub step_time: Duration,
    /// How long a batch takes from being opened to being ready, smoothed; zero while unknown.
    pub fill_time: Duration,
}

/// The strategies by name.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Prefetch {
    /// By deadlines and occupancy, as far as memory goes.
    #[default]
    Lookahead,
    /// DELI's: as much as its cache holds, when that is empty.
    FullFetch,
    /// DELI's best setting: half of its cache, when half of it is empty.
    Half,
}

fuelrail_base::named!(
    Prefetch,
    "a prefetch strategy":
    Lookahead = "lookahead",
    FullFetch = "full-fetch",
    Half = "50/50",
);

/// The strategies.
#[derive(Clone, Debug)]
pub enum Strategy {
    /// Ours: bounded by bytes, steered by deadlines and occupancy.
    Lookahead(Lookahead),
    /// DELI's: fetch size and threshold, in samples.
    Watermarks(Watermarks),
}

impl Default for Strategy {
    fn default() -> Strategy {
        Strategy::Lookahead(Lookahead::default())
    }
}

impl Strategy {
    /// A strategy by name. DELI's are for a cache of `cache_samples` samples; the first has no use for it.
    ///
    /// # Errors
    /// `Usage` when the cache is too small for DELI's strategies.
    pub fn named(name: Prefetch, cache_samples: u64) -> Result<Strategy> {
        match name {
            Prefetch::Lookahead => Ok(Strategy::default()),
            // F = C, T = 0; and the best setting DELI found, F = T = C / 2.
            Prefetch::FullFetch => Watermarks::new(cache_samples, 0).map(Strategy::Watermarks),
            Prefetch::Half => Watermarks::new(cache_samples / 2, cache_samples / 2).map(Strategy::Watermarks),
        }
    }

    /// How many more samples may be opened now. Call it again after opening them, and after every fact that changes the view.
    pub fn credit(&mut self, view: &View) -> u64 {
        match self {
            Strategy::Lookahead(lookahead) => lookahead.credit(view),
            Strategy::Watermarks(watermarks) => watermarks.credit(view),
        }
    }
}
