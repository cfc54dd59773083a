//! On plain HTTP the kernel's copy is the only one, and every other copy is counted to the byte.

use crate::common::{bucket, drain, loader};
use fuelrail::PolicyName;
use fuelrail_bucket::DataSet;

#[test]
fn bodies_land_in_place() {
    for (set, batch_size) in [(DataSet::photos(150, 3), 16), (DataSet::volumes(6, 3, 0.02), 1)] {
        let bucket = bucket(&set, "");
        let builder = loader(&bucket).batch_size(batch_size).block_size("256KiB".parse().unwrap());
        let mut loader = builder.build().unwrap();
        drain(&mut loader, &set).unwrap();
        let stats = loader.stats();
        assert_eq!((stats.bytes, stats.landed_bytes), (set.total_bytes(), set.total_bytes()));
        assert!(stats.copied_bytes_per_byte <= 0.01, "{}: {stats:?}", set.kind);
    }
}

/// A cache costs one copy in and one copy out; a block that two batches want at the same time costs one.
#[test]
fn copies_through_the_cache_are_counted_exactly() {
    let set = DataSet::photos(60, 3);
    let total = set.total_bytes();
    let bucket = bucket(&set, "");
    let builder = loader(&bucket).batch_size(8).epochs(3).cache_limit(fuelrail::ByteSize(total));
    let mut loader = builder.cache_policy(PolicyName::Lru).build().unwrap();
    drain(&mut loader, &set).unwrap();
    let stats = loader.stats();
    // Everything fits: the first epoch fills the cache, and the others are served by it.
    assert_eq!((stats.hits + stats.shared, stats.evictions), (2 * set.len(), 0), "{stats:?}");
    assert_eq!(stats.landed_bytes, total);
    let shared = stats.asked_bytes - stats.hit_bytes - stats.landed_bytes;
    let beside = stats.copied_bytes - (total + stats.hit_bytes + shared);
    assert!(beside <= total / 100, "{beside} bytes more than the cache explains: {stats:?}");
    // A policy that keeps nothing it will not need again copies less in.
    let builder = crate::common::loader(&bucket).batch_size(8).epochs(1).cache_limit(fuelrail::ByteSize(total));
    let mut loader = builder.build().unwrap();
    drain(&mut loader, &set).unwrap();
    assert!(loader.stats().copied_bytes <= total / 100, "{:?}", loader.stats());
}
