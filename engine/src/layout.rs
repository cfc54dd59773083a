//! Divides a memory budget (how many shards it supports, and what each gets for batches, cache and scratch), and assigns
//! each shard a core and a NUMA node.
//!
//! Arithmetic, and a process-wide count of assigned cores. A budget below one batch per shard is an error with the bytes needed.

use crate::config::Config;
use core::ops::RangeInclusive;
use fuelrail_base::limits::SAMPLE_ALIGN;
use fuelrail_base::{ByteSize, Error, Kind, Result};
use fuelrail_flow::Spares;
use fuelrail_io::{Core, Topology, open_files_max};
use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

/// The inputs of a layout.
#[derive(Clone, Debug)]
pub(crate) struct Wanted {
    /// The budget, bytes.
    pub memory_bytes: u64,
    /// Cache for all shards, payload bytes.
    pub cache_bytes: u64,
    /// Index memory for each cached block, bytes.
    pub cached_block_bytes: u64,
    /// The most memory one batch can take, bytes.
    pub batch_bytes_max: u64,
    /// Requested shards; 0 chooses automatically.
    pub shards: u16,
    /// Shards that can run at the same time.
    pub cores: u16,
    /// Most connections per shard.
    pub connections_max: usize,
    /// Scratch memory of each connection, bytes: the minimum, and the most that still helps.
    pub scratch_bytes: RangeInclusive<u64>,
    /// Buffers of each shard for a disk and for other ranks, bytes; 0 without either.
    pub disk_bytes: u64,
    /// Bytes of one decoded batch; 0 without decoding.
    pub decoded_bytes: u64,
    /// Decoded batches to make room for.
    pub decoded_batches: u64,
    /// Whether requests are hedged, into spare memory.
    pub hedged: bool,
    /// Bytes of the longest block and of the mean one.
    pub block_bytes: (u64, u64),
    /// Number of blocks.
    pub blocks: u64,
    /// Chunks that are held at a time, and the room of one, bytes.
    pub chunks: (u64, u64),
    /// Batches that the program still holds when it asks for the next one.
    pub batches_held: u64,
}

/// One shard's share.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Layout {
    pub shards: u16,
    pub region_bytes: u64,
    pub cache_bytes: u64,
    /// Least bytes that a cached block is counted as, so that the index of all fits `index_bytes`, outside the region.
    pub cached_block_bytes_min: u64,
    pub index_bytes: u64,
    pub batch_bytes: u64,
    /// Bytes of the region after those of the shards, for decoded batches, and how many it holds.
    pub extra_bytes: u64,
    pub decoded_batches: u64,
    /// Scratch memory of each connection.
    pub scratch_bytes: u64,
    /// Spare memory for hedged requests, taken from that for batches.
    pub spares: Spares,
    /// Chunks that each shard holds at a time: fewer than are wanted where they would take more than half of the memory for batches.
    pub chunks: usize,
}

/// Regions are cut at page boundaries.
const PAGE_BYTES: u64 = 4096;
/// The divisor of a shard's memory that bounds all scratch memory beyond the minimum.
const SCRATCH_SHARE: u64 = 16;
/// Large regions are cut at boundaries of huge pages, so that reserved ones can back them.
const HUGE_PAGE_BYTES: u64 = 2 << 20;
/// Cached blocks shorter than the mean divided by this count as that long.
const CACHED_BLOCK_SHARE: u64 = 8;
/// The least size of a large region: rounding it down wastes less than 1/32.
const LARGE_REGION_BYTES: u64 = 32 * HUGE_PAGE_BYTES;

impl Wanted {
    /// Scratch memory of each connection, bytes, in a shard with `share` bytes in all: the most that helps, while all
    /// connections together stay a small part.
    fn scratch_bytes(&self, share: u64) -> u64 {
        let (least, most) = (*self.scratch_bytes.start(), *self.scratch_bytes.end());
        let each = share / SCRATCH_SHARE / self.connections_max as u64;
        (each / PAGE_BYTES * PAGE_BYTES).clamp(least, most)
    }

