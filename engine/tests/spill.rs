//! The disk below the RAM cache, with real files: what is on it is not fetched again, and nothing that happens to it, or to a
//! process that uses it, costs a byte.
//!
//! The test binary is its own child: run with [`ROLE`] set, the test that is named becomes a loader that is killed.

use crate::common::said::Said;
use crate::common::skip::skip_or_fail;
use crate::common::{
    Delivered, PATIENCE, bucket, drain, eventually, kept_in, listing, loader, loader_at, plain_run, planned,
    side_by_side, take,
};
use fuelrail::{Backend, ByteSize, DiskFacts, Kind, Loader, LoaderBuilder, Stats};
use fuelrail_base::prng::Prng;
use fuelrail_bucket::{Bucket, Counters, DataSet};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

pub(crate) const MIB: u64 = 1 << 20;

/// Objects of a few blocks each, and of many different lengths: 10 MB.
pub(crate) fn set() -> DataSet {
    DataSet::photos(90, 4)
}

/// A loader over the bucket that keeps what it reads in `dir`.
pub(crate) fn spilling(bucket: &Bucket, dir: &Path, limit_bytes: u64) -> LoaderBuilder {
    with_disk(loader(bucket), dir, limit_bytes)
}

fn with_disk(builder: LoaderBuilder, dir: &Path, limit_bytes: u64) -> LoaderBuilder {
    builder
        .batch_size(8)
        .seed(3)
        .block_size("64KiB".parse().unwrap())
        .spill_dirs(vec![dir.to_owned()])
        .spill_limit(ByteSize(limit_bytes))
        .spill_floor(ByteSize(0))
}

/// Runs loaders until one finds all of the set on disk. A block is written when there is a segment with room for it, and
/// segments take a moment to make, so one run may not be enough.
pub(crate) fn fill(set: &DataSet, builder: impl Fn() -> LoaderBuilder) {
    fill_in(4, set, builder);
}

/// The same by runs of so many epochs.
fn fill_in(epochs: u64, set: &DataSet, builder: impl Fn() -> LoaderBuilder) {
    for run in 0.. {
        let mut loader = builder().epochs(epochs).build().unwrap();
        drain(&mut loader, set).unwrap();
        let stats = loader.stats();
        if stats.landed_bytes == 0 {
            assert!(stats.hit_ratio > 0.999_999, "none took a request: {stats:?}");
            return;
        }
        assert!(run < 30, "it never gets all of it: {:?}", stats.disk);
    }
}

/// Takes so many batches, and more until some bytes have come from disk: the first segment takes a moment to make, which may be some epochs
/// of a busy machine.
pub(crate) fn take_until_hit(loader: &mut Loader, set: &DataSet, batches: usize) -> Delivered {
    let (mut delivered, mut taken) = (Delivered::default(), 0);
    eventually("nothing comes from disk", || {
        take(&loader.next_batch().unwrap().unwrap(), loader, set, &mut delivered);
        taken += 1;
        taken >= batches && disk(&loader.stats()).hit_bytes > 0
    });
    delivered
}

pub(crate) fn disk(stats: &Stats) -> DiskFacts {
    stats.disk.clone().expect("it has a disk")
}

/// GETs of objects.
fn gets(counters: &Counters) -> u64 {
    counters.get_requests
}

#[test]
fn the_second_epoch_comes_from_disk_and_so_does_a_later_run() {
    side_by_side(Backend::ALL.to_vec(), |&ring| {
        let (set, dir) = (set(), tempfile::tempdir().unwrap());
        let bucket = bucket(&set, "");
        let builder = || spilling(&bucket, dir.path(), 100 * MIB).listing(listing(&set)).ring(ring).shards(2);
        let mut first = builder().epochs(1_000).build().unwrap();
        // Four epochs at least.
        let delivered = take_until_hit(&mut first, &set, 48);
        assert!(planned(plain_run(set.len(), 3, 8, 1_000)).starts_with(&delivered.order), "{ring}");
        let stats = first.stats();
        assert_eq!((disk(&stats).lost, disk(&stats).failures), (0, 0), "{ring}");
        assert_eq!(first.close().operations, 0, "{ring}");
        fill(&set, builder);
        let before = gets(&bucket.counters());
        let mut later = builder().epochs(3).build().unwrap();
        drain(&mut later, &set).unwrap();
        let stats = later.stats();
        assert_eq!(gets(&bucket.counters()), before, "{ring}: nothing is asked for that is on disk: {:?}", stats.disk);
        // What two epochs want at once is read once, and shared.
        assert!(disk(&stats).hit_bytes >= set.total_bytes() && stats.landed_bytes == 0, "{ring}: {:?}", stats.disk);
    });
}

