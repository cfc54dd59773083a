//! A read-only mapping of a file. Processes that map the same file share its pages in the page cache.
//!
//! Owns the mapping. If the file is truncated while it is mapped, or its disk fails, a read raises SIGBUS: so only files of this user's own
//! directory are mapped, whose names are replaced by renaming and never written in place.

use std::fs::File;
use std::io;

use crate::arena::Mapping;

/// All bytes of a file, to be read. Made by [`OwnDirectory::map_file`](crate::OwnDirectory::map_file).
#[derive(Debug)]
pub struct MappedFile {
    /// `None` for an empty file.
    mapping: Option<Mapping>,
}

impl MappedFile {
    /// Maps all of a file. The file must not be modified or truncated while the mapping exists.
    pub(crate) fn of(file: &File) -> io::Result<MappedFile> {
        let len = usize::try_from(file.metadata()?.len()).map_err(|_| io::ErrorKind::OutOfMemory)?;
        let mapping = if len == 0 { None } else { Some(Mapping::of_file(len, file)?) };
        Ok(MappedFile { mapping })
    }
}

impl AsRef<[u8]> for MappedFile {
    fn as_ref(&self) -> &[u8] {
        self.mapping.as_ref().map_or(&[], |mapping| {
            let (base, len) = mapping.range();
            // SAFETY: the range is mapped to be read for as long as `self`, which is borrowed; nothing of this process writes to it, and
            // other processes of this user replace the file by renaming, never in place (see above).
            unsafe { core::slice::from_raw_parts(base, len) }
        })
    }
}
