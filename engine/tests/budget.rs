//! The memory budget: what a loader takes stays inside it, and one too small is refused with the number that would do.

use crate::common::{PATIENCE, bucket, listing, loader, needed};
use fuelrail::internal::memory_use;
use fuelrail::{ByteSize, Kind, Loader, LoaderBuilder, MemoryStats, Prefetch};
use fuelrail_bucket::DataSet;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Resident memory is the whole process's: one test at a time.
static ALONE: Mutex<()> = Mutex::new(());

/// What the process may need beside what the stats state: it is the bucket's server, too.
const BESIDE: u64 = 16 << 20;
const MIB: u64 = 1 << 20;

/// A loader's settings: the data set, shards, memory, of which cache, bytes, and samples of a batch.
type Case = (DataSet, u16, u64, u64, u32);

/// Runs two epochs of it: what its stats state, and the most that resident memory grew by.
fn grows((set, shards, limit, cache, batch_size): &Case) -> (MemoryStats, u64) {
    let bucket = bucket(set, "");
    let builder = loader(&bucket).memory_limit(ByteSize(*limit)).cache_limit(ByteSize(*cache)).batch_size(*batch_size);
    let builder = builder.shards(*shards).epochs(2).listing(listing(set));
    let builder = if set.len() > 100 { builder } else { builder.block_size("1MiB".parse().unwrap()) };
    // The first request makes the server touch what it needs.
    fuelrail::get(&bucket.url(&set.key(0)), &mut Vec::new()).unwrap();
    let before = memory_use().rss_bytes;
    let mut loader = builder.build().unwrap();
    let (mut most, mut batches) = (0, 0);
    while let Some(batch) = loader.next_batch() {
        for sample in batch.unwrap().samples() {
            set.verify(loader.key(sample.id), sample.bytes).expect("every byte is the generator's");
        }
        batches += 1;
        if batches % 8 == 1 {
            most = most.max(memory_use().rss_bytes.saturating_sub(before));
        }
    }
    let stats = loader.stats();
    assert!(*cache == 0 || stats.hits > 0, "the cache holds something");
    (stats.memory, most.max(memory_use().rss_bytes.saturating_sub(before)))
}

fn stays_within_what_is_stated(cases: &[Case]) {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    for case in cases {
        let (stated, most) = grows(case);
        let (set, shards, limit, ..) = case;
        let of = format!("{} of {} bytes, {shards} shards: grew by {most}, {stated:?}", set.kind, set.size(0));
        assert!(
            0 < stated.batch_bytes && stated.batch_bytes < stated.arena_bytes && stated.arena_bytes <= *limit,
            "{of}"
        );
        assert!(most <= stated.total_bytes() + BESIDE, "{of}");
        assert!(most > limit / 2, "{of}: the measure sees nothing");
    }
}

#[test]
fn resident_memory_stays_within_16_mib_of_what_the_stats_state() {
    stays_within_what_is_stated(&[
        (DataSet::photos(900, 3), 1, 24 * MIB, 6 * MIB, 32),
        (DataSet::volumes(24, 3, 0.04), 1, 32 * MIB, 8 * MIB, 1),
        (DataSet::photos(2400, 3), 8, 128 * MIB, 48 * MIB, 16),
    ]);
}

#[test]
fn resident_memory_stays_within_16_mib_of_what_the_stats_state_with_many_cached_blocks_of_1_kib() {
    stays_within_what_is_stated(&[(DataSet::tokens(50_000, 3, 1024), 2, 80 * MIB, 48 * MIB, 256)]);
}

/// Opens as many batches as fit, as a prefetcher that is told to does, whether anybody takes them or not: at least so many MiB of them.
fn stays_within_what_is_stated_with_open_batches(
    set: &DataSet,
    limit: u64,
    landed: u64,
    of: impl Fn(LoaderBuilder) -> LoaderBuilder,
) {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let bucket = bucket(set, "");
    fuelrail::get(&bucket.url(&set.key(0)), &mut Vec::new()).unwrap();
    let builder = Loader::builder(bucket.url("")).connections_max(32).memory_limit(ByteSize(limit * MIB)).shards(1);
    let builder = of(builder).prefetch(Prefetch::FullFetch).listing(listing(set));
    let before = memory_use().rss_bytes;
    let loader = builder.build().unwrap();
    let stated = loader.stats().memory;
    let (mut most, begun) = (0, Instant::now());
    while begun.elapsed() < PATIENCE && loader.stats().landed_bytes < landed * MIB {
        std::thread::sleep(Duration::from_millis(20));
        most = most.max(memory_use().rss_bytes.saturating_sub(before));
    }
    most = most.max(memory_use().rss_bytes.saturating_sub(before));
    assert!(most > landed * MIB, "grew by {most}: the measure sees nothing");
    assert!(most <= stated.total_bytes() + BESIDE, "grew by {most}, {stated:?}");
}

