//! Facts a planner is told, commands it gives, its configuration and its counters.
//!
//! Owns no state. Everything here is small and copied.

use crate::hedge::HedgeConfig;
use crate::homes::Homes;
use crate::pace::Ledger;
use crate::policy::PolicyName;
use crate::prefetch::Strategy;
use crate::retry::RetryConfig;
use crate::schedule::UseTime;
use crate::spill::{SegmentId, SpillConfig, SpillStats, Spot};
use crate::window::WindowConfig;
use fuelrail_base::{BatchSeq, BlockId, Duration, Instant, Kind, ShardId};

/// Names the record of a block in flight, over all attempts. Never used again for another record of the shard.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, PartialOrd, Ord)]
pub struct FetchId {
    /// Its place in the block table.
    pub place: u32,
    /// Which record of those that have been in this place.
    pub serial: u32,
}

/// All waiters of one block, each as it was passed to [`Planner::ask`](super::Planner::ask).
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Waiters<W> {
    /// The bytes land in its window.
    pub first: W,
    /// Their windows get copies.
    pub others: Vec<W>,
}

/// A block that is asked for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Want {
    /// Which one.
    pub block: BlockId,
    /// When its sample is due.
    pub at: UseTime,
    /// The copy at hand is damaged: it is fetched anew.
    pub fresh: bool,
    /// Who asks.
    pub asker: Asker,
}

/// Who asks for a block.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Asker {
    /// A batch of this rank.
    Own,
    /// Another rank, of the block's home.
    Rank,
    /// The block's home, of the rank that was its home before others came or would be without it: only what is in RAM or on disk is served.
    RankIfHeld,
    /// This rank, which is about to leave, of the one that keeps the block then: it is had from there, or not at all.
    Leaving(u16),
}

/// Why another rank is asked for a block.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Role {
    /// It is the block's home, which fetches what it does not have.
    Home,
    /// It was the home in a run before, and may have it.
    Former,
    /// It is about to leave, and this rank keeps the block then.
    Leaving,
}

/// What happened in flow.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Fact {
    /// The batch has its slot; [`Planner::ask`](super::Planner::ask) follows for each of its blocks.
    Opened(BatchSeq),
    /// There is no room for the batch now.
    NoRoom(BatchSeq),
    /// Memory was returned: there may be room now.
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
    /// No second request was sent: the server has not started on the first one yet.
    Unhedged(FetchId),
    /// Another rank has sent the whole block into the window of its first waiter.
    Sent {
        /// The fetch.
        fetch: FetchId,
        /// From the request, once a connection took it, to the last byte, without what that rank took to find it.
        transit: Duration,
        /// That rank had it from the bucket for this one alone, and does not keep it.
        passed: bool,
    },
    /// One of the two requests of a fetch failed. The other goes on.
    Halved {
        /// The fetch.
        fetch: FetchId,
        /// Why; `None` when the server did not process it.
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
        /// The pause that the server requested.
        retry_after: Option<Duration>,
        /// How the attempt weighs.
        attempt: Attempt,
    },
    /// The transport did not process it, which is no failure of the object: the connection closed before the server read the
    /// request, or the disk has lost the block.
    Unserved {
        /// The fetch.
        fetch: FetchId,
        /// Its connection was closed for the sake of another, hedged fetch; or a rank that is up does not have the block.
        displaced: bool,
    },
    /// The shard is about to sleep.
    Idle,
}

/// How a failed attempt weighs against the attempts its block has.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Attempt {
    /// Brought little or nothing: counts.
    Barren,
    /// Brought enough new bytes to count as progress: counting starts anew.
    Progress,
    /// Does not count: the server had closed an idle connection before it read the request.
    Excused,
}

/// What flow has to do. Commands are carried out in the order given.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Command<W> {
    /// Hand the window back: another rank asked for the block only if it can be had without the bucket.
    NotHeld(W),
    /// Find `bytes` of contiguous room for a batch, then request its blocks. Respond with `Opened` or `NoRoom`.
    Open {
        /// The batch.
        seq: BatchSeq,
        /// Room needed, alignment included.
        bytes: u64,
    },
    /// Copy a cached block into the window of its waiter, and hand that back.
    Serve {
        /// The waiter.
        waiter: W,
        /// The cached block.
        block: BlockId,
    },
    /// Fetch the block, or what is missing of it, into the window of its first waiter. Respond with `Landed`, `Sent`, `Failed` or `Unserved`.
    Start {
        /// The fetch.
        fetch: FetchId,
        /// The block.
        block: BlockId,
        /// From where.
        from: Origin,
    },
    /// Request the block of a fetch under way a second time, over another connection, or what is missing of it instead of the
    /// first time. Respond with `Unhedged`, `Halved` or as to `Start`.
    Hedge {
        /// The fetch.
        fetch: FetchId,
        /// The block.
        block: BlockId,
    },
    /// Another rank takes too long: give its request up. Respond with `Unserved`.
    Recall {
        /// The fetch.
        fetch: FetchId,
        /// The rank that was asked.
        rank: u16,
    },
    /// Drop a block from the cache.
    Evict(BlockId),
    /// Give up a segment: nothing in it is wanted any more.
    Trim(SegmentId),
    /// The block is in the window of its first waiter: copy it to the others, keep it, and hand all windows back.
    Deliver {
        /// The block.
        block: BlockId,
        /// All waiters.
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
        /// All waiters.
        waiters: Waiters<W>,
        /// How many attempts were made.
        attempts: u32,
        /// Why no further one is.
        why: GivenUp,
    },
}

/// Where a block is fetched from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Origin {
    /// The bucket, or the folder in its place. Fails as servers do.
    Bucket,
    /// The disk, at this spot. What the disk has lost is fetched from the bucket.
    Disk(Spot),
    /// Another rank, which keeps the block for all. What it does not send in time is fetched from the bucket.
    Peer {
        /// Which one.
        rank: u16,
        /// When it was asked.
        since: Instant,
        /// When the block is used.
        at: UseTime,
        /// Why.
        role: Role,
    },
}

/// Where a landed block is kept.
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

/// Where the bytes of a block came from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Source {
    /// Fetched for this waiter.
    Bucket,
    /// Already in the RAM cache.
    Cache,
    /// Read from local disk.
    Disk,
    /// Sent by another rank.
    Peer,
    /// Fetched or read for another waiter at the same time.
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
    /// Bytes a cached block counts at least, which bounds their number; zero where all blocks may be cached.
    pub cached_block_bytes_min: u64,
    /// The disk below the cache, if there is one.
    pub spill: Option<SpillConfig>,
    /// Which rank keeps which block, where ranks keep blocks for each other.
    pub homes: Option<Homes>,
    /// This shard's room for batches, bytes.
    pub batch_room_bytes: u64,
    /// Epochs in which the next use of a block is searched.
    pub horizon_epochs: u64,
    /// How often to retry.
    pub retry: RetryConfig,
    /// The request rate after throttling, shared by all shards.
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
    /// Blocks requested.
    pub asks: u64,
    /// … served from the cache.
    pub hits: u64,
    /// … served by a fetch already under way.
    pub shared: u64,
    /// Payload bytes requested.
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
    /// Blocks sent by other ranks, …
    pub peer_hits: u64,
    /// … their payload bytes, …
    pub peer_bytes: u64,
    /// … and those had from the bucket because the rank that keeps them, or may have before, failed, took too long, or is down.
    pub peer_misses: u64,
    /// Blocks that other ranks asked for.
    pub peer_asks: u64,
    /// Counters of the disk tier.
    pub spill: SpillStats,
}
