//! A page of words that several processes of a machine share through a small file.
//!
//! Owns the mapping, the file behind it and a lock on this process's slot in it. The kernel gives the lock back when the process
//! ends, however it ends, so a slot whose lock is free is free. Knows the first two words and the owner of each slot, not the
//! meaning of the other words.

use core::ops::Range;
use core::sync::atomic::{AtomicU64, Ordering};
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

use fuelrail_base::{Error, Kind, Result};
use rustix::fs::FallocateFlags;
use rustix::io::Errno;

use crate::arena::Mapping;
use crate::directory::OwnDirectory;
use crate::volume::lock;

/// The first word of such a file, and its version.
const MAGIC: u64 = u64::from_le_bytes(*b"fuelpace");
const VERSION: u64 = 1;

/// The layout of the words of a file.
#[derive(Clone, Copy, Debug)]
pub struct Division {
    /// Words in all.
    pub words: usize,
    /// The first slot's first word.
    pub from: usize,
    /// Words of a slot.
    pub slot: usize,
}

/// Words shared with other processes, with this process's own slot.
#[derive(Debug)]
pub struct SharedWords {
    mapping: Mapping,
    slot: usize,
    /// Holds the lock on the slot.
    _file: File,
}

impl SharedWords {
    /// Opens the file of this name in the directory, creates it where there is none, and takes a free slot in it.
    ///
    /// # Errors
    /// `File` when it cannot be opened, created or locked, the disk is full, it is another kind of file, or all slots are taken.
    pub fn open(directory: &OwnDirectory, name: &str, division: Division) -> Result<SharedWords> {
        // Another user could truncate a file of theirs under the mapping, which ends the process.
        let (file, path) = (directory.open_or_make_file(name)?, &directory.path().join(name));
        let bytes = (division.words * size_of::<u64>()) as u64;
        let facts = file.metadata().map_err(|error| failed("looking at", path, &error))?;
        if facts.len() != 0 && facts.len() != bytes {
            return Err(foreign(path));
        }
        reserve(&file, division, bytes)
            .map_err(|error| failed("reserving", path, &error).with_hint("free some space, or use another disk"))?;
        let slots = (division.words - division.from) / division.slot;
        let begins = |slot| division.from + slot * division.slot;
        let slot = (0..slots).find_map(|slot| {
            match lock(&file, bytes_of(begins(slot)..begins(slot + 1)), libc::F_OFD_SETLK, libc::F_WRLCK) {
                Ok(true) => Some(Ok(slot)),
                Ok(false) => None,
                Err(errno) => Some(Err(errno)),
            }
        });
        let slot = match slot {
            Some(Ok(slot)) => slot,
            Some(Err(errno)) => {
                let error = Error::from_errno(Kind::File, &format!("locking {}", path.display()), errno);
                return Err(error.with_hint("use a local file system"));
            }
            None => {
                let cause = format!("{} is shared by {slots} processes already, which is the limit", path.display());
                return Err(Error::new(Kind::File, cause).with_hint("give some of them another directory"));
            }
        };
        let mapping = Mapping::new(bytes as usize, libc::MAP_SHARED, Some(&file))
            .map_err(|error| failed("mapping", path, &error))?;
        let shared = SharedWords { mapping, slot, _file: file };
        shared.sign(division, path)?;
        Ok(shared)
    }

    /// The number of this process's slot.
    pub fn slot(&self) -> usize {
        self.slot
    }

    /// Writes the header of a file that is all zero, or checks it; writes the process id into this process's slot.
    fn sign(&self, division: Division, path: &Path) -> Result<()> {
        let words = self.as_ref();
        for (at, want) in [(0, MAGIC), (1, VERSION)] {
            match words[at].compare_exchange(0, want, Ordering::AcqRel, Ordering::Acquire) {
                Err(found) if found != want => return Err(foreign(path)),
                _ => {}
            }
        }
        words[division.from + self.slot * division.slot].store(u64::from(std::process::id()), Ordering::Relaxed);
        Ok(())
    }
}

impl AsRef<[AtomicU64]> for SharedWords {
    fn as_ref(&self) -> &[AtomicU64] {
        let (base, bytes) = self.mapping.range();
        // SAFETY: the mapping has so many words, page-aligned, and lives until this value is dropped, which outlives
        // the borrow. Other processes write to it as to atomics.
        unsafe { core::slice::from_raw_parts(base.cast(), bytes / size_of::<u64>()) }
    }
}

