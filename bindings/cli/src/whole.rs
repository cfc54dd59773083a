//! Files that are either whole or not there: written beside their place, moved into it at the end.
//!
//! Owns the half-written file until then, and removes it when the writing stops early. What is not a regular file (a pipe,
//! a device) is written directly: moving a file onto it would replace it.

use std::fs::{self, File, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

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
    Beside(NamedTempFile),
    Place(File),
}

impl WholeFile {
    /// Starts a file that will be at `path`, replacing what is there.
    pub fn create(path: &Path) -> Outcome<WholeFile> {
        let special = fs::metadata(path).is_ok_and(|there| !there.is_file());
        let opened = if special {
            File::options().write(true).open(path).map(To::Place)
        } else {
            let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
            // What any new file may have, less the process's mask; a scratch file is its owner's alone.
            let anybody = Permissions::from_mode(0o666);
            Builder::new().prefix(".fuelrail-").suffix(".part").permissions(anybody).tempfile_in(folder).map(To::Beside)
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
                part.persist(&self.path).map(drop).map_err(|failed| file("writing", &self.path, &failed.error))
            }
            To::Place(_) => Ok(()),
        }
    }
}

impl Write for WholeFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match &mut self.to {
            To::Beside(part) => part.write(bytes),
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
