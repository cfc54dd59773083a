//! Opening the files of a ring, at once or by an operation, with everything the kernel reads and writes until that completes.
//! Owns no descriptor: it goes to the caller.

use core::fmt;
use core::mem::MaybeUninit;
use std::ffi::{CStr, CString};
use std::fs::{File, Metadata};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use fuelrail_base::{Error, Kind, Result};
use rustix::fs::{FileType, Mode, OFlags};
use rustix::io::Errno;

use super::table::FileId;
use crate::directory::{OwnDirectory, checked};
use crate::volume::preallocate;

/// How a file is opened. The default is an existing file, for reading, through the page cache.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct FileOptions {
    /// For writing, too.
    pub write: bool,
    /// Created, readable by its owner alone, when there is none.
    pub create: bool,
    /// Bypassing the page cache (`O_DIRECT`): offsets, lengths and addresses are multiples of the device's block (512 or
    /// 4096 bytes), or the operation fails with `EINVAL`.
    pub direct: bool,
    /// Extended to at least so many bytes, with the disk space allocated at once: a write into them cannot run out of it.
    pub len: Option<u64>,
}

impl FileOptions {
    /// Checks that the options go together.
    ///
    /// # Errors
    /// `Usage` for a file that is to be created or preallocated, but not written.
    pub fn validate(&self) -> Result<()> {
        if (self.create || self.len.is_some()) && !self.write {
            return Err(Error::new(
                Kind::Usage,
                "a file is created or preallocated only when it is opened for writing",
            ));
        }
        Ok(())
    }
}

/// Identifies one content of a file: its inode, its length, and when it was last written.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct FileMark {
    /// Its inode number.
    pub inode: u64,
    /// Its length, bytes.
    pub len: u64,
    /// When it was last written, ns since 1970. The kernel's clock of files ticks every few milliseconds: two writes within one
    /// tick that leave the same length have the same mark.
    pub modified_ns: u64,
}

impl FileMark {
    /// Of a file by its metadata.
    pub fn of(facts: &Metadata) -> FileMark {
        let modified_ns = facts.mtime().wrapping_mul(1_000_000_000).wrapping_add(facts.mtime_nsec());
        FileMark { inode: facts.ino(), len: facts.len(), modified_ns: modified_ns as u64 }
    }
}

/// As an entity tag: 32 hexadecimal digits in quotes, like an MD5: the time of the last write, then the lower halves of inode and
/// length.
impl fmt::Display for FileMark {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\"{:016x}{:08x}{:08x}\"", self.modified_ns, self.inode as u32, self.len as u32)
    }
}

/// Opens a file as the options say.
///
/// # Errors
/// As [`Ring::open`](crate::Ring::open), the ring's table aside.
pub(super) fn open_file(directory: Option<&OwnDirectory>, path: &Path, options: &FileOptions) -> Result<OwnedFd> {
    options.validate()?;
    let refused = |errno: Errno| refusal(path, options, errno.raw_os_error());
    let access = if options.write { OFlags::RDWR } else { OFlags::RDONLY };
    let direct = if options.direct { OFlags::DIRECT } else { OFlags::empty() };
    let (file, regular) = if let Some(directory) = directory {
        let file = directory.open_at(path, access | direct).map_err(refused)?;
        let regular = checked(&file, path)?;
        (file, regular)
    } else {
        let made = if options.create { OFlags::CREATE } else { OFlags::empty() };
        let flags = access | direct | made | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
        let open = || rustix::fs::open(path, flags, Mode::RUSR | Mode::WUSR);
        let file = rustix::io::retry_on_intr(open).map_err(refused)?;
        let regular = rustix::fs::fstat(&file).is_ok_and(|facts| FileType::from_raw_mode(facts.st_mode).is_file());
        (file, regular)
    };
    if !regular {
        return Err(not_regular(path));
    }
    // A ring would not wait for the disk of a file that is open with `O_NONBLOCK`.
    rustix::fs::fcntl_setfl(&file, direct).map_err(refused)?;
    let file = File::from(file);
    if let Some(len) = options.len {
        preallocate(&file, path, len)?;
    }
    Ok(file.into())
}

/// The error of an operation that opens or examines a file.
pub fn open_refusal(path: &Path, errno: i32) -> Error {
    refusal(path, &FileOptions::default(), errno)
}

/// The error for a folder, a pipe, a socket or a device in a file's place.
pub fn not_regular(path: &Path) -> Error {
    Error::new(Kind::File, format!("{} is not a regular file", path.display())).with_hint("move it away")
}

/// Opens a regular file for reading, synchronously; does not wait for a pipe in its place.
///
/// # Errors
/// As [`open_refusal`] and [`not_regular`].
pub fn open_regular(path: &Path) -> Result<File> {
    open_file(None, path, &FileOptions::default()).map(File::from)
}

