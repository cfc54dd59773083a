//! What the disk below the RAM cache did, all shards together.

use crate::stats::Quantiles;
use fuelrail_base::metrics::Histogram;
use fuelrail_flow::Snapshot;
use serde::{Deserialize, Serialize};

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
