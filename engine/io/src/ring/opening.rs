//! The data of operations that open and examine files: everything the kernel reads and writes until they complete.

use core::fmt;
use core::mem::MaybeUninit;
use std::ffi::{CStr, CString};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::Path;

use fuelrail_base::{Error, Kind, Result};
use rustix::fs::{Mode, OFlags};

use super::file::FileMark;
use super::table::FileId;

/// Flags of an opening operation: for reading, without waiting where it is no regular file.
pub(super) const OPEN_FLAGS: i32 = libc::O_RDONLY | libc::O_NONBLOCK | libc::O_NOCTTY | libc::O_CLOEXEC;
/// The facts requested of an open file.
pub(super) const STAT_MASK: u32 = libc::STATX_BASIC_STATS;

/// A file to be opened, and the file once it is.
#[derive(Debug)]
pub struct Opening {
    path: CString,
    /// Open, and not in the ring's table yet.
    fd: Option<OwnedFd>,
    pub(super) file: Option<FileId>,
}

impl Opening {
    /// Of an existing file, for reading.
    ///
    /// # Errors
    /// `Usage` for a path with a zero byte.
    pub fn new(path: &str) -> Result<Opening> {
        let path = CString::new(path)
            .map_err(|_| Error::new(Kind::Usage, format!("the path '{}' has a zero byte", path.escape_debug())))?;
        Ok(Opening { path, fd: None, file: None })
    }

    /// The file, after the operation has succeeded.
    #[must_use]
    pub fn file(&self) -> Option<FileId> {
        self.file
    }

    /// The path.
    #[must_use]
    pub fn path(&self) -> &Path {
        use std::os::unix::ffi::OsStrExt as _;
        Path::new(std::ffi::OsStr::from_bytes(self.path.as_bytes()))
    }

    /// The path as the kernel reads it.
    pub(super) fn text(&self) -> &CStr {
        &self.path
    }

    /// Opens it on this thread, which may block: zero, or a negative error number.
    pub(super) fn run(&mut self) -> i32 {
        match rustix::fs::open(self.path.as_c_str(), OFlags::from_bits_retain(OPEN_FLAGS as u32), Mode::empty()) {
            Ok(fd) => {
                self.fd = Some(fd);
                0
            }
            Err(errno) => -errno.raw_os_error(),
        }
    }

    /// The descriptor, once, without `O_NONBLOCK`: only then does a ring wait for the file's disk.
    pub(super) fn take_fd(&mut self) -> Option<OwnedFd> {
        self.fd.take().inspect(|fd| patient(fd))
    }
}

/// Lets transfers of an open file wait for its disk. It cannot fail for a descriptor that is open.
pub(super) fn patient(fd: impl AsFd) {
    let set = rustix::fs::fcntl_setfl(fd, OFlags::empty());
    debug_assert!(set.is_ok(), "{set:?}");
}

/// The kernel's facts of an open file.
pub struct FileFacts(Box<libc::statx>);

impl Default for FileFacts {
    /// All zero, until read.
    fn default() -> FileFacts {
        // SAFETY: all zeroes are a value of this type.
        FileFacts(Box::new(unsafe { MaybeUninit::zeroed().assume_init() }))
    }
}

impl FileFacts {
    /// Whether it is a regular file: no folder, pipe, socket or device.
    #[must_use]
    pub fn is_regular(&self) -> bool {
        i32::from(self.0.stx_mode) & libc::S_IFMT as i32 == libc::S_IFREG as i32
    }

    /// The mark of its present content.
    #[must_use]
    pub fn mark(&self) -> FileMark {
        let at = &self.0.stx_mtime;
        let modified_ns = at.tv_sec.wrapping_mul(1_000_000_000).wrapping_add(i64::from(at.tv_nsec));
        FileMark { inode: self.0.stx_ino, len: self.0.stx_size, modified_ns: modified_ns as u64 }
    }

    /// Where the kernel writes them.
    pub(super) fn target(&mut self) -> *mut libc::statx {
        &raw mut *self.0
    }

    /// Of a simulated file.
    pub(super) fn set(&mut self, mark: FileMark) {
        self.0.stx_mode = libc::S_IFREG as u16;
        (self.0.stx_ino, self.0.stx_size) = (mark.inode, mark.len);
        self.0.stx_mtime.tv_sec = (mark.modified_ns / 1_000_000_000) as i64;
        self.0.stx_mtime.tv_nsec = (mark.modified_ns % 1_000_000_000) as u32;
    }

    /// Reads them on this thread, which may block: zero, or a negative error number.
    pub(super) fn run(&mut self, fd: impl AsRawFd) -> i32 {
        // SAFETY: the kernel reads the empty string and writes the facts during the call only; the descriptor is open as long
        // as `fd` is borrowed.
        let rc = unsafe { libc::statx(fd.as_raw_fd(), c"".as_ptr(), libc::AT_EMPTY_PATH, STAT_MASK, self.target()) };
        if rc == 0 { 0 } else { -last_errno() }
    }
}

impl fmt::Debug for FileFacts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "FileFacts({}, regular: {})", self.mark(), self.is_regular())
    }
}

pub(super) fn last_errno() -> i32 {
    std::io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO)
}