    /// Returns the least bytes that a cached block of one shard counts as, and the bytes of its index at full cache. Blocks shorter than an
    /// eighth of the mean are rare, and a page costs little beside them; if all blocks of the data set fit, there is no minimum.
    fn index(&self, shards: u16) -> (u64, u64) {
        let mean = self.block_bytes.1.max(1);
        let least = mean.min((mean / CACHED_BLOCK_SHARE).max(PAGE_BYTES));
        let fit = self.cache_bytes / u64::from(shards) / least;
        // Owners are chosen by hash, so some have more than the mean.
        let owned = self.blocks / u64::from(shards) * 9 / 8 + 64;
        let (least, blocks) = if owned <= fit { (0, owned) } else { (least, fit) };
        (least, (blocks * self.cached_block_bytes).next_multiple_of(PAGE_BYTES))
    }

    /// Batches of a shard that the program still holds: of consecutive ones every `shards`-th is its own.
    fn held(&self, shards: u16) -> u64 {
        if self.decoded_bytes > 0 { 0 } else { self.batches_held / u64::from(shards) }
    }

    /// Room that a shard has at least, in batches of the largest size.
    fn batches_min(&self, shards: u16) -> u64 {
        1 + self.held(shards)
    }

    /// Bytes that one shard needs to hold `batches` of the largest batches.
    fn needs(&self, shards: u16, batches: u64) -> u64 {
        let cache = (self.cache_bytes / u64::from(shards)).next_multiple_of(SAMPLE_ALIGN as u64);
        let scratch = self.connections_max as u64 * self.scratch_bytes.start();
        (self.batch_bytes_max * batches + cache + scratch + self.disk_bytes).next_multiple_of(PAGE_BYTES)
    }

    /// Bytes that this many shards need, with the index of cached blocks.
    fn in_all(&self, shards: u16, batches: u64) -> u64 {
        let each = self.needs(shards, batches) + self.index(shards).1;
        let shared = each.saturating_mul(u64::from(shards));
        shared.saturating_add(self.extra_bytes(1 + self.batches_held))
    }

    /// Bytes that suffice where all batches have one size, and that suffice whatever their sizes are.
    pub(crate) fn bytes_min(&self, shards: u16) -> [u64; 2] {
        // Batches lie at the lowest free addresses and differ in size: between two that are held may be nearly the room of one, and the next
        // one still not fit.
        [0, self.held(shards)].map(|apart| self.in_all(shards, self.batches_min(shards) + apart))
    }

    /// Bytes that this many decoded batches need.
    fn extra_bytes(&self, batches: u64) -> u64 {
        self.decoded_bytes.saturating_mul(batches).min(u64::MAX / 2).next_multiple_of(PAGE_BYTES)
    }

    /// Number of decoded batches: as many as requested, as far as memory beyond the shards' needs allows; at least those that are held and one.
    fn decoded(&self, shards: u16) -> u64 {
        if self.decoded_bytes == 0 {
            return 0;
        }
        let room = |batches| self.in_all(shards, batches) - self.extra_bytes(1 + self.batches_held);
        let taken = room(if self.feeds(shards, 2) { 2 } else { 1 });
        let holds = |n: u64| taken.saturating_add(self.extra_bytes(n)) <= self.memory_bytes;
        (1..=self.decoded_batches).rev().find(|&n| holds(n)).unwrap_or(1).max(1 + self.batches_held)
    }

    /// The spare memory that a shard sets aside of `batch_bytes`: none when fewer than two of the largest batches would fit in the rest, or than
    /// there has to be room for.
    fn spares(&self, shards: u16, batch_bytes: u64) -> Spares {
        let (longest, mean) = self.block_bytes;
        let spares = Spares::within(batch_bytes, longest, mean);
        let left = batch_bytes.saturating_sub(spares.bytes());
        let have_room = self.hedged && left / self.batches_min(shards).max(2) >= self.batch_bytes_max;
        if have_room { spares } else { Spares::default() }
    }

    /// Chunks that one of the shards holds. Owners are chosen by hash, so some have more than the mean: by four times its root, hardly ever.
    fn chunks(&self, shards: u16, batch_bytes: u64) -> u64 {
        let (wanted, room) = self.chunks;
        let mean = wanted.div_ceil(u64::from(shards));
        let most = if shards == 1 { mean } else { (mean + 4 * mean.isqrt()).min(wanted) };
        let left = (batch_bytes / 2).min(batch_bytes.saturating_sub(self.batches_min(shards) * self.batch_bytes_max));
        left.checked_div(room).map_or(0, |fit| fit.min(most))
    }

