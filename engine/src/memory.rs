//! What a loader takes of the machine's memory: its arena, and the bounds of all else, worked out at start from its settings and the
//! listing and told in its stats.

use crate::chunks::chunks_held;
use crate::config::{Config, Order};
use crate::layout::{Layout, Seating, Wanted};
use crate::records::Records;
use fuelrail_base::limits::{OPEN_BATCHES_MAX, PICTURE_BYTES_KEPT};
use fuelrail_base::{ByteSize, Result};
use fuelrail_flow::{ChannelEnds, Objects, PeerRoom, cached_block_bytes, scratch_bytes, spill_memory_bytes};
use fuelrail_io::{Arena, ArenaConfig, BorrowedSpan, Budget, EXTENT_GRANULE, Huge, HugePages, Region, Topology};
use fuelrail_plan::catalog::Catalog;
use fuelrail_plan::order::MixtureEpoch;
use serde::{Deserialize, Serialize};

/// What a loader takes at most, in three parts (arena, tables, rest), bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct MemoryStats {
    /// The setting `memory_limit`: as given, or the default that was taken.
    #[serde(default)]
    pub limit_bytes: u64,
    /// The arena, mapped at start: batches, cached blocks, decoded batches, and the buffers of connections and disks. At most
    /// `memory_limit`.
    pub arena_bytes: u64,
    /// The part of the arena for batches that are filled, wait or are held by the caller: how far the loader reads ahead. 0 in a job of a
    /// shared read: they lie in the reader's memory.
    #[serde(default)]
    pub batch_bytes: u64,
    /// Tables whose size follows from the data set and the number of shards: keys, sizes, ETags, labels and scores, what is known of blocks
    /// in RAM and on disk, and the channels between shards.
    pub tables_bytes: u64,
    /// The rest: the code's own state for each shard, each connection, each block of an open batch and each decoding thread; and where
    /// records have to be unpacked, unpacked parts, and the arena of the loader that reads them.
    pub rest_bytes: u64,
}

/// Memory that batches lie in, for those who register it with a device. Mapped as long as this, the loader or one of its batches
/// lives. Clones are the same memory.
#[derive(Clone, Debug)]
pub struct Memory(pub(crate) Mapped);

#[derive(Clone, Debug)]
pub(crate) enum Mapped {
    /// A loader's own.
    Own(Arena),
    /// That of the process that reads, under `shared_read`.
    Borrowed(BorrowedSpan),
}

impl Memory {
    /// Where it begins, page-aligned, and how many bytes it has. For registering, not for reading: batches change.
    #[must_use]
    pub fn span(&self) -> (*const u8, usize) {
        match &self.0 {
            Mapped::Own(arena) => arena.span(),
            Mapped::Borrowed(borrowed) => borrowed.span(),
        }
    }

    /// The same in pieces, in order and side by side: one per shard, and one more where samples are decoded; of another process's, one.
    pub fn regions(&self) -> impl ExactSizeIterator<Item = (*const u8, usize)> {
        let regions: Vec<_> = match &self.0 {
            Mapped::Own(arena) => arena.region_spans().collect(),
            Mapped::Borrowed(borrowed) => vec![borrowed.span()],
        };
        regions.into_iter()
    }

    /// It is another process's, and mapped to be read only.
    #[must_use]
    pub fn is_borrowed(&self) -> bool {
        matches!(self.0, Mapped::Borrowed(_))
    }
}

/// What a closed loader has left behind: nothing, but for the memory of batches that the caller still holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Remains {
    /// Operations that the kernel had not given back when the shards ended.
    pub operations: u64,
    /// Slots that are not home: one for every batch still held.
    pub slots: u64,
}

