//! The disk below the RAM cache: which blocks go there, where they lie, which segment is trimmed when room is needed.
//!
//! Deciding costs nothing per byte and next to nothing per block: a block's next use is arithmetic on the order, so the
//! index holds no value, and segments are valued in passing, a few entries at a time.
//!
//! Owns the index and the ledger. Never touches a byte or a file: it gets segments by number, and decides what
//! is written where.

mod cost;
mod index;
mod ledger;
mod tier;

pub use index::{PLACE_STEP_BYTES, SegmentId, Spot};
pub use ledger::{PAGE_BYTES, PAGE_RECORDS, SEGMENTS_MAX};
pub use tier::{LEFTOVER, Spill};

use crate::catalog::Catalog;
use fuelrail_base::SampleId;

/// Which blocks are admitted, and which segment is trimmed when room is needed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum SpillPolicy {
    /// Every block is admitted, the oldest segment is trimmed.
    Fifo,
    /// Every block is admitted, the segment that was read longest ago is trimmed.
    Lru,
    /// By next use (see [`Spill`]).
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
    /// Ours, to be appended to after byte `end` and after so many records of its journal; a new one has `PAGE_BYTES` and 0.
    Open {
        /// First byte after the last block.
        end: u64,
        /// Records in its journal.
        records: u64,
    },
    /// Ours and full.
    Sealed,
    /// To be read only.
    Foreign,
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

/// Samples looked at, evenly spread over the data set: enough for a quantile to within a percent.
const LOOKED_AT_MAX: u64 = 1 << 16;

/// The length up to which blocks belong in RAM first, when RAM holds `ram_bytes` of this data set.
///
/// A read from disk costs a fixed part and a part per byte, so what RAM saves per byte it holds is most for the shortest
/// blocks: RAM is for the shortest that fill it, and the disk for the rest. Zero when RAM holds nothing.
#[must_use]
pub fn ram_first_max(catalog: &Catalog, ram_bytes: u64) -> u64 {
    let stride = catalog.samples().div_ceil(LOOKED_AT_MAX).max(1);
    let mut lengths: Vec<(u64, u64)> = Vec::new();
    for sample in (0..catalog.samples()).step_by(stride as usize) {
        let (size, whole) = (catalog.size(SampleId(sample)), catalog.block_bytes());
        lengths.extend((size >= whole).then_some((whole, size / whole * whole)));
        lengths.extend((size % whole > 0).then_some((size % whole, size % whole)));
    }
    lengths.sort_unstable();
    let mut room = ram_bytes / stride;
    let mut longest = 0;
    for (len, bytes) in lengths {
        if room == 0 {
            break;
        }
        longest = len;
        room = room.saturating_sub(bytes);
    }
    longest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_shortest_that_fill_it_belong_in_ram() {
        let mixed = Catalog::new(vec![10, 20, 30, 100, 100, 100, 250], 100).unwrap();
        assert_eq!(ram_first_max(&mixed, 0), 0);
        assert_eq!(ram_first_max(&mixed, 25), 20);
        assert_eq!(ram_first_max(&mixed, 60), 30);
        assert_eq!(ram_first_max(&mixed, 110), 50, "the tail of 250 is a block of 50");
        assert_eq!(ram_first_max(&mixed, 10_000), 100);
        let many = Catalog::new((0..300_000).map(|n| 1000 + n % 1000).collect(), 1 << 20).unwrap();
        let half = ram_first_max(&many, many.total_bytes() / 2);
        assert!((1550..1600).contains(&half), "{half}");
    }
}
