//! Dropping a loader at any moment leaves nothing behind: no thread, no connection, no descriptor, no memory.

use crate::common::{bucket, eventually, loader, side_by_side, threads};
use fuelrail::{Batch, Loader, Remains};
use fuelrail_base::prng::Prng;
use fuelrail_bucket::{Bucket, DataSet};
use std::sync::Mutex;
use std::time::Duration;

/// Threads and descriptors are counted over the whole process: one test at a time.
static ALONE: Mutex<()> = Mutex::new(());

fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").expect("Linux has /proc").count()
}

/// Length of the mapping that holds the byte at `address`, if there is one.
fn mapping_of(address: usize) -> Option<usize> {
    let maps = std::fs::read_to_string("/proc/self/maps").expect("Linux has /proc");
    maps.lines().find_map(|line| {
        let (from, to) = line.split_whitespace().next()?.split_once('-')?;
        let number = |text| usize::from_str_radix(text, 16).ok();
        let (from, to) = (number(from)?, number(to)?);
        (from..to).contains(&address).then_some(to - from)
    })
}

fn connections_are_closed(bucket: &Bucket) {
    eventually("connections stay open", || bucket.counters().connections_open == 0);
}

fn set() -> DataSet {
    DataSet::volumes(6, 3, 0.005)
}

fn busy(bucket: &Bucket, seed: u64) -> Loader {
    let cache = if seed.is_multiple_of(2) { "0B" } else { "1MB" };
    let builder = loader(bucket).batch_size(2).epochs(1000).seed(seed).cache_limit(cache.parse().unwrap());
    builder
        .stall_after(Duration::from_millis(100))
        .shards(1 + (seed % 3) as u16)
        .block_size("64KiB".parse().unwrap())
        .build()
        .unwrap()
}

#[test]
fn dropping_a_loader_at_any_moment_leaves_nothing() {
    let _alone = ALONE.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let set = set();
    let bucket = bucket(&set, "latency=uniform:0ms..2ms,stall=0.02,per_key_max=1000000,reset=0.02");
    // A first one, so that what a process opens once is open.
    drop(busy(&bucket, 0));
    connections_are_closed(&bucket);
    let before = descriptors();
    let mut draw = Prng::new(7);
    for seed in 0..40 {
        let mut loader = busy(&bucket, seed);
        // A thread names itself a moment after it has begun.
        eventually("no threads of a loader", || threads() > 0);
        // Stalls and resets are on: whatever is in flight at the drop is in flight.
        for _ in 0..draw.below(4) {
            loader.next_batch().unwrap().unwrap();
        }
        std::thread::sleep(std::time::Duration::from_micros(draw.below(4000)));
        assert_eq!(loader.close(), Remains::default(), "seed {seed}");
        assert_eq!(threads(), 0);
    }
    connections_are_closed(&bucket);
    // The server's own descriptors close a moment after it has counted the connections as closed.
    eventually("descriptors stay open", || descriptors() <= before);
}

#[test]
fn a_loader_that_cannot_be_built_leaves_nothing() {
    let _alone = ALONE.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let bucket = bucket(&set(), "");
    let missing = std::path::PathBuf::from("/nonexistent/folder/audit.jsonl");
    let error = loader(&bucket).shards(3).audit(missing).build().unwrap_err();
    assert!(error.kind() == fuelrail::Kind::File && error.to_string().contains("audit.jsonl"), "{error}");
    assert_eq!(threads(), 0);
    connections_are_closed(&bucket);
}

#[test]
fn loaders_side_by_side_end_apart() {
    let _alone = ALONE.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let bucket = bucket(&set(), "");
    side_by_side((0..12).collect(), |&seed: &u64| {
        let mut loader = busy(&bucket, seed);
        loader.next_batch().unwrap().unwrap();
    });
    assert_eq!(threads(), 0);
    connections_are_closed(&bucket);
}

#[test]
fn batches_outlive_their_loader_and_memory_goes_with_the_last() {
    let _alone = ALONE.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let set = set();
    let bucket = bucket(&set, "");
    for seed in 0..6 {
        let mut loader = busy(&bucket, seed);
        let held: Vec<Batch> = (0..4).map(|_| loader.next_batch().unwrap().unwrap()).collect();
        let keys: Vec<String> = (0..6).map(|id| loader.key(fuelrail::SampleId(id)).to_owned()).collect();
        let address = held[0].bytes().as_ptr() as usize;
        let arena = mapping_of(address).expect("held memory is mapped");
        let stats = loader.stats();
        assert!(stats.slots >= 4 && stats.batches_held == 4, "four leases at least: {stats:?}");
        assert_eq!(loader.close(), Remains { operations: 0, slots: 4 }, "the leases are all that is left");
        assert_eq!(threads(), 0);
        assert_eq!(mapping_of(address), Some(arena));
        for batch in &held {
            for sample in batch.samples() {
                set.verify(&keys[sample.id.0 as usize], sample.bytes).unwrap();
            }
        }
        // The last one may die on any thread.
        std::thread::spawn(move || drop(held)).join().unwrap();
        // Something small may have been mapped there since; the arena has not.
        assert!(mapping_of(address).is_none_or(|len| len < arena), "seed {seed}: the arena is still mapped");
    }
}
