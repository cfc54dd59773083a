//! Names of things: samples, blocks, batches and shards. Plain numbers in newtypes, so that they cannot be mixed up.

/// A sample, numbered by its place in the sorted listing of the data set (0 is the first key).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct SampleId(pub u32);

/// A block: the unit of fetching and caching, an aligned span of one object.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct BlockId {
    /// The object (today one object is one sample).
    pub sample: SampleId,
    /// Which aligned span of it, counted from 0.
    pub index: u32,
}

impl BlockId {
    /// A well-mixed 64-bit hash of the block's name: decides its owner shard.
    #[must_use]
    pub fn hash64(self) -> u64 {
        crate::prng::mix64((u64::from(self.sample.0) << 32) | u64::from(self.index))
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

/// One core's thread.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ShardId(pub u16);

#[cfg(test)]
mod tests {
    use super::*;

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
