//! The memory budget: what a loader takes stays inside it, and one too small is refused with the number that would do.

use crate::common::{Delivered, bucket, loader, needed, take};
use fuelrail::{ByteSize, Kind, memory_use};
use fuelrail_bucket::DataSet;
use std::sync::{Mutex, PoisonError};

/// Resident memory is the whole process's: one test at a time.
static ALONE: Mutex<()> = Mutex::new(());

/// What the process may need beside the budget.
const BESIDE: u64 = 64 << 20;

#[test]
fn resident_memory_stays_within_the_budget() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    for (set, budget) in [(DataSet::photos(900, 3), 24 << 20), (DataSet::volumes(24, 3, 0.04), 32 << 20)] {
        let bucket = bucket(&set, "");
        let builder = loader(&bucket).memory_limit(ByteSize(budget)).cache_limit(ByteSize(budget / 4));
        let mut loader = builder.batch_size(if set.len() > 100 { 32 } else { 1 }).shards(1).epochs(2);
        if set.len() <= 100 {
            loader = loader.block_size("1MiB".parse().unwrap());
        }
        // The first request makes the server touch what it needs.
        fuelrail::get(&bucket.url(&set.key(0)), &mut Vec::new()).unwrap();
        let before = memory_use().rss_bytes;
        let mut loader = loader.build().unwrap();
        let mut delivered = Delivered::default();
        let mut most = 0;
        while let Some(batch) = loader.next_batch() {
            take(&batch.unwrap(), &loader, &set, &mut delivered);
            most = most.max(memory_use().rss_bytes.saturating_sub(before));
        }
        assert!(loader.stats().bytes > 3 * budget, "more passes through than fits");
        assert!(most <= budget + BESIDE, "{}: grew by {most} bytes with a budget of {budget}", set.kind);
        assert!(most > budget / 2, "{}: {most} bytes of {budget}: the measure sees nothing", set.kind);
    }
}

#[test]
fn a_budget_too_small_for_one_batch_names_the_bytes_needed() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let set = DataSet::photos(200, 3);
    let bucket = bucket(&set, "");
    for (shards, batch_size, cache) in [(1, 64, 0), (2, 32, 1_000_001), (3, 200, 0), (1, 1, 0)] {
        let builder = || {
            let builder = loader(&bucket).shards(shards).batch_size(batch_size).cache_limit(ByteSize(cache));
            builder.connections_max(8)
        };
        let error = builder().memory_limit(ByteSize(100_000)).build().expect_err("100 kB hold nothing");
        assert_eq!(error.kind(), Kind::Budget, "{error}");
        let bytes = needed(&error);
        // A little less is refused with the same number; the number itself is enough, to the last epoch.
        let error = builder().memory_limit(ByteSize(bytes - 4096 * u64::from(shards))).build().expect_err("too small");
        assert_eq!((error.kind(), needed(&error)), (Kind::Budget, bytes));
        let mut loader = builder().memory_limit(ByteSize(bytes)).epochs(2).build().unwrap();
        let delivered = crate::common::drain(&mut loader, &set).unwrap();
        assert_eq!(delivered.order.len(), 400, "{shards} shards, batches of {batch_size}");
    }
}