/// Many programs make a loader for each epoch.
#[test]
fn what_runs_of_one_epoch_have_read_is_found_by_the_next() {
    let (set, dir) = (set(), tempfile::tempdir().unwrap());
    let bucket = bucket(&set, "");
    // With RAM for all of it, which is of no use to the next run.
    let builder = || spilling(&bucket, dir.path(), 100 * MIB).listing(listing(&set)).cache_limit(ByteSize(12 * MIB));
    fill_in(1, &set, builder);
}

#[test]
fn objects_without_an_etag_are_not_reused_by_later_runs() {
    let (set, dir) = (set(), tempfile::tempdir().unwrap());
    let bucket = bucket(&set, "");
    let builder = || spilling(&bucket, dir.path(), 100 * MIB).listing(crate::common::bare_listing(&set));
    // Within a run they are.
    take_until_hit(&mut builder().epochs(1_000).build().unwrap(), &set, 36);
    let mut later = builder().epochs(1).build().unwrap();
    drain(&mut later, &set).unwrap();
    assert_eq!(disk(&later.stats()).adopted, 0);
}

#[test]
fn ram_and_disk_add_up() {
    let set = DataSet::photos(400, 4);
    let bucket = bucket(&set, "");
    let total = set.total_bytes();
    let (ram, limit) = (total / 4, total / 2 / MIB * MIB);
    let run = || -> [u64; 2] {
        let dir = tempfile::tempdir().unwrap();
        let builder = spilling(&bucket, dir.path(), limit).listing(listing(&set)).cache_limit(ByteSize(ram)).epochs(6);
        let mut loader = builder.memory_limit("128MB".parse().unwrap()).build().unwrap();
        drain(&mut loader, &set).unwrap();
        let stats = loader.stats();
        let reached = (stats.hit_bytes + disk(&stats).hit_bytes) as f64 / (5 * total) as f64;
        let most = (ram + limit) as f64 / total as f64;
        // How much of it is reached depends on how fast the machine's disk is beside its loopback; that it is never more does not.
        assert!(reached <= most + 1e-6, "{reached} of {most}: {:?}", stats.disk);
        let files: u64 = kept_in(dir.path()).iter().map(|file| file.metadata().unwrap().len()).sum();
        assert!(files <= limit + 4096, "{files} bytes on disk, {limit} are allowed");
        [stats.hit_bytes, disk(&stats).hit_bytes]
    };
    // A busy machine may make the first segment late; not in every run.
    let hits: Vec<_> = (0..10).map(|_| run()).take_while(|hits| hits.contains(&0)).collect();
    assert!(hits.len() < 10, "bytes of RAM and of the disk: {hits:?}");
}

#[test]
fn two_loaders_share_a_directory_and_read_each_other() {
    let (set, dir) = (set(), tempfile::tempdir().unwrap());
    let bucket = bucket(&set, "");
    let builder = || spilling(&bucket, dir.path(), 100 * MIB).listing(listing(&set));
    let mut first = builder().epochs(8).build().unwrap();
    for _ in 0..30 {
        first.next_batch().unwrap().unwrap();
    }
    // The first one lives and holds its locks; its journal reaches the disk a moment after its blocks.
    eventually("the second one finds what the first one wrote", || {
        let mut second = builder().epochs(1).build().unwrap();
        drain(&mut second, &set).unwrap();
        let facts = disk(&second.stats());
        assert_eq!(facts.lost, 0);
        facts.adopted > 0 && facts.hits > 0
    });
    drain(&mut first, &set).unwrap();
    assert_eq!(disk(&first.stats()).lost, 0);
}

