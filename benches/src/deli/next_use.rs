//! How near next-use caching comes to the optimum: the real engine over several epochs, one cache size after the other; by
//! itself, and as ranks that share each epoch and have only their own caches, under the global order and the sticky one.
//!
//! Owns a bucket of its own without latency, as only hits matter here. When every sample is used once an epoch, no cache can
//! hit more than its share of the data set: every hit spans an epoch's edge, and only so much fits across. Look-ahead is
//! memory across the edge, too: it is kept to a few samples, so that the cache is what is measured.

use fuelrail::{ByteSize, Loader, OrderName};
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
/// … and of a rank's part.
const PART_SHARES_PERCENT: [u64; 3] = [25, 50, 75];
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

/// Ranks with caches of their own, of one size, under one order.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OwnCacheHit {
    /// `global` or `sticky`.
    pub order: String,
    /// Each rank's cache over its part of the data set, bytes.
    pub capacity_share: f64,
    /// Samples that the ranks' own caches served in epoch 2 and later, over all of them.
    pub hit_ratio: f64,
    /// The share: what the caches can hold.
    pub limit: f64,
}

/// Tries every cache size and tells `each`.
///
/// # Errors
/// What the bucket or a loader fails with; `Mismatch` for a delivered byte that is wrong.
pub(super) fn measure(scale: &Scale, mut each: impl FnMut(&NextUseHit)) -> Result<Vec<NextUseHit>> {
    let trial = Trial::new(scale)?;
    let mut hits = Vec::with_capacity(SHARES_PERCENT.len());
    for percent in SHARES_PERCENT {
        let cache_bytes = trial.originals.total_bytes() * percent / 100;
        let hit_ratio = trial.hit_ratio(OrderName::Global, 1, cache_bytes)?;
        let share = cache_bytes as f64 / trial.originals.total_bytes() as f64;
        let hit = NextUseHit { capacity_share: share, hit_ratio, limit: share };
        each(&hit);
        hits.push(hit);
    }
    Ok(hits)
}

/// Tries every order and cache size with the experiment's ranks and tells `each`.
///
/// # Errors
/// As [`measure`].
pub(super) fn measure_own_caches(scale: &Scale, mut each: impl FnMut(&OwnCacheHit)) -> Result<Vec<OwnCacheHit>> {
    let trial = Trial::new(scale)?;
    let part_bytes = trial.originals.total_bytes() / u64::from(scale.ranks);
    let mut hits = Vec::with_capacity(OrderName::ALL.len() * PART_SHARES_PERCENT.len());
    for order in OrderName::ALL {
        for percent in PART_SHARES_PERCENT {
            let share = percent as f64 / 100.0;
            let hit_ratio = trial.hit_ratio(order, scale.ranks, part_bytes * percent / 100)?;
            let hit = OwnCacheHit { order: order.word().to_owned(), capacity_share: share, hit_ratio, limit: share };
            each(&hit);
            hits.push(hit);
        }
    }
    Ok(hits)
}

struct Trial {
    bucket: Bucket,
    originals: Originals,
    /// What the largest sample takes in a batch.
    largest_bytes: u64,
    seed: u64,
}

impl Trial {
    fn new(scale: &Scale) -> Result<Trial> {
        let set = DataSet::digits(scale.next_use_samples, scale.seed);
        let source = Source::Generated(set.clone());
        let bucket = Bucket::start(BucketConfig { source, ..BucketConfig::default() }).map_err(|e| of_bucket(&e))?;
        let originals = Originals::new(set);
        let largest = originals.listing().iter().map(|object| object.size).max().unwrap_or(0);
        let largest_bytes = largest.next_multiple_of(SAMPLE_ALIGN as u64);
        Ok(Trial { bucket, largest_bytes, originals, seed: scale.seed })
    }

    /// Share of the samples of epoch 2 and later that caches of so many bytes served. Ranks share nothing, so they come one
    /// after the other.
    fn hit_ratio(&self, order: OrderName, ranks: u32, cache_bytes: u64) -> Result<f64> {
        let (mut delivered, mut hits) = (0, 0);
        for rank in 0..ranks {
            let mut loader = self.loader(order, rank, ranks, cache_bytes)?;
            while let Some(batch) = loader.next_batch() {
                let batch = batch?;
                delivered += batch.len() as u64;
                batch.samples().try_for_each(|sample| self.originals.check(sample.id, sample.bytes))?;
            }
            hits += loader.stats().hits;
        }
        let samples = self.originals.len() as u64;
        if delivered != samples * EPOCHS {
            let cause = format!("{delivered} samples came instead of {samples} in each of {EPOCHS} epochs");
            return Err(Error::new(Kind::Mismatch, cause));
        }
        // Nothing can hit in epoch 1, so all hits belong to the others.
        Ok(hits as f64 / (samples * (EPOCHS - 1)) as f64)
    }

    fn loader(&self, order: OrderName, rank: u32, ranks: u32, cache_bytes: u64) -> Result<Loader> {
        let ahead_bytes = self.largest_bytes * u64::from(BATCH_SIZE) * BATCHES_OPEN;
        let (memory_bytes, connections) =
            with_connections(cache_bytes + ahead_bytes, self.originals.within(cache_bytes));
        Loader::builder(&self.bucket.url(""))
            .listing(self.originals.listing())
            .batch_size(BATCH_SIZE)
            .epochs(EPOCHS)
            .seed(self.seed)
            .order(order.word())
            .rank(rank, ranks)
            .shards(1)
            .memory_limit(ByteSize(memory_bytes))
            .cache_limit(ByteSize(cache_bytes))
            .connections_max(connections)
            .pin(false)
            .build()
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
            // A cached block counts as the mean one at least, so that the cache's index stays within its budget: with the sizes of
            // these digits up to 3 % of the cache is charged for bytes that are not there.
            let within = 0.97 * hit.limit - 0.005 - ahead..hit.limit + 0.005 + ahead;
            assert!(within.contains(&hit.hit_ratio), "{hit:?}");
        }
    }

    /// Three loaders on one bucket: what their own caches can hold, they hit, if samples come back to them.
    #[test]
    fn own_caches_reach_their_limit_under_the_sticky_order() {
        let scale = Scale { next_use_samples: 3_000, ..Scale::quick(3) };
        let hits = measure_own_caches(&scale, |_| {}).unwrap();
        let ahead = 3.0 * 2.0 * (BATCHES_OPEN * u64::from(BATCH_SIZE)) as f64 / 3_000.0;
        let (global, sticky): (Vec<_>, Vec<_>) = hits.iter().partition(|hit| hit.order == "global");
        assert_eq!((global.len(), sticky.len()), (3, 3));
        for hit in sticky {
            assert!(hit.hit_ratio >= 0.95 * hit.limit && hit.hit_ratio < hit.limit + ahead, "{hit:?}");
        }
        assert!(global[2].hit_ratio < 0.7 * global[2].limit, "{:?}", global[2]);
    }
}
