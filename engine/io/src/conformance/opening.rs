//! Checks of files that operations open and examine: they are what was written, and no descriptor is lost.

use std::path::Path;

use fuelrail_base::limits::RING_FILES_MAX;

use super::files::NEW;
use super::stage::Stage;
use super::venue::{Check, Venue, Verdict, ensure};
use crate::ring::file::{FileMark, FileOptions};
use crate::ring::opening::{FileFacts, Opening};
use crate::ring::{FileId, Op, Ring};

pub(super) fn checks<V: Venue>() -> Vec<Check<V>> {
    vec![
        ("a file is marked by what was written", a_file_is_marked_by_what_was_written),
        ("an operation opens a file and examines it", an_operation_opens_a_file_and_examines_it),
        ("an opening is cancelled or done", an_opening_is_cancelled_or_done),
        ("openings run out of files", openings_run_out_of_files),
        ("dropped over openings, no file stays open", dropped_over_openings_no_file_stays_open),
    ]
}

impl<V: Venue> Stage<'_, V> {
    /// A file of four bytes, closed.
    fn kept_file(&mut self) -> Result<std::path::PathBuf, String> {
        let path = self.venue.file();
        let file = self.ring.open(&path, &NEW).map_err(|error| error.to_string())?;
        self.write_all(file, 0, b"kept")?;
        self.ring.close_file(file);
        Ok(path)
    }

    fn open_by(&mut self, path: &Path) -> Result<Result<FileId, i32>, String> {
        let (token, _) = self.push(opening(path)?)?;
        let done = self.next()?;
        let Op::Open(opening) = done.op else { return Err("an opening came back as something else".into()) };
        ensure!(done.token == token && opening.path() == path, "another's opening came back");
        ensure!(done.result.is_ok() == opening.file().is_some(), "{:?}, and {:?}", done.result, opening.file());
        Ok(done.result.map(|_| opening.file().expect("checked above")))
    }

    /// Its mark, and whether it is regular; or the error number.
    fn examined(&mut self, file: FileId) -> Result<Result<(FileMark, bool), i32>, String> {
        self.push(Op::Stat { file, facts: FileFacts::default() })?;
        let done = self.next()?;
        let Op::Stat { facts, .. } = done.op else { return Err("facts came back as something else".into()) };
        Ok(done.result.map(|_| (facts.mark(), facts.is_regular())))
    }
}

fn opening(path: &Path) -> Result<Op, String> {
    let path = path.to_str().ok_or("the venue's paths are text")?;
    Opening::new(path).map(Op::Open).map_err(|error| error.to_string())
}

fn a_file_is_marked_by_what_was_written<V: Venue>(venue: &mut V) -> Verdict {
    let mut stage = Stage::new(venue, 16)?;
    let path = stage.venue.file();
    let file = stage.ring.open(&path, &NEW).map_err(|error| error.to_string())?;
    stage.write_all(file, 0, &super::files::content(1, 1_000))?;
    let again = stage.ring.open(&path, &FileOptions::default()).map_err(|error| error.to_string())?;
    let (mark, same) = (stage.examined(file)?, stage.examined(again)?);
    ensure!(
        mark == same && mark.is_ok_and(|(mark, regular)| mark.len == 1_000 && regular),
        "one file, two marks: {mark:?}, {same:?}"
    );
    stage.write_all(file, 1_000, b"more")?;
    let longer = stage.examined(again)?;
    ensure!(longer != mark && longer.is_ok_and(|(mark, _)| mark.len == 1_004), "a longer file is marked {longer:?}");
    let path = stage.venue.file();
    let other = stage.ring.open(&path, &NEW).map_err(|error| error.to_string())?;
    stage.write_all(other, 0, &super::files::content(1, 1_000))?;
    ensure!(stage.examined(other)? != mark, "two files have one mark");
    stage.ring.close_file(file);
    ensure!(stage.examined(file)? == Err(libc::EBADF), "a closed file is examined");
    stage.strike()
}

fn an_operation_opens_a_file_and_examines_it<V: Venue>(venue: &mut V) -> Verdict {
    let mut stage = Stage::new(venue, 16)?;
    let missing = stage.venue.file();
    let refused = stage.open_by(&missing)?;
    ensure!(refused == Err(libc::ENOENT), "a missing file: {refused:?}");
    let path = stage.kept_file()?;
    let file = stage.open_by(&path)?.map_err(|errno| format!("opening: error {errno}"))?;
    let facts = stage.examined(file)?;
    ensure!(facts.is_ok_and(|(mark, regular)| mark.len == 4 && regular), "{facts:?}");
    ensure!(stage.read_all(file, 0, 100)? == b"kept", "the bytes differ");
    stage.ring.close_file(file);
    let closed = stage.examined(file)?;
    ensure!(closed == Err(libc::EBADF), "a closed file: {closed:?}");
    stage.strike()
}

fn an_opening_is_cancelled_or_done<V: Venue>(venue: &mut V) -> Verdict {
    let mut stage = Stage::new(venue, 16)?;
    let path = stage.kept_file()?;
    for turns in 0..3 {
        let ids = [(); 4].map(|()| stage.push(opening(&path)?));
        for _ in 0..turns {
            stage.ring.wait(Some(stage.ring.now())).map_err(|error| error.to_string())?;
        }
        for id in ids {
            stage.ring.cancel(id?.1);
        }
        for _ in 0..4 {
            let done = stage.next()?;
            let Op::Open(opening) = done.op else { return Err("an opening came back as something else".into()) };
            match (done.result, opening.file()) {
                (Ok(0), Some(file)) => stage.ring.close_file(file),
                (Err(libc::ECANCELED), None) => {}
                other => return Err(format!("a cancelled opening: {other:?}")),
            }
        }
    }
    stage.strike()
}

fn openings_run_out_of_files<V: Venue>(venue: &mut V) -> Verdict {
    let mut stage = Stage::new(venue, 16)?;
    let path = stage.kept_file()?;
    let mut files = Vec::new();
    for _ in 0..RING_FILES_MAX {
        files.push(stage.open_by(&path)?.map_err(|errno| format!("opening: error {errno}"))?);
    }
    let refused = stage.open_by(&path)?;
    ensure!(refused == Err(libc::EMFILE), "one file more than there are places for: {refused:?}");
    stage.ring.close_file(files.pop().ok_or("there are some")?);
    stage.turn()?;
    let again = stage.open_by(&path)?;
    ensure!(again.is_ok(), "a place came free: {again:?}");
    files.into_iter().for_each(|file| stage.ring.close_file(file));
    stage.strike()
}

fn dropped_over_openings_no_file_stays_open<V: Venue>(venue: &mut V) -> Verdict {
    for turns in 0..3 {
        let mut stage = Stage::new(venue, 16)?;
        let path = stage.kept_file()?;
        for _ in 0..8 {
            stage.push(opening(&path)?)?;
        }
        for _ in 0..turns {
            stage.ring.wait(Some(stage.ring.now())).map_err(|error| error.to_string())?;
        }
        drop(stage);
        let open = std::fs::read_dir("/proc/self/fd").into_iter().flatten().flatten();
        let left = open.filter(|fd| std::fs::read_link(fd.path()).is_ok_and(|to| to == path)).count();
        ensure!(left == 0, "{left} descriptors stay open");
    }
    Ok(())
}
