//! Files that are either whole or not there: written beside their place, moved into it at the end.
//!
//! Owns the half-written file until then, and removes it when the writing stops early. What is not a regular file (a pipe,
//! a device) is written directly: moving a file onto it would replace it.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process;

use crate::failure::{Outcome, file};

/// A file being written.
#[derive(Debug)]
pub struct WholeFile {
    file: File,
    path: PathBuf,
    /// Where the bytes are until the end; `None` when they go to their place at once.
    part: Option<PathBuf>,
}

impl WholeFile {
    /// Starts a file that will be at `path`, replacing what is there.
    pub fn create(path: &Path) -> Outcome<WholeFile> {
        let special = fs::metadata(path).is_ok_and(|there| !there.is_file());
        let opened = if special {
            File::options().write(true).open(path).map(|file| (file, None))
        } else {
            create_beside(path).map(|(file, part)| (file, Some(part)))
        };
        let (file, part) = opened.map_err(|error| file("writing", path, &error))?;
        Ok(WholeFile { file, path: path.to_owned(), part })
    }

    /// A file of this text, at once.
    pub fn of(path: &Path, text: &str) -> Outcome<()> {
        let mut whole = WholeFile::create(path)?;
        whole.write_all(text.as_bytes()).map_err(|error| file("writing", path, &error))?;
        whole.finish()
    }

    /// Puts the file in its place.
    pub fn finish(mut self) -> Outcome<()> {
        let Some(part) = self.part.take() else { return Ok(()) };
        fs::rename(&part, &self.path).map_err(|error| {
            let _ = fs::remove_file(&part); // already failing: the first error is the one to tell
            file("writing", &self.path, &error)
        })
    }
}

/// Creates a new file beside `path`, under a name that no file or link has yet.
fn create_beside(path: &Path) -> io::Result<(File, PathBuf)> {
    let mut outcome = Err(io::ErrorKind::AlreadyExists.into());
    for attempt in 0..1000 {
        let part = path.with_added_extension(format!("part-{}-{attempt}", process::id()));
        outcome = File::create_new(&part).map(|file| (file, part));
        if !outcome.as_ref().is_err_and(|error| error.kind() == io::ErrorKind::AlreadyExists) {
            break;
        }
    }
    outcome
}

impl Write for WholeFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.file.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

impl Drop for WholeFile {
    fn drop(&mut self) {
        if let Some(part) = self.part.take() {
            let _ = fs::remove_file(part); // nobody to tell: the error that stopped the writing is already on its way
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_whole_or_not_there() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("out.bin");
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
        assert!(WholeFile::create(&dir.path().join("no/folder")).is_err());
        assert!(WholeFile::create(dir.path()).is_err(), "a folder is not written to");
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
    fn devices_stay_devices() {
        let mut null = WholeFile::create(Path::new("/dev/null")).unwrap();
        null.write_all(b"gone").unwrap();
        null.finish().unwrap();
        assert!(!fs::metadata("/dev/null").unwrap().is_file());
    }
}
