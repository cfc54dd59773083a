//! Segments and what looks like them: only the former are believed, changed or removed.

use std::fs::File;
use std::os::unix::fs::{MetadataExt, symlink};

use fuelrail_wire::block::{SegmentHeader, SegmentName};
use tempfile::tempdir;

use super::super::directory::{Named, Segment, Unfit};
use super::super::{SegmentState, list_cache, remove_cache, verify_cache};
use super::*;

const ID: u128 = 0xabcdef;

fn name(new: bool) -> String {
    SegmentName { id: ID, new }.to_string()
}

fn header() -> SegmentHeader {
    SegmentHeader { id: ID, len: MIB, unit: 4096, created_s: 1 }
}

#[test]
fn a_segment_is_made_whole_and_owned() {
    let scratch = tempdir().unwrap();
    let path = scratch.path().join("cache");
    let directory = open(&path);
    let tag = fs::read_to_string(directory.own.path().join("CACHEDIR.TAG")).unwrap();
    assert!(tag.starts_with("Signature: 8a477f597d28d172789f06886806bc55"), "{tag}");
    let owned = directory.make(MIB).unwrap().expect("there is room");
    assert_eq!(names(&path), [owned.0.named.path()]);
    let [named] = super::super::directory::named(&directory.own).unwrap().try_into().unwrap();
    assert_eq!((named.len, named.name.new), (MIB, false));
    let segment = Segment::open(&named).unwrap();
    assert_eq!(segment.header, owned.0.header);
    let facts = fs::metadata(named.path()).unwrap();
    assert!(facts.blocks() * 512 >= MIB && facts.mode() & 0o777 == 0o600, "its room is taken, and it is private");
    assert!(segment.is_owned().unwrap() && segment.try_own().unwrap().is_none(), "two owners");
    drop(owned);
    assert!(!segment.is_owned().unwrap());
    let again = segment.try_own().unwrap().expect("its owner is gone");
    again.remove().unwrap();
    assert!(names(&path).is_empty() && segment.try_own().unwrap().is_none());
    assert_eq!(segment.scan().unwrap().records, [], "what is open stays readable");
    let mut said = Vec::new();
    let absent = Directory::open(&scratch.path().join("no/such"), &mut said).unwrap_err().to_string();
    let parent = format!("{} does not exist", scratch.path().join("no").display());
    assert!(
        absent.contains(&parent) && absent.contains("no/such"),
        "a mount point that is missing is not filled in: {absent}"
    );
    let file = scratch.path().join("file");
    fs::write(&file, "").unwrap();
    for path in [file.clone(), file.join("below")] {
        let error = Directory::open(&path, &mut said).unwrap_err().to_string();
        assert!(error.contains(&format!("{} is a file, not a directory", file.display())), "{error}");
    }
    let made = scratch.path().join("made");
    for _ in 0..2 {
        Directory::open(&made, &mut said).unwrap();
    }
    assert_eq!(said, [format!("spill_dirs: made {}", made.display())], "once");
}

