//! The disk below the RAM cache, from a loader's side: what it is made of at the start, and what it did, all shards together.

use crate::config::Config;
use crate::layout::Layout;
use crate::quantiles::Quantiles;
use crate::spill::{Directory, Keeper, KeeperConfig, Lengths, Limits};
use fuelrail_base::metrics::Histogram;
use fuelrail_base::{ByteSize, Result, SampleId};
use fuelrail_flow::{Objects, Snapshot, SpillSetup};
use fuelrail_wire::{Endpoint, Scheme};
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// Who is told of disks that fail.
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
    config.hedge_percent = 0;
    if !config.spill_dirs.is_empty() {
        config.spill_dirs.clear();
        notices.push(
            "spill_dirs: nothing is kept there, because the data set is on a disk of this machine already; cache_limit keeps \
             it in memory"
                .into(),
        );
    }
}

/// Starts the keeper of these directories: it, and what each shard begins with. Says what was found there.
///
/// # Errors
/// `Environment` when its thread is refused.
pub(crate) fn start_keeper(
    config: &Config,
    layout: &Layout,
    directories: Vec<Directory>,
    objects: &Objects,
    (notices, report): (&mut Vec<String>, Report),
) -> Result<(Option<Keeper>, Vec<Option<SpillSetup>>)> {
    if directories.is_empty() {
        return Ok((None, (0..layout.shards).map(|_| None).collect()));
    }
    let limits = Limits { limit_bytes: config.spill_limit_bytes, floor_bytes: config.spill_floor_bytes };
    let catalog = objects.catalog();
    let longest = (0..catalog.samples()).map(|sample| catalog.size(SampleId(sample))).max().unwrap_or(0);
    let lengths = Lengths::new(limits, &directories, layout.shards, longest.min(catalog.block_bytes()));
    let keeper = KeeperConfig { limits, lengths, shards: layout.shards };
    let tell = Box::new(move |line: &str| report(line));
    let (keeper, setups) = Keeper::start(keeper, directories, objects, tell)?;
    let known = setups.iter().flat_map(|setup| &setup.found);
    let (segments, blocks) = known.fold((0, 0), |(s, b), (_, known)| (s + 1, b + known.len()));
    notices.push(format!(
        "disk: {blocks} blocks of this data set found in {segments} segments; new ones have {}",
        ByteSize(lengths.usual)
    ));
    Ok((Some(keeper), setups.into_iter().map(Some).collect()))
}

/// What the disk brought and took since the loader was built.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct DiskFacts {
    /// Blocks served from disk.
    pub hits: u64,
    /// … their payload bytes.
    pub hit_bytes: u64,
    /// Blocks that were there at the start: of an earlier run, or of another process.
    pub adopted: u64,
    /// Blocks written.
    pub written: u64,
    /// … their payload bytes.
    pub written_bytes: u64,
    /// Blocks worth keeping that found no room.
    pub refused: u64,
    /// Blocks not kept because writes were behind.
    pub skipped: u64,
    /// Blocks that could not be written.
    pub write_failures: u64,
    /// Blocks that could not be read, or were not what was written: fetched again.
    pub lost: u64,
    /// Segments given up for better blocks.
    pub trims: u64,
    /// Segments lost with their disk.
    pub broken: u64,
    /// Segments made, of dead processes taken over at the start, and of dead processes removed to have their room.
    pub segments_made: u64,
    /// See `segments_made`.
    pub segments_taken_over: u64,
    /// See `segments_made`.
    pub segments_reclaimed: u64,
    /// Operations that failed, on files and on directories.
    pub failures: u64,
    /// Directories nothing is kept in any more because they failed.
    pub directories_failed: u64,
    /// Bytes read from disk, rounded up to its units.
    pub read_bytes: u64,
    /// Bytes written to disk, padding and journal included.
    pub device_written_bytes: u64,
    /// Payload bytes of short blocks that the CPU copied on their way to the disk and back.
    pub copied_bytes: u64,
    /// From the command to the last byte of reads while nothing was being written, µs.
    pub read_alone_us: Quantiles,
    /// … of reads that met writes, µs.
    pub read_beside_writes_us: Quantiles,
    /// Memory that knowing where blocks lie takes, bytes.
    pub index_bytes: u64,
    /// Blocks on disk now.
    pub blocks: u64,
}

impl DiskFacts {
    /// The same, with what the keeper has to tell.
    pub(crate) fn with_keeper(mut self, keeper: &Keeper) -> DiskFacts {
        let told = keeper.facts();
        self.segments_made = told.made;
        self.segments_taken_over = told.taken_over;
        self.segments_reclaimed = told.reclaimed;
        self.failures += told.failures;
        self.directories_failed = told.directories_failed;
        self
    }
}

/// The sum over shards, as it grows.
#[derive(Default)]
pub(crate) struct DiskTally {
    facts: DiskFacts,
    alone: Histogram,
    beside: Histogram,
    any: bool,
}

impl DiskTally {
    pub(crate) fn add(&mut self, shard: &Snapshot) {
        let (brain, disk) = (&shard.brain.spill, &shard.disk);
        let facts = &mut self.facts;
        self.any |= shard.index_bytes > 0;
        facts.hits += brain.hits;
        facts.hit_bytes += brain.hit_bytes;
        facts.adopted += brain.adopted;
        facts.written += brain.written;
        facts.written_bytes += brain.written_bytes;
        facts.refused += brain.refused;
        facts.skipped += brain.skipped;
        facts.write_failures += brain.write_failures;
        facts.lost += brain.lost;
        facts.trims += brain.trims;
        facts.broken += brain.broken;
        facts.failures += disk.failures;
        facts.read_bytes += disk.read_bytes;
        facts.device_written_bytes += disk.written_bytes;
        facts.copied_bytes += disk.copied_bytes;
        facts.index_bytes += shard.index_bytes;
        facts.blocks += shard.disk_blocks;
        self.alone.merge(&disk.read_alone);
        self.beside.merge(&disk.read_beside);
    }

    /// What it came to; `None` where there is no disk.
    pub(crate) fn facts(mut self) -> Option<DiskFacts> {
        self.facts.read_alone_us = self.alone.summary().into();
        self.facts.read_beside_writes_us = self.beside.summary().into();
        self.any.then_some(self.facts)
    }
}
