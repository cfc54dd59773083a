//! Least recently used: the usual baseline.
//!
//! A use moves a block to the back of the line; a full cache drops the front. Ignores next uses. O(1) per call. Over
//! epochs it does badly: what was used longest ago is what comes again soonest.

use super::contract::{Policy, PolicyName};
use super::queue::Queue;
use crate::schedule::UseTime;
use fuelrail_base::BlockId;

/// Drops what has not been used for longest.
#[derive(Debug)]
pub struct Lru {
    line: Queue,
}

impl Lru {
    /// An empty cache of this capacity.
    #[must_use]
    pub fn new(capacity_bytes: u64) -> Lru {
        Lru { line: Queue::new(capacity_bytes) }
    }
}

impl Policy for Lru {
    fn name(&self) -> &'static str {
        PolicyName::Lru.word()
    }

    fn capacity_bytes(&self) -> u64 {
        self.line.capacity_bytes()
    }

    fn used_bytes(&self) -> u64 {
        self.line.used_bytes()
    }

    fn len(&self) -> usize {
        self.line.len()
    }

    fn contains(&self, block: &BlockId) -> bool {
        self.line.contains(block)
    }

    fn hit(&mut self, block: BlockId, _next_use: Option<UseTime>, _evicted: &mut Vec<BlockId>) -> bool {
        self.line.touch(&block)
    }

    fn offer(&mut self, block: BlockId, bytes: u64, _next_use: Option<UseTime>, evicted: &mut Vec<BlockId>) -> bool {
        self.line.touch(&block) || self.line.push(block, bytes, evicted)
    }

    fn remove(&mut self, block: BlockId) -> bool {
        self.line.remove(block)
    }
}
