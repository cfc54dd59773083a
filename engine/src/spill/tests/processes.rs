//! Two processes and one directory: a child owns, is killed, and is inherited from.

use std::io::{BufRead, BufReader, Write as _};
use std::process::{Child, Command, Stdio};

use tempfile::tempdir;

use super::super::{SegmentState, list_cache};
use super::*;

/// Tells a child which directory to keep blocks in.
const CHILD: &str = "FUELRAIL_TEST_SPILL_CHILD";

/// Not a test by itself: what the child does. It makes segments, keeps blocks in all but the last, says so, and waits.
#[test]
fn a_child_that_keeps_blocks() {
    let Some(path) = std::env::var_os(CHILD) else { return };
    let (objects, told) = (objects("e"), Told::default());
    let mut work = work(&[Path::new(&path)], 1, 3, &told);
    let mut made = 0;
    while let Some(file) = work.another() {
        if made < 2 {
            spill(&file.path, &objects, &blocks(&objects, 10 + made), 4096, 0);
        }
        made += 1;
    }
    writeln!(std::io::stdout(), "\nchild made {made}").unwrap();
    std::thread::sleep(std::time::Duration::from_secs(300));
}

/// A child, and how many segments it says it made.
fn child(path: &Path) -> (Child, u32) {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "spill::tests::processes::a_child_that_keeps_blocks", "--nocapture", "--test-threads=1"])
        .env(CHILD, path)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let told = lines.map_while(Result::ok).find_map(|line| line.strip_prefix("child made ")?.parse().ok());
    (child, told.expect("the child says what it made"))
}

#[test]
fn a_killed_owners_segments_are_taken_over_and_its_room_is_not_lost() {
    let scratch = tempdir().unwrap();
    let objects = objects("e");
    let (mut owner, made) = child(scratch.path());
    assert_eq!(made, 3);
    let states = || -> Vec<SegmentState> {
        list_cache(scratch.path()).unwrap().segments.iter().map(|segment| segment.state).collect()
    };
    assert_eq!(states(), [SegmentState::Owned; 3]);
    let told = Told::default();
    let mut ours = work(&[scratch.path()], 1, 3, &told);
    let found = recovered(&mut ours, &objects, 1).remove(0);
    assert_eq!(found.len(), 2, "blocks of the living are read");
    assert!(found.iter().all(|(file, _)| file.mount == fuelrail_plan::spill::Mount::Foreign));
    assert!(ours.another().is_none(), "the limit is both processes'");
    // A second process of the same kind finds no room either.
    let (mut second, made) = child(scratch.path());
    assert_eq!(made, 0);
    for process in [&mut owner, &mut second] {
        process.kill().unwrap();
        process.wait().unwrap();
    }
    assert_eq!(states(), [SegmentState::Free; 3]);
    drop(ours);
    let mut heir = work(&[scratch.path()], 1, 3, &told);
    let found = recovered(&mut heir, &objects, 1).remove(0);
    assert_eq!(found.len(), 2);
    assert!(found.iter().all(|(file, _)| file.mount != fuelrail_plan::spill::Mount::Foreign));
    assert_eq!(states(), [SegmentState::Owned; 2], "the one without blocks is removed");
    assert!(heir.another().is_some() && heir.another().is_none() && told.lines().is_empty(), "{:?}", told.lines());
}
