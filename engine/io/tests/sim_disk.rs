//! The simulated disk: what a power cut leaves, what names do, and how a disk fails.

use std::collections::BTreeSet;
use std::path::Path;

use fuelrail_base::Duration;
use fuelrail_io::conformance::ScriptedHost;
use fuelrail_io::{
    Arena, ArenaConfig, Done, FileId, FileOptions, HugePages, Op, ReadPin, Region, Ring, SimDisk, SimDiskFailure,
    SimFaults, SimRing, SimWorld,
};

const NEW: FileOptions = FileOptions { write: true, create: true, direct: false, len: None };
const SECTOR: usize = 512;

fn region() -> Region {
    let config = ArenaConfig {
        bytes: 4 << 20,
        regions: 1,
        huge_pages: HugePages::Off,
        slots_per_region: 256,
        ..ArenaConfig::default()
    };
    Arena::new(&config).unwrap().1.pop().unwrap()
}

fn world(seed: u64, faults: SimFaults) -> SimWorld {
    SimWorld::new(seed, faults, Box::new(ScriptedHost::new(Duration::ZERO)))
}

/// Pushes a file operation and lets time pass until it is back.
fn one(world: &SimWorld, ring: &mut SimRing, op: Op) -> Done {
    ring.push(op, 9).unwrap();
    for _ in 0..10 {
        ring.wait(None).unwrap();
        if let Some(done) = ring.pop() {
            return done;
        }
        world.advance();
    }
    panic!("the disk did not answer");
}

fn pinned(region: &mut Region, bytes: &[u8]) -> ReadPin {
    let mut window = region.alloc(bytes.len()).unwrap().fill().carve(bytes.len()).unwrap();
    window.put(bytes);
    window.read_pin()
}

fn write(world: &SimWorld, ring: &mut SimRing, file: FileId, offset: u64, bytes: &[u8]) -> Result<usize, i32> {
    let from = pinned(&mut region(), bytes);
    one(world, ring, Op::WriteAt { file, offset, from, start: 0 }).result
}

fn read(world: &SimWorld, ring: &mut SimRing, file: FileId, len: usize) -> Result<Vec<u8>, i32> {
    let into = region().alloc(len).unwrap().fill().carve(len).unwrap();
    let done = one(world, ring, Op::ReadAt { file, offset: 0, into });
    let Op::ReadAt { into, .. } = done.op else { panic!("a read comes back as a read") };
    done.result.map(|_| into.bytes().to_vec())
}

/// Of a write after the last sync any sectors may be there, each whole; what is not is what was synced, and no byte is of
/// anything else.
#[test]
fn a_power_cut_keeps_what_was_synced_and_of_the_rest_any_sectors() {
    const SECTORS: usize = 8;
    let mut patterns = BTreeSet::new();
    for seed in 0..200 {
        let world = world(seed, SimFaults::default());
        let mut ring = SimRing::new(&world);
        let file = ring.open("synced".as_ref(), &NEW).unwrap();
        assert_eq!(write(&world, &mut ring, file, 0, &[1; SECTORS * SECTOR]), Ok(SECTORS * SECTOR));
        assert_eq!(one(&world, &mut ring, Op::SyncData { file }).result, Ok(0));
        assert_eq!(write(&world, &mut ring, file, 0, &[2; SECTORS * SECTOR]), Ok(SECTORS * SECTOR));
        drop(ring);
        world.cut_power();
        let left = world.read_file("synced".as_ref()).unwrap();
        assert_eq!(left.len(), SECTORS * SECTOR);
        let mut pattern = 0u8;
        for (nth, sector) in left.chunks(SECTOR).enumerate() {
            assert!(*sector == [sector[0]; SECTOR] && matches!(sector[0], 1 | 2), "seed {seed}: a torn sector");
            pattern |= (sector[0] - 1) << nth;
        }
        patterns.insert(pattern);
    }
    let torn = patterns.iter().filter(|pattern| ![0, 0xFF].contains(*pattern)).count();
    assert!(patterns.contains(&0) && patterns.contains(&0xFF) && torn > 20, "{patterns:?}: the dice decide");
    assert!(patterns.contains(&0x0F) && patterns.iter().any(|p| p & 1 == 0 && *p != 0), "tails and heads are lost");
}

