//! Whatever the settings, a run delivers what the plan alone says, in that order, with the generator's bytes.

use crate::common::{bucket, drain, listing, loader, planned};
use fuelrail::ByteSize;
use fuelrail_bucket::{Bucket, DataSet};
use fuelrail_plan::order::OrderName;
use fuelrail_plan::run::{Cursor, RunConfig};
use proptest::prelude::*;
use std::sync::OnceLock;

/// Settings that must change nothing about what is delivered, beside those that do.
#[derive(Clone, Debug)]
struct Settings {
    run: RunConfig,
    large: bool,
    shards: u16,
    cache_percent: u64,
    policy: usize,
    prefetch: usize,
    block_kib: u64,
    connections: usize,
    /// Bytes above the least budget that is not refused; nothing means plenty.
    spare_bytes: Option<u64>,
}

const POLICIES: [&str; 5] = ["next-use", "lru", "fifo", "pinned", "dlcache"];
const PREFETCHES: [&str; 3] = ["lookahead", "full-fetch", "50/50"];

fn set(large: bool) -> DataSet {
    if large { DataSet::volumes(7, 3, 0.003) } else { DataSet::digits(90, 3) }
}

/// One bucket for all cases: starting one costs more than a case.
fn shared_bucket(large: bool) -> &'static Bucket {
    static BUCKETS: [OnceLock<Bucket>; 2] = [OnceLock::new(), OnceLock::new()];
    BUCKETS[usize::from(large)].get_or_init(|| bucket(&set(large), ""))
}

fn settings() -> impl Strategy<Value = Settings> {
    let run = (0..4u64, (any::<bool>(), any::<bool>()), 1..4u32, 1..40u32, any::<bool>(), 1..4u64, 0..90u64);
    let rest = (any::<bool>(), 1..4u16, 0..130u64, 0..5usize, 0..3usize, 1..5u64, 1..9usize);
    let spare = prop::option::of(prop_oneof![Just(0), 0..40_000u64, 0..2_000_000u64]);
    (run, rest, spare).prop_map(
        |((seed, (shuffle, sticky), world, batch_size, drop_last, epochs, from), rest, spare_bytes)| {
            let (large, shards, cache_percent, policy, prefetch, block, connections) = rest;
            let samples = set(large).len();
            let batch_size = if large { 1 + batch_size % 3 } else { batch_size };
            let drop_last = drop_last && samples >= u64::from(world * batch_size);
            let order = OrderName::ALL[usize::from(sticky)];
            let start = Cursor { epoch: from % epochs, position: from % samples };
            let run = RunConfig { samples, seed, order, shuffle, world, rank: 0, batch_size, drop_last, epochs, start };
            Settings {
                run,
                large,
                shards,
                cache_percent,
                policy,
                prefetch,
                block_kib: 16 << block,
                connections,
                spare_bytes,
            }
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(ProptestConfig::default().cases.div_ceil(2)))]

    #[test]
    fn any_settings_deliver_what_the_plan_says(settings in settings()) {
        let Settings { run, large, shards, cache_percent, policy, prefetch, block_kib, connections, spare_bytes } = settings;
        let (set, bucket) = (set(large), shared_bucket(large));
        for rank in 0..run.world {
            let builder = loader(bucket)
                .listing(listing(&set))
                .seed(run.seed)
                .shuffle(run.shuffle)
                .order(run.order)
                .rank(rank).world(run.world)
                .batch_size(run.batch_size)
                .drop_last(run.drop_last)
                .epochs(run.epochs)
                .shards(shards)
                .cache_limit(ByteSize(set.total_bytes() * cache_percent / 100))
                .cache_policy(POLICIES[policy].parse().unwrap())
                .prefetch(PREFETCHES[prefetch].parse().unwrap())
                .block_size(ByteSize(block_kib << 10))
                .connections_max(connections);
            let builder = match spare_bytes {
                None => builder,
                Some(spare) => builder.clone().memory_limit(ByteSize(crate::common::least_budget(builder) + spare)),
            };
            let mut state = builder.clone().build().unwrap().state();
            (state.epoch, state.position) = (run.start.epoch, run.start.position);
            let mut loader = builder.resume(state).build().unwrap();
            let delivered = drain(&mut loader, &set).unwrap();
            prop_assert_eq!(delivered.order, planned(RunConfig { rank, ..run }));
            let stats = loader.stats();
            prop_assert_eq!(stats.hits + stats.shared + stats.requests, stats.asks);
            prop_assert_eq!(stats.batches, loader.batches());
        }
    }
}