/// Allocates the file's length and all its blocks: a store into a mapping whose block the disk has no room for ends the process
/// with SIGBUS. Changes no existing byte.
fn reserve(file: &File, division: Division, bytes: u64) -> io::Result<()> {
    match rustix::fs::fallocate(file, FallocateFlags::empty(), 0, bytes) {
        Err(Errno::OPNOTSUPP | Errno::NOSYS) => {}
        reserved => return Ok(reserved?),
    }
    // One of the processes that find it empty writes the zeroes, before any of them stores a word. The lock on the first words
    // ends with the write, or with the process.
    lock(file, bytes_of(0..division.from), libc::F_OFD_SETLKW, libc::F_WRLCK).map_err(io::Error::from_raw_os_error)?;
    let written = match file.metadata()?.len() {
        0 => file.write_all_at(&vec![0; bytes as usize], 0).inspect_err(|_| drop(file.set_len(0))),
        _ => Ok(()),
    };
    lock(file, bytes_of(0..division.from), libc::F_OFD_SETLK, libc::F_UNLCK).map_err(io::Error::from_raw_os_error)?;
    written
}

fn bytes_of(words: Range<usize>) -> Range<u64> {
    let bytes = |words: usize| (words * size_of::<u64>()) as u64;
    bytes(words.start)..bytes(words.end)
}

fn failed(doing: &str, path: &Path, error: &io::Error) -> Error {
    Error::from_io(Kind::File, format!("{doing} {}", path.display()), error)
}

fn foreign(path: &Path) -> Error {
    let cause = format!("{}: unrecognised file type or version", path.display());
    Error::new(Kind::File, cause).with_hint("remove it when nothing uses it, or choose another directory")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tree::Tree;

    const DIVISION: Division = Division { words: 512, from: 24, slot: 8 };

    #[test]
    fn two_see_the_same_words_from_slots_of_their_own() {
        let tree = Tree::new(&[]);
        let own = OwnDirectory::open(tree.root()).unwrap();
        let [one, two] = [(); 2].map(|()| SharedWords::open(&own, "pace", DIVISION).unwrap());
        assert_eq!((one.slot(), two.slot()), (0, 1));
        one.as_ref()[2].store(7, Ordering::Relaxed);
        assert_eq!(two.as_ref()[2].load(Ordering::Relaxed), 7);
        drop(one);
        let three = SharedWords::open(&own, "pace", DIVISION).unwrap();
        assert_eq!(three.slot(), 0, "an unlocked slot is free");
        assert_eq!(three.as_ref()[2].load(Ordering::Relaxed), 7);
    }

    #[test]
    fn the_end_of_a_process_frees_its_slot() {
        let tree = Tree::new(&[]);
        let own = OwnDirectory::open(tree.root()).unwrap();
        let code = crate::conformance::in_fork(core::time::Duration::from_secs(60), || {
            let held = SharedWords::open(&own, "pace", DIVISION);
            let signal =
                if held.is_ok_and(|held| held.slot() == 0) { rustix::process::Signal::KILL } else { return 1 };
            let _ = rustix::process::kill_process(rustix::process::getpid(), signal);
            2
        });
        assert_eq!(code, None, "it held the first slot when it was killed");
        assert_eq!(SharedWords::open(&own, "pace", DIVISION).unwrap().slot(), 0);
    }

    #[test]
    fn what_is_not_such_a_file_is_refused_and_left_alone() {
        let torn = "x".repeat(4096);
        let tree = Tree::new(&[]);
        let own = OwnDirectory::open(tree.root()).unwrap();
        let path = |name| own.path().join(name);
        std::fs::write(path("short"), "not ours").unwrap();
        std::fs::write(path("torn"), &torn).unwrap();
        std::fs::create_dir(path("folder")).unwrap();
        std::os::unix::fs::symlink("short", path("link")).unwrap();
        for name in ["short", "torn", "folder", "link"] {
            let error = SharedWords::open(&own, name, DIVISION).unwrap_err();
            assert!(error.kind() == Kind::File && error.to_string().contains(name), "{error}");
        }
        assert_eq!(std::fs::read_to_string(path("torn")).unwrap(), torn);
    }

    #[test]
    fn there_is_an_end_to_the_slots() {
        let tree = Tree::new(&[]);
        let own = OwnDirectory::open(tree.root()).unwrap();
        let held: Vec<_> = (0..61).map(|_| SharedWords::open(&own, "pace", DIVISION).unwrap()).collect();
        let error = SharedWords::open(&own, "pace", DIVISION).unwrap_err();
        assert!(error.to_string().contains("61 processes"), "{error}");
        drop(held);
    }
}
