//! Files and file systems as the control thread sees them: locks, room and alignment.
//!
//! Owns nothing: a lock lives in the open file it was taken on. Every call may wait for the disk, so no shard makes one.

use core::ops::Range;
use std::fs::File;
use std::os::fd::AsRawFd;
use std::path::Path;

use fuelrail_base::{ByteSize, Error, Kind, Result};
use rustix::fs::{AtFlags, FallocateFlags, SeekFrom, StatxFlags};
use rustix::io::Errno;

use crate::process::may_write;

/// Largest supported alignment of direct access: a page.
const UNIT_BYTES_MAX: u32 = 4096;
/// Least unit direct access is used with: a sector.
pub const DIRECT_UNIT_BYTES_MIN: u32 = 512;

/// Tries to lock a file that is open for writing: the whole of it stays locked until the last copy of this descriptor is closed,
/// which the end of the process does, too. False when another open file has the lock, of this process or another.
///
/// # Errors
/// `File` when the file system has no locks.
pub fn try_lock(file: &File, path: &Path) -> Result<bool> {
    lock(file, WHOLE, libc::F_OFD_SETLK, libc::F_WRLCK).map_err(|errno| no_locks(path, errno))
}

/// Whether another open file has the lock.
///
/// # Errors
/// As [`try_lock`].
pub fn is_locked(file: &File, path: &Path) -> Result<bool> {
    let free = lock(file, WHOLE, libc::F_OFD_GETLK, libc::F_WRLCK).map_err(|errno| no_locks(path, errno))?;
    Ok(!free)
}

/// All bytes of a file, also those appended later.
const WHOLE: Range<u64> = 0..0;

/// Locks these bytes, unlocks them, or asks whether they could be locked. False when another open file has them and the command does
/// not wait; else the error number.
pub(crate) fn lock(
    file: &File,
    bytes: Range<u64>,
    command: libc::c_int,
    kind: libc::c_int,
) -> core::result::Result<bool, i32> {
    let mut lock = libc::flock {
        l_type: kind as libc::c_short,
        l_whence: libc::SEEK_SET as libc::c_short,
        l_start: bytes.start as libc::off_t,
        l_len: (bytes.end - bytes.start) as libc::off_t,
        l_pid: 0,
    };
    // SAFETY: the kernel reads and writes the description during the call only; the descriptor is open as long as `file` is borrowed.
    let rc = unsafe { libc::fcntl(file.as_raw_fd(), command, &raw mut lock) };
    if rc == 0 {
        return Ok(command != libc::F_OFD_GETLK || lock.l_type == libc::F_UNLCK as libc::c_short);
    }
    match std::io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO) {
        libc::EAGAIN | libc::EACCES => Ok(false),
        errno => Err(errno),
    }
}

fn no_locks(path: &Path, errno: i32) -> Error {
    Error::from_errno(Kind::File, &format!("locking {}", path.display()), errno)
        .with_hint("use a local file system: ext4, XFS, btrfs or tmpfs")
}

/// Extends a file to at least `len` bytes, with the disk space allocated at once: a write into them cannot run out of it. `path` is
/// only for error messages.
///
/// # Errors
/// `File` when the disk is too full, the process may not write files of that length or the file system cannot preallocate, `Usage` for lengths beyond 2^63 - 1.
pub fn preallocate(file: &File, path: &Path, len: u64) -> Result<()> {
    let size = ByteSize(len);
    let doing = format!("taking {size} of disk for {}", path.display());
    if len > i64::MAX as u64 {
        return Err(Error::new(Kind::Usage, format!("{doing}: a file has at most 2^63 - 1 bytes")));
    }
    if len == 0 {
        return Ok(());
    }
    if !may_write(len) {
        let hint = "raise this process's limit of the lengths of files (ulimit -f)";
        return Err(Error::from_errno(Kind::File, &doing, libc::EFBIG).with_hint(hint));
    }
    let Err(errno) = rustix::fs::fallocate(file, FallocateFlags::empty(), 0, len) else { return Ok(()) };
    let errno = errno.raw_os_error();
    let cure = match errno {
        libc::ENOSPC | libc::EDQUOT => "free some space, ask for less, or use another disk",
        libc::EOPNOTSUPP => "use a file system that can preallocate: ext4, XFS, btrfs or tmpfs",
        libc::EFBIG => "ask for less: the file system has no files of that length",
        _ => "use another file",
    };
    Err(Error::from_errno(Kind::File, &doing, errno).with_hint(cure))
}

