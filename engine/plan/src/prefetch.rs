//! How far ahead of the consumer samples are opened (requested): two strategies, chosen once per run.
//!
//! Owns what a strategy remembers of the run so far. Never opens anything itself, never sees an epoch (its edge is no
//! edge here), and never looks at which samples come next.

use crate::usage;
use fuelrail_base::{Duration, Instant, Result, limits};

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
    /// How long a fetch from the bucket takes, smoothed; zero where none was needed lately.
    pub fetch_time: Duration,
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

/// Depth at the start, and the least ever: one batch to deliver while the next one fills.
const DEPTH_MIN: u64 = 2;
/// No more batches than one shard may hold open.
const DEPTH_MAX: u64 = limits::OPEN_BATCHES_MAX as u64;
/// Depth shrinks only after nearly all open batches were ready for this many times as many batches as are open: growth answers a
/// stall and must be quick, shrinking saves memory and can wait.
const CALM_ROUNDS: u64 = 8;

const _: () = assert!(DEPTH_MIN <= DEPTH_MAX, "the least depth must be allowed");

/// Look-ahead steered by deadlines and queue occupancy.
///
/// As many batches ahead as the consumer's deadlines require, within a budget of bytes. No settings. The depth (batches opened and not
/// taken) is two at least: one to deliver, one to follow. For a consumer that waits for its first batch, as many are opened as the
/// source takes requests of at once. The depth doubles when the consumer had to wait although the source had nothing queued, grows
/// before that when a batch, or a fetch that some of them need, takes longer than the open ones last, and shrinks by one when these have
/// stayed nearly full for many batches: memory that is used again soon is still in the processor's caches.
#[derive(Clone, Debug)]
pub struct Lookahead {
    depth: u64,
    /// `taken_batches` when the depth last doubled: one missed deadline doubles it once.
    doubled_at: u64,
    /// When the present stall began or last doubled the depth.
    stalled_since: Option<Instant>,
    /// `taken_batches` when the open batches were last less than nearly full.
    busy_at: u64,
}

impl Default for Lookahead {
    /// A look-ahead of two batches, to begin with.
    fn default() -> Lookahead {
        Lookahead { depth: DEPTH_MIN, doubled_at: 0, stalled_since: None, busy_at: 0 }
    }
}

impl Lookahead {
    /// Batches it wants opened and not taken, as of the last call. For reports.
    #[must_use]
    pub fn depth(&self) -> u64 {
        self.depth
    }

    fn grow_on_stall(&mut self, view: &View) {
        if !view.consumer_waits || view.ready_batches > 0 {
            self.stalled_since = None;
            return;
        }
        let since = *self.stalled_since.get_or_insert(view.now);
        // The wait for the first batch of a run is no sign of too little depth.
        let missed = view.taken_batches > self.doubled_at;
        // A stall that outlasts the time a batch takes to fill is a new one.
        let lasting = !view.fill_time.is_zero() && view.now.since(since) > view.fill_time;
        // With fewer open than the depth allows, it is the budget or the end of the run that limits, and depth is no cure.
        if view.open_batches >= self.depth && (missed || lasting) {
            self.depth = (self.depth * 2).min(DEPTH_MAX);
            self.doubled_at = view.taken_batches;
            self.stalled_since = Some(view.now);
        }
    }

    /// A batch opened now is due after all those before it have been computed: it is late when that takes less time than
    /// filling it. So depth times step time must cover the fill time, with one batch to spare. Where caches serve nearly every batch at
    /// once, the mean says nothing of the few that need the bucket, so a fetch must be covered, too.
    fn deadline_depth(view: &View) -> u64 {
        let fill_time = view.fill_time.max(view.fetch_time);
        if view.step_time.is_zero() || fill_time.is_zero() {
            return DEPTH_MIN;
        }
        let steps = fill_time.as_nanos().div_ceil(view.step_time.as_nanos().max(1));
        u64::try_from(steps).unwrap_or(DEPTH_MAX).saturating_add(1).clamp(DEPTH_MIN, DEPTH_MAX)
    }

    fn shrink_when_calm(&mut self, view: &View, floor: u64) {
        // Nearly full: no more than a quarter of the open batches are still filling (and the one opened last).
        let nearly_full = view.ready_batches > 0 && view.ready_batches + view.open_batches / 4 + 1 >= view.open_batches;
        if !nearly_full || view.consumer_waits {
            self.busy_at = view.taken_batches;
        } else if view.taken_batches - self.busy_at >= CALM_ROUNDS * view.open_batches {
            // From what is open, not from the depth: where the budget limits, the depth may lie far above.
            self.depth = self.depth.min(view.open_batches).saturating_sub(1).max(floor);
            self.busy_at = view.taken_batches;
        }
    }

    /// As [`Strategy::credit`](Strategy::credit).
    pub fn credit(&mut self, view: &View) -> u64 {
        if view.queued_fetches > 0 && view.open_batches >= DEPTH_MIN {
            // The source is the limit: more open batches would only lengthen its queue and cool the memory.
            return 0;
        }
        if view.consumer_waits && view.fill_time.is_zero() {
            // The first guess, before any batch has shown how long one takes: as many as the window takes the requests of.
            self.depth = self.depth.max((view.open_batches + 1).min(DEPTH_MAX));
        }
        self.grow_on_stall(view);
        let floor = Lookahead::deadline_depth(view);
        self.depth = self.depth.max(floor);
        self.shrink_when_calm(view, floor);
        let fits = view.open_bytes.saturating_add(view.next_batch_bytes) <= view.budget_bytes;
        // The next batch is always wanted when none is open: that is progress, whatever the depth.
        if fits && view.open_batches < self.depth { view.next_batch_samples } else { 0 }
    }
}

/// Fetch size F and threshold T.
///
/// DELI's prefetch as published (IC2E 2021): when the queue falls to the threshold T, request the next F samples. Speaks in samples only:
/// it knows no bytes, and the caller's memory budget is what stops it.
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
            return usage("prefetch fetch size is 0 samples", "ask for at least one sample");
        }
        Ok(Watermarks { fetch_size, threshold, asked: 0 })
    }

    /// As [`Strategy::credit`](Strategy::credit).
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
