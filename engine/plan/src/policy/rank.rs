//! Blocks by a key, such as their next use, greatest first, with removal anywhere: a binary heap that knows where each
//! block stands. And a hash map of blocks without the standard map's random seed: runs must repeat exactly.
//!
//! After it has once been at its fullest, nothing is allocated any more.

use core::hash::{BuildHasherDefault, Hasher};
use fuelrail_base::{BlockId, prng::mix64};
use slab::Slab;
use std::collections::HashMap;

/// Blocks to `V`. Keys come from our own listing, so a fixed hash is safe; it is well mixed.
pub type BlockMap<V> = HashMap<BlockId, V, BuildHasherDefault<BlockHasher>>;

/// Most bytes of memory a [`BlockMap`] takes for each block in it: one byte and the entry for each of its places, which are up to 16/7
/// of the blocks, with the half as large table it was just moved from.
pub const fn map_bytes<V>() -> u64 {
    ((size_of::<(BlockId, V)>() + 1) * 24).div_ceil(7) as u64
}

/// Folds the words of a block's name through [`mix64`].
#[derive(Clone, Copy, Debug, Default)]
pub struct BlockHasher {
    state: u64,
}

impl Hasher for BlockHasher {
    fn finish(&self) -> u64 {
        self.state
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.write_u64(u64::from(*byte));
        }
    }

    fn write_u32(&mut self, word: u32) {
        self.write_u64(u64::from(word));
    }

    fn write_u64(&mut self, word: u64) {
        self.state = mix64(self.state ^ word);
    }
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    key: u64,
    block: BlockId,
    bytes: u64,
    /// Where the heap has it.
    at: u32,
}

/// The blocks held, ranked by next use or another key. Blocks of one sample share their next use: the block breaks the tie.
#[derive(Debug, Default)]
pub(super) struct Rank {
    places: BlockMap<u32>,
    entries: Slab<Entry>,
    /// Places of entries: each has no greater key than the one above it.
    heap: Vec<u32>,
}

impl Rank {
    /// Most bytes of memory for each block held: its entry, marked as one, its places in the map and the heap.
    pub(super) const BLOCK_BYTES: u64 =
        map_bytes::<u32>() + (size_of::<Entry>() + size_of::<usize>() + size_of::<u32>()) as u64;

    pub(super) fn len(&self) -> usize {
        self.heap.len()
    }

    pub(super) fn contains(&self, block: &BlockId) -> bool {
        self.places.contains_key(block)
    }

    /// A block's bytes and key, if it is held.
    pub(super) fn get(&self, block: &BlockId) -> Option<(u64, u64)> {
        let entry = &self.entries[*self.places.get(block)? as usize];
        Some((entry.bytes, entry.key))
    }

    /// Gives a block that is held another key.
    pub(super) fn rekey(&mut self, block: &BlockId, key: u64) {
        let place = self.places[block] as usize;
        self.entries[place].key = key;
        self.rise(self.entries[place].at as usize);
        self.sink(self.entries[place].at as usize);
    }

    /// Adds a block not yet held.
    pub(super) fn push(&mut self, block: BlockId, bytes: u64, key: u64) {
        let at = self.heap.len();
        let place = self.entries.insert(Entry { key, block, bytes, at: at as u32 });
        let place = u32::try_from(place).expect("fewer than 2^32 blocks fit into memory");
        let before = self.places.insert(block, place);
        debug_assert!(before.is_none(), "{block:?} is held once");
        self.heap.push(place);
        self.rise(at);
    }

    /// The first block's key and bytes.
    pub(super) fn farthest(&self) -> Option<(u64, u64)> {
        let entry = &self.entries[*self.heap.first()? as usize];
        Some((entry.key, entry.bytes))
    }

    /// Takes the first block out: name, bytes, key.
    pub(super) fn pop(&mut self) -> Option<(BlockId, u64, u64)> {
        let block = self.entries[*self.heap.first()? as usize].block;
        self.remove(block).map(|(bytes, key)| (block, bytes, key))
    }

