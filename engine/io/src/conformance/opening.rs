//! Checks of files that operations open and examine: they are what was written, and no descriptor is lost.

use std::path::Path;

use fuelrail_base::limits::RING_FILES_MAX;

use super::files::NEW;
use super::stage::Stage;
use super::venue::Venue;
use crate::ring::file::{FileMark, FileOptions};
use crate::ring::opening::{FileFacts, Opening};
use crate::ring::{FileId, Op, Ring};

impl<V: Venue> Stage<'_, V> {
    /// A file of four bytes, closed.
    fn kept_file(&mut self) -> std::path::PathBuf {
        let path = self.venue.file();
        let file = self.ring.open(&path, &NEW).unwrap();
        self.write_all(file, 0, b"kept");
        self.ring.close_file(file);
        path
    }

    fn open_by(&mut self, path: &Path) -> Result<FileId, i32> {
        let done = self.run(opening(path));
        let Op::Open(opening) = done.op else { panic!("an opening came back as something else") };
        assert!(opening.path() == path, "another's opening came back");
        assert!(done.result.is_ok() == opening.file().is_some(), "{:?}, and {:?}", done.result, opening.file());
        done.result.map(|_| opening.file().expect("checked above"))
    }

    /// Its mark, and whether it is regular; or the error number.
    fn examined(&mut self, file: FileId) -> Result<(FileMark, bool), i32> {
        let done = self.run(Op::Stat { file, facts: FileFacts::default() });
        let Op::Stat { facts, .. } = done.op else { panic!("facts came back as something else") };
        done.result.map(|_| (facts.mark(), facts.is_regular()))
    }
}

fn opening(path: &Path) -> Op {
    let path = path.to_str().expect("the venue's paths are text");
    Op::Open(Opening::new(path).unwrap())
}

pub(super) fn a_file_is_marked_by_what_was_written<V: Venue>(stage: &mut Stage<'_, V>) {
    let path = stage.venue.file();
    let file = stage.ring.open(&path, &NEW).unwrap();
    stage.write_all(file, 0, &super::files::content(1, 1_000));
    let again = stage.ring.open(&path, &FileOptions::default()).unwrap();
    let (mark, same) = (stage.examined(file), stage.examined(again));
    assert!(
        mark == same && mark.is_ok_and(|(mark, regular)| mark.len == 1_000 && regular),
        "one file, two marks: {mark:?}, {same:?}"
    );
    stage.write_all(file, 1_000, b"more");
    let longer = stage.examined(again);
    assert!(longer != mark && longer.is_ok_and(|(mark, _)| mark.len == 1_004), "a longer file is marked {longer:?}");
    let path = stage.venue.file();
    let other = stage.ring.open(&path, &NEW).unwrap();
    stage.write_all(other, 0, &super::files::content(1, 1_000));
    assert!(stage.examined(other) != mark, "two files have one mark");
    stage.ring.close_file(file);
    assert!(stage.examined(file) == Err(libc::EBADF), "a closed file is examined");
}

pub(super) fn an_operation_opens_a_file_and_examines_it<V: Venue>(stage: &mut Stage<'_, V>) {
    let missing = stage.venue.file();
    let refused = stage.open_by(&missing);
    assert!(refused == Err(libc::ENOENT), "a missing file: {refused:?}");
    let path = stage.kept_file();
    let file = stage.open_by(&path).expect("opening");
    let facts = stage.examined(file);
    assert!(facts.is_ok_and(|(mark, regular)| mark.len == 4 && regular), "{facts:?}");
    assert!(stage.read_all(file, 0, 100) == b"kept", "the bytes differ");
    stage.ring.close_file(file);
    let closed = stage.examined(file);
    assert!(closed == Err(libc::EBADF), "a closed file: {closed:?}");
}

pub(super) fn an_opening_is_cancelled_or_done<V: Venue>(stage: &mut Stage<'_, V>) {
    let path = stage.kept_file();
    for turns in 0..3 {
        let ids = [(); 4].map(|()| stage.push(opening(&path)));
        for _ in 0..turns {
            stage.look();
        }
        for id in ids {
            stage.ring.cancel(id.1);
        }
        for _ in 0..4 {
            let done = stage.next();
            let Op::Open(opening) = done.op else { panic!("an opening came back as something else") };
            match (done.result, opening.file()) {
                (Ok(0), Some(file)) => stage.ring.close_file(file),
                (Err(libc::ECANCELED), None) => {}
                other => panic!("a cancelled opening: {other:?}"),
            }
        }
    }
}

pub(super) fn openings_run_out_of_files<V: Venue>(stage: &mut Stage<'_, V>) {
    let path = stage.kept_file();
    let mut files = Vec::new();
    for _ in 0..RING_FILES_MAX {
        files.push(stage.open_by(&path).expect("opening"));
    }
    let refused = stage.open_by(&path);
    assert!(refused == Err(libc::EMFILE), "one file more than there are places for: {refused:?}");
    stage.ring.close_file(files.pop().expect("there are some"));
    stage.turn();
    let again = stage.open_by(&path);
    assert!(again.is_ok(), "a place came free: {again:?}");
    files.into_iter().for_each(|file| stage.ring.close_file(file));
}

pub(super) fn dropped_over_openings_no_file_stays_open<V: Venue>(venue: &mut V) {
    for turns in 0..3 {
        let mut stage = Stage::new(venue, 16);
        let path = stage.kept_file();
        for _ in 0..8 {
            stage.push(opening(&path));
        }
        for _ in 0..turns {
            stage.look();
        }
        drop(stage);
        let open = std::fs::read_dir("/proc/self/fd").into_iter().flatten().flatten();
        let left = open.filter(|fd| std::fs::read_link(fd.path()).is_ok_and(|to| to == path)).count();
        assert!(left == 0, "{left} descriptors stay open");
    }
}
