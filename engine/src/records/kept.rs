//! The index of records on disk, for later runs over the same data set.

use super::IndexBytes;
use crate::system::{own_directory, replace_file};
use fuelrail_base::Result;
use fuelrail_format::{Format, Index};
use fuelrail_io::{OwnDirectory, try_lock};
use fuelrail_wire::kept::SourceId;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// How often one that waits looks whether the other one is done.
const LOOK_AGAIN: Duration = Duration::from_millis(50);

/// Where an index is kept, for later runs over the same data set.
pub(crate) struct Kept {
    own: OwnDirectory,
    name: String,
}

impl Kept {
    /// In this user's directory in `dir`.
    ///
    /// # Errors
    /// `File` when the directory cannot be made or is not this user's.
    pub(crate) fn open(dir: &Path, id: SourceId, format: Format, notices: &mut Vec<String>) -> Result<Kept> {
        let name = format!("fuelrail-{:032x}.{format}-records", u128::from_be_bytes(id.0));
        Ok(Kept { own: own_directory("listing_dir", dir, notices)?, name })
    }

    /// Lets one process of a machine look for records while others wait for what it keeps. The lock, which ends with the process; `None` after
    /// a wait. `waits` is called when one begins.
    ///
    /// # Errors
    /// `File` for what the disk refuses.
    pub(crate) fn look_first(&self, waits: impl FnOnce()) -> Result<Option<File>> {
        let name = format!("{}.lock", self.name);
        let (file, path) = (self.own.open_or_make_file(&name)?, self.own.path().join(&name));
        if try_lock(&file, &path)? {
            return Ok(Some(file));
        }
        waits();
        while !try_lock(&file, &path)? {
            std::thread::sleep(LOOK_AGAIN);
        }
        // If nothing was kept, all that waited look at once.
        Ok(None)
    }

    /// The index that is there. `None` where there is none of these very objects.
    pub(super) fn load(&self, format: Format, content: [u8; 16]) -> Option<Index<IndexBytes>> {
        let index = Index::open(IndexBytes::Shared(self.own.map_file(&self.name).ok()??)).ok()?;
        (index.source() == content && index.format() == format).then_some(index)
    }

    /// Keeps an index, in the place of what is there.
    ///
    /// # Errors
    /// What the disk refuses; what was there stays then.
    pub(super) fn save(&self, index: &[u8]) -> std::io::Result<PathBuf> {
        replace_file(&self.own, &self.name, index)?;
        Ok(self.own.path().join(&self.name))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_index_is_kept_beside_what_another_process_of_the_same_id_left() {
        let dir = tempfile::tempdir().unwrap();
        let kept = Kept::open(dir.path(), SourceId([7; 16]), Format::Objects, &mut Vec::new()).unwrap();
        let left = format!("{}-{:x}", kept.name, std::process::id());
        kept.own.make_file(&left).unwrap();
        assert!(kept.save(b"index").unwrap().exists());
        assert!(kept.own.path().join(left).exists(), "it may be another's that still writes");
    }
}
