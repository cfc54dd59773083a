//! The main job: a bucket becomes batches, over real sockets and a real ring.

use crate::common::{bucket, drain, loader};
use fuelrail::Taken;
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
        let ids: BTreeSet<u64> = delivered.order.iter().filter(|(e, _)| *e == epoch).map(|(_, id)| *id).collect();
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

#[test]
fn a_caller_with_other_things_to_do_looks_in_between() {
    let set = DataSet::digits(64, 7);
    let bucket = bucket(&set, "latency=fixed:30ms");
    let mut loader = loader(&bucket).batch_size(16).build().unwrap();
    let (mut looks, mut taken) = (0, 0);
    let begun = std::time::Instant::now();
    loop {
        match loader.next_batch_within(std::time::Duration::ZERO).unwrap() {
            Taken::Batch(batch) => taken += batch.len(),
            Taken::NotYet => looks += 1,
            Taken::Over => break,
        }
        assert!(begun.elapsed() < crate::common::PATIENCE, "{:?}", loader.stats());
    }
    assert_eq!(taken, 64);
    assert!(looks > 0, "the first batch takes a round trip at least");
    let stats = loader.stats();
    assert!(stats.readiness < 1.0 && stats.data_wait_s > 0.0, "looking and finding nothing is waiting: {stats:?}");
}

#[test]
fn the_memory_to_register_holds_every_batch_and_outlives_the_loader() {
    let set = DataSet::digits(64, 7);
    let bucket = bucket(&set, "");
    let mut loader = loader(&bucket).shards(2).batch_size(16).build().unwrap();
    let memory = loader.memory();
    let (base, len) = memory.span();
    let regions: Vec<_> = memory.regions().collect();
    assert_eq!(regions.len(), 2);
    assert_eq!(regions.iter().map(|r| r.1).sum::<usize>(), len);
    assert_eq!(regions[1].0.addr(), base.addr() + regions[0].1);
    let mut held = None;
    while let Some(batch) = loader.next_batch() {
        let batch = batch.unwrap();
        let at = batch.bytes().as_ptr().addr();
        assert!(at >= base.addr() && at + batch.bytes().len() <= base.addr() + len);
        held = Some(batch);
    }
    drop(loader);
    drop(memory);
    let held = held.expect("there were batches");
    assert_eq!(held.len(), 16, "a batch stands on its own");
}