/// A file that grew without a sync may be shorter again, and one that never was synced is gone or incomplete.
#[test]
fn a_power_cut_shortens_what_grew() {
    let mut lengths = BTreeSet::new();
    let (mut gone, mut there) = (0, 0);
    for seed in 0..100 {
        let world = world(seed, SimFaults::default());
        let mut ring = SimRing::new(&world);
        let grown = ring.open("grown".as_ref(), &NEW).unwrap();
        assert_eq!(write(&world, &mut ring, grown, 0, &[1; SECTOR]), Ok(SECTOR));
        assert_eq!(one(&world, &mut ring, Op::SyncData { file: grown }).result, Ok(0));
        assert_eq!(write(&world, &mut ring, grown, SECTOR as u64, &[2; 4 * SECTOR]), Ok(4 * SECTOR));
        let forgotten = ring.open("forgotten".as_ref(), &FileOptions { len: Some(4_000), ..NEW }).unwrap();
        assert_eq!(write(&world, &mut ring, forgotten, 0, &[3; 100]), Ok(100));
        drop(ring);
        world.cut_power();
        let left = world.read_file("grown".as_ref()).unwrap();
        assert!(left[..SECTOR] == [1; SECTOR] && left[SECTOR..].iter().all(|b| matches!(b, 0 | 2)));
        lengths.insert(left.len());
        match world.read_file("forgotten".as_ref()) {
            Ok(left) => {
                assert!(left.is_empty() || left == [3; 100], "room that was never synced is not there");
                there += 1;
            }
            Err(_) => gone += 1,
        }
    }
    assert_eq!(lengths.into_iter().collect::<Vec<_>>(), [1, 2, 3, 4, 5].map(|n| n * SECTOR));
    assert!(gone > 10 && there > 10, "{gone} gone, {there} there");
}

/// A write that was under way when its process was killed may be there or not.
#[test]
fn a_killed_process_may_have_written() {
    let mut done = 0;
    for seed in 0..60 {
        let world = world(seed, SimFaults::default());
        let mut ring = SimRing::new(&world);
        let file = ring.open("f".as_ref(), &FileOptions { len: Some(100), ..NEW }).unwrap();
        let from = pinned(&mut region(), &[7; 100]);
        ring.push(Op::WriteAt { file, offset: 0, from, start: 0 }, 1).unwrap();
        ring.wait(Some(ring.now())).unwrap();
        drop(ring);
        match world.read_file("f".as_ref()).unwrap().as_slice() {
            [7, .., 7] => done += 1,
            other => assert_eq!(other, [0; 100]),
        }
    }
    assert!((10..50).contains(&done), "{done} of 60 written");
}

/// Removals reach the disk in their order; a cut keeps those up to some point.
#[test]
fn names_change_in_order_and_a_cut_undoes_the_last_of_them() {
    let names = |world: &SimWorld| world.files().iter().map(|p| p.display().to_string()).collect::<Vec<_>>().join(" ");
    let mut seen = BTreeSet::new();
    for seed in 0..60 {
        let world = world(seed, SimFaults::default());
        world.write_file("d/new".as_ref(), b"one").unwrap();
        world.write_file("d/old".as_ref(), b"two").unwrap();
        assert!(world.remove_file("d/new".as_ref()) && world.remove_file("d/old".as_ref()));
        assert!(!world.remove_file("d/old".as_ref()));
        assert_eq!(names(&world), "");
        world.cut_power();
        let now = names(&world);
        if now.contains("new") {
            assert_eq!(world.read_file("d/new".as_ref()).unwrap(), b"one", "{now}");
        }
        seen.insert(now);
        world.write_file("d/more".as_ref(), b"").unwrap();
        world.remove_file("d/more".as_ref());
        world.write_file("d/last".as_ref(), b"").unwrap();
        let synced = names(&world);
        world.cut_power();
        assert_eq!(names(&world), synced);
    }
    assert_eq!(seen.into_iter().collect::<Vec<_>>(), ["", "d/new d/old", "d/old"]);
}

#[test]
fn a_removed_file_is_read_through_its_open_files_and_keeps_its_room() {
    let world = world(1, SimFaults::default());
    world.set_disk(SimDisk { capacity_bytes: 1_000, ..SimDisk::default() });
    world.write_file("f".as_ref(), &[5; 600]).unwrap();
    let mut ring = SimRing::new(&world);
    let file = ring.open("f".as_ref(), &FileOptions::default()).unwrap();
    world.remove_file("f".as_ref());
    assert!(world.read_file("f".as_ref()).is_err() && ring.open("f".as_ref(), &FileOptions::default()).is_err());
    assert_eq!(read(&world, &mut ring, file, 700), Ok(vec![5; 600]));
    assert!(world.write_file("f".as_ref(), &[6; 600]).is_err(), "its room is taken");
    ring.close_file(file);
    world.write_file("f".as_ref(), &[6; 600]).unwrap();
    let file = ring.open("f".as_ref(), &FileOptions::default()).unwrap();
    assert_eq!(read(&world, &mut ring, file, 700), Ok(vec![6; 600]), "another file of the same name");
}

