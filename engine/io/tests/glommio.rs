//! The ring on glommio: the one suite, and the fault of the executor it guards against.
#![cfg(feature = "glommio")]

use crate::skip::skip_or_fail;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use crate::fork::fork_at_work;
use crate::loopback::loopback_passes;
use fuelrail_base::{Duration, Kind};
use fuelrail_io::conformance::ScratchFiles;
use fuelrail_io::{
    Arena, ArenaConfig, Done, FileOptions, GlommioRing, HugePages, Op, Region, Ring, UringConfig, Window,
};
use glommio::io::OpenOptions;
use glommio::{LocalExecutorBuilder, Placement};

#[test]
fn glommio_passes() {
    loopback_passes(false, GlommioRing::new);
}

/// Longest that anything here may take on a machine that is busy with something else.
const PATIENCE: Duration = Duration::from_secs(20);
const BLOCK: usize = 4096;

fn memory() -> (Arena, Region) {
    let config = ArenaConfig { bytes: 1 << 20, regions: 1, huge_pages: HugePages::Off, ..ArenaConfig::default() };
    let (arena, mut regions) = Arena::new(&config).unwrap();
    (arena, regions.pop().unwrap())
}

fn next(ring: &mut GlommioRing) -> Done {
    loop {
        if let Some(done) = ring.pop() {
            return done;
        }
        ring.wait(Some(ring.now().after(PATIENCE))).unwrap();
    }
}

#[test]
fn a_registered_arena_is_refused_aloud() {
    let (arena, _region) = memory();
    let ring = GlommioRing::new(&UringConfig { register: Some(arena), ..UringConfig::default() }).unwrap();
    let facts = ring.facts();
    assert!(facts.refusals.iter().any(|why| why.contains("not registered") && why.contains("uring")), "{facts:?}");
}

/// Why the fault cannot show on the disk under this folder; `None` when it must.
fn why_not_here(folder: &Path) -> Option<String> {
    let device = std::fs::metadata(folder).unwrap().dev();
    let (major, minor) = (libc::major(device), libc::minor(device));
    let block = PathBuf::from(format!("/sys/dev/block/{major}:{minor}"));
    // A partition has its queue one level up.
    let polls = [block.join("queue/io_poll"), block.join("../queue/io_poll")];
    match polls.iter().find_map(|path| std::fs::read_to_string(path).ok()) {
        None => Some(format!("{major}:{minor} is not a disk of its own")),
        Some(polls) if polls.trim() != "0" => Some(format!("the disk {major}:{minor} can be polled")),
        Some(_) => None,
    }
}

/// What a read of a file with bytes says when the first direct file of the thread was a new one: glommio's own way, on a
/// thread of its own, because it judges disks once per thread.
fn read_after_an_empty_file(empty: PathBuf, full: PathBuf) -> Result<usize, i32> {
    let thread = std::thread::spawn(move || {
        let executor = LocalExecutorBuilder::new(Placement::Unbound).make().unwrap();
        executor.run(async {
            let new = OpenOptions::new().read(true).write(true).create_new(true).dma_open(&empty).await.unwrap();
            new.close().await.unwrap();
            let file = OpenOptions::new().read(true).dma_open(&full).await.unwrap();
            let read = file.read_at_aligned(0, BLOCK).await;
            file.close().await.unwrap();
            read.map(|bytes| bytes.len()).map_err(|error| error.raw_os_error().unwrap())
        })
    });
    thread.join().unwrap()
}

/// The fault we guard against. When this fails, upstream has repaired it, and the guard may go.
#[test]
fn glommio_by_itself_misjudges_a_disk_by_an_empty_file() {
    let mut files = ScratchFiles::default();
    let (empty, full) = (files.path(), files.path());
    if let Some(why) = why_not_here(full.parent().unwrap()) {
        skip_or_fail("own-disk", why);
        return;
    }
    std::fs::write(&full, [7; BLOCK]).unwrap();
    std::fs::File::open(&full).unwrap().sync_all().unwrap();
    assert_eq!(read_after_an_empty_file(empty, full), Err(libc::EOPNOTSUPP), "glommio judges disks rightly now");
}

/// The same with the guard: a ring whose first direct file is a new one reads what it wrote.
#[test]
fn the_ring_judges_a_disk_before_it_opens_an_empty_file() {
    let mut files = ScratchFiles::default();
    let path = files.path();
    let thread = std::thread::spawn(move || {
        let (_arena, mut region) = memory();
        let mut ring = GlommioRing::new(&UringConfig::default()).unwrap();
        let options = FileOptions { write: true, create: true, direct: true, len: None };
        let file = match ring.open(&path, &options) {
            Ok(file) => file,
            Err(error) => {
                assert_eq!(error.kind(), Kind::File, "{error}");
                skip_or_fail("own-disk", error);
                return;
            }
        };
        let mut from = window(&mut region, BLOCK);
        from.put(&[7; BLOCK]);
        ring.push(Op::WriteAt { file, offset: 0, from: from.read_pin(), start: 0 }, 1).unwrap();
        assert_eq!(next(&mut ring).result, Ok(BLOCK));
        ring.push(Op::ReadAt { file, offset: 0, into: window(&mut region, BLOCK) }, 2).unwrap();
        let done = next(&mut ring);
        let Op::ReadAt { into, .. } = done.op else { panic!("{:?}", done.op) };
        assert_eq!((done.result, into.bytes()), (Ok(BLOCK), &[7; BLOCK][..]));
        let counts = ring.facts().counts;
        assert_eq!(counts.copied_bytes, 2 * BLOCK as u64, "every byte of a file is copied once: {counts:?}");
        let beside = std::fs::read_dir(path.parent().unwrap()).unwrap();
        assert_eq!(beside.count(), 1, "the sample it was judged by is gone");
    });
    thread.join().unwrap();
}

fn window(region: &mut Region, len: usize) -> Window {
    region.alloc(len).unwrap().fill().carve(len).unwrap()
}

#[test]
fn a_forked_child_is_refused_and_does_not_disturb_the_parent() {
    fork_at_work(GlommioRing::new(&UringConfig::default()).unwrap());
}
