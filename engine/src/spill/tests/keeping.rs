//! What is found again, who owns it, and how the limits are kept.

use std::collections::BTreeSet;
use std::fs::File;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use fuelrail_base::{Error, Kind, ShardId};
use fuelrail_flow::{SegmentGrant, SegmentRequest};
use fuelrail_io::Waker;
use fuelrail_plan::spill::Mount;
use tempfile::tempdir;

use super::super::manager::SegmentManager;
use super::super::{few_files, owned_max, read_max, usable};
use super::*;
use crate::stats::DiskFacts;

/// A segment in a directory, with all blocks of these samples, whose owner is dead.
pub(super) fn left_behind(path: &Path, objects: &Objects, samples: core::ops::Range<u32>) -> PathBuf {
    let owned = open(path).make(MIB).unwrap().unwrap();
    let all: Vec<BlockId> = samples.flat_map(|sample| blocks(objects, sample)).collect();
    spill(&owned.0.named.path(), objects, &all, 4096, 0);
    owned.0.named.path()
}

#[test]
fn a_dead_runs_blocks_are_found_and_its_segments_taken_over() {
    let scratch = tempdir().unwrap();
    let objects = objects("e");
    let path = left_behind(scratch.path(), &objects, 0..20);
    // It died before it recorded what it wrote last, and the page of a later record was torn.
    let disk = File::options().read(true).write(true).open(&path).unwrap();
    disk.write_all_at(&[7; 60_000], 700_000).unwrap();
    disk.write_all_at(&[7; 64], MIB - 3 * 4096).unwrap();
    let told = Told::default();
    let mut work = work(&[scratch.path()], 1, 0, &told);
    let found = recovered(&mut work, &objects, 1).remove(0);
    let [(file, known)] = found.try_into().unwrap();
    let expected: Vec<BlockId> = (0..20).flat_map(|sample| blocks(&objects, sample)).collect();
    assert_eq!(known.iter().map(|known| known.block).collect::<Vec<_>>(), expected);
    for known in &known {
        let mut bytes = vec![0; objects.catalog().block_len(known.block) as usize];
        disk.read_exact_at(&mut bytes, known.place).unwrap();
        assert!(bytes == content(known.block, bytes.len() as u64) && crc32c::crc32c(&bytes) == known.crc32c);
    }
    let last = known.last().unwrap();
    let end = (last.place + objects.catalog().block_len(last.block)).next_multiple_of(4096);
    assert_eq!((file.path, file.len, file.mount), (path.clone(), MIB, Mount::Open { end, records: 64 }));
    // While this process lives, another reads it and does not own it.
    let mut other = super::work(&[scratch.path()], 1, 0, &told);
    let found = recovered(&mut other, &objects, 1).remove(0);
    assert_eq!((found[0].0.mount, found[0].1.len()), (Mount::Foreign, expected.len()));
    other.trim(found[0].0.key);
    assert!(path.exists(), "what is read only is not removed");
    assert_eq!((work.facts().segments_taken_over, other.facts().segments_taken_over, told.lines()), (1, 0, vec![]));
    work.trim(file.key);
    assert!(!path.exists());
}

#[test]
fn other_content_is_not_found() {
    let scratch = tempdir().unwrap();
    let path = left_behind(scratch.path(), &objects("e"), 0..40);
    let told = Told::default();
    let mut work = work(&[scratch.path()], 1, 0, &told);
    assert!(recovered(&mut work, &objects("f"), 1)[0].is_empty(), "objects that were overwritten since");
    assert_eq!(work.facts().segments_taken_over, 0, "others may want it");
    // The same objects in blocks of another length: the same are those in one block, and last ones that begin as before.
    let listed =
        (1..=40u64).map(|n| Listed { key: format!("o/{n:02}"), size: 1_000 * n, etag: Some(format!("\"e{n}\"")) });
    let listed: Vec<Listed> = listed.collect();
    let address = "127.0.0.1:80".parse().unwrap();
    let longer = Objects::new("http://host/bucket/".parse().unwrap(), vec![address], &listed, 20_000).unwrap();
    let found = recovered(&mut work, &longer, 1).remove(0);
    let samples: BTreeSet<u64> = found[0].1.iter().map(|known| known.block.sample.0).collect();
    assert_eq!(samples, (0..10).chain(20..30).collect(), "lengths up to 10 000, and from 20 001 to 30 000");
    drop(work);
    // A listing without ETags finds nothing, and a record with nothing after it is no reason to keep a segment.
    let nameless: Vec<Listed> = listed.into_iter().map(|object| Listed { etag: None, ..object }).collect();
    let nameless = Objects::new("http://host/bucket/".parse().unwrap(), vec![address], &nameless, 10_000).unwrap();
    let mut work = super::work(&[scratch.path()], 1, 0, &told);
    assert!(recovered(&mut work, &nameless, 1)[0].is_empty() && path.exists());
}