/// Where the first byte lies, at or after `place`, that may have been written: what was only preallocated is no data. `None` when there is none.
pub fn next_written(file: &File, place: u64) -> Option<u64> {
    match rustix::fs::seek(file, SeekFrom::Data(place)) {
        Ok(at) => Some(at),
        Err(Errno::NXIO) => None,
        // A file system that does not tell.
        Err(_) => Some(place),
    }
}

/// Bytes that offsets, lengths and addresses of direct transfers (`O_DIRECT`) to this file are multiples of: 512 or 4096. `None`
/// where direct access is not possible. 4096 for kernels that do not report it (before 6.1).
pub fn direct_unit(file: &File) -> Option<u32> {
    let facts = rustix::fs::statx(file, c"", AtFlags::EMPTY_PATH, StatxFlags::DIOALIGN);
    let said = facts.ok().filter(|facts| facts.stx_mask & StatxFlags::DIOALIGN.bits() != 0);
    said_unit(said.map(|facts| (facts.stx_dio_mem_align, facts.stx_dio_offset_align)))
}

fn said_unit(said: Option<(u32, u32)>) -> Option<u32> {
    let Some((memory, offset)) = said else { return Some(UNIT_BYTES_MAX) };
    let unit = memory.max(offset).max(DIRECT_UNIT_BYTES_MIN);
    (memory > 0 && offset > 0 && unit <= UNIT_BYTES_MAX).then_some(if unit > DIRECT_UNIT_BYTES_MIN {
        UNIT_BYTES_MAX
    } else {
        DIRECT_UNIT_BYTES_MIN
    })
}

/// Bytes of a file system, as `df` counts them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct VolumeRoom {
    /// In all.
    pub total_bytes: u64,
    /// Free for this user.
    pub free_bytes: u64,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tree::Tree;

    fn open(path: &Path) -> File {
        File::options().read(true).write(true).open(path).unwrap()
    }

    #[test]
    fn one_open_file_has_the_lock_and_its_end_gives_it_up() {
        let tree = Tree::new(&[("file", "x")]);
        let path = tree.root().join("file");
        let (one, two) = (open(&path), open(&path));
        let reader = File::open(&path).unwrap();
        assert!(!is_locked(&reader, &path).unwrap());
        assert!(try_lock(&one, &path).unwrap() && try_lock(&one, &path).unwrap(), "it may be taken again");
        assert!(!try_lock(&two, &path).unwrap() && is_locked(&reader, &path).unwrap());
        assert!(!is_locked(&one, &path).unwrap(), "the owner is not another");
        drop(one);
        assert!(!is_locked(&reader, &path).unwrap() && try_lock(&two, &path).unwrap());
        assert!(try_lock(&reader, &path).is_err(), "a file open for reading cannot be owned");
    }

    #[test]
    fn room_is_taken() {
        let tree = Tree::new(&[("file", "x")]);
        let path = tree.root().join("file");
        let file = open(&path);
        preallocate(&file, &path, 1 << 20).unwrap();
        assert_eq!(file.metadata().unwrap().len(), 1 << 20);
        assert!(matches!(next_written(&file, 4096), None | Some(4096)));
        std::os::unix::fs::FileExt::write_all_at(&file, b"y", 512 << 10).unwrap();
        assert!(next_written(&file, 4096).is_some_and(|at| at <= 512 << 10));
    }

    #[test]
    fn the_unit_is_what_the_kernel_says() {
        for (said, unit) in [
            (None, Some(4096)),
            (Some((0, 0)), None),
            (Some((4, 512)), Some(512)),
            (Some((512, 512)), Some(512)),
            (Some((4, 1)), Some(512)),
            (Some((512, 4096)), Some(4096)),
            (Some((512, 65_536)), None),
        ] {
            assert_eq!(said_unit(said), unit, "{said:?}");
        }
        let tree = Tree::new(&[("file", "x")]);
        let unit = direct_unit(&open(&tree.root().join("file")));
        assert!(matches!(unit, None | Some(512 | 4096)), "{unit:?}");
    }
}
