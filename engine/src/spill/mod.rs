//! Blocks on local disks, as the façade keeps them: directories, segments, locks, limits, and what is found again.
//!
//! Owns the keeper's thread. Shards write and read blocks by themselves; nothing here is in their way. The format is
//! `fuelrail_wire::block`'s.

mod census;
mod directory;
mod keeper;
mod recover;
mod room;
mod segment;
#[cfg(test)]
mod tests;

pub use census::{
    CacheDirectory, CacheSegment, CacheVerdict, RemovedCache, SegmentState, list_cache, remove_cache, verify_cache,
};
pub(crate) use directory::Directory;
pub(crate) use keeper::Keeper;
pub(crate) use room::{Lengths, Limits};

use std::path::PathBuf;

/// Opens the directories that can be opened, each once; a line about each of the others.
pub(crate) fn open_directories(paths: &[PathBuf], notices: &mut Vec<String>) -> Vec<Directory> {
    let mut directories: Vec<Directory> = Vec::new();
    for path in paths {
        match Directory::open(path) {
            Ok(new) if directories.iter().any(|known| known.own.path() == new.own.path()) => {}
            Ok(new) => directories.push(new),
            Err(error) => notices.push(format!("disk: nothing is kept in {}: {error}", path.display())),
        }
    }
    directories
}