/// With another number of shards a segment's blocks are several shards': one owns it, the others read it.
#[test]
fn a_segment_is_shared_out_when_the_shards_are_others() {
    let scratch = tempdir().unwrap();
    let objects = objects("e");
    left_behind(scratch.path(), &objects, 0..40);
    let told = Told::default();
    let mut work = work(&[scratch.path()], 3, 0, &told);
    let found = recovered(&mut work, &objects, 3);
    let all: usize = found.iter().flatten().map(|(_, known)| known.len()).sum();
    assert_eq!(all, (0..40).map(|sample| blocks(&objects, sample).len()).sum::<usize>());
    let mut owners = 0;
    for (shard, found) in (0u16..).zip(&found) {
        for (file, known) in found {
            assert!(known.iter().all(|known| known.block.owner(3) == ShardId(shard)));
            owners += u32::from(file.mount != Mount::Foreign);
        }
    }
    assert_eq!(owners, 1);
}

/// One shard goes on with one segment; what is nearly full is full.
#[test]
fn one_segment_is_gone_on_with() {
    let scratch = tempdir().unwrap();
    let objects = objects("e");
    left_behind(scratch.path(), &objects, 0..5);
    left_behind(scratch.path(), &objects, 5..10);
    let told = Told::default();
    let mut one = work(&[scratch.path()], 1, 0, &told);
    let mounts: Vec<Mount> = recovered(&mut one, &objects, 1)[0].iter().map(|(file, _)| file.mount).collect();
    assert!(matches!(mounts[..], [Mount::Open { .. }, Mount::Sealed]), "{mounts:?}");
    drop(one);
    let full = tempdir().unwrap();
    let path = left_behind(full.path(), &objects, 0..40);
    spill(&path, &objects, &blocks(&objects, 39), 950_000, 100);
    let mut one = work(&[full.path()], 1, 0, &told);
    assert_eq!(recovered(&mut one, &objects, 1)[0][0].0.mount, Mount::Sealed);
}

/// Segments nothing was recorded in are no use to any later run: neither after an ordered end nor after another.
#[test]
fn empty_segments_leave_no_room_taken() {
    let scratch = tempdir().unwrap();
    let (objects, told) = (objects("e"), Told::default());
    let mut first = work(&[scratch.path()], 1, 0, &told);
    let (empty, used) = (first.another(true).unwrap(), first.another(true).unwrap());
    spill(&used.path, &objects, &blocks(&objects, 3), 4096, 0);
    assert_eq!(empty.mount, Mount::Open { end: 4096, records: 0 });
    first.leave();
    assert_eq!(names(scratch.path()), std::slice::from_ref(&used.path));
    // Killed: nobody left in order.
    drop(open(scratch.path()).make(MIB).unwrap().unwrap());
    assert_eq!(names(scratch.path()).len(), 2);
    let mut second = work(&[scratch.path()], 1, 0, &told);
    recovered(&mut second, &objects, 1);
    assert_eq!(names(scratch.path()), [used.path]);
}

#[test]
fn the_limit_is_kept_and_the_dead_make_room_first() {
    let (one, two) = (tempdir().unwrap(), tempdir().unwrap());
    let told = Told::default();
    let dead = left_behind(one.path(), &objects("another data set"), 0..10);
    let mut living = work(&[one.path(), two.path()], 1, 3, &told);
    let made: Vec<SegmentFile> = (0..2).map(|_| living.another(true).unwrap()).collect();
    assert_ne!(made[0].path.parent(), made[1].path.parent(), "directories take turns");
    assert!(dead.exists());
    assert!(living.another(false).is_none() && dead.exists(), "what may not replace others finds no room");
    let third = living.another(true).expect("the dead one's room");
    assert!(!dead.exists() && living.facts().segments_reclaimed == 1);
    assert!(living.another(true).is_none(), "all room is the living's");
    // Another process with the same directories has the same limit, not one more.
    let mut other = work(&[two.path(), one.path()], 1, 3, &told);
    assert!(other.another(true).is_none());
    living.trim(third.key);
    assert!(other.another(true).is_some() && living.another(true).is_none());
    assert_eq!(told.lines(), Vec::<String>::new(), "a limit that is reached is nothing to tell of");
}