#[test]
fn loaders_with_orders_of_their_own_read_what_the_others_have_fetched_meanwhile() {
    let set = set();
    let bucket = bucket(&set, "");
    let run = || -> [u64; 3] {
        // In memory, where no other program keeps the disk busy.
        let dir = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap();
        let builder = || spilling(&bucket, dir.path(), 100 * MIB).listing(listing(&set)).epochs(3);
        // Both begin before anything is written, and read ahead as far as memory goes.
        let [mut first, mut second] = [5, 6].map(|seed| builder().seed(seed).build().unwrap());
        eventually("both read ahead", || first.stats().requests.min(second.stats().requests) > 0);
        for _ in 0..24 {
            first.next_batch().unwrap().unwrap();
        }
        let written = disk(&first.stats()).written;
        eventually("the second one is told", || disk(&second.stats()).blocks >= written);
        let before = gets(&bucket.counters());
        for _ in 0..12 {
            second.next_batch().unwrap().unwrap();
        }
        let (hits, asked) = (disk(&second.stats()).hits, gets(&bucket.counters()) - before);
        for loader in [&mut first, &mut second] {
            drain(loader, &set).unwrap();
            assert_eq!(disk(&loader.stats()).lost, 0);
        }
        [written, hits, asked]
    };
    // A busy machine may make the first segment late; not in every run.
    let few = |[written, hits, asked]: &[u64; 3]| *written <= 60 || *hits <= 60 || asked + written / 2 >= 181;
    let runs: Vec<_> = (0..10).map(|_| run()).take_while(few).collect();
    assert!(runs.len() < 10, "blocks written, had from disk, and asked of the bucket, of 181: {runs:?}");
}

#[test]
fn a_directory_that_vanishes_or_never_was_costs_nothing_but_requests() {
    let (set, dir) = (set(), tempfile::tempdir().unwrap());
    let bucket = bucket(&set, "");
    let said = Said::default();
    let cache = dir.path().join("cache");
    let builder = spilling(&bucket, &cache, 100 * MIB).listing(listing(&set)).epochs(3);
    let mut loader = said.by(builder).build().unwrap();
    loader.next_batch().unwrap().unwrap();
    // The segment manager may be making a segment in it right now.
    eventually("the directory is gone", || std::fs::remove_dir_all(&cache).is_ok() || !cache.exists());
    while let Some(batch) = loader.next_batch() {
        batch.unwrap();
    }
    let nowhere = dir.path().join("is/not/here");
    let mut loader = spilling(&bucket, &nowhere, 100 * MIB).listing(listing(&set)).build().unwrap();
    assert!(loader.notices().iter().any(|line| line.contains("is/not/here")), "{:?}", loader.notices());
    drain(&mut loader, &set).unwrap();
}

#[test]
fn a_disk_with_less_free_than_its_floor_is_told_of_and_costs_nothing_but_requests() {
    let (set, dir) = (set(), tempfile::tempdir().unwrap());
    let bucket = bucket(&set, "");
    let low = |loader: &Loader| {
        let says = |what: &str| loader.notices().iter().any(|line| line.contains(what));
        assert_ne!(says("no room for new blocks"), says("new ones have"), "{:?}", loader.notices());
        says("no room for new blocks")
    };
    let builder = spilling(&bucket, dir.path(), 100 * MIB).listing(listing(&set)).epochs(2);
    assert!(!low(&builder.clone().build().unwrap()), "a byte is free");
    assert!(low(&builder.clone().spill_limit(ByteSize(64 << 10)).build().unwrap()), "less than a segment");
    let mut loader = builder.spill_floor(ByteSize(1 << 60)).build().unwrap();
    assert!(low(&loader));
    drain(&mut loader, &set).unwrap();
    assert_eq!(disk(&loader.stats()).segments_made, 0);
}

/// A file system of its own, in memory and small; taken down when dropped.
pub(crate) struct SmallDisk(tempfile::TempDir);

impl SmallDisk {
    /// `None` where mounting is not allowed and `FUELRAIL_SKIP` names `root`.
    pub(crate) fn mount(bytes: u64) -> Option<SmallDisk> {
        let disk = SmallDisk(tempfile::tempdir().unwrap());
        let mounted = disk.call(&["-t", "tmpfs", "-o", &format!("size={bytes}"), "tmpfs"]);
        if !mounted {
            skip_or_fail("root", "mounting a file system needs CAP_SYS_ADMIN");
        }
        mounted.then_some(disk)
    }

