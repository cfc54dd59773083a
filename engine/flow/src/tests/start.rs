//! The first second of a run in virtual time: how long until so many bytes are delivered, of a bucket that is so far away.

use super::memory::region;
use super::world::{Bucket, config, objects, run};
use crate::channels::channels;
use crate::deliver::{Consumer, Outlet};
use crate::setup::ShardEnds;
use crate::shard::Shard;
use crate::status::ShardStatus;
use fuelrail_base::{Duration, Instant};
use fuelrail_io::{Ring, SimFaults, SimRing, SimWorld, channel};
use fuelrail_plan::window::WindowConfig;
use std::sync::Arc;

const OBJECTS: u64 = 2048;
const OBJECT_BYTES: u64 = 8 << 10;
const BATCH: u32 = 32;
const CONNECTIONS_MAX: usize = 128;

/// One shard with the settings that the engine starts with, over so many objects and epochs of a bucket that is so far away.
fn standing(objects_len: u64, epochs: u64, first_byte: Duration) -> (SimWorld, Shard<SimRing>, Outlet) {
    let sizes = vec![OBJECT_BYTES; objects_len as usize];
    let mut bucket = Bucket::new(&sizes);
    bucket.takes = Box::new(move |_| Some(first_byte));
    let world = SimWorld::new(1, SimFaults::default(), Box::new(bucket));
    let ring = SimRing::with_capacity(&world, 1024, 256);
    let run = run(objects_len, BATCH, epochs);
    let consumer = Arc::new(Consumer::default());
    let (deliver, lane) = channel(64);
    let outlet = Outlet::new(vec![lane], vec![ring.waker()], Arc::clone(&consumer), run.batches());
    let window = WindowConfig {
        connections_max: CONNECTIONS_MAX,
        connections_blind_max: WindowConfig::blind_for(OBJECT_BYTES),
        ..WindowConfig::default()
    };
    let status = Arc::new(ShardStatus::default());
    let ends =
        ShardEnds { channels: channels(1, false).remove(0), deliver, consumer, status, spill: None, peers: None };
    let mut config = config(16 << 20, window);
    config.planner.hedge.percent = 0;
    let shard = Shard::new(ring, region(32 << 20), objects(&sizes, 1 << 20), &run, &config, ends).unwrap();
    (world, shard, outlet)
}

/// An iteration of the shard's loop; time goes on where it sleeps.
fn step(world: &SimWorld, shard: &mut Shard<SimRing>) {
    assert!(shard.iterate());
    let sleeps = shard.ring().facts().counts.sleeps;
    shard.sleep().unwrap();
    if shard.ring().facts().counts.sleeps > sleeps {
        world.advance();
    }
}

/// With a consumer that only takes: milliseconds until the first batch, 1 MiB, 4 MiB and all 16 MiB.
fn start(first_byte: Duration) -> [f64; 4] {
    let (world, mut shard, mut outlet) = standing(OBJECTS, 1, first_byte);
    let began = shard.ring().now();
    let (mut delivered, mut times) = (0, Vec::new());
    let marks = [u64::from(BATCH) * OBJECT_BYTES, 1 << 20, 4 << 20, OBJECTS * OBJECT_BYTES];
    while !outlet.is_finished() {
        assert!(shard.iterate());
        outlet.set_waiting(true);
        while let Some(batch) = outlet.try_take() {
            delivered += batch.result.unwrap().samples.len() as u64 * OBJECT_BYTES;
            while marks.get(times.len()).is_some_and(|mark| delivered >= *mark) {
                times.push(shard.ring().now().since(began).as_secs_f64() * 1e3);
            }
        }
        step(&world, &mut shard);
    }
    times.try_into().unwrap()
}

#[test]
fn a_run_is_at_full_rate_within_a_few_first_bytes() {
    for ms in [1, 20] {
        let times = start(Duration::from_millis(ms));
        // All connections are in use from the start: the set takes 16 first bytes at least.
        let most = [2, 3, 6, 18].map(|first_bytes| (first_bytes * ms) as f64);
        assert!(times.iter().zip(most).all(|(took, most)| *took <= most), "{times:.1?} ms, {most:.1?} allowed");
    }
}

#[test]
fn blocks_that_are_on_their_way_open_no_further_batches() {
    let (world, mut shard, outlet) = standing(4 * u64::from(BATCH), 10, Duration::from_millis(20));
    outlet.set_waiting(true);
    // The window opens meanwhile, and nothing has landed yet.
    while world.now() < Instant::ZERO.after(Duration::from_millis(15)) {
        step(&world, &mut shard);
    }
    // Those of the first epoch bring requests, the next one brings none.
    assert_eq!(shard.snapshot().gates[1].occupancy, 5, "{}", shard.snapshot().text);
}
