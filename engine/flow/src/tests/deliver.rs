//! Delivery in order, whoever finishes first.

use crate::assemble::Finished;
use crate::deliver::{Consumer, DeliverStage, Outlet};
use fuelrail_base::prng::Prng;
use fuelrail_base::{BatchSeq, Error, Instant, Kind};
use fuelrail_io::{Waker, channel};
use fuelrail_plan::importance::{Horizons, ImportanceConfig};
use std::sync::Arc;

fn finished(seq: u64) -> Finished {
    Finished { seq: BatchSeq(seq), result: Err(Error::new(Kind::Cancelled, format!("batch {seq}"))) }
}

struct Rig {
    stages: Vec<DeliverStage>,
    wakers: Vec<Waker>,
    consumer: Arc<Consumer>,
    outlet: Outlet,
}

fn rig(shards: u16, entries: usize, end: u64) -> Rig {
    let consumer = Arc::new(Consumer::default());
    let (mut stages, mut lanes) = (Vec::new(), Vec::new());
    for shard in 0..shards {
        let (out, into) = channel(entries);
        stages.push(DeliverStage::new(out, shard, shards, entries));
        lanes.push(into);
    }
    let wakers: Vec<Waker> = stages.iter().map(|_| Waker::sleeper()).collect();
    let outlet = Outlet::new(lanes, wakers.clone(), Arc::clone(&consumer), end);
    Rig { stages, wakers, consumer, outlet }
}

#[test]
fn batches_come_in_order_whoever_finishes_first() {
    for seed in 0..100 {
        let mut prng = Prng::new(seed);
        let shards = 1 + prng.below(4) as u16;
        let end = 1 + prng.below(40);
        // Lanes of two: later batches wait in their shard.
        let mut rig = rig(shards, 2, end);
        let mut unfinished: Vec<u64> = (0..end).collect();
        let mut taken = Vec::new();
        while !rig.outlet.is_finished() {
            if !unfinished.is_empty() && prng.chance(0.7) {
                let seq = unfinished.swap_remove(prng.below(unfinished.len() as u64) as usize);
                rig.stages[(seq % u64::from(shards)) as usize].put(finished(seq));
            }
            for (shard, stage) in (0..).zip(&mut rig.stages) {
                let of_shard = rig.consumer.taken_of(shard, u64::from(shards));
                let expected = taken.iter().filter(|seq| **seq % u64::from(shards) == shard).count() as u64;
                assert_eq!(of_shard, expected, "seed {seed}");
                assert!(stage.flush(Instant(taken.len() as u64), of_shard));
            }
            while let Some(batch) = rig.outlet.try_take() {
                taken.push(batch.seq.0);
            }
        }
        assert_eq!(taken, (0..end).collect::<Vec<u64>>(), "seed {seed}");
        assert!(rig.outlet.try_take().is_none());
        for (shard, stage) in (0..).zip(&mut rig.stages) {
            stage.flush(Instant(end), rig.consumer.taken_of(shard, u64::from(shards)));
            assert_eq!(stage.gate.occupancy(), 0);
        }
    }
}

#[test]
fn a_consumer_that_is_gone_is_noticed() {
    let Rig { mut stages, outlet, .. } = rig(1, 8, 10);
    drop(outlet);
    stages[0].put(finished(0));
    assert!(!stages[0].flush(Instant::ZERO, 0));
}

#[test]
fn all_shards_are_woken_when_a_wait_begins_or_ends_and_one_by_the_batch_taken_from_it() {
    let mut rig = rig(2, 8, 10);
    let woken = |wakers: &[Waker]| {
        let all = wakers.iter().filter(|w| w.is_notified()).count();
        wakers.iter().for_each(Waker::disarm);
        all
    };
    rig.outlet.set_waiting(true);
    assert!(rig.consumer.waits());
    assert_eq!(woken(&rig.wakers), 2);
    rig.outlet.set_waiting(true);
    assert_eq!(woken(&rig.wakers), 0, "nothing new to tell");
    rig.outlet.set_waiting(false);
    assert_eq!(woken(&rig.wakers), 2, "its patience has ended");
    rig.outlet.set_waiting(true);
    assert_eq!(woken(&rig.wakers), 2);
    rig.stages[0].put(finished(0));
    rig.stages[0].flush(Instant::ZERO, 0);
    rig.outlet.try_take().unwrap();
    assert!(rig.wakers[0].is_notified());
    assert_eq!(woken(&rig.wakers), 1);
    rig.outlet.set_waiting(false);
    assert_eq!(woken(&rig.wakers), 2, "the wait has ended for all");
}

#[test]
fn what_is_told_last_is_heard_once() {
    let consumer = Consumer::default();
    let mut seen = 0;
    assert!(consumer.news(&mut seen).is_none());
    let drawn = Horizons::new(ImportanceConfig::default(), 10, 0, 1, 0, None).unwrap();
    for _ in 0..2 {
        consumer.tell(drawn.known());
    }
    assert!(consumer.news(&mut seen).is_some() && consumer.news(&mut seen).is_none());
}

#[test]
fn whoever_waits_for_batches_is_woken_by_one() {
    let Rig { mut stages, outlet, .. } = rig(1, 2, 1);
    let waker = Waker::sleeper();
    outlet.set_waker(&waker);
    stages[0].put(finished(0));
    stages[0].flush(Instant::ZERO, 0);
    assert!(waker.is_notified());
}
