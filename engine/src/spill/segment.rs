//! One segment's file: checked to be a segment before anything is believed, and owned before anything is done to it.
//!
//! Owns the open file, and with it the lock. A file whose name or header is not exactly a segment's is never opened for
//! writing, changed or removed.

use std::fs::File;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};

use fuelrail_base::{Error, Kind, Result};
use fuelrail_io::{direct_unit, is_locked, open_regular, try_lock};
use fuelrail_wire::block::{PAGE_BYTES, Record, Scan, Scanned, SegmentHeader, SegmentName};

/// A segment, open to be read.
#[derive(Debug)]
pub(crate) struct Segment {
    file: File,
    pub(crate) path: PathBuf,
    pub(crate) header: SegmentHeader,
}

/// Why a file with a segment's name is not one to be used.
#[derive(Debug)]
pub(crate) enum Unfit {
    /// There is nothing, or no regular file: somebody removed it, or never meant a segment.
    Gone,
    /// It is not what its name says.
    Flawed(String),
    /// It cannot be read.
    Failed(Error),
}

impl Segment {
    /// Opens a file that is named as a segment, and believes its header only when it fits name and length.
    pub(crate) fn open(path: &Path, name: SegmentName) -> Result<Segment, Unfit> {
        let file = open_regular(path, false).map_err(Unfit::Failed)?.ok_or(Unfit::Gone)?;
        let failed = |error: &std::io::Error| Unfit::Failed(refused(path, "reading", error));
        let len = file.metadata().map_err(|error| failed(&error))?.len();
        if len < PAGE_BYTES as u64 {
            return Err(Unfit::Flawed("it is shorter than its header".into()));
        }
        let mut page = [0; PAGE_BYTES];
        file.read_exact_at(&mut page, 0).map_err(|error| failed(&error))?;
        let header = SegmentHeader::decode(&page).map_err(|flaw| Unfit::Flawed(flaw.to_string()))?;
        if header.id != name.id {
            return Err(Unfit::Flawed("its header is another segment's".into()));
        }
        if header.len != len {
            return Err(Unfit::Flawed(format!("it has {len} bytes of {}", header.len)));
        }
        Ok(Segment { file, path: path.to_owned(), header })
    }

    /// Reads its journal.
    ///
    /// # Errors
    /// `File` when the disk refuses.
    pub(crate) fn scan(&self) -> Result<Scanned> {
        let mut scan = Scan::new(&self.header);
        let mut bytes = Vec::new();
        while let Some((place, len)) = scan.wants() {
            bytes.resize(len, 0);
            self.read(&mut bytes, place)?;
            scan.take(&bytes);
        }
        Ok(scan.finish())
    }

    /// Whether a record's block is what it says.
    ///
    /// # Errors
    /// `File` when the disk refuses.
    pub(crate) fn proves(&self, record: &Record, bytes: &mut Vec<u8>) -> Result<bool> {
        bytes.resize(record.len as usize, 0);
        self.read(bytes, record.place)?;
        Ok(crc32c::crc32c(bytes) == record.crc32c)
    }

    fn read(&self, bytes: &mut [u8], place: u64) -> Result<()> {
        self.file.read_exact_at(bytes, place).map_err(|error| refused(&self.path, "reading", &error))
    }

    /// Whether direct transfers to it work in the unit it was written in.
    pub(crate) fn is_direct(&self) -> bool {
        direct_unit(&self.file).is_some_and(|unit| unit <= self.header.unit)
    }

    /// Whether a living process owns it.
    ///
    /// # Errors
    /// `File` when the file system has no locks.
    pub(crate) fn is_owned(&self) -> Result<bool> {
        is_locked(&self.file, &self.path)
    }

    /// Becomes its owner, if it has none. `None` when it has one, or when another file is under its name by now.
    ///
    /// # Errors
    /// `File` when it cannot be opened for writing, or locked.
    pub(crate) fn try_own(&self) -> Result<Option<Owned>> {
        let Some(file) = open_regular(&self.path, true)? else { return Ok(None) };
        if !same(&self.file, &file) || !try_lock(&file, &self.path)? {
            return Ok(None);
        }
        let owned = Owned { file, path: self.path.clone(), header: self.header };
        // Its owner may have removed it between opening and locking.
        Ok(owned.is_in_place().then_some(owned))
    }

    /// Removes its name, whoever owns it; what is open already stays readable.
    ///
    /// # Errors
    /// `File` when the name cannot be removed.
    pub(crate) fn remove(&self) -> Result<()> {
        remove(&self.file, &self.path)
    }
}

/// A segment this process owns: it alone appends to it, and may remove it.
#[derive(Debug)]
pub(crate) struct Owned {
    file: File,
    pub(crate) path: PathBuf,
    pub(crate) header: SegmentHeader,
}

impl Owned {
    /// Around a file just made, locked and given its header.
    pub(super) fn new(file: File, path: PathBuf, header: SegmentHeader) -> Owned {
        Owned { file, path, header }
    }

    /// Whether it is still what is found under its name.
    pub(crate) fn is_in_place(&self) -> bool {
        is_at(&self.file, &self.path)
    }

    /// To be read.
    ///
    /// # Errors
    /// `File` when there is no descriptor left.
    pub(crate) fn segment(&self) -> Result<Segment> {
        let file = self.file.try_clone().map_err(|error| refused(&self.path, "opening", &error))?;
        Ok(Segment { file, path: self.path.clone(), header: self.header })
    }

    /// Gives its room back, as soon as the last reader has closed it.
    ///
    /// # Errors
    /// `File` when the name cannot be removed.
    pub(crate) fn remove(self) -> Result<()> {
        remove(&self.file, &self.path)
    }
}

/// Removes the name if it is still this file's.
pub(super) fn remove(file: &File, path: &Path) -> Result<()> {
    if !is_at(file, path) {
        return Ok(());
    }
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(refused(path, "removing", &error)),
        _ => Ok(()),
    }
}

fn is_at(file: &File, path: &Path) -> bool {
    let (Ok(here), Ok(there)) = (file.metadata(), std::fs::symlink_metadata(path)) else { return false };
    (here.dev(), here.ino()) == (there.dev(), there.ino())
}

fn same(one: &File, other: &File) -> bool {
    let (Ok(one), Ok(other)) = (one.metadata(), other.metadata()) else { return false };
    (one.dev(), one.ino()) == (other.dev(), other.ino())
}

pub(super) fn refused(path: &Path, doing: &str, error: &std::io::Error) -> Error {
    let cure = match error.kind() {
        std::io::ErrorKind::PermissionDenied | std::io::ErrorKind::ReadOnlyFilesystem => {
            "give this user the right to it, or use another directory"
        }
        std::io::ErrorKind::StorageFull | std::io::ErrorKind::QuotaExceeded => "free some space, or use another disk",
        _ => "look at the kernel's log (dmesg), or use another disk",
    };
    Error::new(Kind::File, format!("{doing} {}: {error}", path.display())).cure(cure)
}
