//! Blocks by a key, such as their next use, greatest first, with removal anywhere: a binary heap that knows where each
//! block stands.
//!
//! After it has once been at its fullest, nothing is allocated any more.

use super::index::{BlockMap, map_bytes};
use fuelrail_base::BlockId;
use slab::Slab;

#[derive(Clone, Copy, Debug)]
struct Entry<K> {
    key: K,
    block: BlockId,
    bytes: u64,
    /// Where the heap has it.
    at: u32,
}

/// The blocks held, ranked by next use or another key. Blocks of one sample share their next use: the block breaks the tie.
#[derive(Debug)]
pub(super) struct Rank<K> {
    places: BlockMap<u32>,
    entries: Slab<Entry<K>>,
    /// Places of entries: each has no greater key than the one above it.
    heap: Vec<u32>,
}

impl<K> Default for Rank<K> {
    fn default() -> Rank<K> {
        Rank { places: BlockMap::default(), entries: Slab::new(), heap: Vec::new() }
    }
}

impl<K: Copy + Ord> Rank<K> {
    /// Most bytes of memory for each block held: its entry, marked as one, its places in the map and the heap.
    pub(super) const BLOCK_BYTES: u64 =
        map_bytes::<u32>() + (size_of::<Entry<K>>() + size_of::<usize>() + size_of::<u32>()) as u64;

    pub(super) fn len(&self) -> usize {
        self.heap.len()
    }

    pub(super) fn contains(&self, block: &BlockId) -> bool {
        self.places.contains_key(block)
    }

    /// A block's bytes and key, if it is held.
    pub(super) fn get(&self, block: &BlockId) -> Option<(u64, K)> {
        let entry = &self.entries[*self.places.get(block)? as usize];
        Some((entry.bytes, entry.key))
    }

    /// Gives a block that is held another key.
    pub(super) fn rekey(&mut self, block: &BlockId, key: K) {
        let place = self.places[block] as usize;
        self.entries[place].key = key;
        self.rise(self.entries[place].at as usize);
        self.sink(self.entries[place].at as usize);
    }

    /// Adds a block not yet held.
    pub(super) fn push(&mut self, block: BlockId, bytes: u64, key: K) {
        let at = self.heap.len();
        let place = self.entries.insert(Entry { key, block, bytes, at: at as u32 });
        let place = u32::try_from(place).expect("fewer than 2^32 blocks fit into memory");
        let before = self.places.insert(block, place);
        debug_assert!(before.is_none(), "{block:?} is held once");
        self.heap.push(place);
        self.rise(at);
    }

    /// The first block's key and bytes.
    pub(super) fn farthest(&self) -> Option<(K, u64)> {
        let entry = &self.entries[*self.heap.first()? as usize];
        Some((entry.key, entry.bytes))
    }

    /// Takes the first block out: name, bytes, key.
    pub(super) fn pop(&mut self) -> Option<(BlockId, u64, K)> {
        let block = self.entries[*self.heap.first()? as usize].block;
        self.remove(block).map(|(bytes, key)| (block, bytes, key))
    }

    /// Takes first blocks out, into `out`, until `bytes` fit into what is `free` besides; what is free then. `None`, and nothing
    /// moved, when one of those has no greater key than the newcomer, or when all together are not enough.
    pub(super) fn make_room(
        &mut self,
        bytes: u64,
        mut free: u64,
        newcomer: K,
        out: &mut Vec<(BlockId, u64, K)>,
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
    pub(super) fn remove(&mut self, block: BlockId) -> Option<(u64, K)> {
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

    fn place(&self, at: usize) -> (K, BlockId) {
        let entry = &self.entries[self.heap[at] as usize];
        (entry.key, entry.block)
    }

    fn entry_mut(&mut self, at: usize) -> &mut Entry<K> {
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
    use crate::schedule::UseTime;
    use fuelrail_base::SampleId;
    use fuelrail_base::prng::Prng;
    use std::collections::BTreeMap;

    #[test]
    fn ranks_as_a_sorted_map_does() {
        let (mut rank, mut map, mut prng) = (Rank::default(), BTreeMap::new(), Prng::new(3));
        let mut held = BTreeMap::new();
        for _ in 0..20_000 {
            let block = BlockId { sample: SampleId(prng.below(200)), index: prng.below(2) as u32 };
            match (prng.below(4), held.get(&block)) {
                (0, None) => {
                    let (use_time, bytes) = (UseTime(prng.below(50)), prng.below(9));
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
                    let now = UseTime(prng.below(50));
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