/// What was kept under a higher limit goes at the start, and what this data set has most of last.
#[test]
fn a_limit_that_was_lowered_is_kept_from_the_start() {
    let (scratch, objects, told) = (tempdir().unwrap(), objects("e"), Told::default());
    let many = left_behind(scratch.path(), &objects, 0..30);
    left_behind(scratch.path(), &objects, 30..33);
    left_behind(scratch.path(), &super::objects("another data set"), 0..40);
    let mut work = work(&[scratch.path()], 1, 1, &told);
    let found = recovered(&mut work, &objects, 1).remove(0);
    assert_eq!((found.len(), names(scratch.path())), (1, vec![many]));
    assert_eq!((work.facts().segments_taken_over, work.facts().segments_reclaimed), (1, 2));
    let lines = told.lines();
    assert!(
        lines.len() == 1 && lines[0].contains("2 segments were removed") && lines[0].contains("spill_limit"),
        "{lines:?}"
    );
    // What a living process owns stays, whatever the limit.
    let mut other = super::work(&[scratch.path()], 1, 0, &told);
    assert!(other.another(true).is_some() && other.another(true).is_some());
    let mut third = super::work(&[scratch.path()], 1, 1, &told);
    assert_eq!((recovered(&mut third, &objects, 1)[0].len(), names(scratch.path()).len()), (1, 3));
}

#[test]
fn shards_are_told_what_others_write_and_the_others_room_is_taken_when_they_have_ended() {
    let (scratch, objects, told) = (tempdir().unwrap(), objects("e"), Told::default());
    let of = |samples: core::ops::Range<u32>| samples.flat_map(|sample| blocks(&objects, sample)).collect::<Vec<_>>();
    let mut other = work(&[scratch.path()], 1, 2, &told);
    let theirs = other.another(true).unwrap();
    let place = spill(&theirs.path, &objects, &of(0..5), 4096, 0);
    let mut work = work(&[scratch.path()], 1, 2, &told);
    let found = recovered(&mut work, &objects, 1).remove(0);
    assert_eq!((found.len(), found[0].1.len(), found[0].0.mount), (1, of(0..5).len(), Mount::Foreign));
    spill(&theirs.path, &objects, &of(5..12), place, of(0..5).len());
    work.look_at_others(&objects);
    let Some(SegmentGrant::Listed(file, known)) = work.links[0].from.recv() else { panic!("the shard is told") };
    assert_eq!((file.key, file.mount, known.len()), (found[0].0.key, Mount::Foreign, of(0..12).len()));
    assert!(work.another(true).is_some() && work.another(true).is_none(), "the other lives");
    drop(other);
    assert!(work.another(true).is_some() && !theirs.path.exists());
    work.look_at_others(&objects);
    assert!(work.links[0].from.recv().is_none());
}

/// The manager sleeps: a request wakes it, and a grant comes that had no room when it was requested.
#[test]
fn a_request_wakes_the_manager_and_waits_until_its_grant_has_room() {
    let (scratch, objects, told) = (tempdir().unwrap(), objects("w"), Told::default());
    let mut work = work(&[scratch.path()], 1, 8, &told);
    let mut shard = work.links.remove(0);
    let full = |work: &mut Work| work.shards[0].to.send(SegmentGrant::NoMore).is_ok();
    while full(&mut work) {}
    let (stop, waker) = (AtomicBool::new(false), Waker::sleeper());
    std::thread::scope(|scope| {
        let (stopped, woken) = (&stop, &waker);
        let objects = &objects;
        scope.spawn(move || work.live(stopped, woken, objects, Duration::from_secs(3600)));
        shard.to.send(SegmentRequest::Another { reclaim: true }).unwrap();
        std::thread::sleep(Duration::from_millis(200));
        let (mut taken, begun) = (0, Instant::now());
        let granted = loop {
            match shard.from.recv() {
                Some(SegmentGrant::NoMore) => taken += 1,
                other if other.is_some() || begun.elapsed().as_secs() > 60 => break other,
                _ => {
                    // Each request wakes it; the first is granted first.
                    let _ = shard.to.send(SegmentRequest::Trimmed(u64::MAX));
                    std::thread::sleep(Duration::from_millis(10));
                }
            }
        };
        stop.store(true, Ordering::Release);
        waker.wake();
        assert!(taken > 1 && matches!(granted, Some(SegmentGrant::Segment(_))));
    });
}

