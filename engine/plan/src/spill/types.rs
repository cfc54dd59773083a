//! Types of the disk tier: configuration, mounted segments, the value of blocks, counters. Owns no state.

use crate::schedule::UseTime;
use fuelrail_base::BlockId;

/// Which blocks are admitted, and which segment is trimmed when room is needed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum SpillPolicy {
    /// Every block is admitted, the oldest segment is trimmed.
    Fifo,
    /// Every block is admitted, the segment that was read longest ago is trimmed.
    Lru,
    /// By next use (see [`Spill`](super::Spill)).
    #[default]
    NextUse,
}

fuelrail_base::named!(SpillPolicy, "a policy of the disk": Fifo = "fifo", Lru = "lru", NextUse = "next-use");

/// Plain configuration of the tier.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SpillConfig {
    /// What is admitted, and what is trimmed.
    pub policy: SpillPolicy,
    /// What direct transfers to the disk are multiples of, bytes: 512 or 4096.
    pub unit: u64,
    /// Blocks this shard may hold on disk.
    pub blocks_max: usize,
    /// Bytes that may wait to be written, or be on their way: they hold memory of batches.
    pub pending_bytes_max: u64,
}

/// How a segment is mounted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mount {
    /// Ours, to be appended to behind byte `end` and behind so many records of its journal; a new one has `PAGE_BYTES` and 0.
    Open {
        /// First byte behind the last block.
        end: u64,
        /// Records in its journal.
        records: u64,
    },
    /// Ours and full.
    Sealed,
    /// To be read only.
    Foreign,
}

/// What the tier must know to value a block.
pub trait Weigh {
    /// Length of a block, bytes.
    fn bytes(&self, block: BlockId) -> u64;
    /// Uses per epoch expected from `now` on, in `0.0..=1.0` when every sample comes once an epoch.
    fn worth(&self, block: BlockId, now: UseTime) -> f64;
    /// The epoch of a moment.
    fn epoch(&self, now: UseTime) -> u64;
}

/// Counters since the start.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct SpillStats {
    /// Blocks served from disk.
    pub hits: u64,
    /// … their bytes.
    pub hit_bytes: u64,
    /// Blocks taken over from an earlier run or another process at the start.
    pub adopted: u64,
    /// Blocks written.
    pub written: u64,
    /// … their bytes.
    pub written_bytes: u64,
    /// Blocks not kept because no segment had room for them.
    pub refused: u64,
    /// Blocks not kept because writes are behind.
    pub skipped: u64,
    /// Blocks whose write failed.
    pub write_failures: u64,
    /// Blocks that could not be read, or whose bytes were not what was written: fetched again.
    pub lost: u64,
    /// Segments trimmed.
    pub trims: u64,
    /// Segments lost with their disk.
    pub broken: u64,
}
