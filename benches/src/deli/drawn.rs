//! Drawing epochs by importance, as it looks from the bucket: what the cache hits, and what part of the set is seen at all.
//!
//! Owns a bucket of its own without latency. Losses are made up (a tenth of the samples stays hard); what they do to accuracy is
//! `bench importance`'s question, with a real trainer.

use fuelrail::{ByteSize, Loader, SampleId};
use fuelrail_base::Result;
use fuelrail_bucket::{Bucket, BucketConfig, DataSet, Source};
use serde::{Deserialize, Serialize};

use super::fault::of_bucket;
use super::originals::Originals;
use super::rail::with_connections;
use super::scale::Scale;
use crate::importance::IMPORTANCE_MODES;

/// RAM cache, as a share of the set.
const CACHE_SHARE: f64 = 0.2;
const EPOCHS: u64 = 4;
const BATCH_SIZE: u32 = 32;
/// Memory beside the cache.
const AHEAD_BYTES: u64 = 4 << 20;

/// One way to draw epochs.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DrawnHit {
    /// The loader's setting.
    pub mode: String,
    /// Cache over data set, bytes.
    pub cache_share: f64,
    /// Of what was asked for in epoch 2 and later, what the cache had.
    pub hit_ratio: f64,
    /// Of the samples of these epochs, the share that was distinct within its epoch.
    pub coverage: f64,
}

/// Tries every way and tells `each`.
///
/// # Errors
/// What the bucket or a loader fails with; `Mismatch` for a delivered byte that is wrong.
pub(super) fn measure_drawn(scale: &Scale, mut each: impl FnMut(&DrawnHit)) -> Result<Vec<DrawnHit>> {
    let set = DataSet::digits(scale.next_use_samples, scale.seed);
    let config = BucketConfig { source: Source::Generated(set.clone()), ..BucketConfig::default() };
    let bucket = Bucket::start(config).map_err(|e| of_bucket(&e))?;
    let originals = Originals::new(set);
    let mut all = Vec::with_capacity(IMPORTANCE_MODES.len());
    for mode in IMPORTANCE_MODES {
        let hit = drawn(scale, mode, &bucket, &originals)?;
        each(&hit);
        all.push(hit);
    }
    Ok(all)
}

fn drawn(scale: &Scale, mode: &str, bucket: &Bucket, originals: &Originals) -> Result<DrawnHit> {
    let cache_bytes = (originals.total_bytes() as f64 * CACHE_SHARE) as u64;
    let (memory_bytes, connections) = with_connections(cache_bytes + AHEAD_BYTES, originals.within(cache_bytes));
    let mut loader = Loader::builder(&bucket.url(""))
        .listing(originals.listing())
        .batch_size(BATCH_SIZE)
        .epochs(EPOCHS)
        .seed(scale.seed)
        .importance(mode)
        .shards(1)
        .memory_limit(ByteSize(memory_bytes))
        .cache_limit(ByteSize(cache_bytes))
        .connections_max(connections)
        .pin(false)
        .build()?;
    let mut seen = vec![false; originals.len()];
    let (mut places, mut distinct, mut first, mut epoch) = (0u64, 0u64, None, 0);
    while let Some(batch) = loader.next_batch() {
        let batch = batch?;
        batch.samples().try_for_each(|sample| originals.check(sample.id, sample.bytes))?;
        let losses: Vec<f32> = batch.ids().iter().map(|id| loss(*id)).collect();
        loader.report(batch.seq(), batch.ids(), &losses)?;
        if batch.epoch() != epoch {
            epoch = batch.epoch();
            seen.fill(false);
            // Nothing can hit in the first epoch, and it covers all: it says nothing of how epochs are drawn.
            first.get_or_insert_with(|| loader.stats());
        }
        if epoch > 0 {
            places += batch.len() as u64;
            distinct +=
                batch.ids().iter().filter(|id| !core::mem::replace(&mut seen[id.0 as usize], true)).count() as u64;
        }
    }
    let (before, after) = (first.unwrap_or_default(), loader.stats());
    let asked = after.asks.saturating_sub(before.asks).max(1);
    Ok(DrawnHit {
        mode: mode.to_owned(),
        cache_share: CACHE_SHARE,
        hit_ratio: (after.hits - before.hits) as f64 / asked as f64,
        coverage: distinct as f64 / places.max(1) as f64,
    })
}

/// A tenth of the samples stays hard, the others are easy in many degrees.
fn loss(id: SampleId) -> f32 {
    let hard = if id.0.is_multiple_of(10) { 3.0 } else { 0.1 };
    hard + (id.0 % 97) as f32 / 1_000.0
}
