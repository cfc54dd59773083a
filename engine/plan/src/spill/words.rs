//! What the disk tier is told and tells: configuration, segments, the worth of blocks, counters. Owns no state.

use crate::schedule::UseTime;
use core::fmt;
use core::str::FromStr;
use fuelrail_base::{BlockId, Error, Kind, Result};

/// Which segment goes when room is wanted, and who gets in.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum SpillPolicy {
    /// Everybody gets in, the oldest segment goes.
    Fifo,
    /// Everybody gets in, the segment that was read longest ago goes.
    Lru,
    /// By next use, as told above.
    #[default]
    NextUse,
}

impl SpillPolicy {
    /// All of them, for help texts and tests.
    pub const ALL: [SpillPolicy; 3] = [SpillPolicy::Fifo, SpillPolicy::Lru, SpillPolicy::NextUse];

    /// The name as written in configuration.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            SpillPolicy::Fifo => "fifo",
            SpillPolicy::Lru => "lru",
            SpillPolicy::NextUse => "next-use",
        }
    }
}

impl fmt::Display for SpillPolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.word())
    }
}

impl FromStr for SpillPolicy {
    type Err = Error;

    fn from_str(text: &str) -> Result<SpillPolicy> {
        SpillPolicy::ALL.into_iter().find(|policy| policy.word() == text).ok_or_else(|| {
            Error::new(Kind::Usage, format!("'{text}' is not a policy of the disk")).cure("use fifo, lru or next-use")
        })
    }
}

/// Plain configuration of the tier.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SpillConfig {
    /// Who gets in, and what goes.
    pub policy: SpillPolicy,
    /// What direct transfers to the disk are multiples of, bytes: 512 or 4096.
    pub unit: u64,
    /// Blocks this shard may hold on disk.
    pub blocks_max: usize,
    /// Bytes that may wait to be written, or be on their way: they hold memory of batches.
    pub pending_bytes_max: u64,
}

/// What a segment is when it is handed over.
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

/// What the tier must be told to value a block, by those who know.
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
    /// Blocks that would have been kept and were not: no segment had room for them.
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
