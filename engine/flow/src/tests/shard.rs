//! A whole shard on a simulated ring, where its stages alone cannot show what goes wrong between them.

use super::memory::region;
use super::world::{Bucket, content, objects, run};
use crate::assemble::BadSamples;
use crate::board::Board;
use crate::deliver::{Consumer, Outlet};
use crate::hedge::Spares;
use crate::mesh::mesh;
use crate::setup::{ShardConfig, ShardEnds, cache_memory, scratch_memory, spare_memory};
use crate::shard::Shard;
use fuelrail_base::limits::{SAMPLE_ALIGN, SCRATCH_BYTES};
use fuelrail_base::{Duration, Error, Kind, ShardId};
use fuelrail_io::{Ring, SimFaults, SimRing, SimWorld, lane};
use fuelrail_plan::brain::BrainConfig;
use fuelrail_plan::hedge::HedgeConfig;
use fuelrail_plan::pace::Ledger;
use fuelrail_plan::policy::PolicyName;
use fuelrail_plan::prefetch::Strategy;
use fuelrail_plan::retry::RetryConfig;
use fuelrail_plan::window::WindowConfig;
use std::sync::Arc;

fn config(cache_bytes: u64) -> ShardConfig {
    ShardConfig {
        brain: BrainConfig {
            shard: ShardId(0),
            shards: 1,
            prefetch: Strategy::default(),
            policy: PolicyName::NextUse,
            cache_bytes,
            cached_block_bytes_min: 0,
            batch_room_bytes: 64 << 10,
            horizon_epochs: 1,
            spill: None,
            pace: Ledger::default(),
            retry: RetryConfig::default(),
            window: WindowConfig { connections_start: 2, connections_max: 4, depth_max: 4, ..WindowConfig::default() },
            hedge: HedgeConfig::default(),
            seed: 1,
        },
        bad_samples: BadSamples::Raise,
        stall_after: Duration::from_secs(10),
        connections_max: 4,
        scratch_bytes: SCRATCH_BYTES as u64,
        spares: Spares::default(),
    }
}

/// One shard that serves two epochs over objects of these sizes, on a ring with so many sockets.
fn shard(sizes: &[u64], cache_bytes: u64, sockets: u32) -> (SimWorld, Shard<SimRing>, Outlet, Arc<Board>) {
    let world = SimWorld::new(1, SimFaults::default(), Box::new(Bucket::new(sizes)));
    let ring = SimRing::with_capacity(&world, 64, sockets);
    let run = run(sizes.len() as u64, 4, 2);
    let consumer = Arc::new(Consumer::default());
    let (deliver, lane) = lane(16);
    let outlet = Outlet::new(vec![lane], vec![ring.waker()], Arc::clone(&consumer), run.batches());
    let board = Arc::new(Board::default());
    let ends = ShardEnds { mesh: mesh(1, true).remove(0), deliver, consumer, board: Arc::clone(&board), spill: None };
    let shard = Shard::new(ring, region(1 << 20), objects(sizes, 256), &run, &config(cache_bytes), ends).unwrap();
    (world, shard, outlet, board)
}

#[test]
fn every_sample_arrives_and_the_second_epoch_comes_from_the_cache() {
    let sizes: Vec<u64> = (0..10).map(|i| i * 97).collect();
    let (world, mut shard, mut outlet, board) = shard(&sizes, 64 << 10, 8);
    let (mut samples, mut turns) = (0, 0);
    while !outlet.is_finished() {
        assert!(shard.turn());
        while let Some(batch) = outlet.try_take() {
            let batch = batch.result.unwrap();
            for placed in &batch.samples {
                let bytes = &batch.slot[placed.offset..placed.offset + placed.len];
                assert_eq!(bytes, content(placed.id, sizes[placed.id.0 as usize]));
                samples += 1;
            }
        }
        shard.sleep().unwrap();
        world.advance();
        turns += 1;
        assert!(turns < 1000, "stuck: {}", shard.snapshot().text);
    }
    assert_eq!(samples, 20);
    let snapshot = shard.snapshot();
    let bytes: u64 = sizes.iter().sum();
    assert_eq!((snapshot.brain.asked_bytes, snapshot.brain.hit_bytes), (2 * bytes, bytes));
    assert_eq!(snapshot.fetch.landed_bytes, bytes);
    assert!(board.beats() > 0);
    board.stop();
    assert!(!shard.turn());
}

