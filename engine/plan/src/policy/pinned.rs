//! First come stays: fills up and never evicts (MinIO in CoorDL, Mohan et al., VLDB 2021).
//!
//! Ignores next uses, also when there is none within the horizon: a pinned cache is the one that needs to know nothing
//! about the future, and over uniform epochs it loses nothing by it. Blocks leave only through `remove`. O(1) per call.

use super::contract::{Policy, PolicyName};
use super::index::BlockMap;
use crate::schedule::UseTime;
use fuelrail_base::BlockId;

/// Drops nothing.
#[derive(Debug)]
pub struct Pinned {
    capacity_bytes: u64,
    used_bytes: u64,
    sizes: BlockMap<u64>,
}

impl Pinned {
    /// An empty cache of this capacity.
    #[must_use]
    pub fn new(capacity_bytes: u64) -> Pinned {
        Pinned { capacity_bytes, used_bytes: 0, sizes: BlockMap::default() }
    }
}

impl Policy for Pinned {
    fn name(&self) -> &'static str {
        PolicyName::Pinned.word()
    }

    fn capacity_bytes(&self) -> u64 {
        self.capacity_bytes
    }

    fn used_bytes(&self) -> u64 {
        self.used_bytes
    }

    fn len(&self) -> usize {
        self.sizes.len()
    }

    fn contains(&self, block: &BlockId) -> bool {
        self.sizes.contains_key(block)
    }

    fn hit(&mut self, block: BlockId, _next_use: Option<UseTime>, _evicted: &mut Vec<BlockId>) -> bool {
        self.contains(&block)
    }

    fn offer(&mut self, block: BlockId, bytes: u64, _next_use: Option<UseTime>, _evicted: &mut Vec<BlockId>) -> bool {
        if self.contains(&block) {
            return true;
        }
        if bytes > self.capacity_bytes - self.used_bytes {
            return false;
        }
        self.sizes.insert(block, bytes);
        self.used_bytes += bytes;
        true
    }

    fn remove(&mut self, block: BlockId) -> bool {
        let Some(bytes) = self.sizes.remove(&block) else { return false };
        self.used_bytes -= bytes;
        true
    }
}
