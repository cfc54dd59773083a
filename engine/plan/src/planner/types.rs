//! What a planner is told and what it says: facts, commands, and the plain values around them.
//!
//! Owns no state. Everything here is small and copied.

use crate::hedge::HedgeConfig;
use crate::pace::Ledger;
use crate::policy::PolicyName;
use crate::prefetch::Strategy;
use crate::retry::RetryConfig;
use crate::spill::{SegmentId, SpillConfig, SpillStats, Spot};
use crate::window::WindowConfig;
use fuelrail_base::{BatchSeq, BlockId, Duration, Kind, ShardId};

/// Names the record of a block on its way, over all attempts; never again another record of the shard.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, PartialOrd, Ord)]
pub struct FetchId {
    /// Its place in the block table.
    pub place: u32,
    /// Which of those that had this place.
    pub serial: u32,
}

/// Those that wait for one block, each as it was handed in with [`Planner::ask`](super::Planner::ask).
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Waiters<W> {
    /// The bytes land in its window.
    pub first: W,
    /// They get copies.
    pub others: Vec<W>,
}

/// What happened, as flow tells it.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Fact {
    /// The batch has its slot; its asks follow.
    Opened(BatchSeq),
    /// There is no room for the batch now.
    NoRoom(BatchSeq),
    /// Memory came home: room may have appeared.
    Room,
    /// All samples of a batch are in place (or given up).
    Ready(BatchSeq),
    /// The consumer took so many of this shard's batches in all, and is blocked waiting or not.
    Consumer {
        /// Batches of this shard taken since the start.
        taken: u64,
        /// Someone is inside `next_batch` with nothing to return.
        waits: bool,
    },
    /// The whole block is in the window of its first waiter; from disk it is what was written.
    Landed {
        /// The fetch.
        fetch: FetchId,
        /// From the request that brought it to the first byte of its response.
        first_byte: Duration,
        /// From that request to the last byte.
        total: Duration,
        /// When it was the second request, before the first one's end: from the first request to that last byte.
        outran: Option<Duration>,
    },
    /// No second request was sent for a fetch: the server has not come to its first one yet.
    Unhedged(FetchId),
    /// Of the two requests of a fetch one ended in vain. The other goes on.
    Halved {
        /// The fetch.
        fetch: FetchId,
        /// Why, unless it was not looked at.
        kind: Option<Kind>,
        /// It was the second.
        second: bool,
    },
    /// A fetch failed this time.
    Failed {
        /// The fetch.
        fetch: FetchId,
        /// Why.
        kind: Kind,
        /// The server's own wish for a pause.
        retry_after: Option<Duration>,
        /// How the attempt weighs.
        attempt: Attempt,
    },
    /// The transport did not come to it, and that is no failure of the object: the connection closed before the request was
    /// looked at, or the disk has lost what was written.
    Unserved {
        /// The fetch.
        fetch: FetchId,
        /// It was closed for another fetch that had been hedged.
        displaced: bool,
    },
    /// The shard is about to sleep.
    Idle,
}

/// How a failed attempt weighs against the attempts its block has.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Attempt {
    /// It brought little or nothing: it counts.
    Barren,
    /// It brought enough new bytes to count as progress: counting starts anew.
    Progress,
    /// It does not count: the server had closed an idle connection before it looked at the request.
    Excused,
}

