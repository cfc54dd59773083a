//! Fuelrail in the experiment: the real engine, one loader per rank, with DELI's cache bytes as its whole budget.
//!
//! Owns only the loader. The budget covers the batches looked ahead, the batch the trainer holds and the RAM cache of
//! blocks; memory for connections and tables is additional, and is included in the row's memory.

use fuelrail::{Batch, ByteSize, Loader};
use fuelrail_base::limits::SCRATCH_BYTES;
use fuelrail_base::{Error, Kind, Result, SampleId};

use super::feed::{Counts, Feed};
use super::scale::Scale;
use super::trainer::Originals;

/// The divisor of the budget that gives the RAM cache, the rest being look-ahead: with a seventh of an epoch in memory
/// and samples moving between ranks, looking ahead is worth more than caching.
const CACHE_PART: u64 = 8;
/// The arena's pages have this size where the kernel supports it, so budgets are rounded to it.
const ARENA_STEP_BYTES: u64 = 2 << 20;
/// Least connections of a loader: more than one round trip needs at any scale.
const CONNECTIONS_MIN: u64 = 64;

/// One rank's loader.
pub(super) struct Rail {
    loader: Loader,
    batch: Option<Batch>,
    batch_size: u64,
    connections: usize,
}

impl Rail {
    pub(super) fn open(uri: &str, scale: &Scale, rank: u32, originals: &Originals) -> Result<Rail> {
        let budget_bytes = budget_bytes(scale, originals);
        let (memory_bytes, connections) = memory(scale, originals);
        let loader = Loader::builder(uri)
            .listing(originals.listing())
            .batch_size(scale.batch_size)
            .epochs(scale.epochs)
            .seed(scale.seed)
            .rank(rank)
            .world(scale.ranks)
            .shards(1)
            .memory_limit(ByteSize(memory_bytes))
            .cache_limit(ByteSize(budget_bytes / CACHE_PART))
            .connections_max(connections)
            .pin(false)
            .build()?;
        Ok(Rail { loader, batch: None, batch_size: u64::from(scale.batch_size), connections })
    }

    /// The engine's notices.
    pub(super) fn notices(&self) -> &[String] {
        self.loader.notices()
    }
}

/// Upper bounds: index bytes per cached block, and the number of indexed blocks beyond those that fit on average.
const CACHED_BLOCK_BYTES: u64 = 256;
const CACHED_BLOCKS_MORE: u64 = 64;

/// The loader's memory limit, bytes, and its connections: more than DELI has, because one round trip brings only as many
/// objects as there are connections.
fn memory(scale: &Scale, originals: &Originals) -> (u64, usize) {
    with_connections(budget_bytes(scale, originals), scale.cache_samples / CACHE_PART)
}

/// Connections of one rank's loader.
pub(super) fn connections(scale: &Scale, originals: &Originals) -> usize {
    memory(scale, originals).1
}

/// Returns a limit of whole arena steps that leaves `budget_bytes` beside connection scratch and the index of
/// `cached_blocks`, and the number of connections: what rounding up adds goes to them, never to batches or cache.
fn with_connections(budget_bytes: u64, cached_blocks: u64) -> (u64, usize) {
    let known_bytes = (cached_blocks * 9 / 8 + CACHED_BLOCKS_MORE) * CACHED_BLOCK_BYTES;
    let held_bytes = budget_bytes + known_bytes;
    let memory_bytes = (held_bytes + CONNECTIONS_MIN * SCRATCH_BYTES as u64).next_multiple_of(ARENA_STEP_BYTES);
    (memory_bytes, (memory_bytes - held_bytes) as usize / SCRATCH_BYTES)
}

/// Bytes of DELI's cache: its number of items times the mean object size.
pub(super) fn budget_bytes(scale: &Scale, originals: &Originals) -> u64 {
    scale.cache_samples * originals.total_bytes() / scale.samples()
}

impl Feed for Rail {
    fn next(&mut self, _due: &[SampleId]) -> Result<Vec<(SampleId, &[u8])>> {
        self.batch = None;
        let ended = || Error::new(Kind::Mismatch, "the loader ended before its last batch");
        let batch = self.batch.insert(self.loader.next_batch().ok_or_else(ended)??);
        Ok(batch.samples().map(|sample| (sample.id, sample.bytes)).collect())
    }

    fn counts(&self) -> Counts {
        let stats = self.loader.stats();
        // All samples of a batch that was not ready count as missed: the trainer waits for the batch.
        let late_batches = ((1.0 - stats.readiness) * stats.batches as f64).round() as u64;
        Counts { misses: (late_batches * self.batch_size).min(stats.samples), gets: stats.requests, list_pages: 0 }
    }

    fn held_bytes_max(&self) -> u64 {
        self.loader.stats().memory.total_bytes()
    }

    fn connections(&self) -> usize {
        self.connections
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rounding_goes_to_connections() {
        for budget in [1, 66_000, 530_000, 1 << 20, 2_120_000, 50_000_000] {
            let (memory, connections) = with_connections(budget, 1_000);
            let rest =
                memory - (connections * SCRATCH_BYTES) as u64 - (1_125 + CACHED_BLOCKS_MORE) * CACHED_BLOCK_BYTES;
            assert!(memory.is_multiple_of(ARENA_STEP_BYTES) && (64..=256).contains(&connections), "{budget}");
            assert!((budget..budget + SCRATCH_BYTES as u64).contains(&rest), "{budget} became {rest}");
        }
    }
}
