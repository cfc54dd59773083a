//! Which parts are unpacked when: worked out from the order of the samples alone.

use crate::config::Config;
use crate::loader::Loader;
use crate::packed::PackedShards;
use fuelrail_base::{BatchSeq, ByteSize, Error, Kind, Result, SampleId};
use fuelrail_flow::{ByteRange, Listing, scratch_bytes, spill_memory_bytes};
use fuelrail_io::Topology;
use fuelrail_plan::order::{ChunkShape, OrderName};
use fuelrail_plan::run::{BatchSpec, Run};
use fuelrail_wire::Scheme;
use std::collections::HashMap;
use std::sync::Arc;

/// A data set whose records have to be unpacked.
#[derive(Debug)]
pub(crate) struct Packed {
    pub shards: PackedShards,
    pub listing: Listing,
    /// What each part is unpacked to, bytes.
    bytes: Vec<u64>,
    samples: u64,
    /// Reads ranges of the listed objects, one a batch.
    pub open_ranges: OpenRanges,
}

/// A loader of ranges.
type OpenRanges = fn(Config, &Listing, Vec<ByteRange>) -> Result<Loader>;

/// So many threads unpack at most: they are seldom what limits.
const THREADS_MAX: usize = 4;
/// Parts that are unpacked for each group of the chunked order at a time, nearly always: of half a part's records on average a chunk
/// touches two, and those of the chunk before are let go of a little later.
const PARTS_OF_GROUP: u64 = 3;
/// Of so many parts at least one group is made: where groups meet, and where one begins, a part is read once more.
const GROUP_PARTS_MIN: u64 = 16;
/// The share of the memory limit, as a divisor, that parts that are unpacked may take, at most but one.
const UNPACKED_SHARE: u64 = 4;
/// Beyond the bytes of a range: it is rounded up to units of memory and of disks.
const READING_SLACK_BYTES: u64 = 64 << 10;

impl Packed {
    /// These shards, whose records are ranges of what their parts are unpacked to. The ranges become ones of objects, for messages.
    pub(crate) fn new(
        shards: PackedShards,
        listing: Listing,
        records: &mut [ByteRange],
        open_ranges: OpenRanges,
    ) -> Packed {
        let mut bytes = vec![0; shards.parts().len()];
        for record in &mut *records {
            let part = record.object as usize;
            bytes[part] = bytes[part].max(record.first + record.len);
            record.object = shards.parts()[part].ranges[0].object;
        }
        Packed { shards, listing, bytes, samples: records.len() as u64, open_ranges }
    }

    fn part_of(&self, sample: SampleId) -> usize {
        self.shards.parts().partition_point(|part| part.first <= sample.0) - 1
    }

    /// Bytes that all parts are unpacked to, and the longest.
    fn total_and_longest(&self) -> (u64, u64) {
        (self.bytes.iter().sum(), self.bytes.iter().max().copied().unwrap_or(0))
    }

    /// Settles the order of the samples: any, where all parts may be unpacked at once, by settings alone; else groups of neighbouring parts
    /// that are gone through in turn, and mixed.
    ///
    /// # Errors
    /// `Usage` for settings that do not go with it.
    pub(crate) fn settle(&self, config: &mut Config, notices: &mut Vec<String>) -> Result<Option<ChunkShape>> {
        let refused = [
            ("mixture", config.order.mixture.is_some()),
            ("importance", config.order.importance.is_some()),
            ("peers", !config.peers.addresses.is_empty()),
            ("cache_limit", config.memory.cache_limit.0 > 0),
        ];
        if let Some((name, _)) = refused.iter().find(|(_, is_set)| *is_set) {
            let error = Error::new(Kind::Usage, format!("{name} is set, and records have to be unpacked"));
            return Err(error.with_hint("leave it out, or pack the data set first: `fuelrail pack SOURCE TARGET`"));
        }
        let mixed = config.order.chunk_size.0.saturating_mul(u64::from(config.order.chunk_window));
        let (total, parts) = (self.total_and_longest().0, self.bytes.len() as u64);
        if total <= mixed && config.order.name != OrderName::Chunks {
            return Ok(None);
        }
        if config.order.name == OrderName::Sticky {
            let error = Error::new(Kind::Usage, "order is sticky, and records have to be unpacked");
            return Err(error.with_hint("leave order out: parts of shards come back to the same rank anyway"));
        }
        config.order.name = OrderName::Chunks;
        let groups = (mixed / (total / parts).max(1) / PARTS_OF_GROUP).min(parts / GROUP_PARTS_MIN).max(1);
        let window = 1 << groups.ilog2();
        if config.order.shuffle {
            notices.push(format!(
                "order: records of {window} places of the listing are mixed at a time, and gone through in turn, because parts of {} are \
                 unpacked as a whole: raise chunk_window to mix more",
                ByteSize(total / parts)
            ));
        }
        Ok(Some(ChunkShape { samples: (self.samples / parts / 2).max(1), window, in_turn: true }))
    }

