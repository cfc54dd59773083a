//! How near next-use caching comes to the optimum: the real engine over several epochs, one cache size after the other.
//!
//! Owns a bucket of its own without latency, as only hits matter here. When every sample is used once an epoch, no cache can
//! hit more than its share of the data set: every hit spans an epoch's edge, and only so much fits across. Look-ahead is
//! memory across the edge, too: it is kept to a few samples, so that the cache is what is measured.

use fuelrail::{ByteSize, Loader};
use fuelrail_base::limits::SAMPLE_ALIGN;
use fuelrail_base::{Error, Kind, Result};
use fuelrail_bucket::{Bucket, BucketConfig, DataSet, Source};
use serde::{Deserialize, Serialize};

use super::fault::of_bucket;
use super::originals::Originals;
use super::rail::with_connections;
use super::scale::Scale;

/// Cache sizes tried, as percentages of the data set.
const SHARES_PERCENT: [u64; 5] = [10, 25, 50, 75, 90];
const EPOCHS: u64 = 3;
const BATCH_SIZE: u32 = 4;
/// Batches the budget has room for beside the cache: one with the trainer, two on their way.
const BATCHES_OPEN: u64 = 3;

/// One cache size.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NextUseHit {
    /// Cache over data set, bytes.
    pub capacity_share: f64,
    /// Samples served from the cache in epoch 2 and later, over all of them.
    pub hit_ratio: f64,
    /// What no policy can exceed: the share itself.
    pub limit: f64,
}

/// Tries every cache size and tells `each`.
///
/// # Errors
/// What the bucket or a loader fails with; `Mismatch` for a delivered byte that is wrong.
pub(super) fn measure(scale: &Scale, mut each: impl FnMut(&NextUseHit)) -> Result<Vec<NextUseHit>> {
    let set = DataSet::digits(scale.next_use_samples, scale.seed);
    let source = Source::Generated(set.clone());
    let bucket = Bucket::start(BucketConfig { source, ..BucketConfig::default() }).map_err(|e| of_bucket(&e))?;
    let trial = Trial::new(bucket, Originals::new(set));
    let mut hits = Vec::with_capacity(SHARES_PERCENT.len());
    for percent in SHARES_PERCENT {
        let hit = trial.with_cache(scale.seed, trial.originals.total_bytes() * percent / 100)?;
        each(&hit);
        hits.push(hit);
    }
    Ok(hits)
}

struct Trial {
    bucket: Bucket,
    originals: Originals,
    /// What the largest sample takes in a batch.
    largest_bytes: u64,
}

impl Trial {
    fn new(bucket: Bucket, originals: Originals) -> Trial {
        let largest = originals.listing().iter().map(|object| object.size).max().unwrap_or(0);
        Trial { bucket, largest_bytes: largest.next_multiple_of(SAMPLE_ALIGN as u64), originals }
    }

    fn with_cache(&self, seed: u64, cache_bytes: u64) -> Result<NextUseHit> {
        let ahead_bytes = self.largest_bytes * u64::from(BATCH_SIZE) * BATCHES_OPEN;
        let (memory_bytes, connections) = with_connections(cache_bytes + ahead_bytes);
        let mut loader = Loader::builder(&self.bucket.url(""))
            .listing(self.originals.listing())
            .batch_size(BATCH_SIZE)
            .epochs(EPOCHS)
            .seed(seed)
            .shards(1)
            .memory_limit(ByteSize(memory_bytes))
            .cache_limit(ByteSize(cache_bytes))
            .connections_max(connections)
            .pin(false)
            .build()?;
        let mut delivered = 0;
        while let Some(batch) = loader.next_batch() {
            let batch = batch?;
            delivered += batch.len() as u64;
            batch.samples().try_for_each(|sample| self.originals.check(sample.id, sample.bytes))?;
        }
        let samples = self.originals.len() as u64;
        if delivered != samples * EPOCHS {
            let cause = format!("{delivered} samples came instead of {samples} in each of {EPOCHS} epochs");
            return Err(Error::new(Kind::Mismatch, cause));
        }
        // Nothing can hit in epoch 1, so all hits belong to the others.
        let hit_ratio = loader.stats().hits as f64 / (samples * (EPOCHS - 1)) as f64;
        let share = cache_bytes as f64 / self.originals.total_bytes() as f64;
        Ok(NextUseHit { capacity_share: share, hit_ratio, limit: share })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hits_reach_the_limit() {
        let scale = Scale { next_use_samples: 3_000, ..Scale::quick(3) };
        let hits = measure(&scale, |_| {}).unwrap();
        // A budget of so few samples is rounded up by one receive buffer, which holds about as many again.
        let ahead = 2.0 * (BATCHES_OPEN * u64::from(BATCH_SIZE)) as f64 / 3_000.0;
        for hit in hits {
            assert!((hit.hit_ratio - hit.limit).abs() < 0.005 + ahead, "{hit:?}");
        }
    }
}
