//! Farthest next use leaves first (Belady 1966), with bypass: optimal when the order is known, and here it is.
//!
//! A block not used again within the horizon is not kept. A newcomer is taken when there is room, or when every block
//! that would have to go is used later than it; otherwise it is the newcomer that would be dropped first, and nothing
//! moves. O(log n) per call and block evicted.

use super::contract::{Policy, PolicyName};
use super::rank::Rank;
use crate::schedule::UseTime;
use fuelrail_base::BlockId;

/// Drops what is used again latest.
#[derive(Debug)]
pub struct NextUse {
    capacity_bytes: u64,
    used_bytes: u64,
    rank: Rank,
    /// Blocks taken out for a newcomer, put back when it does not get in after all.
    out: Vec<(BlockId, u64, UseTime)>,
}

impl NextUse {
    /// An empty cache of this capacity.
    #[must_use]
    pub fn new(capacity_bytes: u64) -> NextUse {
        NextUse { capacity_bytes, used_bytes: 0, rank: Rank::default(), out: Vec::new() }
    }
}

impl Policy for NextUse {
    fn name(&self) -> &'static str {
        PolicyName::NextUse.word()
    }

    fn capacity_bytes(&self) -> u64 {
        self.capacity_bytes
    }

    fn used_bytes(&self) -> u64 {
        self.used_bytes
    }

    fn len(&self) -> usize {
        self.rank.len()
    }

    fn contains(&self, block: &BlockId) -> bool {
        self.rank.contains(block)
    }

    fn hit(&mut self, block: BlockId, next_use: Option<UseTime>, evicted: &mut Vec<BlockId>) -> bool {
        let Some(next_use) = next_use else {
            let held = self.remove(block);
            if held {
                evicted.push(block);
            }
            return held;
        };
        let Some((bytes, _)) = self.rank.remove(block) else { return false };
        self.rank.push(block, bytes, next_use);
        true
    }

    fn offer(&mut self, block: BlockId, bytes: u64, next_use: Option<UseTime>, evicted: &mut Vec<BlockId>) -> bool {
        if self.contains(&block) {
            self.hit(block, next_use, evicted);
            return next_use.is_some();
        }
        let Some(next_use) = next_use else { return false };
        let free = self.capacity_bytes - self.used_bytes;
        let Some(free) = self.rank.make_room(bytes, free, next_use, &mut self.out) else { return false };
        evicted.extend(self.out.drain(..).map(|(block, ..)| block));
        self.rank.push(block, bytes, next_use);
        self.used_bytes = self.capacity_bytes - free + bytes;
        true
    }

    fn remove(&mut self, block: BlockId) -> bool {
        let Some((bytes, _)) = self.rank.remove(block) else { return false };
        self.used_bytes -= bytes;
        true
    }
}