/// What flow shall do. Commands are carried out in the order given.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Command<W> {
    /// Find `bytes` of contiguous room for a batch, then ask for its blocks. Answer with `Opened` or `NoRoom`.
    Open {
        /// The batch.
        seq: BatchSeq,
        /// Room needed, alignment included.
        bytes: u64,
    },
    /// Copy a cached block into the window of its waiter, and hand that back.
    Serve {
        /// Who waits for it.
        waiter: W,
        /// The cached block.
        block: BlockId,
    },
    /// Bring the block, or what is missing of it, into the window of its first waiter. Answer with `Landed`, `Failed` or `Unserved`.
    Start {
        /// The fetch.
        fetch: FetchId,
        /// The block.
        block: BlockId,
        /// From where.
        from: Origin,
    },
    /// Request the block of a fetch under way a second time, over another connection, or what is missing of it instead of the
    /// first time. Answer with `Unhedged`, `Halved` or as to `Start`.
    Hedge {
        /// The fetch.
        fetch: FetchId,
        /// The block.
        block: BlockId,
    },
    /// Drop a block from the cache.
    Evict(BlockId),
    /// Give up a segment: nothing in it is wanted any more.
    Trim(SegmentId),
    /// The block is in the window of its first waiter: copy it to the others, keep it, and hand all windows back.
    Deliver {
        /// The block.
        block: BlockId,
        /// All who wait for it.
        waiters: Waiters<W>,
        /// Where the first one's bytes came from.
        source: Source,
        /// Where a copy stays, if one does.
        keep: Option<Keep>,
    },
    /// Hand all windows back with the error of the last attempt.
    Refuse {
        /// The block.
        block: BlockId,
        /// All who wait for it.
        waiters: Waiters<W>,
        /// How many attempts were made.
        attempts: u32,
        /// Why no further one is.
        why: GivenUp,
    },
}

/// Where a block is brought from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Origin {
    /// The bucket, or the folder in its place. Fails as servers do.
    Bucket,
    /// The disk, where it lies there. The bucket is asked for what the disk has lost.
    Disk(Spot),
}

/// Where a landed block stays.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Keep {
    /// In the RAM cache.
    Ram,
    /// On disk. How that ends is told to the [tier](super::Planner::spill).
    Disk {
        /// The segment.
        segment: SegmentId,
        /// First byte in the segment.
        place: u64,
    },
}

/// Why a fetch is given up.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum GivenUp {
    /// Its attempts are used up, or none helps.
    Tried,
    /// Nothing at all has been served for so long.
    Unserved(Duration),
    /// It alone has kept failing for so long.
    Late(Duration),
}

/// Where the bytes of an answer came from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Source {
    /// Fetched for this waiter.
    Bucket,
    /// Already in the RAM cache.
    Cache,
    /// Read from local disk.
    Disk,
    /// Fetched or read for another one of the same time.
    Shared,
}

/// Plain configuration of one planner.
#[derive(Clone, Debug)]
pub struct PlannerConfig {
    /// Which shard this is.
    pub shard: ShardId,
    /// How many there are.
    pub shards: u16,
    /// How far to look ahead.
    pub prefetch: Strategy,
    /// What to keep.
    pub policy: PolicyName,
    /// This shard's share of the cache, payload bytes.
    pub cache_bytes: u64,
    /// Bytes a cached block counts at least, which bounds how many there are; zero where all blocks there are may be cached.
    pub cached_block_bytes_min: u64,
    /// The disk below the cache, if there is one.
    pub spill: Option<SpillConfig>,
    /// This shard's room for batches, bytes.
    pub batch_room_bytes: u64,
    /// Epochs the next use of a block is looked for.
    pub horizon_epochs: u64,
    /// How often to try again.
    pub retry: RetryConfig,
    /// Where the rate of requests is written down that a server asks for: shared by all shards.
    pub pace: Ledger,
    /// How many connections and requests at once.
    pub window: WindowConfig,
    /// Which requests are sent a second time.
    pub hedge: HedgeConfig,
    /// Seed of the retry jitter.
    pub seed: u64,
}

/// Counters of one planner since its start.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct PlannerStats {
    /// Blocks asked for.
    pub asks: u64,
    /// … served from the cache.
    pub hits: u64,
    /// … served by a fetch already under way.
    pub shared: u64,
    /// Payload bytes asked for.
    pub asked_bytes: u64,
    /// Payload bytes served from the cache.
    pub hit_bytes: u64,
    /// Attempts after the first.
    pub retries: u64,
    /// Requests sent a second time, or elsewhere, because the first took too long.
    pub hedges: u64,
    /// … and brought the block before the first did.
    pub hedges_won: u64,
    /// Fetches given up.
    pub given_up: u64,
    /// Blocks dropped from the cache.
    pub evictions: u64,
    /// Times the server asked to slow down.
    pub throttled: u64,
    /// What the disk brought and took.
    pub spill: SpillStats,
}
