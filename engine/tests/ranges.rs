//! Samples that are ranges of objects: over HTTP and from a folder, shuffled, with caches, whole objects and empty ranges among them.

use crate::common::{folder, loader, loader_at};
use fuelrail::{BadSamples, ByteRange, ByteSize, Kind, LoaderBuilder, OrderName, list};
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

/// Files of a folder, in the order of their names.
fn files(dir: &Path) -> Vec<Vec<u8>> {
    let content = |n: usize, len: usize| -> Vec<u8> { (0..len).map(|i| ((i * (n + 3)) >> 3) as u8).collect() };
    let all: Vec<Vec<u8>> = [300_001, 5_000, 200_000].into_iter().enumerate().map(|(n, len)| content(n, len)).collect();
    all.iter().enumerate().for_each(|(n, bytes)| fs::write(dir.join(format!("shard-{n}")), bytes).unwrap());
    all
}

/// Every file cut at odd places; the second one is a sample as it is, and one sample is empty.
fn ranges() -> Vec<ByteRange> {
    let cut = |object: u32, len: u64, step: u64| {
        (0..len.div_ceil(step)).map(move |n| ByteRange { object, first: n * step, len: step.min(len - n * step) })
    };
    let whole = ByteRange { object: 1, first: 0, len: 5_000 };
    let empty = ByteRange { object: 2, first: 200_000, len: 0 };
    cut(2, 200_000, 70_001).chain([whole, empty]).chain(cut(0, 300_001, 3_333)).collect()
}

/// Every range comes once an epoch, with its bytes.
fn check(builder: LoaderBuilder, files: &[Vec<u8>]) -> fuelrail::Stats {
    let (ranges, epochs) = (ranges(), 2);
    let mut loader = builder.ranges(ranges.clone()).batch_size(7).epochs(epochs).build().unwrap();
    let mut seen = BTreeMap::<_, u64>::new();
    while let Some(batch) = loader.next_batch() {
        for sample in batch.unwrap().samples() {
            let ByteRange { object, first, len } = ranges[sample.id.0 as usize];
            let (from, to) = (first as usize, (first + len) as usize);
            assert!(sample.bytes == &files[object as usize][from..to], "{sample:?}");
            *seen.entry(sample.id).or_default() += 1;
        }
    }
    assert!(seen.len() == ranges.len() && seen.values().all(|times| *times == epochs), "{seen:?}");
    loader.stats()
}

#[test]
fn ranges_of_objects_are_samples_of_a_bucket_and_of_a_folder() {
    let dir = tempfile::tempdir().unwrap();
    let files = files(dir.path());
    // Its answers carry a checksum of the whole object, which no part of it has.
    let bucket = folder(dir.path(), "");
    let (plain, each) = (check(loader(&bucket), &files), ranges().len() as u64 - 1);
    // A request each and none for the empty one; where epochs meet, one may serve both.
    assert!((each..=2 * each).contains(&plain.requests), "{} requests for {each}", plain.requests);
    check(loader(&bucket).block_size(ByteSize(4096)), &files);
    check(loader_at(dir.path().to_str().unwrap()), &files);
    let cached = check(loader(&bucket).cache_limit(ByteSize(1 << 20)), &files);
    assert_eq!(cached.requests, each, "the second epoch is in RAM");
}

#[test]
fn ranges_on_disk_are_found_by_a_later_run_and_never_taken_for_another_cut() {
    let (dir, disk) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let (files, bucket) = (files(dir.path()), folder(dir.path(), ""));
    let builder = || loader(&bucket).spill_dirs([disk.path()]).spill_limit(ByteSize(64 << 20)).spill_floor(ByteSize(0));
    let first = check(builder(), &files);
    // What finds a segment with room is written, so it may take more than a second run.
    let later: Vec<u64> = (0..8).map(|_| check(builder(), &files).requests).collect();
    assert!(later.iter().any(|requests| *requests < first.requests / 2), "{later:?} after {}", first.requests);
    // The same objects in other pieces, and whole: nothing on disk is theirs.
    let moved: Vec<_> = ranges().into_iter().filter(|range| range.len > 2).collect();
    let moved = moved.into_iter().map(|range| ByteRange { first: range.first + 1, len: range.len - 1, ..range });
    let mut other = builder().ranges(moved.clone().collect()).build().unwrap();
    while let Some(batch) = other.next_batch() {
        for sample in batch.unwrap().samples() {
            let ByteRange { object, first, len } = moved.clone().nth(sample.id.0 as usize).unwrap();
            assert!(sample.bytes == &files[object as usize][first as usize..(first + len) as usize], "{sample:?}");
        }
    }
    let mut whole = builder().shuffle(false).build().unwrap();
    let bytes: Vec<u8> =
        std::iter::from_fn(|| whole.next_batch()).flat_map(|batch| batch.unwrap().sample(0).to_vec()).collect();
    assert!(bytes == files[0], "a batch holds all three: the first is looked at");
}

