//! Samples that are ranges of objects: over HTTP and from a folder, shuffled, with caches, whole objects and empty ranges among them.

use crate::common::{folder, loader, loader_at};
use fuelrail::{ByteRange, ByteSize, Kind, LoaderBuilder, list};
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
    let builder = || loader(&bucket).spill_dirs([disk.path()]).spill_limit(ByteSize(64 << 20));
    let first = check(builder(), &files);
    let second = check(builder(), &files);
    assert!(second.requests < first.requests / 2, "{} after {}", second.requests, first.requests);
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