    fn call(&self, args: &[&str]) -> bool {
        Command::new("mount").args(args).arg(self.0.path()).stderr(Stdio::null()).status().is_ok_and(|s| s.success())
    }

    pub(crate) fn path(&self) -> &Path {
        self.0.path()
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        // Nothing is mounted there when mounting was refused.
        let _ = Command::new("umount").arg("-l").arg(self.0.path()).stderr(Stdio::null()).status();
    }
}

#[test]
fn an_audit_log_that_could_not_be_begun_is_not_in_the_way_of_the_next_start() {
    let Some(small) = SmallDisk::mount(MIB) else { return };
    let (set, bucket) = (set(), bucket(&set(), ""));
    let build = || loader(&bucket).listing(listing(&set)).audit(small.path().join("log")).build();
    let filler = small.path().join("filler");
    std::fs::write(&filler, vec![7; 2 << 20]).unwrap_err();
    let error = build().unwrap_err();
    assert!(error.kind() == Kind::File && error.to_string().contains("No space left"), "{error}");
    std::fs::remove_file(&filler).unwrap();
    build().unwrap();
}

#[test]
fn a_full_and_a_read_only_file_system_cost_nothing_but_requests() {
    let Some(small) = SmallDisk::mount(3 * MIB) else { return };
    let (set, bucket) = (set(), bucket(&set(), ""));
    let builder = || spilling(&bucket, small.path(), 100 * MIB).listing(listing(&set));
    let mut loader = builder().epochs(1_000).build().unwrap();
    let mut delivered = Delivered::default();
    eventually("the file system is full", || {
        take(&loader.next_batch().unwrap().unwrap(), &loader, &set, &mut delivered);
        let facts = disk(&loader.stats());
        facts.segments_made > 0 && facts.refused > 0
    });
    let facts = disk(&loader.stats());
    let kept: u64 = kept_in(small.path()).iter().map(|file| file.metadata().unwrap().len()).sum();
    assert!(kept < 3 * MIB, "{kept}: {facts:?}");
    assert_eq!(
        (facts.write_failures, facts.broken, facts.directories_failed),
        (0, 0, 0),
        "full is no failure: {facts:?}"
    );
    drop(loader);
    // Another process takes what is left.
    let filler = std::fs::write(small.path().join("filler"), vec![7; 4 << 20]);
    assert_eq!(filler.unwrap_err().kind(), std::io::ErrorKind::StorageFull);
    let build = || builder().epochs(2).build().unwrap();
    let mut loader = build();
    // What the segments there take is room for new ones.
    assert!(loader.notices().iter().all(|line| !line.contains("no room")), "{:?}", loader.notices());
    drain(&mut loader, &set).unwrap();
    let full = disk(&loader.stats());
    // In the place of one that was trimmed, at the epochs' edge, there is room for another.
    assert!(full.segments_made <= full.trims && full.write_failures == 0, "{full:?}");
    drop(loader);
    // Room for another segment, if one could be made.
    std::fs::remove_file(small.path().join("filler")).unwrap();
    let files = kept_in(small.path());
    std::fs::remove_file(files.into_iter().find(|path| path.extension() == Some("segment".as_ref())).unwrap()).unwrap();
    // The kernel lets go of a ring's files a moment after the ring is gone.
    eventually("nobody writes there", || small.call(&["-o", "remount,ro"]));
    let said = Said::default();
    let builder = spilling(&bucket, small.path(), 100 * MIB).listing(listing(&set)).epochs(2);
    let mut loader = said.by(builder).build().unwrap();
    drain(&mut loader, &set).unwrap();
    eventually("it is said", || !said.lines().is_empty());
    let told = said.lines();
    let here = small.path().display().to_string();
    assert!(
        told.len() == 1 && told[0].contains(&here) && told[0].contains("why the file system is read-only"),
        "one line: {told:?}"
    );
    let facts = disk(&loader.stats());
    assert_eq!((facts.written, facts.segments_made), (0, 0), "{facts:?}");
    assert_eq!(facts.directories_failed, 1, "{facts:?}");
}

/// Set in a child: the bucket's address, the directory, the limit in bytes and the seed, between blanks.
const ROLE: &str = "SPILL_TEST_ROLE";

