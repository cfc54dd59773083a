//! First in, first out: the published baseline (DELI).
//!
//! Uses change nothing; a full cache drops what came first. Ignores next uses. O(1) per call.

use super::contract::{Policy, PolicyName};
use super::queue::Queue;
use crate::schedule::UseTime;
use fuelrail_base::BlockId;

/// Drops what came first.
#[derive(Debug)]
pub struct Fifo {
    line: Queue,
}

impl Fifo {
    /// An empty cache of this capacity.
    #[must_use]
    pub fn new(capacity_bytes: u64) -> Fifo {
        Fifo { line: Queue::new(capacity_bytes) }
    }
}

impl Policy for Fifo {
    fn name(&self) -> &'static str {
        PolicyName::Fifo.word()
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
        self.line.contains(&block)
    }

    fn offer(&mut self, block: BlockId, bytes: u64, _next_use: Option<UseTime>, evicted: &mut Vec<BlockId>) -> bool {
        self.line.contains(&block) || self.line.push(block, bytes, evicted)
    }

    fn remove(&mut self, block: BlockId) -> bool {
        self.line.remove(block)
    }
}
