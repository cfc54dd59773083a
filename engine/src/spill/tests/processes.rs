//! Two processes and one directory: a child owns, is killed, and is inherited from; and a child that may open few files.

use std::fs::File;
use std::io::{BufRead, BufReader, Write as _};
use std::process::{Child, Command, Stdio};

use fuelrail_base::{Error, Kind};
use fuelrail_plan::spill::Mount;
use tempfile::tempdir;

use super::super::{SegmentState, list_cache};
use super::keeping::left_behind;
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
    while let Some(file) = work.another(true) {
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
    assert!(found.iter().all(|(file, _)| file.mount == Mount::Foreign));
    assert!(ours.another(true).is_none(), "the limit is both processes'");
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
    assert!(found.iter().all(|(file, _)| file.mount != Mount::Foreign));
    assert_eq!(states(), [SegmentState::Owned; 2], "the one without blocks is removed");
    assert!(
        heir.another(true).is_some() && heir.another(true).is_none() && told.lines().is_empty(),
        "{:?}",
        told.lines()
    );
}

/// Runs a child of this file on a directory, behind a command of the shell that limits it. It has to pass.
fn passes_under(limit: &str, child: &str, directory: &Path) {
    let run = format!("{limit} && exec \"$0\" --exact \"$1\" --nocapture --test-threads=1");
    let child = Command::new("sh")
        .args(["-c", &run])
        .arg(std::env::current_exe().unwrap())
        .arg(format!("spill::tests::processes::{child}"))
        .env(CHILD, directory)
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&child.stdout);
    assert!(child.status.success() && said.contains("1 passed"), "{said}{}", String::from_utf8_lossy(&child.stderr));
}

/// Not a test by itself: what the child does. Of 48 files a quarter are segments, it can open others, and where it cannot, the
/// directory is not at fault.
#[test]
fn a_child_with_few_files() {
    let Some(path) = std::env::var_os(CHILD) else { return };
    let (objects, told) = (objects("e"), Told::default());
    let mut work = work(&[Path::new(&path)], 1, 0, &told);
    let found = recovered(&mut work, &objects, 1).remove(0);
    let owned: Vec<u64> =
        found.iter().filter(|(file, _)| file.mount != Mount::Foreign).map(|(file, _)| file.key).collect();
    assert_eq!((found.len(), owned.len(), told.lines()), (40, 12, vec![]));
    assert!(work.another(true).is_none() && !work.stock(), "one must be trimmed first");
    work.trim(owned[0]);
    assert!(work.another(true).is_some() && work.another(true).is_none());
    let others: Vec<File> = core::iter::from_fn(|| File::open("/dev/null").ok()).collect();
    assert!(others.len() > 20, "{} files are left to the program", others.len());
    work.trim(owned[1]);
    assert!(work.another(true).is_none(), "a segment is made with less than it takes");
    work.failed(owned[2], &Error::from_errno(Kind::Environment, "opening a segment", 24));
    drop(others);
    assert!(work.another(true).is_some() && work.another(true).is_some() && work.another(true).is_none());
    let lines = told.lines();
    assert!(lines.len() == 1 && lines[0].contains("ulimit -n"), "{lines:?}");
    assert_eq!((work.facts().directories_failed, work.facts().failures), (0, 2));
}

#[test]
fn few_open_files_are_shared_with_the_program() {
    let (scratch, objects) = (tempdir().unwrap(), objects("e"));
    for sample in 0..40 {
        left_behind(scratch.path(), &objects, sample..sample + 1);
    }
    passes_under("ulimit -n 48", "a_child_with_few_files", scratch.path());
}

/// Not a test by itself: what the child does, whose files may be shorter than any segment. What is there is read, and nothing is made or
/// written to, which would be the child's end.
#[test]
fn a_child_with_short_files() {
    let Some(path) = std::env::var_os(CHILD) else { return };
    let (objects, told) = (objects("e"), Told::default());
    let mut work = work(&[Path::new(&path)], 1, 0, &told);
    let found = recovered(&mut work, &objects, 1).remove(0);
    assert_eq!((found.len(), found[0].0.mount), (1, Mount::Sealed));
    assert!(work.another(true).is_none() && !work.stock());
    let file = File::create(Path::new(&path).join("other")).unwrap();
    let refused = fuelrail_io::preallocate(&file, Path::new("other"), MIB).unwrap_err().to_string();
    assert!(refused.contains("ulimit -f"), "{refused}");
    let lines = told.lines();
    assert!(lines.len() == 1 && lines[0].contains("ulimit -f"), "{lines:?}");
}

#[test]
fn a_limit_of_file_lengths_is_told_of_and_ends_nothing() {
    let (scratch, objects) = (tempdir().unwrap(), objects("e"));
    left_behind(scratch.path(), &objects, 0..20);
    // In units of 512 or of 1024 bytes: less than a MiB.
    passes_under("ulimit -f 1000", "a_child_with_short_files", scratch.path());
}
