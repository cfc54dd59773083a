//! A page of words that several processes of a machine share through a small file.
//!
//! Owns the mapping, the file behind it and a lock on this process's slot in it. The kernel gives the lock back when the process
//! ends, however it ends, so a slot whose lock can be had is free. Knows what is in the first two words and whose each slot is; never
//! what else the words mean.

use core::fmt;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicU64, Ordering};
use std::fs::{File, OpenOptions};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

use fuelrail_base::{Error, Kind, Result};

/// What a file of this kind begins with, and its version.
const MAGIC: u64 = u64::from_le_bytes(*b"fuelpace");
const VERSION: u64 = 1;

/// How the words of a file are divided.
#[derive(Clone, Copy, Debug)]
pub struct Division {
    /// Words in all.
    pub words: usize,
    /// The first slot's first word.
    pub from: usize,
    /// Words of a slot.
    pub slot: usize,
}

/// Words shared with other processes, and one slot in them that is ours.
pub struct SharedWords {
    base: NonNull<AtomicU64>,
    words: usize,
    slot: usize,
    /// Holds the lock on the slot.
    _file: File,
}

// SAFETY: the words are atomics in a mapping that lives as long as this value; any thread may use them.
unsafe impl Send for SharedWords {}
// SAFETY: as above.
unsafe impl Sync for SharedWords {}

impl SharedWords {
    /// Opens the file, making it where there is none, and takes a free slot in it.
    ///
    /// # Errors
    /// `File` when it cannot be opened, made or locked, is not one of these, or all slots are taken.
    pub fn open(path: &Path, division: Division) -> Result<SharedWords> {
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK | libc::O_NOCTTY | libc::O_CLOEXEC)
            .open(path)
            .map_err(|error| failed("opening", path, &error).cure("choose a directory that this user may write to"))?;
        let bytes = (division.words * size_of::<u64>()) as u64;
        let facts = file.metadata().map_err(|error| failed("looking at", path, &error))?;
        // A file of somebody else can be cut short under the mapping, which ends the process.
        // SAFETY: takes no memory, and cannot fail.
        let user = unsafe { libc::geteuid() };
        if !facts.is_file() || facts.uid() != user || (facts.len() != 0 && facts.len() != bytes) {
            return Err(foreign(path));
        }
        if facts.len() == 0 {
            file.set_len(bytes).map_err(|error| failed("making", path, &error))?;
        }
        let slots = (division.words - division.from) / division.slot;
        let slot = (0..slots).find_map(|slot| match lock(&file, division, slot) {
            Ok(true) => Some(Ok(slot)),
            Ok(false) => None,
            Err(errno) => Some(Err(errno)),
        });
        let slot = match slot {
            Some(Ok(slot)) => slot,
            Some(Err(errno)) => {
                let error = Error::from_errno(Kind::File, &format!("locking {}", path.display()), errno);
                return Err(error.cure("use a local file system"));
            }
            None => {
                let cause = format!("{slots} processes share {} already", path.display());
                return Err(Error::new(Kind::File, cause).cure("give some of them another directory"));
            }
        };
        // SAFETY: a new shared mapping of a file as long as that, at an address the kernel chooses.
        let base = unsafe {
            let (access, kind) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED);
            libc::mmap(core::ptr::null_mut(), bytes as usize, access, kind, file.as_raw_fd(), 0)
        };
        if base == libc::MAP_FAILED {
            return Err(failed("mapping", path, &std::io::Error::last_os_error()));
        }
        let base = NonNull::new(base.cast::<AtomicU64>()).expect("a mapping is nowhere near zero");
        let shared = SharedWords { base, words: division.words, slot, _file: file };
        shared.sign(division, path)?;
        Ok(shared)
    }

    /// Which slot is ours.
    #[must_use]
    pub fn slot(&self) -> usize {
        self.slot
    }

    /// Writes the beginning of a file that is all zero, or sees that it is what it should be; and our name into our slot.
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
        // SAFETY: the mapping has so many words, page-aligned, and lives until this value is dropped, which the borrow
        // outlives not. Other processes write to it as to atomics.
        unsafe { core::slice::from_raw_parts(self.base.as_ptr(), self.words) }
    }
}

impl Drop for SharedWords {
    fn drop(&mut self) {
        // SAFETY: the range is our own mapping, and nothing borrows its words any more.
        let rc = unsafe { libc::munmap(self.base.as_ptr().cast(), self.words * size_of::<u64>()) };
        debug_assert_eq!(rc, 0, "the range is our own mapping");
    }
}

