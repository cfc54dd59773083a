//! Blocks in a line, oldest first, with O(1) push, removal anywhere and move to the back.
//!
//! A doubly linked list threaded through a slab, and a map from block to place. After it has once been full, nothing is
//! allocated any more.

use super::index::{BlockMap, map_bytes};
use fuelrail_base::BlockId;
use slab::Slab;

/// No neighbour.
const NONE: usize = usize::MAX;

#[derive(Debug)]
struct Entry {
    block: BlockId,
    bytes: u64,
    older: usize,
    newer: usize,
}

/// Most bytes of memory for each block in a line: its entry, marked as one, and its place in the map.
pub(super) const BLOCK_BYTES: u64 = map_bytes::<usize>() + (size_of::<Entry>() + size_of::<usize>()) as u64;

/// A line of blocks within a byte capacity.
#[derive(Debug)]
pub(super) struct Queue {
    capacity_bytes: u64,
    used_bytes: u64,
    places: BlockMap<usize>,
    entries: Slab<Entry>,
    oldest: usize,
    newest: usize,
}

impl Queue {
    pub(super) fn new(capacity_bytes: u64) -> Queue {
        let (places, entries) = (BlockMap::default(), Slab::new());
        Queue { capacity_bytes, used_bytes: 0, places, entries, oldest: NONE, newest: NONE }
    }

    pub(super) fn capacity_bytes(&self) -> u64 {
        self.capacity_bytes
    }

    pub(super) fn used_bytes(&self) -> u64 {
        self.used_bytes
    }

    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    pub(super) fn contains(&self, block: &BlockId) -> bool {
        self.places.contains_key(block)
    }

    /// Appends a block not yet held, after dropping the oldest ones until it fits. False, and nothing dropped, when it
    /// is larger than the whole capacity.
    pub(super) fn push(&mut self, block: BlockId, bytes: u64, evicted: &mut Vec<BlockId>) -> bool {
        if bytes > self.capacity_bytes {
            return false;
        }
        while bytes > self.capacity_bytes - self.used_bytes {
            let oldest = self.entries[self.oldest].block;
            self.remove(oldest);
            evicted.push(oldest);
        }
        let place = self.entries.insert(Entry { block, bytes, older: NONE, newer: NONE });
        let earlier = self.places.insert(block, place);
        assert!(earlier.is_none(), "{block:?} is in line twice");
        self.link_newest(place);
        self.used_bytes += bytes;
        true
    }

    /// Moves a block to the back of the line. False when it is not held.
    pub(super) fn touch(&mut self, block: &BlockId) -> bool {
        let Some(&place) = self.places.get(block) else { return false };
        if place != self.newest {
            self.unlink(place);
            self.link_newest(place);
        }
        true
    }

    /// Takes a block out. False when it is not held.
    pub(super) fn remove(&mut self, block: BlockId) -> bool {
        let Some(place) = self.places.remove(&block) else { return false };
        self.unlink(place);
        self.used_bytes -= self.entries.remove(place).bytes;
        true
    }

    fn link_newest(&mut self, place: usize) {
        self.entries[place].older = self.newest;
        self.entries[place].newer = NONE;
        match self.newest {
            NONE => self.oldest = place,
            newest => self.entries[newest].newer = place,
        }
        self.newest = place;
    }

    fn unlink(&mut self, place: usize) {
        let Entry { older, newer, .. } = self.entries[place];
        match older {
            NONE => self.oldest = newer,
            older => self.entries[older].newer = newer,
        }
        match newer {
            NONE => self.newest = older,
            newer => self.entries[newer].older = older,
        }
    }
}
