//! The status of a shard, as other threads see it: snapshots, a heartbeat, and the flag that stops it.
//!
//! A snapshot is published only on request: the hot loop pays one relaxed load an iteration. All loads and stores are relaxed:
//! waking the shard, or the snapshot's lock, makes visible what comes with them.

use crate::fetch::FetchStats;
use crate::gate::GateFacts;
use crate::spill::DiskStats;
use fuelrail_base::metrics::Histogram;
use fuelrail_base::sync::Mutex;
use fuelrail_base::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use fuelrail_io::{RingFacts, ThreadUse};
use fuelrail_plan::planner::PlannerStats;
use std::sync::PoisonError;

/// Counters and state of one shard at one moment.
#[derive(Clone, Debug, Default)]
pub struct Snapshot {
    /// Which publication this is; 0 is none.
    pub serial: u64,
    /// The planner's counters.
    pub planner: PlannerStats,
    /// The fetch stage's counters.
    pub fetch: FetchStats,
    /// The spill stage's counters.
    pub disk: DiskStats,
    /// Blocks on disk.
    pub disk_blocks: u64,
    /// Memory of the index of blocks on disk, bytes; zero without a disk.
    pub index_bytes: u64,
    /// Blocks and payload bytes that were found for other ranks.
    pub served: (u64, u64),
    /// Requests of other ranks, or of anybody, that the server refused unread.
    pub refused: u64,
    /// Payload bytes our own code copied: out of mispredicted receives, into and out of the cache, between batches.
    pub copied_bytes: u64,
    /// Payload bytes received twice, because their request was sent twice.
    pub wasted_bytes: u64,
    /// Samples fetched anew because their proof failed.
    pub unproved: u64,
    /// Time from request to last byte of each block.
    pub get_latency: Histogram,
    /// The ring's facts and counters.
    pub ring: Option<RingFacts>,
    /// Operations the ring has under way; none in the last snapshot of a shard that ended well.
    pub operations: usize,
    /// What the shard's thread has cost; `None` where shards are driven by hand.
    pub thread: Option<ThreadUse>,
    /// Every queue gauge, in the order of the flow: requests, batches being filled, batches waiting for the consumer.
    pub gates: Vec<GateFacts>,
    /// The next batch waits for room and nothing is on its way that could make some: only the consumer can.
    pub waits_for_leases: bool,
    /// The state of every stage, a line each.
    pub text: String,
}

/// Shared between one shard and the threads that watch it.
#[derive(Debug, Default)]
pub struct ShardStatus {
    stop: AtomicBool,
    wanted: AtomicU64,
    beats: AtomicU64,
    gone: AtomicBool,
    snapshot: Mutex<Snapshot>,
}

impl ShardStatus {
    /// Tells the shard to stop. Wake it afterwards.
    pub fn stop(&self) {
        self.stop.store(true, Ordering::Relaxed);
    }

    /// The shard has been told to stop.
    pub fn is_stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    /// Requests a snapshot; returns its serial. Wake the shard afterwards.
    pub fn request(&self) -> u64 {
        self.wanted.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// The latest snapshot.
    ///
    /// # Panics
    /// Never: a poisoned lock still holds the last good snapshot, which is taken.
    pub fn latest(&self) -> Snapshot {
        self.snapshot.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The snapshot requested under this serial (see [`request`](ShardStatus::request)), or the last one of a shard that has ended.
    pub fn answered(&self, serial: u64) -> Option<Snapshot> {
        // Looked at first: after this, the latest is the last.
        let gone = self.is_gone();
        Some(self.latest()).filter(|latest| gone || latest.serial >= serial)
    }

    /// Moves whenever bytes of samples have come.
    pub fn beats(&self) -> u64 {
        self.beats.load(Ordering::Relaxed)
    }

    /// The shard has ended: its last snapshot is final.
    pub fn is_gone(&self) -> bool {
        self.gone.load(Ordering::Relaxed)
    }

    pub(crate) fn leave(&self) {
        self.gone.store(true, Ordering::Relaxed);
    }

    pub(crate) fn beat(&self) {
        self.beats.store(self.beats.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
    }

    pub(crate) fn wanted(&self) -> u64 {
        self.wanted.load(Ordering::Relaxed)
    }

    pub(crate) fn publish(&self, snapshot: Snapshot) {
        *self.snapshot.lock().unwrap_or_else(PoisonError::into_inner) = snapshot;
    }
}
