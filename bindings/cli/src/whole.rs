//! Files that are either whole or not there: written beside their place, moved into it at the end.
//!
//! Owns the half-written file until then, and removes it when the writing stops early or a signal ends the process. What is not a
//! regular file (a pipe, a device) is written directly: moving a file onto it would replace it.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use tempfile::{Builder, NamedTempFile};

use crate::failure::{Outcome, file};

/// A file being written.
#[derive(Debug)]
pub struct WholeFile {
    path: PathBuf,
    to: To,
}

#[derive(Debug)]
enum To {
    /// Beside its place until the end.
    Beside(NamedTempFile<(File, Unfinished)>),
    Place(File),
}

/// The name of a half-written file, known for as long as it is one: by it a thread that ends the process removes the file.
#[derive(Debug)]
struct Unfinished(PathBuf);

impl Unfinished {
    fn all() -> MutexGuard<'static, BTreeSet<PathBuf>> {
        static ALL: Mutex<BTreeSet<PathBuf>> = Mutex::new(BTreeSet::new());
        ALL.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Unfinished {
    fn drop(&mut self) {
        Unfinished::all().remove(&self.0);
    }
}

/// Removes what is half written, before a process ends that does not come to do so.
pub(crate) fn remove_unfinished() {
    for path in Unfinished::all().iter() {
        let _ = fs::remove_file(path);
    }
}

impl WholeFile {
    /// Starts a file that will be at `path`, replacing what is there.
    pub fn create(path: &Path) -> Outcome<WholeFile> {
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
        WholeFile::within(folder, path)
    }

    /// As `create`, but for folders that are not there: they are made once the file is whole.
    pub fn create_below(path: &Path) -> Outcome<WholeFile> {
        WholeFile::within(path.ancestors().skip(1).find(|folder| folder.exists()), path)
    }

    /// Half written in `folder`, or the working directory.
    fn within(folder: Option<&Path>, path: &Path) -> Outcome<WholeFile> {
        let special = fs::metadata(path).is_ok_and(|there| !there.is_file());
        let opened = if special {
            File::options().write(true).open(path).map(To::Place)
        } else {
            // Opened here: with the permissions of any new file, and errors that do not name the scratch file. Listings leave it out by this name.
            let create = |part: &Path| -> io::Result<_> {
                Unfinished::all().insert(part.to_owned());
                let (known, file) = (Unfinished(part.to_owned()), File::create_new(part)?);
                Ok((file, known))
            };
            Builder::new()
                .prefix(".fuelrail-")
                .suffix(".part")
                .make_in(folder.unwrap_or(Path::new(".")), create)
                .map(To::Beside)
        };
        let to = opened.map_err(|error| file("writing", path, &error))?;
        Ok(WholeFile { path: path.to_owned(), to })
    }

    /// A file of this text, at once.
    pub fn of(path: &Path, text: &str) -> Outcome<()> {
        let mut whole = WholeFile::create(path)?;
        whole.write_all(text.as_bytes()).map_err(|error| file("writing", path, &error))?;
        whole.finish()
    }

    /// Puts the file in its place.
    pub fn finish(self) -> Outcome<()> {
        match self.to {
            To::Beside(part) => {
                let made = self.path.parent().map_or(Ok(()), fs::create_dir_all);
                let placed = made.and_then(|()| part.persist(&self.path).map(drop).map_err(|failed| failed.error));
                placed.map_err(|error| file("writing", &self.path, &error))
            }
            To::Place(_) => Ok(()),
        }
    }
}

impl Write for WholeFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match &mut self.to {
            To::Beside(part) => part.as_file_mut().0.write(bytes),
            To::Place(file) => file.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::failure::Failure;

    #[test]
    fn a_file_is_whole_or_not_there() {
        let dir = tempfile::tempdir().unwrap();
        // As long as a name may be.
        let path = dir.path().join("o".repeat(255));
        let mut early = WholeFile::create(&path).unwrap();
        early.write_all(b"half").unwrap();
        drop(early);
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0, "what stopped early leaves nothing");
        for text in ["first", "second"] {
            let mut whole = WholeFile::create(&path).unwrap();
            whole.write_all(text.as_bytes()).unwrap();
            whole.finish().unwrap();
            assert_eq!(fs::read_to_string(&path).unwrap(), text);
        }
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
        let refused = WholeFile::create(&dir.path().join("no/folder")).unwrap_err();
        assert!(matches!(&refused, Failure::Error(error) if !error.to_string().contains(".part")), "{refused:?}");
        assert!(WholeFile::create(dir.path()).is_err(), "a folder is not written to");
    }

    #[test]
    fn folders_are_made_for_what_is_whole() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a/b/c");
        let early = WholeFile::create_below(&path).unwrap();
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1, "it is written beside what is there");
        drop(early);
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
        WholeFile::create_below(&path).unwrap().finish().unwrap();
        assert!(path.is_file() && fs::read_dir(dir.path()).unwrap().count() == 1);
        assert!(WholeFile::create_below(&path.join("d/e")).is_err(), "a file is in the way, which is told at once");
    }

    #[test]
    fn nothing_is_written_through_a_link_and_two_at_once_do_not_mix() {
        let dir = tempfile::tempdir().unwrap();
        let (path, victim) = (dir.path().join("out.bin"), dir.path().join("victim"));
        fs::write(&victim, "its own").unwrap();
        std::os::unix::fs::symlink(&victim, dir.path().join("out.bin.part")).unwrap();
        let mut both = [WholeFile::create(&path).unwrap(), WholeFile::create(&path).unwrap()];
        both[0].write_all(b"longer").unwrap();
        both[1].write_all(b"short").unwrap();
        assert_eq!(fs::read_to_string(&victim).unwrap(), "its own");
        for (whole, text) in both.into_iter().zip(["longer", "short"]) {
            whole.finish().unwrap();
            assert_eq!(fs::read_to_string(&path).unwrap(), text);
        }
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 3);
    }

    #[test]
    fn what_is_half_written_is_known_by_name() {
        let dir = tempfile::tempdir().unwrap();
        let known = || Unfinished::all().iter().filter(|path| path.starts_with(dir.path())).count();
        let (early, whole) = (WholeFile::create(&dir.path().join("a")), WholeFile::create(&dir.path().join("b")));
        assert_eq!((known(), fs::read_dir(dir.path()).unwrap().count()), (2, 2));
        drop(early);
        whole.unwrap().finish().unwrap();
        assert_eq!((known(), fs::read_dir(dir.path()).unwrap().count()), (0, 1));
    }

    #[test]
    fn devices_stay_devices() {
        let mut null = WholeFile::create(Path::new("/dev/null")).unwrap();
        null.write_all(b"gone").unwrap();
        null.finish().unwrap();
        assert!(!fs::metadata("/dev/null").unwrap().is_file());
    }
}
