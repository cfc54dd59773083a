//! One segment's file: validated before its content is used, and locked before it is changed.
//!
//! Owns the open file, and with it the lock. A file whose name or header is not exactly a segment's is never opened for
//! writing, changed or removed.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::Arc;

use crate::system::refused;
use fuelrail_base::{Error, Result};
use fuelrail_io::{OwnDirectory, direct_unit, is_locked, try_lock};
use fuelrail_wire::block::{PAGE_BYTES, Record, Scan, Scanned, SegmentHeader, SegmentName};

/// A file in a cache directory that is named as a segment.
#[derive(Clone, Debug)]
pub(crate) struct Named {
    pub(crate) name: SegmentName,
    pub(crate) directory: Arc<OwnDirectory>,
    /// Its length, bytes.
    pub(crate) len: u64,
}

impl Named {
    pub(crate) fn path(&self) -> PathBuf {
        self.directory.path().join(self.name.to_string())
    }
}

/// A segment, open to be read.
#[derive(Debug)]
pub(crate) struct Segment {
    file: File,
    pub(crate) named: Named,
    pub(crate) header: SegmentHeader,
}

/// Why a file with a segment's name is not one to be used.
#[derive(Debug)]
pub(crate) enum Unfit {
    /// It does not exist, or is not a regular file.
    Gone,
    /// It is not what its name says.
    Flawed(String),
    /// It cannot be read.
    Failed(Error),
}

impl Segment {
    /// Opens a file that is named as a segment, and checks its header against name and length.
    pub(crate) fn open(named: &Named) -> Result<Segment, Unfit> {
        let opened = named.directory.open_file(&named.name.to_string(), false);
        let file = opened.map_err(Unfit::Failed)?.ok_or(Unfit::Gone)?;
        let failed = |error: &std::io::Error| Unfit::Failed(refused(&named.path(), "reading", error));
        let len = file.metadata().map_err(|error| failed(&error))?.len();
        if len < PAGE_BYTES as u64 {
            return Err(Unfit::Flawed("it is shorter than its header".into()));
        }
        let mut page = [0; PAGE_BYTES];
        file.read_exact_at(&mut page, 0).map_err(|error| failed(&error))?;
        let header = SegmentHeader::decode(&page).map_err(|flaw| Unfit::Flawed(flaw.to_string()))?;
        if header.id != named.name.id {
            return Err(Unfit::Flawed("its header belongs to another segment".into()));
        }
        if header.len != len {
            return Err(Unfit::Flawed(format!("it has {len} bytes of {}", header.len)));
        }
        Ok(Segment { file, named: named.clone(), header })
    }

    /// Reads its journal.
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
    pub(crate) fn proves(&self, record: &Record, bytes: &mut Vec<u8>) -> Result<bool> {
        bytes.resize(record.len as usize, 0);
        self.read(bytes, record.place)?;
        Ok(crc32c::crc32c(bytes) == record.crc32c)
    }

    fn read(&self, bytes: &mut [u8], place: u64) -> Result<()> {
        self.file.read_exact_at(bytes, place).map_err(|error| refused(&self.named.path(), "reading", &error))
    }

    /// Whether direct transfers to it work in the unit it was written in.
    pub(crate) fn is_direct(&self) -> bool {
        direct_unit(&self.file).is_some_and(|unit| unit <= self.header.unit)
    }

    /// Whether a living process owns it.
    pub(crate) fn is_owned(&self) -> Result<bool> {
        is_locked(&self.file, &self.named.path())
    }

    /// Becomes its owner, if it has none. `None` when it has one, or when another file is under its name by now.
    pub(crate) fn try_own(&self) -> Result<Option<Owned>> {
        let Named { name, directory, .. } = &self.named;
        let Some(file) = directory.open_file(&name.to_string(), true)? else { return Ok(None) };
        if !try_lock(&file, &self.named.path())? || !directory.holds(&name.to_string(), &self.file) {
            return Ok(None);
        }
        let owned = Owned::new(file, self.named.clone(), self.header);
        // Its owner may have removed it between opening and locking.
        Ok(owned.is_in_place().then_some(owned))
    }

    /// Removes its name, whichever process owns it; open files stay readable.
    pub(crate) fn remove(&self) -> Result<()> {
        remove(&self.file, &self.named)
    }
}

/// A segment this process owns, open to be written: it alone appends to it, and may remove it.
#[derive(Debug)]
pub(crate) struct Owned(pub(crate) Segment);

impl Owned {
    /// Around a file just made, locked and given its header.
    pub(super) fn new(file: File, named: Named, header: SegmentHeader) -> Owned {
        Owned(Segment { file, named, header })
    }

    /// Whether it is still what is found under its name.
    pub(crate) fn is_in_place(&self) -> bool {
        let Segment { named, file, .. } = &self.0;
        named.directory.holds(&named.name.to_string(), file)
    }

    /// Gives its room back, as soon as the last reader has closed it.
    pub(crate) fn remove(self) -> Result<()> {
        self.0.remove()
    }
}

/// Removes the name if it is still this file's.
pub(super) fn remove(file: &File, named: &Named) -> Result<()> {
    let name = named.name.to_string();
    if !named.directory.holds(&name, file) {
        return Ok(());
    }
    match named.directory.remove(&name) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(refused(&named.path(), "removing", &error)),
        _ => Ok(()),
    }
}