/// What is made ahead of need is within the limit, is handed out first, and is gone when nobody wanted it.
#[test]
fn segments_are_ready_before_they_are_wanted() {
    let scratch = tempdir().unwrap();
    let told = Told::default();
    left_behind(scratch.path(), &objects("another data set"), 0..10);
    let mut work = work(&[scratch.path()], 2, 4, &told);
    assert!(work.stock() && work.stock() && !work.stock(), "one for each shard");
    let made = work.facts().segments_made;
    let first = work.another(true).unwrap();
    assert_eq!((made, work.facts().segments_made), (2, 2), "it was there");
    assert!(work.stock() && work.another(true).is_some() && work.another(true).is_some());
    assert!(!work.stock() && work.facts().segments_reclaimed == 0, "nobody's blocks go for what nobody wants");
    assert!(work.another(true).is_some() && work.facts().segments_reclaimed == 1 && work.another(true).is_none());
    work.trim(first.key);
    assert!(work.stock() && !work.stock());
    work.leave();
    assert!(names(scratch.path()).is_empty(), "{:?}", names(scratch.path()));
}

/// What is left of the limit is used in shorter and shorter segments, but not ahead of need.
#[test]
fn the_limit_is_used_to_its_end() {
    let scratch = tempdir().unwrap();
    let told = Told::default();
    let limits = Limits { limit_bytes: 15 * MIB, floor_bytes: Some(0) };
    let config = (limits, Lengths { usual: 8 * MIB, least: 2 * MIB }, 1);
    let mut work = Work::new(config, vec![open(scratch.path())], told.tell());
    let mut lens = vec![work.another(true).unwrap().len / MIB];
    assert!(!work.stock(), "less than a usual segment is left");
    lens.extend(core::iter::from_fn(|| work.another(true)).map(|file| file.len / MIB));
    assert_eq!((lens, told.lines()), (vec![8, 4, 2], vec![]));
}

#[test]
fn the_floor_is_left_free() {
    let scratch = tempdir().unwrap();
    let told = Told::default();
    let volume = open(scratch.path()).own.room().unwrap();
    let limits = Limits { limit_bytes: 0, floor_bytes: Some(volume.free_bytes + (1 << 40)) };
    let config = (limits, ONE_MIB, 1);
    let mut poor = Work::new(config, vec![open(scratch.path())], told.tell());
    assert!(poor.another(true).is_none() && names(scratch.path()).is_empty() && told.lines().is_empty());
    let left_free = |floor_bytes| Limits { limit_bytes: 0, floor_bytes }.floor(volume);
    assert_eq!((left_free(Some(0)), left_free(None)), (0, volume.total_bytes / 20));
}

#[test]
fn segments_that_are_there_make_further_ones_no_shorter() {
    let scratch = tempdir().unwrap();
    let directory = || vec![open(scratch.path())];
    let free = open(scratch.path()).own.room().unwrap().free_bytes;
    let limits = Limits { limit_bytes: 0, floor_bytes: Some(free.saturating_sub(256 * MIB)) };
    let usual = || Lengths::new(usable(limits, &directory()), 1, MIB / 4).usual;
    let before = usual();
    let made: Vec<_> = (0..12).map(|_| open(scratch.path()).make(16 * MIB).unwrap().unwrap()).collect();
    // Others write to the disk meanwhile.
    assert!(usual() * 4 >= before && before >= 4 * MIB, "{before}, and {} after {} segments", usual(), made.len());
}

#[test]
fn the_limit_of_open_files_is_shared_out() {
    assert_eq!((owned_max(Some(1024)), owned_max(None)), (256, usize::MAX));
    assert_eq!((read_max(Some(1024), 2), read_max(Some(8), 4), read_max(None, 1)), (64, 0, usize::MAX));
    assert_eq!((few_files(Some(1024), 1 << 30, 256 << 30), few_files(None, MIB, u64::MAX)), (None, None));
    let line = few_files(Some(1024), 1 << 30, 300 << 30).unwrap();
    assert!(line.contains("256.0 GiB instead of 300.0 GiB, in 256 segments") && line.contains("ulimit -n"), "{line}");
}

