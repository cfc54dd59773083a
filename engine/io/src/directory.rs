//! A directory private to this user, held by its descriptor.
//!
//! Owns the descriptor. Its parent may be writable by others (`/tmp`, or an `emptyDir` of Kubernetes, which is root's with mode
//! 0777): they can rename or replace the directory, which the descriptor does not follow. No other user can create a file in it, and
//! an existing file is opened only if it is regular, this user's and has one name. Every call may wait for the disk; a shard
//! only opens files through it.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use fuelrail_base::{Error, Kind, Result};
use rustix::fs::{AtFlags, CWD, Dir, FileType, Mode, OFlags, Stat};
use rustix::io::Errno;

use crate::mapped::MappedFile;
use crate::volume::VolumeRoom;

/// How every file is opened: no link is followed, no pipe is waited for.
const PLAIN: OFlags = OFlags::NOFOLLOW.union(OFlags::NONBLOCK).union(OFlags::NOCTTY).union(OFlags::CLOEXEC);

/// A directory that only this user (and root) can list, read from or write to.
#[derive(Debug)]
pub struct OwnDirectory {
    fd: OwnedFd,
    path: PathBuf,
}

impl OwnDirectory {
    /// Opens the directory `fuelrail-UID` in `parent`, which exists; makes it, with mode 0700, where there is none.
    ///
    /// # Errors
    /// `File`, with owner and mode, when the parent belongs neither to root nor to this user, or the directory not to this
    /// user alone; `File` when either cannot be opened or made.
    pub fn open(parent: &Path) -> Result<OwnDirectory> {
        let (holder, path) = holder(parent)?;
        if let Some(found) = enter(&holder, &path)? {
            return Ok(found);
        }
        match rustix::fs::mkdirat(&holder, name_of(&path), Mode::RWXU) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(errno) => return Err(refused("making", &path, errno)),
        }
        enter(&holder, &path)?.ok_or_else(|| refused("opening", &path, Errno::NOENT))
    }

    /// The same without creating it: `None` where there is none.
    ///
    /// # Errors
    /// As [`OwnDirectory::open`].
    pub fn find(parent: &Path) -> Result<Option<OwnDirectory>> {
        let (holder, path) = holder(parent)?;
        enter(&holder, &path)
    }

    /// Its path when it was opened; for messages.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Opens an existing file. `None` when there is nothing under this name, or something that is no regular file.
    ///
    /// # Errors
    /// `File` when it cannot be opened, belongs to another user or has several names.
    pub fn open_file(&self, name: &str, write: bool) -> Result<Option<File>> {
        let access = if write { OFlags::RDWR } else { OFlags::RDONLY };
        let opened = match self.open_at(Path::new(name), access) {
            // Nothing; a link; a directory; a socket, or a pipe without a reader.
            Err(Errno::NOENT | Errno::LOOP | Errno::ISDIR | Errno::NXIO | Errno::NOTDIR) => return Ok(None),
            Err(errno) => return Err(refused("opening", &self.path.join(name), errno)),
            Ok(opened) => opened,
        };
        let path = self.path.join(name);
        Ok(checked(&opened, &path)?.then(|| opened.into()))
    }

    /// Maps an existing file for reading. It must only ever be replaced by renaming, not modified. `None` as from [`OwnDirectory::open_file`].
    ///
    /// # Errors
    /// As [`OwnDirectory::open_file`]; `File` when it cannot be mapped.
    pub fn map_file(&self, name: &str) -> Result<Option<MappedFile>> {
        let Some(file) = self.open_file(name, false)? else { return Ok(None) };
        let mapped = MappedFile::of(&file);
        mapped.map(Some).map_err(|error| {
            refused("mapping", &self.path.join(name), Errno::from_io_error(&error).unwrap_or(Errno::IO))
        })
    }

    /// Creates a file, readable and writable by this user alone. Its name must be free.
    ///
    /// # Errors
    /// The system's error.
    pub fn make_file(&self, name: &str) -> io::Result<File> {
        let flags = PLAIN | OFlags::RDWR | OFlags::CREATE | OFlags::EXCL;
        let made = rustix::fs::openat(&self.fd, name, flags, Mode::RUSR | Mode::WUSR)?;
        Ok(made.into())
    }

    /// Opens a file to read and write, and creates it where there is none.
    ///
    /// # Errors
    /// As [`OwnDirectory::open_file`]; `File` when something else than a file is under its name, or it cannot be made.
    pub fn open_or_make_file(&self, name: &str) -> Result<File> {
        let path = self.path.join(name);
        match self.make_file(name) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                self.open_file(name, true)?.ok_or_else(|| {
                    Error::new(Kind::File, format!("{} is not a regular file", path.display()))
                        .with_hint("move it away")
                })
            }
            Err(error) => Err(refused("making", &path, Errno::from_io_error(&error).unwrap_or(Errno::IO))),
            Ok(file) => Ok(file),
        }
    }

    /// Renames a file, over an existing one.
    ///
    /// # Errors
    /// The system's error.
    pub fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        Ok(rustix::fs::renameat(&self.fd, from, &self.fd, to)?)
    }

    /// Removes a file, or anything else under its name except a directory.
    ///
    /// # Errors
    /// The system's error.
    pub fn remove(&self, name: &str) -> io::Result<()> {
        Ok(rustix::fs::unlinkat(&self.fd, name, AtFlags::empty())?)
    }

    /// Whether an open file is what is under this name.
    pub fn holds(&self, name: &str, file: &File) -> bool {
        let there = rustix::fs::statat(&self.fd, name, AtFlags::SYMLINK_NOFOLLOW);
        let (Ok(there), Ok(here)) = (there, rustix::fs::fstat(file)) else { return false };
        (there.st_dev, there.st_ino) == (here.st_dev, here.st_ino)
    }

    /// Names and lengths in bytes of the regular files in it, of any owner. Names that are not UTF-8 are skipped.
    ///
    /// # Errors
    /// The system's error when it cannot be listed.
    pub fn files(&self) -> io::Result<Vec<(String, u64)>> {
        let mut all = Vec::new();
        for item in Dir::read_from(&self.fd)? {
            let item = item?;
            let Ok(name) = item.file_name().to_str() else { continue };
            // Gone since, or something else than a file: a link's own length is not a file's.
            let Ok(facts) = rustix::fs::statat(&self.fd, name, AtFlags::SYMLINK_NOFOLLOW) else { continue };
            if FileType::from_raw_mode(facts.st_mode).is_file() {
                all.push((name.to_owned(), facts.st_size as u64));
            }
        }
        Ok(all)
    }

    /// Total and free bytes of its file system.
    ///
    /// # Errors
    /// `File` when they cannot be read.
    pub fn room(&self) -> Result<VolumeRoom> {
        let facts =
            rustix::fs::fstatvfs(&self.fd).map_err(|errno| refused("reading the free space of", &self.path, errno))?;
        let bytes = |blocks: u64| blocks.saturating_mul(facts.f_frsize);
        Ok(VolumeRoom { total_bytes: bytes(facts.f_blocks), free_bytes: bytes(facts.f_bavail) })
    }

    /// Makes the names in it survive a power cut: what was made, renamed and removed there before.
    ///
    /// # Errors
    /// `File` when it cannot be synced.
    pub fn sync(&self) -> Result<()> {
        rustix::fs::fsync(&self.fd).map_err(|errno| refused("syncing the directory", &self.path, errno))
    }

    /// Opens the existing file with the last name of `path`, unchecked.
    ///
    /// # Errors
    /// The error number.
    pub(crate) fn open_at(&self, path: &Path, flags: OFlags) -> core::result::Result<OwnedFd, Errno> {
        rustix::fs::openat(&self.fd, name_of(path), PLAIN | flags, Mode::empty())
    }
}