/// Every kind of look-alike, through everything that opens, recovers, makes room, lists, verifies and removes.
#[test]
fn what_is_not_named_as_a_segment_is_left_alone_and_what_only_is_goes_when_it_is_removed() {
    let scratch = tempdir().unwrap();
    let (given, elsewhere) = (scratch.path().join("cache"), scratch.path().join("elsewhere"));
    let own = open(&given).own;
    let path = own.path();
    fs::write(&elsewhere, header().encode()).unwrap();
    File::options().write(true).open(&elsewhere).unwrap().set_len(MIB).unwrap();
    let other = |id: u128, ending: &str| path.join(format!("fuelrail-{id:032x}.{ending}"));
    let files: Vec<(PathBuf, Vec<u8>)> = vec![
        (path.join("photo.jpg"), b"a photo".to_vec()),
        (path.join(name(false).to_uppercase()), header().encode().to_vec()),
        (path.join(format!("{}~", name(false))), header().encode().to_vec()),
        (path.join("fuelrail-abc.segment"), header().encode().to_vec()),
        (other(1, "segment"), b"a text of somebody's".to_vec()),
        (other(2, "segment"), [header().encode().to_vec(), vec![0; MIB as usize - PAGE_BYTES]].concat()),
        (other(3, "segment"), SegmentHeader { id: 3, ..header() }.encode().to_vec()),
        (other(4, "segment"), vec![0; MIB as usize]),
        (other(5, "new"), b"a text of somebody's".to_vec()),
        (other(6, "new"), SegmentHeader { id: 7, ..header() }.encode().to_vec()),
    ];
    for (path, bytes) in &files {
        fs::write(path, bytes).unwrap();
    }
    symlink(&elsewhere, path.join(name(false))).unwrap();
    symlink(&elsewhere, path.join(name(true))).unwrap();
    fs::create_dir(other(8, "segment")).unwrap();
    let before = names(&given);
    let told = Told::default();
    let mut first = work(&[&given], 1, 0, &told);
    assert_eq!(recovered(&mut first, &objects("e"), 1)[0].len(), 0);
    assert!(first.another(true).is_some());
    first.leave();
    assert_eq!(names(&given), before);
    let lines = told.lines();
    let says = |what: &str| lines.len() == 1 && lines[0].contains(what);
    assert!(says("4 of the files") && says("fuelrail cache rm"), "{lines:?}");
    let listed = list_cache(&given).unwrap();
    assert!(listed.segments.iter().all(|s| matches!(s.state, SegmentState::Unfit | SegmentState::New)), "{listed:?}");
    verify_cache(&given, |verdict| {
        assert!(verdict.flaw.is_some() && verdict.sound == 0, "{verdict:?}");
        Ok(())
    })
    .unwrap();
    let only_named: Vec<PathBuf> = (1..=4).map(|id| other(id, "segment")).collect();
    let held = File::options().write(true).open(&only_named[3]).unwrap();
    assert!(fuelrail_io::try_lock(&held, &only_named[3]).unwrap());
    let removed = remove_cache(&given, false).unwrap();
    assert_eq!((removed.removed, removed.owned), (only_named[..3].to_vec(), only_named[3..].to_vec()));
    assert_eq!(remove_cache(&given, true).unwrap().removed, only_named[3..]);
    let left: Vec<PathBuf> = before.into_iter().filter(|path| !only_named.contains(path)).collect();
    assert_eq!(names(&given), left);
    for (path, bytes) in files.iter().filter(|(path, _)| !only_named.contains(path)) {
        assert_eq!(&fs::read(path).unwrap(), bytes, "{} was changed", path.display());
    }
    assert_eq!(fs::read(&elsewhere).unwrap()[..PAGE_BYTES], header().encode());
}

/// What counts against the limit and is of no use goes before anything that is.
#[test]
fn a_segment_that_was_cut_short_makes_room_first() {
    let (scratch, told) = (tempdir().unwrap(), Told::default());
    let [older, cut] = [0..5, 5..10].map(|samples| super::keeping::left_behind(scratch.path(), &objects("a"), samples));
    let file = File::options().write(true).open(&cut).unwrap();
    file.set_len(MIB / 2).unwrap();
    let mut work = work(&[scratch.path()], 1, 2, &told);
    assert!(fuelrail_io::try_lock(&file, &cut).unwrap() && work.another(false).is_none());
    assert!(work.another(true).is_some() && cut.exists() && !older.exists(), "a living process has locked it");
    drop(file);
    assert!(work.another(true).is_some() && !cut.exists());
}

/// New segments whose maker died are removed; those of the living, and other people's, are not.
#[test]
fn what_was_never_finished_is_cleared_when_its_maker_is_dead() {
    let scratch = tempdir().unwrap();
    let (path, own) = (scratch.path(), open(scratch.path()).own);
    let new = |id: u128| own.path().join(SegmentName { id, new: true }.to_string());
    fs::write(new(1), b"").unwrap();
    fs::write(new(2), vec![0; 10_000]).unwrap();
    fs::write(new(3), SegmentHeader { id: 3, ..header() }.encode()).unwrap();
    fs::write(new(4), b"").unwrap();
    let living = File::options().write(true).open(new(4)).unwrap();
    assert!(fuelrail_io::try_lock(&living, &new(4)).unwrap());
    open(path);
    assert_eq!(names(path), [new(4)]);
    drop(living);
    open(path);
    assert!(names(path).is_empty());
}

#[test]
fn a_header_that_does_not_fit_is_not_believed() {
    let scratch = tempdir().unwrap();
    let named = Named { name: SegmentName { id: ID, new: false }, directory: open(scratch.path()).own, len: 0 };
    let path = named.path();
    let flawed = |bytes: &[u8], len: u64| {
        fs::write(&path, bytes).unwrap();
        File::options().write(true).open(&path).unwrap().set_len(len).unwrap();
        match Segment::open(&named) {
            Err(Unfit::Flawed(why)) => why,
            other => panic!("{other:?}"),
        }
    };
    let whole = header().encode();
    let mut torn = whole;
    torn[30] ^= 1;
    assert!(flawed(&torn, MIB).contains("damaged"));
    assert!(flawed(&whole, MIB - 4096).contains("bytes of"), "truncated");
    assert!(flawed(&whole, 4095).contains("shorter"));
    assert!(flawed(&whole, 2 * MIB).contains("bytes of"));
    assert!(flawed(&SegmentHeader { id: 9, ..header() }.encode(), MIB).contains("another segment"));
    fs::write(&path, whole).unwrap();
    File::options().write(true).open(&path).unwrap().set_len(MIB).unwrap();
    assert!(Segment::open(&named).is_ok());
    fs::remove_file(&path).unwrap();
    assert!(matches!(Segment::open(&named), Err(Unfit::Gone)));
}