    /// What is kept unpacked, and how much memory that takes at most, nearly always.
    fn keep(&self, run: &Run) -> (Keep, u64) {
        let (total, longest) = self.total_and_longest();
        let (config, mean) = (run.config(), total / self.bytes.len() as u64);
        let (Some(ChunkShape { samples, window, .. }), true) = (run.order().chunks(), config.shuffle) else {
            // Without a shuffle a part is over when the next begins; else all are kept.
            let bytes = if config.shuffle { total } else { 0 };
            let keep = Keep { bytes, samples: 2 * u64::from(config.batch_size), last: self.bytes.len() };
            return (keep, bytes.max(2 * longest));
        };
        let (world, batch) = (u64::from(config.world), u64::from(config.batch_size));
        // A group takes a chunk in as many rows as that has samples, of each of which this rank gets its groups' samples.
        let keep = Keep {
            bytes: 0,
            samples: 2 * (samples * 5 / 4 * window.div_ceil(world) + batch),
            last: self.part_of(SampleId(self.samples.saturating_sub(window))),
        };
        (keep, total.min((window.div_ceil(world) * PARTS_OF_GROUP) * mean + 2 * longest))
    }
}

/// How the memory of a loader that unpacks is shared out.
pub(crate) struct Shares {
    /// Its own settings: what its batches, decoded or not, are given, and no connection.
    pub own: Config,
    /// Parts that are unpacked or about to be, bytes outside the arena.
    pub unpacked_bytes: u64,
    /// The arena of what reads them, and its shards at most.
    pub reading_bytes: u64,
    pub reading_shards: u16,
    pub threads: usize,
}

impl Packed {
    /// Shares out the memory: of what unpacked parts leave, half is for reading others, and half for batches. `batch_bytes_min` says how much
    /// the batches of its own settings need at least, and how much suffices whatever their sizes are.
    ///
    /// # Errors
    /// `Budget` with the memory limit that suffices for all three.
    pub(crate) fn shares(
        &self,
        config: &Config,
        scheme: Scheme,
        run: &Run,
        topology: &Topology,
        batch_bytes_min: impl FnOnce(&Config) -> [u64; 2],
    ) -> Result<Shares> {
        let limit = config.memory.limit.map_or(0, |limit| limit.0);
        let threads = topology.shards().clamp(1, THREADS_MAX);
        let packed = self.shards.parts().iter().map(|part| part.ranges.iter().map(|range| range.len).sum::<u64>());
        let (unpacked, packed) = (self.total_and_longest().1, packed.max().unwrap_or(0));
        // Each thread has one in hand, and one waits; of those that are still packed another one is read.
        let turns = threads as u64 + 1;
        let unpacked_bytes = self.keep(run).1 + turns * unpacked + (turns + 1) * packed;
        let mut own = config.clone();
        (own.shards, own.network.connections_max, own.network.hedge_percent) = (Some(1), 1, 0);
        own.order.name = OrderName::Global;
        let (half, reading) = (limit.saturating_sub(unpacked_bytes) / 2, self.reading_bytes_min(config, scheme));
        let [least, batches] = batch_bytes_min(&own);
        if unpacked_bytes > limit - limit / UNPACKED_SHARE || half < reading.max(least) {
            let cause = format!(
                "parts of up to {} are unpacked as a whole, and those in use at a time take {}; as much as reading others needs, {}, or batches, \
                 {}, has to be left twice: memory_limit is {}",
                ByteSize(unpacked),
                ByteSize(unpacked_bytes),
                ByteSize(reading),
                ByteSize(batches),
                ByteSize(limit)
            );
            let rest = reading.max(batches).saturating_mul(2).max(unpacked_bytes.div_ceil(UNPACKED_SHARE - 1));
            let need = unpacked_bytes.saturating_add(rest);
            let hint = format!(
                "raise memory_limit to {need}, lower chunk_window, batch_size or connections_max, or write smaller row groups or shards"
            );
            return Err(Error::new(Kind::Budget, cause).with_hint(hint));
        }
        let fit = u16::try_from(half / reading).unwrap_or(u16::MAX);
        let cores = u16::try_from(topology.shards()).unwrap_or(u16::MAX);
        let reading_shards = config.shards.unwrap_or(cores.max(1)).min(fit);
        own.memory.limit = Some(ByteSize(half));
        Ok(Shares { own, unpacked_bytes, reading_bytes: half, reading_shards, threads })
    }

