//! Checks of files that operations open and examine: they are what was written, and no descriptor is lost.

use std::path::Path;

use fuelrail_base::limits::RING_FILES_MAX;

use super::files::NEW;
use super::fixture::{Fixture, Harness};
use crate::ring::file::{FileFacts, FileMark, FileOptions, Opening};
use crate::ring::{FileId, Op, Ring};

impl<V: Harness> Fixture<'_, V> {
    /// A file of four bytes, closed.
    fn kept_file(&mut self) -> std::path::PathBuf {
        let path = self.harness.file();
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
    let path = path.to_str().expect("the harness's paths are text");
    Op::Open(Opening::new(path).unwrap())
}

pub(super) fn a_file_is_marked_by_what_was_written<V: Harness>(fixture: &mut Fixture<'_, V>) {
    let path = fixture.harness.file();
    let file = fixture.ring.open(&path, &NEW).unwrap();
    fixture.write_all(file, 0, &super::files::content(1, 1_000));
    let again = fixture.ring.open(&path, &FileOptions::default()).unwrap();
    let (mark, same) = (fixture.examined(file), fixture.examined(again));
    assert!(
        mark == same && mark.is_ok_and(|(mark, regular)| mark.len == 1_000 && regular),
        "one file, two marks: {mark:?}, {same:?}"
    );
    fixture.write_all(file, 1_000, b"more");
    let longer = fixture.examined(again);
    assert!(longer != mark && longer.is_ok_and(|(mark, _)| mark.len == 1_004), "a longer file is marked {longer:?}");
    let path = fixture.harness.file();
    let other = fixture.ring.open(&path, &NEW).unwrap();
    fixture.write_all(other, 0, &super::files::content(1, 1_000));
    assert!(fixture.examined(other) != mark, "two files have one mark");
    fixture.ring.close_file(file);
    assert!(fixture.examined(file) == Err(libc::EBADF), "a closed file is examined");
}

pub(super) fn an_operation_opens_a_file_and_examines_it<V: Harness>(fixture: &mut Fixture<'_, V>) {
    let missing = fixture.harness.file();
    let refused = fixture.open_by(&missing);
    assert!(refused == Err(libc::ENOENT), "a missing file: {refused:?}");
    let path = fixture.kept_file();
    let file = fixture.open_by(&path).expect("opening");
    let facts = fixture.examined(file);
    assert!(facts.is_ok_and(|(mark, regular)| mark.len == 4 && regular), "{facts:?}");
    assert!(fixture.read_all(file, 0, 100) == b"kept", "the bytes differ");
    fixture.ring.close_file(file);
    let closed = fixture.examined(file);
    assert!(closed == Err(libc::EBADF), "a closed file: {closed:?}");
}

pub(super) fn an_opening_is_cancelled_or_done<V: Harness>(fixture: &mut Fixture<'_, V>) {
    let path = fixture.kept_file();
    for iterations in 0..3 {
        let ids = [(); 4].map(|()| fixture.push(opening(&path)));
        for _ in 0..iterations {
            fixture.look();
        }
        for id in ids {
            fixture.ring.cancel(id.1);
        }
        for _ in 0..4 {
            let done = fixture.next();
            let Op::Open(opening) = done.op else { panic!("an opening came back as something else") };
            match (done.result, opening.file()) {
                (Ok(0), Some(file)) => fixture.ring.close_file(file),
                (Err(libc::ECANCELED), None) => {}
                other => panic!("a cancelled opening: {other:?}"),
            }
        }
    }
}

pub(super) fn openings_run_out_of_files<V: Harness>(fixture: &mut Fixture<'_, V>) {
    let path = fixture.kept_file();
    let mut files = Vec::new();
    for _ in 0..RING_FILES_MAX {
        files.push(fixture.open_by(&path).expect("opening"));
    }
    let refused = fixture.open_by(&path);
    assert!(refused == Err(libc::EMFILE), "one file more than there are places for: {refused:?}");
    fixture.ring.close_file(files.pop().expect("there are some"));
    fixture.step();
    let again = fixture.open_by(&path);
    assert!(again.is_ok(), "a place came free: {again:?}");
    files.into_iter().for_each(|file| fixture.ring.close_file(file));
}

pub(super) fn dropped_over_openings_no_file_stays_open<V: Harness>(harness: &mut V) {
    for iterations in 0..3 {
        let mut fixture = Fixture::new(harness, 16);
        let path = fixture.kept_file();
        for _ in 0..8 {
            fixture.push(opening(&path));
        }
        for _ in 0..iterations {
            fixture.look();
        }
        drop(fixture);
        let open = std::fs::read_dir("/proc/self/fd").into_iter().flatten().flatten();
        let left = open.filter(|fd| std::fs::read_link(fd.path()).is_ok_and(|to| to == path)).count();
        assert!(left == 0, "{left} descriptors stay open");
    }
}
