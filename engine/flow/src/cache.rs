//! The RAM cache of blocks: bytes only. Which blocks it holds is the planner's decision.
//!
//! Owns one slot of the arena and cuts it into extents. A block may lie in several extents, so the cache is never too
//! fragmented to hold what the planner says fits; hits copy into the batch anyway, so being in pieces costs nothing.

use crate::conn::Proof;
use fuelrail_base::BlockId;
use fuelrail_base::canary::{self, Mistake};
use fuelrail_io::{EXTENT_GRANULE, Extents, Slot, Window};
use fuelrail_plan::policy::{self, BlockMap, PolicyName, map_bytes};
use slab::Slab;

/// Extents deal in granules. One of them stands for one byte here, so that small blocks waste nothing of the capacity the
/// planner accounts for.
const BYTE: u64 = EXTENT_GRANULE;

/// Free pieces of the memory that the table has room for at the start.
const PIECES_AT_START: usize = 4096;

struct Cached {
    /// Its extents: offset and length. Nearly always one.
    first: (u64, u64),
    others: Box<[(u64, u64)]>,
    proof: Proof,
}

impl Cached {
    fn pieces(&self) -> impl Iterator<Item = (u64, u64)> {
        core::iter::once(self.first).chain(self.others.iter().copied())
    }
}

/// Most bytes of memory beside the blocks themselves that each cached one takes: the policy's entry and the block's place.
pub fn cached_block_bytes(policy: PolicyName) -> u64 {
    policy::block_bytes(policy) + map_bytes::<u32>() + (size_of::<Cached>() + align_of::<Cached>()) as u64
}

/// The cache stage of one shard.
pub(crate) struct CacheStage {
    memory: Slot,
    extents: Extents,
    blocks: BlockMap<u32>,
    cached: Slab<Cached>,
    /// Payload bytes copied in and out.
    pub copied_bytes: u64,
}

impl CacheStage {
    pub(crate) fn new(memory: Slot) -> CacheStage {
        CacheStage {
            extents: Extents::with_pieces(memory.len() as u64 * BYTE, PIECES_AT_START),
            memory,
            blocks: BlockMap::with_capacity_and_hasher(1024, Default::default()),
            cached: Slab::with_capacity(1024),
            copied_bytes: 0,
        }
    }

    /// Copies a block in.
    ///
    /// # Panics
    /// When the planner's accounting of the capacity is wrong.
    pub(crate) fn keep(&mut self, block: BlockId, bytes: &[u8], proof: Proof) {
        let (first, mut rest) = self.keep_start(bytes);
        let mut others = Vec::new();
        while !rest.is_empty() {
            let (piece, later) = self.keep_start(rest);
            others.push(piece);
            rest = later;
        }
        self.copied_bytes += bytes.len() as u64;
        let place = self.cached.insert(Cached { first, others: others.into(), proof });
        let place = u32::try_from(place).expect("fewer than 2^32 blocks fit into memory");
        let before = self.blocks.insert(block, place);
        assert!(before.is_none(), "block {block:?} is kept twice");
    }

    /// Copies as much from the start of `bytes` as finds room in one piece; returns where it lies, and the rest.
    fn keep_start<'a>(&mut self, bytes: &'a [u8]) -> ((u64, u64), &'a [u8]) {
        let piece = self.extents.alloc_up_to(bytes.len() as u64 * BYTE).expect("the planner keeps within the capacity");
        let (at, len) = (piece.0 / BYTE, piece.1 / BYTE);
        let (now, later) = bytes.split_at(len as usize);
        self.memory[at as usize..(at + len) as usize].copy_from_slice(now);
        ((at, len), later)
    }

    /// Copies a block out into an empty window.
    ///
    /// # Panics
    /// When the block is not here.
    pub(crate) fn serve(&mut self, block: BlockId, window: &mut Window) -> Proof {
        let mut cached = &self.cached[self.blocks[&block] as usize];
        if canary::on(Mistake::CacheConfuses)
            && let Some((_, other)) =
                self.cached.iter().find(|(_, kept)| kept.first != cached.first && kept.first.1 == cached.first.1)
        {
            cached = other;
        }
        for (at, len) in cached.pieces() {
            self.copied_bytes += window.put(&self.memory[at as usize..(at + len) as usize]) as u64;
        }
        cached.proof
    }

    pub(crate) fn evict(&mut self, block: BlockId) {
        let place = self.blocks.remove(&block).expect("the planner evicts only what it kept");
        let cached = self.cached.remove(place as usize);
        for (at, len) in cached.pieces() {
            self.extents.free(at * BYTE, len * BYTE);
        }
    }

    /// One line for the watchdog.
    pub(crate) fn describe(&self) -> String {
        format!(
            "cache: {} blocks, {} of {} bytes free",
            self.blocks.len(),
            self.extents.free_bytes() / BYTE,
            self.memory.len()
        )
    }
}
