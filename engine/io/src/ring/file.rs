//! Opening the files of a ring. Owns nothing: the descriptor goes to the caller.

use std::fs::OpenOptions;
use std::os::fd::OwnedFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use fuelrail_base::{Error, Kind, Result};

use crate::volume::preallocate;

/// How a file is opened. The default is an existing file, for reading, through the page cache.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct FileOptions {
    /// For writing, too.
    pub write: bool,
    /// Made, readable by its owner alone, when there is none.
    pub create: bool,
    /// Around the page cache (`O_DIRECT`): offsets, lengths and addresses are multiples of the device's block (512 or
    /// 4096 bytes), or the operation fails with `EINVAL`.
    pub direct: bool,
    /// Made at least so many bytes long, with the room on the disk taken at once: a write into them cannot run out of it.
    pub len: Option<u64>,
}

impl FileOptions {
    /// Checks that the options go together.
    ///
    /// # Errors
    /// `Usage` for a file that is to be made or preallocated, yet not written.
    pub fn validate(&self) -> Result<()> {
        if (self.create || self.len.is_some()) && !self.write {
            return Err(Error::new(Kind::Usage, "a file is made or preallocated only when it is opened for writing"));
        }
        Ok(())
    }
}

/// Opens a file as the options say.
///
/// # Errors
/// As [`Ring::open`](crate::Ring::open), the ring's table aside.
pub(super) fn open_file(path: &Path, options: &FileOptions) -> Result<OwnedFd> {
    options.validate()?;
    let direct = if options.direct { libc::O_DIRECT } else { 0 };
    let file = OpenOptions::new()
        .read(true)
        .write(options.write)
        .create(options.create)
        .mode(0o600)
        .custom_flags(direct)
        .open(path)
        .map_err(|error| refusal(path, options, error.raw_os_error().unwrap_or(libc::EIO)))?;
    if let Some(len) = options.len {
        preallocate(&file, path, len)?;
    }
    Ok(file.into())
}

fn refusal(path: &Path, options: &FileOptions, errno: i32) -> Error {
    let doing = format!("opening {}", path.display());
    let (kind, cure) = match errno {
        libc::EMFILE | libc::ENFILE => (Kind::Environment, "raise the limit of open files (ulimit -n)"),
        libc::EINVAL if options.direct => (
            Kind::File,
            "its file system offers no direct access (O_DIRECT): use ext4, XFS or btrfs, or open it without",
        ),
        libc::ENOENT if options.create => (Kind::File, "make its directory first"),
        libc::ENOENT => (Kind::File, "check the path"),
        libc::EACCES | libc::EPERM | libc::EROFS => (Kind::File, "choose a place this user may use"),
        libc::ENOSPC | libc::EDQUOT => (Kind::File, "free some space, or use another disk"),
        _ => (Kind::File, "use another file"),
    };
    Error::from_errno(kind, &doing, errno).cure(cure)
}

/// What a ring says when its table of files is full.
pub(super) fn files_open() -> Error {
    Error::new(Kind::Budget, "all files of this ring are open").cure("close some first, or keep more in one file")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusals_name_the_path_and_a_cure() {
        let path = Path::new("/nowhere/at all");
        let direct = FileOptions { direct: true, ..FileOptions::default() };
        let create = FileOptions { create: true, write: true, ..FileOptions::default() };
        for (options, errno, kind, cure) in [
            (direct, libc::EINVAL, Kind::File, "O_DIRECT"),
            (create, libc::ENOENT, Kind::File, "directory"),
            (FileOptions::default(), libc::ENOENT, Kind::File, "check the path"),
            (FileOptions::default(), libc::EMFILE, Kind::Environment, "ulimit -n"),
            (create, libc::EROFS, Kind::File, "this user"),
        ] {
            let error = refusal(path, &options, errno);
            let text = error.to_string();
            assert_eq!(error.kind(), kind, "{text}");
            assert!(text.contains("/nowhere/at all") && text.contains(cure), "{text}");
        }
    }

    #[test]
    fn what_is_not_written_is_not_made() {
        for wrong in [
            FileOptions { create: true, ..FileOptions::default() },
            FileOptions { len: Some(1), ..FileOptions::default() },
        ] {
            let error = open_file(Path::new("/nowhere"), &wrong).unwrap_err();
            assert_eq!(error.kind(), Kind::Usage, "{error}");
        }
    }

    #[test]
    fn more_than_a_disk_is_refused_aloud() {
        let path = std::env::temp_dir().join(format!("fuelrail-file-{}", std::process::id()));
        let options = FileOptions { write: true, create: true, len: Some(1 << 62), ..FileOptions::default() };
        let refused = open_file(&path, &options);
        std::fs::remove_file(&path).unwrap();
        let text = refused.unwrap_err().to_string();
        assert!(
            text.contains("of disk for") && text.contains("ask for less") && text.contains("fuelrail-file"),
            "{text}"
        );
    }
}