    fn feeds(&self, shards: u16, batches: u64) -> bool {
        self.in_all(shards, batches) <= self.memory_bytes
    }

    /// Divides the budget.
    ///
    /// # Errors
    /// `Budget` with the bytes needed.
    pub(crate) fn share_out(&self) -> Result<Layout> {
        let shards = match self.shards {
            // A shard that cannot fill one batch while another is in use alternates between the two: use fewer shards.
            0 => (1..=self.cores.max(1)).rev().find(|&n| self.feeds(n, self.batches_min(n).max(2))).unwrap_or(1),
            n => n,
        };
        let least = self.batches_min(shards);
        if !self.feeds(shards, least) {
            let [_, need] = self.bytes_min(shards);
            let cause = format!(
                "memory_limit is {} ({} bytes); {shards} shard(s), a batch of up to {}{}{}, a cache of {} and connections \
                 need at least {need} bytes ({})",
                ByteSize(self.memory_bytes),
                self.memory_bytes,
                ByteSize(self.batch_bytes_max),
                match self.decoded_bytes {
                    0 => String::new(),
                    bytes => format!(", a decoded one of {}", ByteSize(bytes)),
                },
                match self.batches_held {
                    0 => String::new(),
                    held => format!(", {held} more that the program still holds"),
                },
                ByteSize(self.cache_bytes),
                ByteSize(need),
            );
            return Err(Error::new(Kind::Budget, cause)
                .with_hint(format!("raise memory_limit to {need}, or lower batch_size, cache_limit or shards")));
        }
        let decoded_batches = self.decoded(shards);
        let extra_bytes = self.extra_bytes(decoded_batches);
        let (cached_block_bytes_min, index_bytes) = self.index(shards);
        let share = (self.memory_bytes - extra_bytes) / u64::from(shards) - index_bytes;
        let rounded = share / HUGE_PAGE_BYTES * HUGE_PAGE_BYTES;
        let is_large = share >= LARGE_REGION_BYTES && rounded >= self.needs(shards, least);
        let region_bytes = if is_large { rounded } else { share / PAGE_BYTES * PAGE_BYTES };
        let cache_bytes = self.cache_bytes / u64::from(shards);
        let free = region_bytes - cache_bytes.next_multiple_of(SAMPLE_ALIGN as u64) - self.disk_bytes;
        let scratch_bytes = self.scratch_bytes(free - least * self.batch_bytes_max);
        let batch_bytes = free - scratch_bytes * self.connections_max as u64;
        let chunks = self.chunks(shards, batch_bytes);
        let batch_bytes = batch_bytes - chunks * self.chunks.1;
        let spares = self.spares(shards, batch_bytes);
        let batch_bytes = batch_bytes - spares.bytes();
        Ok(Layout {
            shards,
            region_bytes,
            cache_bytes,
            cached_block_bytes_min,
            index_bytes,
            batch_bytes,
            extra_bytes,
            decoded_batches,
            scratch_bytes,
            spares,
            chunks: chunks as usize,
        })
    }
}

/// Connections that each shard may open: half of the descriptors that this process may have, over all shards. The program wants some, too.
pub(crate) fn connections_max(wanted: usize, shards: u16) -> usize {
    let share = open_files_max().map_or(u64::MAX, |files| files / 2 / u64::from(shards));
    wanted.min(usize::try_from(share).unwrap_or(usize::MAX).max(CONNECTIONS_LEAST))
}

/// Connections of a shard however few descriptors there are.
const CONNECTIONS_LEAST: usize = 8;

/// The cores of a loader's shards, in the order of [`Topology::seats`]. Every loader of a machine starts at another one,
/// so that the ranks of a node do not crowd its first cores. With `near`, that node's cores come first.
#[derive(Debug)]
pub(crate) struct Seating {
    seats: Vec<Core>,
    memory_nodes: Vec<usize>,
    nodes: usize,
}