    /// What a shard of the loader that reads needs: room for the longest range, at any place of a disk's units, and its buffers.
    fn reading_bytes_min(&self, config: &Config, scheme: Scheme) -> u64 {
        let ranges = self.shards.parts().iter().flat_map(|part| &part.ranges);
        let longest = ranges.map(|range| range.len).max().unwrap_or(0);
        let scratch = config.network.connections_max as u64 * scratch_bytes(scheme).start();
        let disk = if config.disk.dirs.is_empty() { 0 } else { spill_memory_bytes() };
        longest + scratch + disk + READING_SLACK_BYTES
    }
}

/// Which parts are kept.
#[derive(Clone, Copy, Debug)]
struct Keep {
    /// Up to so many bytes all are.
    bytes: u64,
    /// Else those of which one of the last samples was.
    samples: u64,
    /// From this part on those in which samples stand that come at any time of the epoch.
    last: usize,
}

/// The batches of a run, each with the parts that are unpacked for it, and those that are let go of after it.
pub(super) struct Walk {
    pub packed: Arc<Packed>,
    run: Run,
    keep: Keep,
    next: u64,
    /// When each part that is unpacked was used last, in samples of this rank.
    open: HashMap<usize, u64>,
    open_bytes: u64,
    /// Samples so far.
    pub taken: u64,
}

/// A batch.
pub(super) struct Step {
    pub spec: BatchSpec,
    /// Its samples, each with its part.
    pub samples: Vec<(SampleId, usize)>,
    pub opened: Vec<usize>,
    pub closed: Vec<usize>,
}

impl Walk {
    pub(super) fn new(packed: &Arc<Packed>, run: &Run) -> Walk {
        let keep = packed.keep(run).0;
        let (packed, run) = (Arc::clone(packed), run.clone());
        Walk { packed, run, keep, next: 0, open: HashMap::new(), open_bytes: 0, taken: 0 }
    }

    pub(super) fn step(&mut self) -> Option<Step> {
        let spec = self.run.batch(BatchSeq(self.next))?;
        self.next += 1;
        let samples: Vec<_> = self.run.samples(&spec).map(|sample| (sample, self.packed.part_of(sample))).collect();
        let (mut opened, mut closed) = (Vec::new(), Vec::new());
        for (_, part) in &samples {
            self.taken += 1;
            if self.open.insert(*part, self.taken).is_none() {
                self.open_bytes += self.packed.bytes[*part];
                opened.push(*part);
            }
        }
        if self.open_bytes > self.keep.bytes {
            let Keep { samples, last, .. } = self.keep;
            let is_over = |part: &usize, used: &mut u64| *part < last && *used + samples < self.taken;
            closed.extend(self.open.extract_if(|part, used| is_over(part, used)).map(|(part, _)| part));
            self.open_bytes -= closed.iter().map(|part| self.packed.bytes[*part]).sum::<u64>();
        }
        Some(Step { spec, samples, opened, closed })
    }
}
