//! A hash map keyed by blocks, without the standard map's random seed: runs must repeat exactly.

use core::hash::{BuildHasherDefault, Hasher};
use fuelrail_base::{BlockId, prng::mix64};
use std::collections::HashMap;

/// Blocks to `V`. Keys come from our own listing, so a fixed hash is safe; it is well mixed.
pub type BlockMap<V> = HashMap<BlockId, V, BuildHasherDefault<BlockHasher>>;

/// Most bytes of memory a [`BlockMap`] takes for each block in it: one byte and the entry for each of its places, which are up to 16/7
/// of the blocks, with the half as large table it was just moved from.
#[must_use]
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