    /// Takes first blocks out, into `out`, until `bytes` fit into what is `free` besides; what is free then. `None`, and nothing
    /// moved, when one of those has no greater key than the newcomer, or when all together are not enough.
    pub(super) fn make_room(
        &mut self,
        bytes: u64,
        mut free: u64,
        newcomer: u64,
        out: &mut Vec<(BlockId, u64, u64)>,
    ) -> Option<u64> {
        while free < bytes {
            match self.farthest() {
                Some((theirs, their_bytes)) if theirs > newcomer => {
                    free += their_bytes;
                    out.extend(self.pop());
                }
                _ => {
                    for (block, bytes, key) in out.drain(..) {
                        self.push(block, bytes, key);
                    }
                    return None;
                }
            }
        }
        Some(free)
    }

    /// Takes a block out: its bytes and key.
    pub(super) fn remove(&mut self, block: BlockId) -> Option<(u64, u64)> {
        let place = self.places.remove(&block)?;
        let Entry { key, bytes, at, .. } = self.entries.remove(place as usize);
        let at = at as usize;
        self.heap.swap_remove(at);
        if at < self.heap.len() {
            self.entry_mut(at).at = at as u32;
            self.rise(at);
            self.sink(at);
        }
        Some((bytes, key))
    }

    fn place(&self, at: usize) -> (u64, BlockId) {
        let entry = &self.entries[self.heap[at] as usize];
        (entry.key, entry.block)
    }

    fn entry_mut(&mut self, at: usize) -> &mut Entry {
        &mut self.entries[self.heap[at] as usize]
    }

    fn swap(&mut self, a: usize, b: usize) {
        self.heap.swap(a, b);
        self.entry_mut(a).at = a as u32;
        self.entry_mut(b).at = b as u32;
    }

    fn rise(&mut self, mut at: usize) {
        while at > 0 {
            let above = (at - 1) / 2;
            if self.place(above) >= self.place(at) {
                return;
            }
            self.swap(above, at);
            at = above;
        }
    }

    fn sink(&mut self, mut at: usize) {
        loop {
            let left = 2 * at + 1;
            let Some(far) = (left..self.heap.len().min(left + 2)).max_by_key(|&below| self.place(below)) else {
                return;
            };
            if self.place(at) >= self.place(far) {
                return;
            }
            self.swap(at, far);
            at = far;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use fuelrail_base::{SampleId, prng::Prng};
    use std::collections::BTreeMap;

    #[test]
    fn ranks_as_a_sorted_map_does() {
        let (mut rank, mut map, mut prng) = (Rank::default(), BTreeMap::new(), Prng::new(3));
        let mut held = BTreeMap::new();
        for _ in 0..20_000 {
            let block = BlockId { sample: SampleId(prng.below(200)), index: prng.below(2) as u32 };
            match (prng.below(4), held.get(&block)) {
                (0, None) => {
                    let (use_time, bytes) = (prng.below(50), prng.below(9));
                    rank.push(block, bytes, use_time);
                    map.insert((use_time, block), bytes);
                    held.insert(block, use_time);
                }
                (1, Some(&use_time)) => {
                    assert_eq!(rank.remove(block), Some((map.remove(&(use_time, block)).unwrap(), use_time)));
                    held.remove(&block);
                }
                (2, Some(&before)) => {
                    let bytes = map.remove(&(before, block)).unwrap();
                    assert_eq!(rank.get(&block), Some((bytes, before)));
                    let now = prng.below(50);
                    rank.rekey(&block, now);
                    map.insert((now, block), bytes);
                    held.insert(block, now);
                }
                (3, _) => {
                    let last = map.pop_last().map(|((use_time, block), bytes)| (block, bytes, use_time));
                    assert_eq!(rank.farthest(), last.map(|(_, bytes, use_time)| (use_time, bytes)));
                    assert_eq!(rank.pop(), last);
                    if let Some((block, ..)) = last {
                        held.remove(&block);
                    }
                }
                _ => assert_eq!(rank.contains(&block), held.contains_key(&block)),
            }
            assert_eq!(rank.len(), map.len());
        }
    }
}