/// What helps where no thread can be started.
pub(super) const MORE_THREADS: &str = "raise the limit of threads (ulimit -u, or pids.max of the cgroup)";

fn refusal(path: &Path, options: &FileOptions, errno: i32) -> Error {
    let doing = format!("opening {}", path.display());
    let (kind, cure) = match errno {
        libc::EMFILE | libc::ENFILE => (Kind::Environment, "raise the limit of open files (ulimit -n)"),
        libc::EAGAIN => (Kind::Environment, MORE_THREADS),
        libc::EINVAL if options.direct => (
            Kind::File,
            "its file system offers no direct access (O_DIRECT): use ext4, XFS or btrfs, or open it without",
        ),
        libc::ENOENT if options.create => (Kind::File, "create its directory first"),
        libc::ENOENT => (Kind::NotFound, "check the path"),
        libc::EACCES | libc::EPERM if !options.write => (Kind::Denied, "give this user permission to read it"),
        libc::EACCES | libc::EPERM | libc::EROFS => (Kind::File, "use a path this user may write to"),
        libc::ENOSPC | libc::EDQUOT => (Kind::File, "free some space, or use another disk"),
        _ => (Kind::File, "use another file"),
    };
    Error::from_errno(kind, &doing, errno).with_hint(cure)
}

/// The error when the ring's table of files is full.
pub(super) fn files_open() -> Error {
    Error::new(Kind::Budget, "all files of this ring are open").with_hint("close some first, or keep more in one file")
}

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
    pub fn file(&self) -> Option<FileId> {
        self.file
    }

    /// The path.
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
    pub fn is_regular(&self) -> bool {
        i32::from(self.0.stx_mode) & libc::S_IFMT as i32 == libc::S_IFREG as i32
    }

    /// The mark of its present content.
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsRawFd;

    #[test]
    fn refusals_name_the_path_and_a_cure() {
        let path = Path::new("/nowhere/at all");
        let direct = FileOptions { direct: true, ..FileOptions::default() };
        let create = FileOptions { create: true, write: true, ..FileOptions::default() };
        for (options, errno, kind, cure) in [
            (direct, libc::EINVAL, Kind::File, "O_DIRECT"),
            (create, libc::ENOENT, Kind::File, "directory"),
            (FileOptions::default(), libc::ENOENT, Kind::NotFound, "check the path"),
            (FileOptions::default(), libc::EACCES, Kind::Denied, "permission to read"),
            (FileOptions::default(), libc::EMFILE, Kind::Environment, "ulimit -n"),
            (FileOptions::default(), libc::EAGAIN, Kind::Environment, "ulimit -u"),
            (create, libc::EROFS, Kind::File, "this user"),
        ] {
            let error = refusal(path, &options, errno);
            let text = error.to_string();
            assert_eq!(error.kind(), kind, "{text}");
            assert!(text.contains("/nowhere/at all") && text.contains(cure), "{text}");
        }
    }

    fn open_mark(file: &File) -> FileMark {
        let mut facts = crate::ring::file::FileFacts::default();
        assert_eq!(facts.run(file.as_raw_fd()), 0);
        facts.mark()
    }

    #[test]
    fn a_mark_is_another_when_the_file_is_and_reads_as_a_tag() {
        let path = std::env::temp_dir().join(format!("fuelrail-mark-{}", std::process::id()));
        let mark = || FileMark::of(&std::fs::metadata(&path).unwrap());
        std::fs::write(&path, "one").unwrap();
        let (first, file) = (mark(), File::open(&path).unwrap());
        assert_eq!(open_mark(&file), first);
        file.set_modified(std::time::UNIX_EPOCH + core::time::Duration::from_nanos(1)).unwrap();
        assert!(mark() != first && mark().modified_ns == 1);
        std::fs::write(&path, "longer").unwrap();
        assert_eq!(open_mark(&file).len, 6);
        std::fs::remove_file(&path).unwrap();
        let mark = FileMark { inode: 0x1_0000_00FF, len: 0xABC, modified_ns: 0x1234 };
        assert_eq!(mark.to_string(), "\"0000000000001234000000ff00000abc\"");
    }

    #[test]
    fn more_than_a_disk_is_refused_with_a_hint() {
        let path = std::env::temp_dir().join(format!("fuelrail-file-{}", std::process::id()));
        let options = FileOptions { write: true, create: true, len: Some(1 << 62), ..FileOptions::default() };
        let refused = open_file(None, &path, &options);
        std::fs::remove_file(&path).unwrap();
        let text = refused.unwrap_err().to_string();
        assert!(
            text.contains("of disk for") && text.contains("ask for less") && text.contains("fuelrail-file"),
            "{text}"
        );
    }
}