#[test]
fn a_range_that_an_object_does_not_have_is_refused_by_name_and_one_that_changed_is_not_read() {
    let dir = tempfile::tempdir().unwrap();
    files(dir.path());
    let bucket = folder(dir.path(), "");
    for (first, len) in [(5_000, 1), (4_999, 2), (u64::MAX, 2)] {
        let refused = loader(&bucket).ranges(vec![ByteRange { object: 1, first, len }]).build().unwrap_err();
        assert_eq!(refused.kind(), Kind::Mismatch);
        assert!(refused.to_string().contains("shard-1"), "{refused}");
    }
    let listed = list(&bucket.url(""), |_| {}).unwrap();
    fs::write(dir.path().join("shard-0"), vec![7; 300_001]).unwrap();
    let mut loader = loader(&bucket).listing(listed).ranges(ranges()).build().unwrap();
    let error = std::iter::from_fn(|| loader.next_batch()).find_map(Result::err).unwrap();
    assert_eq!(error.kind(), Kind::Changed, "{error}");
    assert!(error.to_string().contains("shard-0 (3333 bytes from byte "), "{error}");
}

/// Shards of records of about 2 KiB, with gaps of a few bytes between them, as tar has them.
fn shards(dir: &Path) -> (Vec<Vec<u8>>, Vec<ByteRange>) {
    let (mut files, mut ranges) = (Vec::new(), Vec::new());
    for object in 0..5 {
        let mut file = Vec::new();
        for n in 0..400 - 30 * object {
            let len = 1_500 + (u64::from(n) * 7919 + u64::from(object) * 13) % 1_024;
            ranges.push(ByteRange { object, first: file.len() as u64, len });
            file.extend((0..len).map(|i| ((i * (u64::from(n) + 3)) >> 3) as u8));
            file.extend([0; 17]);
        }
        fs::write(dir.join(format!("shard-{object}")), &file).unwrap();
        files.push(file);
    }
    (files, ranges)
}

fn in_chunks(builder: LoaderBuilder, ranges: &[ByteRange]) -> LoaderBuilder {
    let builder = builder.ranges(ranges.to_vec()).order(OrderName::Chunks).batch_size(16);
    builder.chunk_size(ByteSize(32 << 10)).chunk_window(16)
}

/// What comes of a loader: samples by epoch and rank, with their bytes compared.
fn read(builder: LoaderBuilder, files: &[Vec<u8>], ranges: &[ByteRange]) -> (Vec<(u64, u64)>, fuelrail::Stats) {
    let mut loader = builder.build().unwrap();
    let mut seen = Vec::new();
    while let Some(batch) = loader.next_batch() {
        let batch = batch.unwrap();
        for sample in batch.samples() {
            let ByteRange { object, first, len } = ranges[sample.id.0 as usize];
            assert!(sample.bytes == &files[object as usize][first as usize..(first + len) as usize], "{sample:?}");
            seen.push((batch.epoch(), sample.id.0));
        }
    }
    (seen, loader.stats())
}

fn exactly_once(mut seen: Vec<(u64, u64)>, epochs: u64, samples: usize) {
    seen.sort_unstable();
    let all = (0..epochs).flat_map(|epoch| (0..samples as u64).map(move |id| (epoch, id)));
    assert!(seen.into_iter().eq(all), "every record once an epoch");
}

