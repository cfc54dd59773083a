//! What the loader's integration tests share: a bucket with a generated set, and a reader that checks every byte.
#![allow(dead_code, unreachable_pub, reason = "each test file uses its part")]

use fuelrail::{Batch, Loader, LoaderBuilder, Result};
use fuelrail_bucket::{Bucket, BucketConfig, DataSet, Script, Source};

/// A bucket that serves `set` and misbehaves as `script` says.
pub fn bucket(set: &DataSet, script: &str) -> Bucket {
    let script: Script = script.parse().expect("the test's script parses");
    let source = Source::Generated(set.clone());
    Bucket::start(BucketConfig { source, script, ..BucketConfig::default() }).expect("loopback can be listened on")
}

/// A small loader over the bucket: one shard, 64 MB, no cache.
pub fn loader(bucket: &Bucket) -> LoaderBuilder {
    Loader::builder(&bucket.url(""))
        .memory_limit("64MB".parse().unwrap())
        .shards(1)
        .connections_max(32)
        .pin(false)
        .watchdog_after_ms(3000)
}

/// Everything a loader delivered.
#[derive(Debug, Default, PartialEq, Eq, Clone)]
pub struct Delivered {
    /// `(epoch, sample)` in order of delivery.
    pub order: Vec<(u64, u32)>,
}

/// Reads a loader to its end and checks every byte against the generator.
///
/// # Errors
/// What the loader reports.
pub fn drain(loader: &mut Loader, set: &DataSet) -> Result<Delivered> {
    let mut delivered = Delivered::default();
    while let Some(batch) = loader.next_batch() {
        take(&batch?, loader, set, &mut delivered);
    }
    Ok(delivered)
}

/// Checks one batch and notes what it brought.
pub fn take(batch: &Batch, loader: &Loader, set: &DataSet, delivered: &mut Delivered) {
    for sample in batch.samples() {
        set.verify(loader.key(sample.id), sample.bytes).expect("every byte is the generator's");
        delivered.order.push((batch.epoch(), sample.id.0));
    }
}