/// A directory that fails is told of once, and the other one serves; when none is left there is no more.
#[test]
fn a_failing_directory_is_left_out_with_one_line() {
    let (one, two) = (tempdir().unwrap(), tempdir().unwrap());
    let told = Told::default();
    let mut work = work(&[one.path(), two.path()], 1, 0, &told);
    fs::remove_dir_all(one.path()).unwrap();
    for _ in 0..4 {
        let file = work.another(true).expect("the other one works");
        assert!(file.path.starts_with(two.path()));
        work.trim(file.key);
    }
    assert_eq!(told.lines().len(), 1, "{:?}", told.lines());
    assert!(told.lines()[0].contains("no further segment is made in"), "{:?}", told.lines());
    let kept = work.another(true).unwrap();
    for _ in 0..3 {
        work.failed(kept.key, &Error::new(Kind::File, "writing: Input/output error"));
    }
    assert!(work.another(true).is_none());
    assert_eq!(told.lines().len(), 2, "{:?}", told.lines());
    let facts = work.facts();
    assert_eq!((facts.directories_failed, facts.failures), (2, 4), "{facts:?}");
}

/// What somebody removes beside a run is closed, so that its room comes back, and its shard is told.
#[test]
fn segments_that_are_removed_are_given_up() {
    let (scratch, told) = (tempdir().unwrap(), Told::default());
    let mut work = work(&[scratch.path()], 1, 0, &told);
    let made = work.another(true).unwrap();
    assert!(work.stock());
    let mut reader = super::work(&[scratch.path()], 1, 0, &Told::default());
    spill(&made.path, &objects("e"), &blocks(&objects("e"), 3), 4096, 0);
    let read = recovered(&mut reader, &objects("e"), 1).remove(0).remove(0).0;
    work.let_go_of_removed();
    assert!(work.links[0].from.recv().is_none() && told.lines().is_empty());
    assert_eq!(super::super::remove_cache(scratch.path(), true).unwrap().removed.len(), 2);
    work.let_go_of_removed();
    reader.let_go_of_removed();
    for (work, key) in [(&mut work, made.key), (&mut reader, read.key)] {
        assert!(matches!(work.links[0].from.recv(), Some(SegmentGrant::Removed(told)) if told == key));
    }
    let here = scratch.path().to_str().unwrap();
    let open = fs::read_dir("/proc/self/fd").unwrap().filter_map(|file| fs::read_link(file.ok()?.path()).ok());
    let held: Vec<PathBuf> = open.filter(|path| path.to_str().is_some_and(|path| path.contains(here))).collect();
    assert!(held.iter().all(|path| !path.to_string_lossy().ends_with("(deleted)")), "{held:?}");
    let lines = told.lines();
    assert!(lines.len() == 1 && lines[0].contains("2 segments of this run were removed"), "{lines:?}");
    assert!(work.another(true).is_some_and(|new| new.path != made.path && new.path.exists()));
}

/// A segment that its owner removed is no fault of a disk.
#[test]
fn a_foreign_segment_that_vanished_is_nothing_to_tell_of() {
    let scratch = tempdir().unwrap();
    let (objects, told) = (objects("e"), Told::default());
    left_behind(scratch.path(), &objects, 0..10);
    let (mut owner, mut reader) = (work(&[scratch.path()], 1, 0, &told), work(&[scratch.path()], 1, 0, &told));
    let owned = recovered(&mut owner, &objects, 1).remove(0).remove(0).0;
    let read = recovered(&mut reader, &objects, 1).remove(0).remove(0).0;
    owner.trim(owned.key);
    reader.failed(read.key, &Error::new(Kind::File, "opening: No such file or directory"));
    assert_eq!((told.lines(), reader.facts()), (vec![], DiskFacts::default()));
}

/// The thread does what is wished for, and leaves in order.
#[test]
fn the_keeper_comes_and_goes() {
    let scratch = tempdir().unwrap();
    let (objects, told) = (Arc::new(objects("e")), Told::default());
    left_behind(scratch.path(), &objects, 0..10);
    let directories = vec![open(scratch.path())];
    let limits = Limits::default();
    let lengths = Lengths::new(usable(limits, &directories), 2, 10_000);
    assert!(lengths.usual.is_power_of_two() && (MIB..=1 << 30).contains(&lengths.usual) && lengths.least == MIB);
    let config = (limits, lengths, 2);
    let (manager, setups) = SegmentManager::start(config, directories, &objects, told.tell()).unwrap();
    assert_eq!((setups.len(), manager.facts().lock().unwrap().segments_taken_over), (2, 1));
    assert!(setups.iter().map(|setup| setup.found.len()).sum::<usize>() >= 1 && setups[0].unit >= 512);
    drop(manager);
    let mut next = work(&[scratch.path()], 2, 0, &told);
    recovered(&mut next, &objects, 2);
    assert_eq!(next.facts().segments_taken_over, 1, "the locks were given up");
}
