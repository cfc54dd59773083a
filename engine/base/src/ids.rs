//! Ids of samples, blocks, batches and shards: numbers in newtypes, so that they cannot be mixed up.

/// A sample, numbered by its place in the sorted listing of the data set (0 is the first key).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[repr(transparent)] // C reads lists of them as numbers
pub struct SampleId(pub u64);

/// A block: the unit of fetching and caching, an aligned span of one object. Packed, because tables hold one for every cached block.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[repr(C, packed(4))]
pub struct BlockId {
    /// The object (today one object is one sample).
    pub sample: SampleId,
    /// Which aligned span of it, counted from 0.
    pub index: u32,
}

impl BlockId {
    /// A well-mixed 64-bit hash of the block's id, which decides its owner shard.
    #[must_use]
    pub fn hash64(self) -> u64 {
        let high = (self.sample.0 >> 32).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        crate::prng::mix64(((self.sample.0 << 32) | u64::from(self.index)) ^ high)
    }

    /// The shard that fetches and caches this block, out of `shards`.
    ///
    /// # Panics
    /// When `shards` is zero.
    #[must_use]
    pub fn owner(self, shards: u16) -> ShardId {
        assert!(shards > 0, "a loader has at least one shard");
        ShardId((self.hash64() % u64::from(shards)) as u16)
    }
}

/// A batch, numbered from 0 over the whole run of this rank (across epochs).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct BatchSeq(pub u64);

/// A shard: one thread on one core.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ShardId(pub u16);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_beyond_32_bits_have_hashes_of_their_own_and_those_below_have_the_hash_they_always_had() {
        let hash = |sample, index| BlockId { sample: SampleId(sample), index }.hash64();
        assert_eq!(hash(5, 7), crate::prng::mix64(5 << 32 | 7));
        let all: std::collections::BTreeSet<u64> = (0..64).map(|bit| hash(1 << bit, 0)).collect();
        assert_eq!(all.len(), 64);
        assert_eq!(size_of::<BlockId>(), 12, "tables hold one for every cached block");
    }

    #[test]
    fn owners_spread_evenly() {
        let mut count = [0u32; 3];
        for s in 0..30_000 {
            count[BlockId { sample: SampleId(s), index: 0 }.owner(3).0 as usize] += 1;
        }
        for c in count {
            assert!((9_500..10_500).contains(&c), "{count:?}");
        }
    }
}
