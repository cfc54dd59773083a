//! How near a cache comes to what it can hold. When every sample is used once an epoch, no cache can hit more than its share of the
//! data set: every hit spans an epoch's edge, and only so much fits across. Look-ahead is memory across the edge, too: it is kept to a
//! few samples, so that the cache is what is measured.

use crate::common::bucket;
use fuelrail::{ByteSize, Listed, Loader};
use fuelrail_base::limits::SCRATCH_BYTES;
use fuelrail_bucket::{Bucket, DataSet};

const SAMPLES: u64 = 3_000;
const SAMPLE_BYTES: u64 = 4096;
const EPOCHS: u64 = 3;
const BATCH_SIZE: u64 = 4;
/// Batches the budget has room for beside the cache: one with the trainer, two on their way.
const AHEAD_BYTES: u64 = 3 * BATCH_SIZE * SAMPLE_BYTES;
/// What a loader knows of a cached block at most, bytes.
const KNOWN_BYTES: u64 = 256;
const PAGE_BYTES: u64 = 2 << 20;

fn loader(bucket: &Bucket, listing: Vec<Listed>, order: &str, (rank, ranks): (u32, u32), cache_bytes: u64) -> Loader {
    let held_bytes = cache_bytes + AHEAD_BYTES + (cache_bytes / SAMPLE_BYTES * 9 / 8 + 64) * KNOWN_BYTES;
    // What rounding up adds goes to connections, never to batches or cache.
    let memory_bytes = (held_bytes + 64 * SCRATCH_BYTES as u64).next_multiple_of(PAGE_BYTES);
    Loader::builder(bucket.url(""))
        .listing(listing)
        .batch_size(BATCH_SIZE as u32)
        .epochs(EPOCHS)
        .order(order.parse().unwrap())
        .rank(rank)
        .world(ranks)
        .shards(1)
        .memory_limit(ByteSize(memory_bytes))
        .cache_limit(ByteSize(cache_bytes))
        .connections_max((memory_bytes - held_bytes) as usize / SCRATCH_BYTES)
        .pin(false)
        .build()
        .unwrap()
}

/// The share of the samples of epochs 2 and 3 that the ranks' own caches served, each of `percent` of a rank's part.
fn hit_ratio(order: &str, ranks: u32, percent: u64) -> f64 {
    let bucket = bucket(&DataSet::tokens(SAMPLES, 3, SAMPLE_BYTES), "");
    let listing = fuelrail::list(&bucket.url(""), |_| {}).unwrap();
    let cache_bytes = SAMPLES * SAMPLE_BYTES / u64::from(ranks) * percent / 100;
    let (mut delivered, mut hits) = (0, 0);
    // They share nothing, so they come one after the other.
    for rank in 0..ranks {
        let mut loader = loader(&bucket, listing.clone(), order, (rank, ranks), cache_bytes);
        while let Some(batch) = loader.next_batch() {
            delivered += batch.unwrap().len() as u64;
        }
        hits += loader.stats().hits;
    }
    assert_eq!(delivered, SAMPLES * EPOCHS);
    hits as f64 / (SAMPLES * (EPOCHS - 1)) as f64
}

/// Hits that look-ahead makes possible, not the cache.
fn ahead(ranks: u32) -> f64 {
    (2 * 3 * BATCH_SIZE * u64::from(ranks)) as f64 / SAMPLES as f64
}

#[test]
fn next_use_reaches_the_limit_of_every_cache() {
    for percent in [10, 25, 50, 75, 90] {
        let (limit, hits) = (percent as f64 / 100.0, hit_ratio("global", 1, percent));
        assert!((limit - 0.005..=limit + 0.005 + ahead(1)).contains(&hits), "{percent} %: {hits}");
    }
}

/// Three loaders on one bucket: what their own caches can hold, they hit, if samples come back to them.
#[test]
fn own_caches_reach_their_limit_under_the_sticky_order() {
    for percent in [25, 50, 75] {
        let (limit, hits) = (percent as f64 / 100.0, hit_ratio("sticky", 3, percent));
        assert!((0.95 * limit..limit + ahead(3)).contains(&hits), "{percent} %: {hits}");
    }
    let global = hit_ratio("global", 3, 75);
    assert!(global < 0.7 * 0.75, "a rank that gets other samples in every epoch hits few of them: {global}");
}
