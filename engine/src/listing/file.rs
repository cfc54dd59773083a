//! Files of kept listings: made, opened and refused alike.

use fuelrail_base::{Error, Kind, Result};
use fuelrail_io::open_regular;
use std::fs::{File, OpenOptions};
use std::io::ErrorKind;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

/// Opens a file of ours to read and write, made where there is none. Keys may tell something: nobody else reads it.
///
/// # Errors
/// `File` when there is something else under its name, or it is refused.
pub(super) fn make_or_open(path: &Path) -> Result<File> {
    match OpenOptions::new().read(true).write(true).create_new(true).mode(0o600).open(path) {
        Ok(file) => Ok(file),
        Err(error) if error.kind() == ErrorKind::AlreadyExists => open_regular(path, true)?
            .ok_or_else(|| Error::new(Kind::File, format!("{} is no plain file", path.display())).cure("move it away")),
        Err(error) => Err(refused(path, "making", &error)),
    }
}

pub(super) fn refused(path: &Path, doing: &str, error: &std::io::Error) -> Error {
    let errno = error.raw_os_error().unwrap_or(0);
    Error::from_errno(Kind::File, &format!("{doing} {}", path.display()), errno)
        .cure("choose a directory that this user may write to, on a disk with room")
}