#[test]
fn rot_flips_one_bit_for_good() {
    for seed in 0..20 {
        let world = world(seed, SimFaults::default());
        world.write_file("f".as_ref(), &[0; 100]).unwrap();
        assert!(world.rot("f".as_ref()) && !world.rot("absent".as_ref()));
        let ones = |bytes: Vec<u8>| bytes.iter().map(|byte| byte.count_ones()).sum::<u32>();
        assert_eq!(ones(world.read_file("f".as_ref()).unwrap()), 1);
        world.cut_power();
        assert_eq!(ones(world.read_file("f".as_ref()).unwrap()), 1);
    }
}

#[test]
fn a_full_disk_and_a_failing_one_say_so() {
    let failing = SimFaults { disk_errno: 1.0, ..SimFaults::default() };
    for (faults, capacity_bytes, expected) in
        [(SimFaults::default(), 10, [Ok(10), Err(libc::ENOSPC)]), (failing, 1 << 20, [Err(libc::EIO), Err(libc::EIO)])]
    {
        let world = world(1, faults);
        world.set_disk(SimDisk { capacity_bytes, ..SimDisk::default() });
        let mut ring = SimRing::new(&world);
        let file = ring.open("f".as_ref(), &NEW).unwrap();
        for (nth, expected) in expected.into_iter().enumerate() {
            assert_eq!(write(&world, &mut ring, file, 10 * nth as u64, &[7; 16]), expected);
        }
        assert_eq!(world.counts().disk_errnos, if faults == failing { 2 } else { 0 });
        let refused = ring.open("g".as_ref(), &FileOptions { len: Some(1 << 21), ..NEW }).unwrap_err();
        assert!(refused.to_string().contains("opening g"), "{refused}");
    }
}

/// One directory fails and the other does not; what fails is what the failure is about; and it can end.
#[test]
fn a_directory_fails_alone_and_as_it_is_told_to() {
    let world = world(3, SimFaults::default());
    let mut ring = SimRing::new(&world);
    let (bad, good): (&Path, &Path) = ("bad/f".as_ref(), "good/f".as_ref());
    let files = [bad, good].map(|path| ring.open(path, &FileOptions { len: Some(64), ..NEW }).unwrap());
    for (nth, (reads, writes)) in [
        (Some(libc::EIO), None),
        (None, Some(libc::ENOSPC)),
        (None, Some(libc::EROFS)),
        (Some(libc::EIO), Some(libc::EIO)),
        (None, None),
    ]
    .into_iter()
    .enumerate()
    {
        world.fail_disk("bad".as_ref(), SimDiskFailure { reads, writes });
        let expected = |errno: Option<i32>| errno.map_or(Ok(64), Err);
        for (file, reads, writes) in [(files[0], reads, writes), (files[1], None, None)] {
            assert_eq!(read(&world, &mut ring, file, 64).map(|bytes| bytes.len()), expected(reads));
            assert_eq!(write(&world, &mut ring, file, 0, &[1; 64]), expected(writes));
            let sync = one(&world, &mut ring, Op::SyncData { file }).result;
            assert_eq!(sync, if writes == Some(libc::EIO) { Err(libc::EIO) } else { Ok(0) });
        }
        let opens = |ring: &mut SimRing, path: &str, options: FileOptions| {
            ring.open(path.as_ref(), &options).map(|file| ring.close_file(file)).is_ok()
        };
        assert!(opens(&mut ring, "bad/f", FileOptions::default()), "reading is not writing");
        assert_eq!(opens(&mut ring, "bad/f", NEW), writes != Some(libc::EROFS));
        assert_eq!(opens(&mut ring, &format!("bad/new-{nth}"), NEW), writes.is_none());
        assert_eq!(world.read_file(bad).is_ok(), reads.is_none());
        assert_eq!(world.write_file("bad/g".as_ref(), b"x").is_ok(), writes.is_none());
        assert!(opens(&mut ring, "good/new", NEW) && world.write_file("good/g".as_ref(), b"x").is_ok());
    }
}
