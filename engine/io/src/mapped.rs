//! A file of this user's, mapped to be read: its memory is the page cache's, which all processes share that map it.
//!
//! Owns the mapping. A file that is cut while it is mapped, or a disk that fails, ends the process with a SIGBUS: so only files of a
//! directory of our own are mapped, where files of that name are replaced and never changed.

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
    /// Maps a file that nobody changes or cuts from now on.
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
            // the file is replaced by others of this user, never changed (see above).
            unsafe { core::slice::from_raw_parts(base, len) }
        })
    }
}