impl MemoryStats {
    /// Of a loader with these channels between its shards.
    pub(crate) fn new(
        config: &Config,
        objects: &Objects,
        layout: &Layout,
        arena: &Arena,
        channels: &[ChannelEnds],
    ) -> MemoryStats {
        let (catalog, shards) = (objects.catalog(), u64::from(layout.shards));
        let drawn = config.order.importance.map_or(0, |_| DRAWN_SAMPLE_BYTES);
        let samples = catalog.samples() * (size_of::<u32>() as u64 + drawn);
        let channels: u64 = channels.iter().map(ChannelEnds::bytes).sum();
        let (_, mean, blocks) = catalog.block_lengths();
        let batch_blocks = u64::from(config.batch_size) * blocks.div_ceil(catalog.samples());
        let open = (layout.batch_bytes / mean.max(1)).min(OPEN_BATCHES_MAX as u64 * batch_blocks);
        let shard = shard_bytes(config) + open * OPEN_BLOCK_BYTES;
        let decoding = config.decode.shape.and(config.decode.threads).unwrap_or(0) * PICTURE_BYTES_KEPT;
        MemoryStats {
            limit_bytes: config.memory.limit.map_or(0, |limit| limit.0),
            arena_bytes: arena.report().bytes,
            batch_bytes: shards * layout.batch_bytes,
            tables_bytes: objects.memory_bytes() + samples + shards * layout.index_bytes + channels,
            rest_bytes: LOADER_BYTES + shards * shard + decoding as u64,
        }
    }

    /// All three parts together.
    #[must_use]
    pub fn total_bytes(&self) -> u64 {
        self.arena_bytes + self.tables_bytes + self.rest_bytes
    }
}

/// What is said where the ranks of a machine, of which each takes `total` bytes at most, may exceed what the default is half of.
pub(crate) fn beyond_the_limit(total: u64, ranks: u64, default: &Budget) -> Option<String> {
    let (all, limit) = (total.saturating_mul(ranks.max(1)), default.bytes.saturating_mul(2));
    (all > limit).then(|| {
        let who = if ranks > 1 { format!("the {ranks} ranks here take") } else { "this loader takes".to_owned() };
        let (all, limit, from) = (ByteSize(all), ByteSize(limit), &default.from);
        format!("memory_limit: {who} up to {all}, and there is {limit}, beyond which the kernel kills; the default is {from}")
    })
}

/// What a shard takes beside the blocks of open batches.
pub(crate) fn shard_bytes(config: &Config) -> u64 {
    SHARD_BYTES + config.network.connections_max as u64 * CONNECTION_BYTES
}

/// Threads beside the shards, and what is one for each loader.
const LOADER_BYTES: u64 = 4 << 20;
/// A shard's ring, tables of operations and headers of slots, histograms, and its stack.
const SHARD_BYTES: u64 = 2 << 20;
/// Texts of requests, heads, and a TLS session's keys and buffers.
const CONNECTION_BYTES: u64 = 64 << 10;
/// Scores and the draws of four epochs, where epochs are drawn by importance.
const DRAWN_SAMPLE_BYTES: u64 = 24;
/// Where a block of an open batch goes, which samples wait for it, and how far it is.
const OPEN_BLOCK_BYTES: u64 = 768;

/// The arena, its regions for the shards, each from the node its shard sits on, and the one after them.
pub(crate) fn map_memory(
    layout: &Layout,
    seating: Option<&Seating>,
    lent: bool,
    notices: &mut Vec<String>,
) -> Result<(Arena, Vec<Region>, Option<Region>)> {
    let (arena, mut regions) = Arena::new(&ArenaConfig {
        bytes: layout.region_bytes * u64::from(layout.shards) + layout.extra_bytes,
        regions: layout.shards,
        extra_bytes: layout.extra_bytes,
        huge_pages: HugePages::Auto,
        lent,
        nodes: seating.map_or_else(Vec::new, |seating| (0..layout.shards).map(|shard| seating.node(shard)).collect()),
        ..ArenaConfig::default()
    })?;
    notices.extend(arena.report().notices.iter().cloned());
    if let Huge::None(why) = &arena.report().huge {
        notices.push(format!("huge pages: none, {why}"));
    }
    let extra = if layout.extra_bytes > 0 { regions.pop() } else { None };
    Ok((arena, regions, extra))
}