impl Seating {
    /// `taken` is the number of cores that earlier loaders near the same node were assigned.
    pub(crate) fn new(topology: &Topology, near: Option<u16>, taken: usize) -> Seating {
        let is_near = |core: &Core| near.is_none_or(|node| core.node == usize::from(node));
        let (mut seats, mut far): (Vec<Core>, Vec<Core>) = topology.seats().into_iter().partition(is_near);
        for cores in [&mut seats, &mut far] {
            let first = taken.checked_rem(cores.len()).unwrap_or(0);
            cores.rotate_left(first);
        }
        seats.append(&mut far);
        Seating { seats, memory_nodes: topology.memory_nodes.clone(), nodes: topology.nodes.len() }
    }

    /// The core of a shard; `None` when the machine reports none.
    pub(crate) fn core(&self, shard: u16) -> Option<usize> {
        self.seat(shard).map(|core| core.id)
    }

    /// The node that a shard's memory should come from; `None` when there is no choice.
    pub(crate) fn node(&self, shard: u16) -> Option<usize> {
        let node = self.seat(shard)?.node;
        (self.nodes > 1 && self.memory_nodes.contains(&node)).then_some(node)
    }

    fn seat(&self, shard: u16) -> Option<&Core> {
        let at = usize::from(shard).checked_rem(self.seats.len())?;
        self.seats.get(at)
    }
}

/// Cores assigned to the loaders of this process so far, by node (`None`: without `near`).
static SEATS_TAKEN: Mutex<BTreeMap<Option<u16>, usize>> = Mutex::new(BTreeMap::new());

/// Takes cores near a node; returns how many were taken there before.
fn take_seats(near: Option<u16>, seats: usize) -> usize {
    let mut all = SEATS_TAKEN.lock().unwrap_or_else(PoisonError::into_inner);
    let taken = all.entry(near).or_default();
    core::mem::replace(taken, *taken + seats)
}

/// The notice that no shard can run on the requested node.
fn unavailable(near: Option<u16>, topology: &Topology) -> Option<String> {
    let node = near?;
    (!topology.cores.iter().any(|core| core.node == usize::from(node))).then(|| {
        format!(
            "near: none of the cores this process may use is on NUMA node {node}; shards sit on others. Widen the cpuset, or name \
             one of {:?}",
            topology.nodes
        )
    })
}