/// A flipped bit is found by reading, in a block and in a record, and everything else is as sound as before.
#[test]
fn rot_is_found_and_costs_what_it_hit() {
    let scratch = tempdir().unwrap();
    let objects = objects("e");
    let owned = open(scratch.path()).make(MIB).unwrap().unwrap();
    let all: Vec<BlockId> = (0..12).flat_map(|sample| blocks(&objects, sample)).collect();
    spill(&owned.0.named.path(), &objects, &all, 4096, 0);
    let verdict = || {
        let mut all = Vec::new();
        verify_cache(scratch.path(), |verdict| {
            all.push((verdict.sound, verdict.rotten, verdict.damaged_records));
            assert!(verdict.flaw.is_none(), "{verdict:?}");
            Ok(())
        })
        .unwrap();
        let [verdict] = all.try_into().unwrap();
        verdict
    };
    let n = all.len() as u64;
    assert_eq!(verdict(), (n, 0, 0));
    let file = File::options().read(true).write(true).open(owned.0.named.path()).unwrap();
    let flip = |at: u64| {
        let mut byte = [0];
        file.read_exact_at(&mut byte, at).unwrap();
        file.write_all_at(&[byte[0] ^ 4], at).unwrap();
    };
    flip(4096 + 500);
    assert_eq!(verdict(), (n - 1, 1, 0));
    flip(MIB - 4096 + 5 * 64 + 17);
    assert_eq!(verdict(), (n - 2, 1, 1));
    let [segment] = list_cache(scratch.path()).unwrap().segments.try_into().unwrap();
    assert_eq!((segment.state, segment.blocks, segment.damaged_records), (SegmentState::Owned, n - 1, 1));
    flip(100 + 4096 * 200);
    assert_eq!(verdict(), (n - 2, 1, 1), "where nothing is, nothing rots");
}

#[test]
fn a_damaged_block_is_told_of_once_and_not_found_again() {
    let (scratch, objects, told) = (tempdir().unwrap(), objects("e"), Told::default());
    let path = super::keeping::left_behind(scratch.path(), &objects, 0..20);
    let mut first = work(&[scratch.path()], 1, 0, &told);
    let (file, known) = recovered(&mut first, &objects, 1).remove(0).remove(0);
    let disk = File::options().write(true).open(&path).unwrap();
    for rotten in [known[3], known[7], known[3]] {
        disk.write_all_at(b"rot", rotten.place).unwrap();
        first.rotten(file.key, rotten.place);
    }
    let lines = told.lines();
    assert!(lines.len() == 1 && lines[0].contains("is not what was written"), "{lines:?}");
    drop(first);
    verify_cache(scratch.path(), |verdict| {
        assert_eq!((verdict.sound, verdict.rotten, verdict.damaged_records), (known.len() as u64 - 2, 0, 0));
        Ok(())
    })
    .unwrap();
    let mut next = work(&[scratch.path()], 1, 0, &told);
    let left: Vec<BlockId> = recovered(&mut next, &objects, 1)[0][0].1.iter().map(|known| known.block).collect();
    assert!(left.len() == known.len() - 2 && !left.contains(&known[3].block), "{left:?}");
}

#[test]
fn removing_spares_the_living_unless_it_is_forced() {
    let scratch = tempdir().unwrap();
    let directory = open(scratch.path());
    let (living, dead) = (directory.make(MIB).unwrap().unwrap(), directory.make(MIB).unwrap().unwrap());
    let (living_path, dead_path) = (living.0.named.path(), dead.0.named.path());
    drop(dead);
    let mine = directory.own.path().join("mine");
    fs::write(&mine, "x").unwrap();
    let first = remove_cache(scratch.path(), false).unwrap();
    assert_eq!((first.removed, first.removed_bytes, first.owned), (vec![dead_path], MIB, vec![living_path.clone()]));
    let forced = remove_cache(scratch.path(), true).unwrap();
    assert_eq!((forced.removed, forced.owned.len()), (vec![living_path], 0));
    assert_eq!(names(scratch.path()), std::slice::from_ref(&mine));
    assert!(!living.is_in_place());
    living.remove().unwrap();
    for absent in [mine, scratch.path().join("absent")] {
        let refused = remove_cache(&absent, false).unwrap_err();
        assert!(refused.to_string().contains("is not a directory"), "{refused}");
    }
}