#[test]
fn resident_memory_stays_within_16_mib_of_what_the_stats_state_with_65_536_samples_open() {
    stays_within_what_is_stated_with_open_batches(&DataSet::tokens(70_000, 3, 1024), 64, 60, |builder| {
        builder.prefetch_samples(65_536).batch_size(256)
    });
}

#[test]
fn resident_memory_stays_within_16_mib_of_what_the_stats_state_with_long_samples_in_short_blocks_open() {
    stays_within_what_is_stated_with_open_batches(&DataSet::photos(6000, 3), 400, 375, |builder| {
        builder.prefetch_samples(6000).batch_size(64).block_size("4KiB".parse().unwrap())
    });
}

#[cfg(feature = "parquet")]
#[test]
fn what_is_unpacked_is_within_the_limit_and_in_what_the_stats_state() {
    use crate::common::loader_at;
    use fuelrail::Format;
    use fuelrail::internal::Topology;
    use fuelrail_format::write::{Value, Writer};

    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let (dir, part) = (tempfile::tempdir().unwrap(), 4 * MIB);
    for file in 0..8_u8 {
        let (mut writer, row) = (Writer::new(Format::Parquet, 1 << 30, None).unwrap(), vec![file; 256 << 10]);
        (0..16).for_each(|_| assert!(writer.push(None, &[("bin", Value::Bytes(&row))]).unwrap()));
        std::fs::write(dir.path().join(format!("{file}.parquet")), writer.finish()).unwrap();
    }
    let builder = || loader_at(dir.path().to_str().unwrap()).format(Format::Parquet).batch_size(4).epochs(2);
    let error = builder().memory_limit(ByteSize(24 * MIB)).build().expect_err("too small");
    // All are kept unpacked; each thread has one in hand, and one waits, packed as well as unpacked; another is read.
    let threads = Topology::here().shards().clamp(1, 4) as u64;
    let parts = (8 + threads + 1 + threads + 2) * part;
    assert!(error.kind() == Kind::Budget && needed(&error) >= parts + parts / 3, "{parts} bytes: {error}");
    let limit = 2 * needed(&error);
    let before = memory_use().rss_bytes;
    let mut loader = builder().memory_limit(ByteSize(limit)).build().unwrap();
    let (mut most, mut samples) = (0, 0);
    while let Some(batch) = loader.next_batch() {
        samples += batch.unwrap().len();
        most = most.max(memory_use().rss_bytes.saturating_sub(before));
    }
    let stated = loader.stats().memory;
    assert_eq!(samples, 2 * 8 * 16);
    assert!(stated.arena_bytes < limit && stated.total_bytes() >= limit, "of {limit} bytes: {stated:?}");
    assert!(most <= stated.total_bytes() + BESIDE, "grew by {most}, {stated:?}");
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
        // So is the one for a program that holds the last batch meanwhile, though batches differ in size.
        let error = builder().batches_held(1).memory_limit(ByteSize(100_000)).build().expect_err("100 kB hold nothing");
        let loader = builder().batches_held(1).memory_limit(ByteSize(needed(&error))).epochs(2).build().unwrap();
        let (mut last, mut samples) = (None, 0);
        for batch in loader {
            samples += last.insert(batch.unwrap()).len();
        }
        assert_eq!(samples, 400, "{shards} shards, batches of {batch_size}");
    }
}

#[test]
fn a_batch_size_beyond_the_data_set_takes_no_more_memory() {
    let set = DataSet::digits(20, 5);
    let bucket = bucket(&set, "");
    let mut loader = loader(&bucket).listing(listing(&set)).batch_size(1_000_000_000).build().unwrap();
    assert_eq!(crate::common::drain(&mut loader, &set).unwrap().order.len(), 20);
}