/// Assigns cores to all shards, after those of earlier ranks and loaders, when shards are pinned.
pub(crate) fn seat(config: &Config, topology: &Topology, notices: &mut Vec<String>) -> Option<Seating> {
    notices.extend(unavailable(config.near, topology));
    let shards = usize::from(config.shards.unwrap_or(1));
    let taken = || config.rank as usize * shards + take_seats(config.near, shards);
    config.pin.then(|| Seating::new(topology, config.near, taken()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use fuelrail_flow::scratch_bytes;
    use fuelrail_wire::Scheme;

    #[test]
    fn connections_leave_descriptors_to_the_program() {
        let files = open_files_max().unwrap_or(u64::MAX);
        for shards in [1, 4, 64] {
            let found = connections_max(256, shards);
            assert!(found == 256 || found == CONNECTIONS_LEAST || found as u64 * u64::from(shards) <= files / 2);
        }
        assert_eq!(
            (connections_max(3, 1), connections_max(usize::MAX, u16::MAX)),
            (3, CONNECTIONS_LEAST.max((files / 2 / 65_535) as usize))
        );
    }

    fn two_nodes(memory_nodes: &[usize]) -> Topology {
        let core = |id| Core { id, node: id / 2, package: id / 2, physical: id };
        let cores = (0..4).map(core).collect();
        Topology { cores, nodes: vec![0, 1], memory_nodes: memory_nodes.to_vec(), quota: None }
    }

    #[test]
    fn shards_spread_over_the_nodes_and_their_memory_follows() {
        let seating = Seating::new(&two_nodes(&[0, 1]), None, 0);
        let placed: Vec<_> = (0..5).map(|shard| (seating.core(shard).unwrap(), seating.node(shard).unwrap())).collect();
        assert_eq!(placed, [(0, 0), (2, 1), (1, 0), (3, 1), (0, 0)]);
        let second = Seating::new(&two_nodes(&[0, 1]), None, 2);
        assert_eq!((second.core(0), second.core(1)), (Some(1), Some(3)), "after a loader of two shards");
    }

    #[test]
    fn shards_near_a_node_take_its_cores_first_and_share_them_out() {
        let cores = |near, taken| -> Vec<usize> {
            let seating = Seating::new(&two_nodes(&[0, 1]), Some(near), taken);
            (0..4).filter_map(|shard| seating.core(shard)).collect()
        };
        assert_eq!((cores(0, 0), cores(1, 0)), (vec![0, 1, 2, 3], vec![2, 3, 0, 1]));
        assert_eq!(cores(1, 1), [3, 2, 1, 0], "a second loader near the same node begins after the first");
        assert_eq!(cores(7, 0), [0, 2, 1, 3], "no core of that node may be used: as if not asked");
        assert_eq!(Seating::new(&two_nodes(&[0, 1]), Some(1), 0).node(0), Some(1), "memory follows");
    }

    #[test]
    fn no_node_is_asked_for_where_there_is_no_choice() {
        let bound = Seating::new(&two_nodes(&[1]), None, 0);
        assert_eq!((bound.node(0), bound.node(1)), (None, Some(1)), "the cpuset keeps memory on node 1");
        let single = Topology { nodes: vec![0], ..two_nodes(&[0]) };
        assert_eq!(Seating::new(&single, None, 0).node(0), None);
        let none = Topology { cores: Vec::new(), ..two_nodes(&[0]) };
        assert_eq!(Seating::new(&none, None, 3).core(0), None);
    }

    fn wanted(memory_bytes: u64, shards: u16) -> Wanted {
        Wanted {
            memory_bytes,
            cache_bytes: 1 << 20,
            cached_block_bytes: 250,
            batch_bytes_max: 10 << 20,
            shards,
            cores: 4,
            connections_max: 8,
            scratch_bytes: scratch_bytes(Scheme::Http),
            disk_bytes: 0,
            decoded_bytes: 0,
            decoded_batches: 0,
            hedged: false,
            block_bytes: (64 << 10, 8 << 10),
            blocks: 10_000,
            chunks: (0, 0),
            batches_held: 0,
        }
    }

    #[test]
    fn batches_that_the_program_holds_have_room_beside_the_next_one() {
        for (shards, held, raw) in [(1, 0, 1), (1, 1, 3), (1, 2, 5), (2, 1, 1), (2, 2, 3)] {
            for decoded_bytes in [0, 3 << 20] {
                let asked =
                    |memory| Wanted { batches_held: held, decoded_bytes, decoded_batches: 5, ..wanted(memory, shards) };
                let text = asked(4096).share_out().unwrap_err().to_string();
                let need = text.split("raise memory_limit to ").nth(1).and_then(|rest| rest.split(',').next());
                let need: u64 = need.unwrap().parse().unwrap();
                let layout = asked(need).share_out().unwrap();
                let decoded = if decoded_bytes == 0 { (0, raw) } else { (1 + held, 1) };
                assert!(
                    layout.batch_bytes >= decoded.1 * (10 << 20) && layout.decoded_batches == decoded.0,
                    "{layout:?}"
                );
                let less = asked(need - 4096 * u64::from(shards)).share_out();
                // Where batches of one size would fit in less, less is not refused.
                assert!(decoded.1 > 1 || less.is_err(), "{less:?}");
            }
        }
    }

    #[test]
    fn spare_memory_is_a_small_part_of_what_batches_have_and_never_their_last() {
        let hedged = |memory| Wanted { hedged: true, ..wanted(memory, 1) };
        let (plain, rich) = (wanted(64 << 20, 1).share_out().unwrap(), hedged(64 << 20).share_out().unwrap());
        assert_eq!((plain.spares, rich.spares), (Spares::default(), Spares { slots: 16, slot_bytes: 64 << 10 }));
        assert_eq!(rich.batch_bytes + rich.spares.bytes(), plain.batch_bytes);
        assert!(rich.spares.bytes() * 32 <= plain.batch_bytes);
        assert_eq!(
            hedged(20 << 20).share_out().unwrap().spares,
            Spares::default(),
            "two batches would not fit beside it"
        );
        let long = Wanted { block_bytes: (8 << 20, 30 << 10), ..hedged(64 << 20) }.share_out().unwrap();
        assert_eq!(long.spares.slot_bytes, 60 << 10, "for blocks of the common length, where the longest are too long");
        let all_long = Wanted { block_bytes: (8 << 20, 8 << 20), ..hedged(64 << 20) }.share_out().unwrap();
        assert_eq!(all_long.spares, Spares::default());
    }

    #[test]
    fn decoded_batches_take_what_the_shards_can_spare_and_one_at_least() {
        let decoding = |memory| Wanted { decoded_bytes: 3 << 20, decoded_batches: 5, ..wanted(memory, 1) };
        let rich = decoding(1 << 30).share_out().unwrap();
        assert_eq!((rich.decoded_batches, rich.extra_bytes), (5, 15 << 20));
        assert!(rich.region_bytes + rich.extra_bytes <= 1 << 30);
        // Two batches of 10 MiB, the cache and connections take precedence over the second decoded batch.
        assert_eq!(decoding(29 << 20).share_out().unwrap().decoded_batches, 2);
        assert_eq!(decoding(25 << 20).share_out().unwrap().decoded_batches, 1);
    }

    #[test]
    fn scratch_memory_of_tls_is_a_small_part_of_a_shard_and_whole_where_there_is_plenty() {
        let tls =
            |memory| Wanted { connections_max: 128, scratch_bytes: scratch_bytes(Scheme::Https), ..wanted(memory, 8) };
        let tight = tls(1 << 30).share_out().unwrap();
        let (share, scratch) = (tight.region_bytes, tight.region_bytes - tight.cache_bytes - tight.batch_bytes);
        assert!(scratch * 10 <= share, "{scratch} bytes of scratch memory in a share of {share}");
        assert_eq!(scratch, 128 * tight.scratch_bytes);
        let rich = tls(8 << 30).share_out().unwrap();
        assert_eq!(rich.scratch_bytes, *scratch_bytes(Scheme::Https).end());
        let plain = Wanted { scratch_bytes: scratch_bytes(Scheme::Http), ..tls(1 << 30) }.share_out().unwrap();
        assert_eq!(plain.scratch_bytes, 16 << 10);
    }

    #[test]
    fn what_is_known_of_cached_blocks_is_within_the_budget() {
        for (shards, cache_bytes, mean, blocks) in [
            (1, 96 << 20, 1 << 10, 1 << 30),
            (8, 96 << 20, 1 << 10, 50_000),
            (2, 64 << 20, 110 << 10, 1_000_000),
            (4, 0, 9, 9),
        ] {
            let set = Wanted { cache_bytes, block_bytes: (1 << 20, mean), blocks, ..wanted(512 << 20, shards) };
            let layout = set.share_out().unwrap();
            let most = match layout.cached_block_bytes_min {
                0 => blocks / u64::from(shards),
                least => layout.cache_bytes / least,
            };
            assert!(most * 250 <= layout.index_bytes, "{most} blocks: {layout:?}");
            assert!((layout.region_bytes + layout.index_bytes) * u64::from(shards) <= 512 << 20, "{layout:?}");
            assert!(layout.index_bytes <= layout.cache_bytes / 3, "{layout:?}");
        }
    }

    #[test]
    fn shards_follow_what_memory_feeds() {
        assert_eq!(wanted(1 << 30, 0).share_out().unwrap().shards, 4);
        assert_eq!(wanted(45 << 20, 0).share_out().unwrap().shards, 2);
        assert_eq!(wanted(12 << 20, 0).share_out().unwrap().shards, 1);
    }

    #[test]
    fn seats_are_counted_for_each_node() {
        let (a, b) = (take_seats(Some(61), 2), take_seats(Some(62), 2));
        assert_eq!((take_seats(Some(61), 1), take_seats(Some(62), 1)), (a + 2, b + 2));
    }

    #[test]
    fn a_node_without_cores_of_ours_is_said() {
        let here = Topology::here();
        let near = |node| unavailable(node, &here);
        assert!(near(Some(60_000)).unwrap().contains("NUMA node 60000"));
        assert_eq!(near(Some(here.cores[0].node as u16)), None);
        assert_eq!(near(None), None);
    }
}
