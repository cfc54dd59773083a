//! The disk tier's files: directories, segments, locks, limits, and recovery.
//!
//! Owns the segment manager's thread. Shards write and read blocks by themselves, without waiting for it. The format is
//! `fuelrail_wire::block`'s.

mod directory;
mod inspection;
mod manager;
mod room;
mod segment;
#[cfg(test)]
mod tests;

pub(crate) use directory::Directory;
pub use inspection::{
    CacheDirectory, CacheSegment, CacheVerdict, RemovedCache, SegmentState, list_cache, remove_cache, verify_cache,
};
pub(crate) use manager::SegmentManager;

use crate::config::Config;
use crate::layout::Layout;
use fuelrail_base::{ByteSize, Result, SampleId};
use fuelrail_flow::{Objects, SpillSetup};
use fuelrail_wire::{Endpoint, Scheme};
use room::{Lengths, Limits};
use std::path::PathBuf;
use std::sync::Arc;

/// Opens the directories that can be opened, each once; a line about each of the others.
pub(crate) fn open_directories(paths: &[PathBuf], notices: &mut Vec<String>) -> Vec<Directory> {
    let mut directories: Vec<Directory> = Vec::new();
    for path in paths {
        match Directory::open(path) {
            Ok(new) if directories.iter().any(|known| known.own.path() == new.own.path()) => {}
            Ok(new) => directories.push(new),
            Err(error) => notices.push(format!("disk: {} is not used: {error}", path.display())),
        }
    }
    directories
}

/// Receives one line about each failing disk.
type Report = Arc<dyn Fn(&str) + Send + Sync>;

/// What direct transfers to these directories are multiples of, bytes; `None` without any.
pub(crate) fn disk_unit(directories: &[Directory]) -> Option<u64> {
    directories.iter().map(|directory| u64::from(directory.unit())).max()
}

/// Leaves out what has no sense where the data set is a folder of this machine: a disk below it, and second requests.
pub(crate) fn settle_for(endpoint: &Endpoint, config: &mut Config, notices: &mut Vec<String>) {
    if endpoint.scheme != Scheme::File {
        return;
    }
    config.network.hedge_percent = 0;
    if !config.disk.dirs.is_empty() {
        config.disk.dirs.clear();
        notices.push(
            "spill_dirs: nothing is kept there, because the data set is on a disk of this machine already; cache_limit keeps \
             it in memory"
                .into(),
        );
    }
}

/// Starts the segment manager of these directories. Returns it and each shard's initial segments, and adds a notice about them.
pub(crate) fn start_segment_manager(
    config: &Config,
    layout: &Layout,
    directories: Vec<Directory>,
    objects: &Objects,
    (notices, report): (&mut Vec<String>, Report),
) -> Result<(Option<SegmentManager>, Vec<Option<SpillSetup>>)> {
    if directories.is_empty() {
        return Ok((None, (0..layout.shards).map(|_| None).collect()));
    }
    let bytes = |size: Option<ByteSize>| size.map_or(0, |size| size.0);
    let limits = Limits { limit_bytes: bytes(config.disk.limit), floor_bytes: bytes(config.disk.floor) };
    let catalog = objects.catalog();
    let longest = (0..catalog.samples()).map(|sample| catalog.size(SampleId(sample))).max().unwrap_or(0);
    let lengths = Lengths::new(limits, &directories, layout.shards, longest.min(catalog.block_bytes()));
    let tell = Box::new(move |line: &str| report(line));
    let (manager, setups) = SegmentManager::start((limits, lengths, layout.shards), directories, objects, tell)?;
    let known = setups.iter().flat_map(|setup| &setup.found);
    let (segments, blocks) = known.fold((0, 0), |(s, b), (_, known)| (s + 1, b + known.len()));
    notices.push(format!(
        "disk: {blocks} blocks of this data set found in {segments} segments; new ones have {}",
        ByteSize(lengths.usual)
    ));
    Ok((Some(manager), setups.into_iter().map(Some).collect()))
}