fn start_child(uri: &str, dir: &Path, limit_bytes: u64) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "spill::killed_at_random_moments_no_byte_is_wrong_and_no_room_is_lost", "--test-threads=1"])
        .env(ROLE, format!("{uri} {} {limit_bytes}", dir.display()))
        .stdout(Stdio::null())
        .spawn()
        .expect("this binary can be run again")
}

/// Reads epoch after epoch until it is killed, and ends badly if a byte is wrong.
fn play(role: &str) {
    let mut words = role.split(' ');
    let mut word = || words.next().expect("the parent wrote it");
    let (uri, dir, limit) = (word(), PathBuf::from(word()), word().parse().unwrap());
    let set = set();
    for round in 0.. {
        let builder = with_disk(loader_at(uri), &dir, limit).listing(listing(&set)).epochs(1 + round % 3).shards(2);
        drain(&mut builder.build().unwrap(), &set).unwrap();
    }
}

#[test]
fn killed_at_random_moments_no_byte_is_wrong_and_no_room_is_lost() {
    if let Ok(role) = std::env::var(ROLE) {
        return play(&role);
    }
    let kills: u64 = std::env::var("SPILL_TEST_KILLS").map_or(25, |text| text.parse().unwrap());
    let (set, dir) = (set(), tempfile::tempdir().unwrap());
    let bucket = bucket(&set, "");
    let mut prng = Prng::new(kills);
    let mut adopted = 0;
    for kill in 0..kills {
        // Now more than enough, now so little that segments are trimmed or refused all the time.
        let limit = [100, 6][(kill % 2) as usize] * MIB;
        let mut child = start_child(&bucket.url(""), dir.path(), limit);
        std::thread::sleep(Duration::from_millis(prng.below(400)));
        child.kill().unwrap();
        let status = child.wait().unwrap();
        assert!(status.code().is_none(), "kill {kill}: the child ended by itself: {status}");
        if kill % 5 == 4 {
            let mut after = spilling(&bucket, dir.path(), limit).listing(listing(&set)).epochs(2).build().unwrap();
            let delivered = drain(&mut after, &set).unwrap();
            assert_eq!(delivered.order, planned(plain_run(set.len(), 3, 8, 2)));
            adopted += disk(&after.stats()).adopted;
        }
    }
    assert!(kills < 10 || adopted > 0, "nothing was ever found again");
    // Room is shared: a run with a limit that holds the set keeps all of it, whatever ended processes left.
    let limit = 40 * MIB;
    let build = || spilling(&bucket, dir.path(), limit).listing(listing(&set));
    fill(&set, build);
    let files = kept_in(dir.path());
    let bytes: u64 = files.iter().map(|file| file.metadata().unwrap().len()).sum();
    assert!(bytes <= limit + 4096, "{bytes} bytes of {limit}");
    assert!(files.iter().all(|file| file.extension() != Some("new".as_ref())), "half-made segments are gone");
}

#[test]
fn a_loader_with_a_disk_ends_promptly_in_the_middle_of_everything() {
    let (set, dir) = (set(), tempfile::tempdir().unwrap());
    let bucket = bucket(&set, "");
    for batches in 0..20 {
        let builder = spilling(&bucket, dir.path(), 100 * MIB).listing(listing(&set)).epochs(4);
        let mut loader = builder.build().unwrap();
        let held: Vec<_> = (0..batches % 5).map(|_| loader.next_batch().unwrap().unwrap()).collect();
        for _ in 0..batches {
            loader.next_batch().unwrap().unwrap();
        }
        let begun = Instant::now();
        let left = loader.close();
        assert!(begun.elapsed() < PATIENCE);
        assert_eq!((left.operations, left.slots), (0, held.len() as u64));
    }
}

#[test]
fn a_batch_may_be_changed_while_its_blocks_go_to_disk() {
    let (set, dir) = (set(), tempfile::tempdir().unwrap());
    let bucket = bucket(&set, "");
    let builder = || spilling(&bucket, dir.path(), 100 * MIB).listing(listing(&set));
    let mut loader = builder().epochs(2).build().unwrap();
    while let Some(batch) = loader.next_batch() {
        batch.unwrap().bytes_mut().fill(7);
    }
    drop(loader);
    let mut later = builder().epochs(1).build().unwrap();
    drain(&mut later, &set).unwrap();
    assert_eq!(disk(&later.stats()).lost, 0, "what was written is what landed");
}