#[test]
fn a_consumer_that_only_takes_is_not_given_more_open_batches_than_the_source_can_work_on() {
    // Batches of 4 objects; two to four connections serve 16 requests at once at most, so 4 batches and one to follow. There is
    // room for 128.
    let sizes = vec![100; 800];
    let (world, mut shard, mut outlet, _) = shard(&sizes, 0, 8);
    let (mut taken, mut most) = (0, 0);
    while !outlet.is_finished() {
        assert!(shard.turn());
        most = most.max(shard.snapshot().gates[1].occupancy);
        let before = taken;
        while let Some(batch) = outlet.try_take() {
            batch.result.unwrap();
            taken += 1;
            outlet.set_waiting(false);
        }
        if taken > before {
            // It computes for a moment: so short a step asks for all the depth there is.
            assert!(shard.turn());
            let soon = shard.ring().now().after(Duration::from_nanos(100));
            shard.ring().wait(Some(soon)).unwrap();
        } else {
            outlet.set_waiting(true);
            assert!(shard.turn());
            shard.sleep().unwrap();
        }
        world.advance();
    }
    assert_eq!(taken, 400);
    assert!((2..=6).contains(&most), "{most} batches were incomplete at once");
}

#[test]
fn a_failure_elsewhere_wakes_a_shard_and_ends_it() {
    let (_world, mut shard, outlet, board) = shard(&[100; 4], 0, 8);
    assert!(shard.turn());
    outlet.consumer().failure.guard("a thread", || Err::<(), _>(Error::new(Kind::File, "the disk is gone")));
    assert!(shard.ring().waker().is_notified(), "it sleeps on");
    assert!(!shard.turn() && !board.is_gone());
    drop(shard);
    assert!(board.is_gone(), "its last snapshot is still waited for");
}

#[test]
fn a_request_that_cannot_be_sent_ends_the_run_instead_of_sleeping_for_ever() {
    let (world, mut shard, mut outlet, _) = shard(&[100; 4], 0, 0);
    let batch = loop {
        shard.turn();
        if let Some(batch) = outlet.try_take() {
            break batch;
        }
        let before = shard.ring().facts().counts.sleeps;
        shard.sleep().unwrap();
        let slept = shard.ring().facts().counts.sleeps > before;
        assert!(world.advance() || !slept, "asleep for ever: {}", shard.snapshot().text);
    };
    assert_eq!(batch.result.unwrap_err().kind(), Kind::Budget);
}

#[test]
fn memory_that_does_not_suffice_is_named_with_what_to_do() {
    let mut region = region(1 << 20);
    let spares = |slots, slot_bytes| Spares { slots, slot_bytes };
    assert_eq!(scratch_memory(&mut region, 4, 4096).unwrap().len(), 4);
    assert!(scratch_memory(&mut region, 4, 0).unwrap().is_empty(), "a folder needs none");
    assert_eq!(spare_memory(&mut region, spares(2, 8192)).unwrap().len(), 2);
    assert_eq!(cache_memory(&mut region, 65_536).unwrap().len(), 65_536);
    for (error, setting) in [
        (cache_memory(&mut region, 2 << 20).unwrap_err(), "cache_limit"),
        (scratch_memory(&mut region, 1000, 65_536).unwrap_err(), "connections_max"),
        (spare_memory(&mut region, spares(1, 2 << 20)).unwrap_err(), "hedge_percent"),
    ] {
        assert_eq!(error.kind(), Kind::Budget);
        assert!(error.to_string().contains(setting), "{error}");
    }
}

/// A thirty-second part of the room, for at least four of the longest blocks, else for one of twice the mean, else nothing.
#[test]
fn spare_memory_is_a_small_part_of_the_room() {
    for (room, longest, mean, slots, slot_bytes) in [
        (32 << 20, 100_000, 100_000, 10, 100_000),
        (1 << 40, 100_000, 100_000, 16, 100_000),
        (32 * 400_000, 100_000, 10_000, 4, 100_000),
        (32 * 399_999, 100_000, 10_000, 16, 20_000),
        (32 * 20_000, 100_000, 10_000, 1, 20_000),
        (32 * 19_999, 100_000, 10_000, 0, 0),
        (32 * 90_000, 100_000, 90_000, 0, 0),
        (32 * 100_000, 100_000, 90_000, 1, 100_000),
        (32 << 20, 0, 0, 0, 0),
    ] {
        let spares = Spares::within(room, longest, mean);
        assert_eq!((spares.slots, spares.slot_bytes), (slots, slot_bytes), "{room} {longest} {mean}");
        assert_eq!(spares.bytes(), (slots * slot_bytes.next_multiple_of(SAMPLE_ALIGN)) as u64);
    }
}