#[test]
fn neighbours_are_read_by_one_request_in_any_world() {
    let dir = tempfile::tempdir().unwrap();
    let (files, ranges) = shards(dir.path());
    let bucket = folder(dir.path(), "");
    // About 16 records in a chunk, one in eight of which is cut by the end of a shard or of a group.
    // Shards of so small a set are chunks ahead of each other, and then not all find a slot.
    for (shuffle, shards, share) in [(true, 1, 10), (true, 3, 2), (false, 2, 2)] {
        let small = loader(&bucket).connections_max(8).memory_limit("3MiB".parse().unwrap());
        let builder = in_chunks(small, &ranges).shuffle(shuffle).shards(shards).epochs(2);
        let (seen, stats) = read(builder, &files, &ranges);
        exactly_once(seen, 2, ranges.len());
        assert!(stats.requests < 2 * ranges.len() as u64 / share, "{} requests, {shuffle} {shards}", stats.requests);
    }
    let cached = in_chunks(loader(&bucket), &ranges).epochs(3).cache_limit(ByteSize(8 << 20));
    let (seen, stats) = read(cached, &files, &ranges);
    exactly_once(seen, 3, ranges.len());
    assert!(stats.requests < ranges.len() as u64 / 10, "{} requests: later epochs are in RAM", stats.requests);
    let disk = tempfile::tempdir().unwrap();
    let spilled = in_chunks(loader(&bucket), &ranges)
        .epochs(3)
        .spill_dirs([disk.path()])
        .spill_limit(ByteSize(64 << 20))
        .spill_floor(ByteSize(0));
    exactly_once(read(spilled.clone(), &files, &ranges).0, 3, ranges.len());
    // Chunks that are written to disk straight from their slots, which are not used again before that is done.
    // What finds a segment with room is written, so it may take a second run.
    let direct = spilled.chunk_size(ByteSize(256 << 10)).chunk_window(4);
    let from_disk = (0..8).any(|_| {
        let (seen, stats) = read(direct.clone(), &files, &ranges);
        exactly_once(seen, 3, ranges.len());
        stats.disk.is_some_and(|disk| disk.hits > 0)
    });
    assert!(from_disk, "no chunk came from the disk");
    // From a folder, and on three ranks, which share what a border goes through.
    exactly_once(read(in_chunks(loader_at(dir.path().to_str().unwrap()), &ranges), &files, &ranges).0, 1, ranges.len());
    let ranks =
        (0..3).flat_map(|rank| read(in_chunks(loader(&bucket), &ranges).rank(rank).world(3), &files, &ranges).0);
    exactly_once(ranks.collect(), 1, ranges.len());
}

#[test]
fn a_run_in_chunks_goes_on_in_another_world_and_without_memory_for_chunks() {
    let dir = tempfile::tempdir().unwrap();
    let (files, ranges) = shards(dir.path());
    let bucket = folder(dir.path(), "");
    let mut seen = Vec::new();
    let mut first = in_chunks(loader(&bucket), &ranges).build().unwrap();
    for _ in 0..37 {
        seen.extend(first.next_batch().unwrap().unwrap().ids().iter().map(|id| (0, id.0)));
    }
    let state = first.state();
    drop(first);
    assert!(state.to_json().contains("chunks of 16, 16 at a time"), "{}", state.to_json());
    for rank in 0..2 {
        let rest = in_chunks(loader(&bucket), &ranges).rank(rank).world(2).resume(state.clone());
        seen.extend(read(rest, &files, &ranges).0);
    }
    exactly_once(seen, 1, ranges.len());
    // Another shape is another order: refused. Room for a batch and hardly more: read one by one, and said.
    let other = in_chunks(loader(&bucket), &ranges).chunk_window(8).resume(state).build().unwrap_err();
    assert!(other.to_string().contains("8 at a time"), "{other}");
    let error = in_chunks(loader(&bucket), &ranges).memory_limit(ByteSize(1)).build().unwrap_err().to_string();
    let least = error.split("raise memory_limit to ").nth(1).unwrap().split(',').next().unwrap().parse().unwrap();
    let small = in_chunks(loader(&bucket), &ranges).memory_limit(ByteSize(least)).shards(1);
    let (all, stats) = read(small.clone(), &files, &ranges);
    exactly_once(all, 1, ranges.len());
    assert!(stats.requests > ranges.len() as u64 / 2, "{} requests", stats.requests);
    let notices = small.build().unwrap().notices().join("\n");
    assert!(notices.contains("memory_limit has room for 0 chunks of 20"), "{notices}");
    let whole = loader(&bucket).order(OrderName::Chunks).build().unwrap_err();
    assert!(whole.kind() == Kind::Usage && whole.to_string().contains("every sample is an object"), "{whole}");
}

#[test]
fn faults_cost_a_chunk_its_records_one_by_one_and_nothing_else() {
    let dir = tempfile::tempdir().unwrap();
    let (files, ranges) = shards(dir.path());
    let bucket = folder(dir.path(), "seed=3,slowdown=0.1,reset=0.1@9000,truncate=0.05@5000,stall=0.02@100/5ms");
    let (seen, _) = read(in_chunks(loader(&bucket), &ranges).epochs(2), &files, &ranges);
    exactly_once(seen, 2, ranges.len());
    // One shard is gone: its records are left out, those of the others are not.
    let bucket = folder(dir.path(), "missing_keys=shard-3");
    let skipping = in_chunks(loader(&bucket), &ranges).bad_samples(BadSamples::Skip);
    let (mut seen, stats) = read(skipping, &files, &ranges);
    let gone = ranges.iter().filter(|range| range.object == 3).count();
    seen.sort_unstable();
    let left = (0..ranges.len() as u64).filter(|id| ranges[*id as usize].object != 3).map(|id| (0, id));
    assert!(seen.into_iter().eq(left), "all but {gone}");
    assert_eq!(stats.left_out, gone as u64);
}