impl fmt::Debug for SharedWords {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SharedWords(slot {})", self.slot)
    }
}

/// Tries to lock the bytes of a slot: until the file is closed, which the end of the process does, too.
fn lock(file: &File, division: Division, slot: usize) -> Result<bool, i32> {
    let bytes = |words: usize| (words * size_of::<u64>()) as libc::off_t;
    let mut lock = libc::flock {
        l_type: libc::F_WRLCK as libc::c_short,
        l_whence: libc::SEEK_SET as libc::c_short,
        l_start: bytes(division.from + slot * division.slot),
        l_len: bytes(division.slot),
        l_pid: 0,
    };
    // SAFETY: the kernel reads the description during the call only; the descriptor is open as long as `file` is borrowed.
    if unsafe { libc::fcntl(file.as_raw_fd(), libc::F_OFD_SETLK, &raw mut lock) } == 0 {
        return Ok(true);
    }
    match std::io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO) {
        libc::EAGAIN | libc::EACCES => Ok(false),
        errno => Err(errno),
    }
}

fn failed(doing: &str, path: &Path, error: &std::io::Error) -> Error {
    let errno = error.raw_os_error().unwrap_or(libc::EIO);
    Error::from_errno(Kind::File, &format!("{doing} {}", path.display()), errno)
}

fn foreign(path: &Path) -> Error {
    let cause = format!("{} is not a file of ours, or of another version", path.display());
    Error::new(Kind::File, cause).cure("remove it when nothing uses it, or choose another directory")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tree::Tree;

    const DIVISION: Division = Division { words: 512, from: 24, slot: 8 };

    #[test]
    fn two_see_the_same_words_from_slots_of_their_own() {
        let tree = Tree::new("ledger", &[]);
        let path = tree.root().join("pace");
        let [one, two] = [(); 2].map(|()| SharedWords::open(&path, DIVISION).unwrap());
        assert_eq!((one.slot(), two.slot()), (0, 1));
        one.as_ref()[2].store(7, Ordering::Relaxed);
        assert_eq!(two.as_ref()[2].load(Ordering::Relaxed), 7);
        drop(one);
        let three = SharedWords::open(&path, DIVISION).unwrap();
        assert_eq!(three.slot(), 0, "a slot that nobody holds is free");
        assert_eq!(three.as_ref()[2].load(Ordering::Relaxed), 7);
    }

    #[test]
    fn the_end_of_a_process_frees_its_slot() {
        let tree = Tree::new("ledger-end", &[]);
        let path = tree.root().join("pace");
        // SAFETY: the child opens a file, maps it and leaves by `_exit`; no other thread of this test holds a lock it needs.
        let child = unsafe {
            match libc::fork() {
                0 => {
                    let held = SharedWords::open(&path, DIVISION);
                    libc::raise(if held.is_ok_and(|held| held.slot() == 0) { libc::SIGKILL } else { libc::SIGABRT });
                    libc::_exit(1)
                }
                child => child,
            }
        };
        let mut status = 0;
        // SAFETY: the status lives during the call.
        assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
        assert_eq!(libc::WTERMSIG(status), libc::SIGKILL, "it held the first slot");
        assert_eq!(SharedWords::open(&path, DIVISION).unwrap().slot(), 0);
    }

    #[test]
    fn what_is_not_such_a_file_is_refused_and_left_alone() {
        let torn = "x".repeat(4096);
        let tree = Tree::new("ledger-foreign", &[("short", "not ours"), ("torn", torn.as_str()), ("folder/file", "")]);
        tree.link("link", "short");
        for name in ["short", "torn", "folder", "link", "absent/file"] {
            let error = SharedWords::open(&tree.root().join(name), DIVISION).unwrap_err();
            assert!(error.kind() == Kind::File && error.to_string().contains(name), "{error}");
        }
        assert_eq!(std::fs::read_to_string(tree.root().join("torn")).unwrap(), torn);
    }

    #[test]
    fn there_is_an_end_to_the_slots() {
        let tree = Tree::new("ledger-full", &[]);
        let path = tree.root().join("pace");
        let held: Vec<_> = (0..61).map(|_| SharedWords::open(&path, DIVISION).unwrap()).collect();
        let error = SharedWords::open(&path, DIVISION).unwrap_err();
        assert!(error.to_string().contains("61 processes"), "{error}");
        drop(held);
    }
}
