//! A whole shard on io_uring against a real server: once warm, its loop allocates nothing on the heap.
#![forbid(unsafe_code)]

use allocation_counter::measure;
use fuelrail_base::limits::SCRATCH_BYTES;
use fuelrail_base::{Duration, Instant, ShardId};
use fuelrail_bucket::{Bucket, BucketConfig, DataSet, Source};
use fuelrail_flow::{
    BadSamples, Consumer, Listed, Objects, Outlet, PeerRoom, Shard, ShardConfig, ShardEnds, ShardStatus, Spares,
    channels,
};
use fuelrail_io::{Arena, ArenaConfig, HugePages, Ring, UringConfig, UringRing, channel};
use fuelrail_plan::hedge::HedgeConfig;
use fuelrail_plan::order::OrderName;
use fuelrail_plan::planner::PlannerConfig;
use fuelrail_plan::policy::PolicyName;
use fuelrail_plan::prefetch::Strategy;
use fuelrail_plan::retry::RetryConfig;
use fuelrail_plan::run::{Cursor, Run, RunConfig};
use fuelrail_plan::window::WindowConfig;
use std::sync::Arc;

const SAMPLES: u64 = 600;
const CONNECTIONS: usize = 4;
/// Epochs until every table has been as full as it gets.
const WARM_EPOCHS: u64 = 12;
const EPOCHS: u64 = 40;

/// A shard over generated objects of one size, with a cache of this size, and the consumer's end of it.
fn shard(bucket: &Bucket, set: &DataSet, cache_bytes: u64) -> (Shard<UringRing>, Outlet) {
    let config = RunConfig {
        samples: SAMPLES,
        seed: 5,
        order: OrderName::Sticky,
        shuffle: true,
        world: 1,
        rank: 0,
        batch_size: 32,
        drop_last: false,
        epochs: EPOCHS,
        start: Cursor { epoch: 0, position: 0 },
    };
    let run = Run::new(config).unwrap();
    let listed: Vec<Listed> =
        (0..SAMPLES).map(|id| Listed { key: set.key(id), size: set.size(id), etag: None }).collect();
    let endpoint = bucket.url("").parse().unwrap();
    let objects = Arc::new(Objects::new(endpoint, vec![bucket.addr()], &listed, 1 << 20).unwrap());
    let connections = WindowConfig {
        connections_start: CONNECTIONS,
        connections_least: CONNECTIONS,
        connections_max: CONNECTIONS,
        connections_blind_max: CONNECTIONS,
        ..WindowConfig::default()
    };
    let shard_config = ShardConfig {
        planner: PlannerConfig {
            shard: ShardId(0),
            shards: 1,
            prefetch: Strategy::default(),
            policy: PolicyName::NextUse,
            cache_bytes,
            cached_block_bytes_min: 0,
            batch_room_bytes: 1 << 20,
            horizon_epochs: 1,
            spill: None,
            homes: None,
            pace: fuelrail_plan::pace::Ledger::default(),
            retry: RetryConfig::default(),
            window: connections,
            // Requests are watched; only this machine being busy elsewhere could make one late.
            hedge: HedgeConfig { delay_us_min: 60_000_000, ..HedgeConfig::default() },
            seed: 1,
        },
        bad_samples: BadSamples::Raise,
        stall_after: Duration::from_secs(30),
        connections_max: CONNECTIONS,
        scratch_bytes: SCRATCH_BYTES as u64,
        spares: Spares::default(),
        peers: PeerRoom::default(),
        chunks: 0,
    };
    let arena = ArenaConfig { bytes: 4 << 20, regions: 1, huge_pages: HugePages::Off, ..ArenaConfig::default() };
    let region = Arena::new(&arena).unwrap().1.pop().unwrap();
    let ring = UringRing::new(&UringConfig::default()).unwrap();
    let consumer = Arc::new(Consumer::default());
    let (deliver, batches) = channel(64);
    let outlet = Outlet::new(vec![batches], vec![ring.waker()], Arc::clone(&consumer), run.batches());
    let ends = ShardEnds {
        channels: channels(1, true).remove(0),
        deliver,
        consumer,
        status: Arc::new(ShardStatus::default()),
        spill: None,
        peers: None,
    };
    (Shard::new(ring, region, objects, &run, &shard_config, ends).unwrap(), outlet)
}

/// Heap allocations of the shard's loop after the warm epochs, and the batches it delivered meanwhile.
fn allocations_when_warm(cache_bytes: u64) -> (u64, u64) {
    let set = DataSet::tokens(SAMPLES, 8, 3_000);
    let config = BucketConfig { source: Source::Generated(set.clone()), ..BucketConfig::default() };
    let bucket = Bucket::start(config).unwrap();
    let (mut shard, mut outlet) = shard(&bucket, &set, cache_bytes);
    // A consumer that waits but takes nothing: batches are opened until there is no room, so that no later moment has
    // more of them open.
    outlet.set_waiting(true);
    let mut quiet = 0;
    while quiet < 100 {
        assert!(shard.iterate(), "the shard goes on");
        let soon = shard.ring().now().after(Duration::from_millis(1));
        shard.ring().wait(Some(soon)).unwrap();
        quiet = if shard.ring().in_flight() > 0 { 0 } else { quiet + 1 };
    }
    let (mut allocations, mut batches) = (0, 0);
    let mut silent_since: Option<Instant> = None;
    while !outlet.is_finished() {
        let iterated = measure(|| {
            assert!(shard.iterate(), "the shard goes on");
        });
        let mut any = false;
        while let Some(finished) = outlet.try_take() {
            let batch = finished.result.unwrap();
            batches += u64::from(batch.spec.epoch >= WARM_EPOCHS);
            any = true;
        }
        let slept = measure(|| shard.sleep().unwrap());
        if batches > 0 {
            allocations += iterated.count_total + slept.count_total;
        }
        let now = shard.ring().now();
        match silent_since {
            Some(since) if !any => assert!(now.since(since) < Duration::from_secs(30), "{}", shard.snapshot().text),
            _ => silent_since = Some(now),
        }
    }
    (allocations, batches)
}

#[test]
fn a_warm_shard_allocates_nothing() {
    for cache_bytes in [0, 256 << 10] {
        let (allocations, batches) = allocations_when_warm(cache_bytes);
        assert!(batches > 100, "{batches} batches");
        assert_eq!(allocations, 0, "heap allocations over {batches} batches, cache of {cache_bytes} bytes");
    }
}