impl AsFd for OwnDirectory {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// Whether an open file is a regular one.
///
/// # Errors
/// `File` when it belongs to another user or has several names: then another user may change its bytes.
pub(crate) fn checked(fd: impl AsFd, path: &Path) -> Result<bool> {
    let facts = rustix::fs::fstat(fd).map_err(|errno| refused("looking at", path, errno))?;
    if !FileType::from_raw_mode(facts.st_mode).is_file() {
        return Ok(false);
    }
    if facts.st_uid != user() {
        let cause = format!("{} {}, not to this user ({})", path.display(), owner(&facts), user());
        return Err(Error::new(Kind::File, cause).with_hint("remove it"));
    }
    if facts.st_nlink > 1 {
        let cause = format!("{} has {} names (hard links)", path.display(), facts.st_nlink);
        return Err(Error::new(Kind::File, cause).with_hint("remove it"));
    }
    Ok(true)
}

/// The parent, open, and the path of the directory in it.
fn holder(parent: &Path) -> Result<(OwnedFd, PathBuf)> {
    let found = parent
        .canonicalize()
        .map_err(|error| refused("opening the directory", parent, Errno::from_io_error(&error).unwrap_or(Errno::IO)))?;
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let opened = rustix::fs::openat(CWD, &found, flags, Mode::empty());
    let opened = opened.map_err(|errno| refused("opening the directory", &found, errno))?;
    let facts = rustix::fs::fstat(&opened).map_err(|errno| refused("looking at", &found, errno))?;
    if facts.st_uid != 0 && facts.st_uid != user() {
        let cause = format!("{} {}, neither to root nor to this user ({})", found.display(), owner(&facts), user());
        return Err(Error::new(Kind::File, cause).with_hint("name another directory, or change its owner (chown)"));
    }
    Ok((opened, found.join(format!("fuelrail-{}", user()))))
}

/// Opens the directory in its parent. `None` when there is none.
fn enter(holder: &OwnedFd, path: &Path) -> Result<Option<OwnDirectory>> {
    let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let fd = match rustix::fs::openat(holder, name_of(path), flags, Mode::empty()) {
        Err(Errno::NOENT) => return Ok(None),
        Err(errno) => return Err(refused("opening the directory", path, errno)),
        Ok(fd) => fd,
    };
    let facts = rustix::fs::fstat(&fd).map_err(|errno| refused("looking at", path, errno))?;
    if facts.st_uid != user() || facts.st_mode & 0o077 != 0 {
        let cause = format!("{} {}; it must be this user's ({}) alone", path.display(), owner(&facts), user());
        return Err(Error::new(Kind::File, cause)
            .with_hint("remove it, or change owner and mode (chown, chmod 700) if you know what is in it"));
    }
    Ok(Some(OwnDirectory { fd, path: path.to_owned() }))
}

fn user() -> u32 {
    rustix::process::geteuid().as_raw()
}

fn owner(facts: &Stat) -> String {
    format!("belongs to user {} (mode {:04o})", facts.st_uid, facts.st_mode & 0o7777)
}

fn name_of(path: &Path) -> &std::ffi::OsStr {
    path.file_name().expect("a file in a directory has a name")
}

fn refused(doing: &str, path: &Path, errno: Errno) -> Error {
    let cure = match errno {
        Errno::ACCESS | Errno::PERM => "give this user permission, or use another directory",
        Errno::ROFS => "use another directory, or look why the file system is read-only (dmesg)",
        Errno::MFILE | Errno::NFILE => "raise the limit of open files (ulimit -n)",
        Errno::NOENT => "check the path",
        Errno::NOSPC | Errno::DQUOT => "free some space, or use another disk",
        Errno::NOTDIR | Errno::LOOP => "remove what is under this name, or name another directory",
        _ => "look at the kernel's log (dmesg), or use another disk",
    };
    Error::from_errno(Kind::File, &format!("{doing} {}", path.display()), errno.raw_os_error()).with_hint(cure)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tree::Tree;
    use std::fs;
    use std::os::unix::fs::{PermissionsExt, symlink};

    #[test]
    fn only_a_regular_file_of_one_name_is_opened() {
        let tree = Tree::new(&[("outside", "x")]);
        let own = OwnDirectory::open(tree.root()).unwrap();
        assert_eq!(fs::metadata(own.path()).unwrap().permissions().mode() & 0o7777, 0o700);
        let path = |name| own.path().join(name);
        fs::write(path("file"), "x").unwrap();
        symlink("file", path("link")).unwrap();
        fs::create_dir(path("folder")).unwrap();
        std::os::unix::net::UnixListener::bind(path("socket")).unwrap();
        rustix::fs::mknodat(&own, "pipe", FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
        for name in ["file", "link", "folder", "socket", "pipe", "absent"] {
            for write in [false, true] {
                let opened = own.open_file(name, write).unwrap();
                assert_eq!(opened.is_some(), name == "file", "{name}, for writing: {write}");
            }
        }
        let file = own.open_or_make_file("file").unwrap();
        assert!(own.holds("file", &file) && !own.holds("link", &file) && !own.holds("absent", &file));
        assert_eq!(own.files().unwrap(), [("file".to_owned(), 1)]);
        assert!(own.open_or_make_file("link").unwrap_err().to_string().contains("not a regular file"));
        fs::hard_link(path("file"), tree.root().join("second")).unwrap();
        let error = own.open_file("file", false).unwrap_err();
        assert!(error.kind() == Kind::File && error.to_string().contains("2 names"), "{error}");
    }

    #[test]
    fn one_that_others_may_use_is_refused_with_owner_and_mode() {
        let tree = Tree::new(&[]);
        assert!(OwnDirectory::find(tree.root()).unwrap().is_none());
        let own = OwnDirectory::open(tree.root()).unwrap();
        let room = own.room().unwrap();
        assert!(room.free_bytes > 0 && room.free_bytes <= room.total_bytes, "{room:?}");
        own.sync().unwrap();
        fs::set_permissions(own.path(), fs::Permissions::from_mode(0o750)).unwrap();
        let error = OwnDirectory::open(tree.root()).unwrap_err().to_string();
        assert!(error.contains(&format!("user {} (mode 0750)", user())), "{error}");
        fs::remove_dir(own.path()).unwrap();
        symlink("/tmp", own.path()).unwrap();
        let error = OwnDirectory::open(tree.root()).unwrap_err().to_string();
        assert!(error.contains("Not a directory"), "{error}");
        let error = OwnDirectory::open(&tree.root().join("absent")).unwrap_err().to_string();
        assert!(error.contains("absent"), "{error}");
    }
}
