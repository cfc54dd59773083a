//! The first second of a run in virtual time: how long until so many bytes are delivered, of a bucket that is so far away.

use super::memory::region;
use super::world::{Bucket, objects, run};
use crate::assemble::BadSamples;
use crate::board::Board;
use crate::deliver::{Consumer, Outlet};
use crate::hedge::Spares;
use crate::mesh::mesh;
use crate::setup::{ShardConfig, ShardEnds};
use crate::shard::Shard;
use fuelrail_base::limits::SCRATCH_BYTES;
use fuelrail_base::{Duration, ShardId};
use fuelrail_io::{Ring, SimFaults, SimRing, SimWorld, lane};
use fuelrail_plan::brain::BrainConfig;
use fuelrail_plan::hedge::HedgeConfig;
use fuelrail_plan::pace::Ledger;
use fuelrail_plan::policy::PolicyName;
use fuelrail_plan::prefetch::Strategy;
use fuelrail_plan::retry::RetryConfig;
use fuelrail_plan::window::WindowConfig;
use std::sync::Arc;

const OBJECTS: u64 = 2048;
const OBJECT_BYTES: u64 = 8 << 10;
const BATCH: u32 = 32;
const CONNECTIONS_MAX: usize = 128;

/// One shard with the settings that the engine starts with, and a consumer that only takes. Milliseconds until the first batch,
/// 1 MiB, 4 MiB and all 16 MiB.
fn start(first_byte: Duration) -> [f64; 4] {
    let sizes = vec![OBJECT_BYTES; OBJECTS as usize];
    let mut bucket = Bucket::new(&sizes);
    bucket.takes = Box::new(move |_| Some(first_byte));
    let world = SimWorld::new(1, SimFaults::default(), Box::new(bucket));
    let ring = SimRing::with_capacity(&world, 1024, 256);
    let run = run(OBJECTS, BATCH, 1);
    let consumer = Arc::new(Consumer::default());
    let (deliver, lane) = lane(64);
    let mut outlet = Outlet::new(vec![lane], vec![ring.waker()], Arc::clone(&consumer), run.batches());
    let window = WindowConfig {
        connections_max: CONNECTIONS_MAX,
        connections_blind_max: WindowConfig::blind_for(OBJECT_BYTES),
        ..WindowConfig::default()
    };
    let config = ShardConfig {
        brain: BrainConfig {
            shard: ShardId(0),
            shards: 1,
            prefetch: Strategy::default(),
            policy: PolicyName::NextUse,
            cache_bytes: 0,
            cached_block_bytes_min: 0,
            batch_room_bytes: 16 << 20,
            horizon_epochs: 1,
            spill: None,
            pace: Ledger::default(),
            retry: RetryConfig::default(),
            window,
            hedge: HedgeConfig { percent: 0, ..HedgeConfig::default() },
            seed: 1,
        },
        bad_samples: BadSamples::Raise,
        stall_after: Duration::from_secs(10),
        connections_max: CONNECTIONS_MAX,
        scratch_bytes: SCRATCH_BYTES as u64,
        spares: Spares::default(),
    };
    let board = Arc::new(Board::default());
    let ends = ShardEnds { mesh: mesh(1, false).remove(0), deliver, consumer, board, spill: None };
    let mut shard = Shard::new(ring, region(32 << 20), objects(&sizes, 1 << 20), &run, &config, ends).unwrap();
    let began = shard.ring().now();
    let (mut delivered, mut times) = (0, Vec::new());
    let marks = [u64::from(BATCH) * OBJECT_BYTES, 1 << 20, 4 << 20, OBJECTS * OBJECT_BYTES];
    while !outlet.is_finished() {
        assert!(shard.turn());
        outlet.set_waiting(true);
        while let Some(batch) = outlet.try_take() {
            delivered += batch.result.unwrap().samples.len() as u64 * OBJECT_BYTES;
            while marks.get(times.len()).is_some_and(|mark| delivered >= *mark) {
                times.push(shard.ring().now().since(began).as_secs_f64() * 1e3);
            }
        }
        assert!(shard.turn());
        let sleeps = shard.ring().facts().counts.sleeps;
        shard.sleep().unwrap();
        if shard.ring().facts().counts.sleeps > sleeps {
            world.advance();
        }
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
