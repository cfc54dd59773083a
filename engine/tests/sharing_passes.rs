//! Several passes of one process that reads: for jobs that come in the middle of the first.

use crate::common::reading::Reading;
use crate::common::{Delivered, bucket, drain, eventually, loader};
use crate::sharing::{Role, SAMPLES, job, kill, settings, some};
use fuelrail::{ByteSize, Loader, SharingOptions, State};
use fuelrail_bucket::{Bucket, DataSet};
use std::path::Path;
use std::time::Duration;

/// Longer than these tests wait for anything.
const LONG: Duration = Duration::from_secs(600);

/// A process with two passes at once at most, each of which waits for so many jobs.
fn two_passes(bucket: &Bucket, dir: &Path, jobs: usize, wait: Duration) -> Reading {
    Reading::with(settings(bucket), dir, SharingOptions { jobs, wait, passes_max: 2, ..SharingOptions::default() })
}

fn build(bucket: &Bucket, dir: &Path) -> Loader {
    job(settings(bucket), dir).build().unwrap()
}

fn reads_alone(loader: &Loader) -> bool {
    let says = |notice: &String| notice.contains("dropped already") && notice.contains("this job reads alone");
    loader.notices().iter().any(says)
}

/// Takes a hundred batches each, side by side: more than a job may hold, so that the first of them have come back.
fn hundred(loaders: &mut [Loader], set: &DataSet) -> Vec<Delivered> {
    let mut delivered = vec![Delivered::default(); loaders.len()];
    for _ in 0..100 {
        let pairs = loaders.iter_mut().zip(&mut delivered);
        pairs.for_each(|(loader, delivered)| delivered.order.extend(some(loader, set, 1).order));
    }
    delivered
}

/// Reads all to their ends, and checks that each has had everything once and in order, without a request of its own.
fn finish(loaders: Vec<Loader>, delivered: Vec<Delivered>, (set, expected): (&DataSet, &Delivered)) {
    std::thread::scope(|scope| {
        for (mut loader, mut delivered) in loaders.into_iter().zip(delivered) {
            scope.spawn(move || {
                delivered.order.extend(drain(&mut loader, set).unwrap().order);
                assert!(delivered == *expected && loader.stats().requests == 0);
            });
        }
    });
}

#[test]
fn jobs_that_come_late_share_a_further_pass_and_one_that_finds_none_reads_alone() {
    let (set, dir) = (DataSet::digits(SAMPLES, 7), tempfile::tempdir().unwrap());
    let bucket = bucket(&set, "");
    let expected = drain(&mut settings(&bucket).build().unwrap(), &set).unwrap();
    bucket.reset_counters();
    let reading = two_passes(&bucket, dir.path(), 1, LONG);
    let build = || build(&bucket, dir.path());
    let mut loaders = vec![build()];
    let mut delivered = hundred(&mut loaders, &set);
    // The first of them has taken nothing yet: the other finds all of its batches.
    let mut late = vec![build(), build()];
    let first = late[0].next_batch().unwrap().unwrap();
    assert!(first.is_borrowed(), "{:?}", late[0].notices());
    assert!(late.iter().all(|loader| !reads_alone(loader)), "{:?}", reading.told());
    delivered.push(Delivered { order: first.samples().map(|sample| (first.epoch(), sample.id.0)).collect() });
    drop(first);
    delivered.push(some(&mut late[1], &set, 1));
    for (before, more) in delivered[1..].iter_mut().zip(hundred(&mut late, &set)) {
        before.order.extend(more.order);
    }
    let mut alone = build();
    assert!(reads_alone(&alone), "{:?}", alone.notices());
    loaders.append(&mut late);
    finish(loaders, delivered, (&set, &expected));
    assert!(drain(&mut alone, &set).unwrap() == expected);
    let requests = (alone.stats().requests, bucket.counters().get_requests);
    assert_eq!(requests, (SAMPLES, 3 * SAMPLES), "two passes and one alone: {:?}", reading.told());
    let (stats, told) = reading.ends();
    assert!(stats.iter().all(|stats| (stats.requests, stats.slots) == (SAMPLES, 0)), "{told:?}");
    let begun = told.iter().filter(|line| line.contains("a further pass for a job at position 0")).count();
    assert_eq!((stats.len(), begun), (2, 1), "{told:?}");
}

