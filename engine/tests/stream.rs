//! The main job: a bucket becomes batches, over real sockets and a real ring.

mod common;

use common::{bucket, drain, loader};
use fuelrail_bucket::DataSet;
use std::collections::BTreeSet;

#[test]
fn every_byte_of_every_epoch_once() {
    let set = DataSet::digits(500, 7);
    let bucket = bucket(&set, "");
    let mut loader = loader(&bucket).batch_size(32).epochs(3).seed(5).build().unwrap();
    let delivered = drain(&mut loader, &set).unwrap();
    assert_eq!(delivered.order.len(), 1500);
    for epoch in 0..3 {
        let ids: BTreeSet<u32> = delivered.order.iter().filter(|(e, _)| *e == epoch).map(|(_, id)| *id).collect();
        assert_eq!(ids.len(), 500, "epoch {epoch}");
    }
    let stats = loader.stats();
    assert_eq!((stats.samples, stats.asks, stats.retries), (1500, 1500, 0), "{stats:?}");
    assert_eq!(stats.bytes, 3 * set.total_bytes());
}

#[test]
fn large_objects_come_in_blocks_over_several_shards() {
    let set = DataSet::volumes(6, 3, 0.02);
    let bucket = bucket(&set, "");
    for shards in [1, 3] {
        let mut loader = loader(&bucket)
            .memory_limit("256MB".parse().unwrap())
            .shards(shards)
            .batch_size(2)
            .block_size("256KiB".parse().unwrap())
            .build()
            .unwrap();
        let delivered = drain(&mut loader, &set).unwrap();
        assert_eq!(delivered.order.len(), 6);
        let stats = loader.stats();
        assert!(stats.asks > 20, "{stats:?}");
    }
}