/// What the shards get of the budget.
pub(crate) fn share_out(
    config: &Config,
    objects: &Objects,
    topology: &Topology,
    records: Option<&Records>,
    beside: (bool, PeerRoom, u64),
) -> Result<Layout> {
    wanted(config, objects, topology, records, beside).share_out()
}

/// What that follows from.
pub(crate) fn wanted(
    config: &Config,
    objects: &Objects,
    topology: &Topology,
    records: Option<&Records>,
    (disk, peers, batches_held): (bool, PeerRoom, u64),
) -> Wanted {
    let cores = topology.shards();
    // In whole granules of the region, so that as many batches fit as are said to.
    let decoded_bytes = decoded_batch_bytes(config, records);
    let (longest, mean, blocks) = objects.catalog().block_lengths();
    let decoded_bytes = decoded_bytes.min(u64::MAX / 2).next_multiple_of(EXTENT_GRANULE);
    Wanted {
        memory_bytes: config.memory.limit.map_or(0, |limit| limit.0),
        cache_bytes: config.memory.cache_limit.0,
        cached_block_bytes: cached_block_bytes(config.memory.cache_policy),
        // No memory has more, and sums of it do not overflow.
        batch_bytes_max: batch_room_max(config, objects.catalog()).clamp(64, 1 << 56),
        shards: config.shards.unwrap_or(0),
        cores: u16::try_from(if decoded_bytes == 0 { cores } else { cores.div_ceil(CORES_PER_SHARD) })
            .unwrap_or(u16::MAX),
        connections_max: config.network.connections_max,
        scratch_bytes: scratch_bytes(objects.endpoint().scheme),
        decoded_bytes,
        // One more for the batch in the consumer's hands.
        decoded_batches: config.decode.depth as u64 + 1,
        disk_bytes: if disk { spill_memory_bytes() } else { 0 } + peers.bytes(),
        hedged: config.network.hedge_percent > 0,
        block_bytes: (longest, mean),
        blocks,
        chunks: (chunks_held(config, objects), objects.catalog().chunk_room()),
        batches_held,
    }
}

/// Bytes of a decoded batch, with the other fields of its records; 0 without decoding.
pub(crate) fn decoded_batch_bytes(config: &Config, records: Option<&Records>) -> u64 {
    let samples = u64::from(config.batch_size);
    let other_room = records.map_or(0, |records| records.other_room(samples));
    config.decoded().map_or(0, |decode| decode.sample_bytes().saturating_mul(samples).saturating_add(other_room))
}

/// One shard feeds many cores that decode.
const CORES_PER_SHARD: usize = 8;

/// The most room that the objects of a batch take.
pub(crate) fn batch_room_max(config: &Config, catalog: &Catalog) -> u64 {
    let Order { mixture, mixture_epoch, importance, .. } = &config.order;
    // Only epochs of a mixture may be longer than the data set.
    let is_longer = mixture.is_some() && *mixture_epoch == MixtureEpoch::AllUsedUp;
    let samples = u64::from(config.batch_size).min(if is_longer { u64::MAX } else { catalog.samples() });
    // A sample may come more than once in a batch.
    if importance.is_some() || mixture.is_some() {
        return catalog.batch_room_max_drawn(samples);
    }
    catalog.batch_room_max(samples)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn more_than_the_cgroup_has_is_told_with_the_cgroup() {
        let from = "half of the cgroup's limit of 1.0 GiB (/sys/fs/cgroup/memory.max)";
        let default = Budget { bytes: 512 << 20, from: from.into() };
        assert_eq!(beyond_the_limit(1 << 30, 1, &default), None);
        let told = beyond_the_limit((1 << 30) + 1, 1, &default).unwrap();
        assert!(told.starts_with("memory_limit: ") && told.ends_with(from), "{told}");
        assert!(beyond_the_limit(300 << 20, 4, &default).is_some(), "together they take more");
    }
}