#[test]
fn a_further_pass_waits_for_as_many_jobs_as_the_first_but_not_for_ever() {
    let (set, dir) = (DataSet::digits(SAMPLES, 7), tempfile::tempdir().unwrap());
    let bucket = bucket(&set, "");
    let expected = drain(&mut settings(&bucket).build().unwrap(), &set).unwrap();
    for (late, wait) in [(2, LONG), (1, Duration::from_secs(2))] {
        let reading = two_passes(&bucket, dir.path(), 2, wait);
        let build = || build(&bucket, dir.path());
        let mut loaders = vec![build(), build()];
        let mut delivered = hundred(&mut loaders, &set);
        loaders.extend((0..late).map(|_| build()));
        delivered.resize(loaders.len(), Delivered::default());
        // The first two only wait for one another, or for nobody.
        finish(loaders.split_off(2), delivered.split_off(2), (&set, &expected));
        assert!(!reading.said("is left behind") && !reading.is_over(), "{:?}", reading.told());
        eventually("the further pass ends", || reading.said("a pass has ended"));
        drop(loaders);
        let (stats, told) = reading.ends();
        assert_eq!((stats.len(), stats[0].requests), (2, SAMPLES), "{told:?}");
    }
}

#[test]
fn one_that_stands_far_ahead_has_a_pass_from_there() {
    let (set, dir) = (DataSet::digits(SAMPLES, 7), tempfile::tempdir().unwrap());
    let bucket = bucket(&set, "");
    let expected = drain(&mut settings(&bucket).build().unwrap(), &set).unwrap();
    let reading = two_passes(&bucket, dir.path(), 1, LONG);
    let mut first = build(&bucket, dir.path());
    let mut delivered = some(&mut first, &set, 1);
    let state = State { position: SAMPLES - 40, ..first.state() };
    let mut far = job(settings(&bucket), dir.path()).resume(state).build().unwrap();
    let rest = drain(&mut far, &set).unwrap();
    assert!(rest.order == expected.order[SAMPLES as usize - 40..]);
    assert_eq!(far.stats().requests, 0, "{:?}", far.notices());
    delivered.order.extend(drain(&mut first, &set).unwrap().order);
    assert!(delivered == expected);
    drop((first, far));
    let (stats, told) = reading.ends();
    assert_eq!(stats.len(), 2, "{told:?}");
}

#[test]
fn a_further_pass_reads_what_others_have_written_to_disk() {
    let (set, dir, disk) = (DataSet::photos(90, 4), tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let bucket = bucket(&set, "");
    let of = |epochs| loader(&bucket).batch_size(2).epochs(epochs);
    let kept = of(50).block_size("64KiB".parse().unwrap()).spill_dirs(vec![disk.path().to_owned()]);
    let kept = kept.spill_limit("100MiB".parse().unwrap()).spill_floor(ByteSize(0));
    let reading = Reading::with(kept, dir.path(), SharingOptions { passes_max: 2, ..SharingOptions::default() });
    let mut first = job(of(50), dir.path()).build().unwrap();
    some(&mut first, &set, 60);
    // The first segment takes a moment to make, and its journal reaches the disk a moment after its blocks.
    eventually("a further pass reads from disk", || {
        drain(&mut job(of(1), dir.path()).build().unwrap(), &set).unwrap();
        let hits = |line: &String| line.contains("blocks came from disk") && !line.contains(" 0 blocks");
        reading.told().iter().any(hits)
    });
}

#[test]
fn the_end_of_a_killed_job_ends_its_pass_and_another_takes_the_place() {
    if Role::played() {
        return;
    }
    let (set, dir) = (DataSet::digits(SAMPLES, 7), tempfile::tempdir().unwrap());
    let bucket = bucket(&set, "");
    let expected = drain(&mut settings(&bucket).build().unwrap(), &set).unwrap();
    let reading = two_passes(&bucket, dir.path(), 1, LONG);
    let mut first = vec![build(&bucket, dir.path())];
    let delivered = hundred(&mut first, &set);
    let role = Role { uri: bucket.url(""), dir: dir.path().into(), reads: false, mark: dir.path().join("mark") };
    let mut child = role.start("sharing_passes::the_end_of_a_killed_job_ends_its_pass_and_another_takes_the_place");
    eventually("the child takes its batches", || role.mark.exists());
    assert!(!reading.said("a pass has ended"), "{:?}", reading.told());
    kill(&mut child);
    eventually("its pass ends", || reading.said("a pass has ended"));
    // Two at once: there is room for this one only since then.
    finish(vec![build(&bucket, dir.path())], vec![Delivered::default()], (&set, &expected));
    finish(first, delivered, (&set, &expected));
    let (stats, told) = reading.ends();
    assert!(stats.len() == 3 && stats.iter().all(|stats| stats.slots == 0), "{told:?}");
}
