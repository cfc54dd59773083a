//! Farthest next use leaves first (Belady 1966), with bypass: optimal when the order is known, and here it is.
//!
//! A block not used again within the horizon is not kept. A newcomer is taken when there is room, or when every block
//! that would have to go is used later than it; otherwise it is the newcomer that would be dropped first, and nothing
//! moves. O(log n) per call and block evicted.

use super::contract::{Policy, PolicyName};
use super::index::BlockMap;
use crate::schedule::UseTime;
use fuelrail_base::BlockId;
use std::collections::BTreeMap;

/// Drops what is used again latest.
#[derive(Debug)]
pub struct NextUse {
    capacity_bytes: u64,
    used_bytes: u64,
    next_uses: BlockMap<UseTime>,
    /// Bytes of each block, by next use. Blocks of one sample share their next use: the block breaks the tie.
    by_use: BTreeMap<(UseTime, BlockId), u64>,
}

impl NextUse {
    /// An empty cache of this capacity.
    #[must_use]
    pub fn new(capacity_bytes: u64) -> NextUse {
        NextUse { capacity_bytes, used_bytes: 0, next_uses: BlockMap::default(), by_use: BTreeMap::new() }
    }

    /// How many of the farthest blocks must go for `bytes` more to fit; `None` when one of those is used no later than
    /// `next_use`, or when all together are not enough.
    fn victims(&self, bytes: u64, next_use: UseTime) -> Option<usize> {
        let mut free = self.capacity_bytes - self.used_bytes;
        let mut count = 0;
        for ((their_use, _), their_bytes) in self.by_use.iter().rev() {
            if free >= bytes {
                break;
            }
            if *their_use <= next_use {
                return None;
            }
            free += their_bytes;
            count += 1;
        }
        (free >= bytes).then_some(count)
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
        self.by_use.len()
    }

    fn contains(&self, block: &BlockId) -> bool {
        self.next_uses.contains_key(block)
    }

    fn hit(&mut self, block: BlockId, next_use: Option<UseTime>, evicted: &mut Vec<BlockId>) -> bool {
        let Some(next_use) = next_use else {
            let held = self.remove(block);
            if held {
                evicted.push(block);
            }
            return held;
        };
        let Some(place) = self.next_uses.get_mut(&block) else { return false };
        let bytes = self.by_use.remove(&(*place, block)).expect("every block held has its place by use");
        self.by_use.insert((next_use, block), bytes);
        *place = next_use;
        true
    }

    fn offer(&mut self, block: BlockId, bytes: u64, next_use: Option<UseTime>, evicted: &mut Vec<BlockId>) -> bool {
        if self.contains(&block) {
            self.hit(block, next_use, evicted);
            return next_use.is_some();
        }
        let Some(next_use) = next_use else { return false };
        let Some(victims) = self.victims(bytes, next_use) else { return false };
        for _ in 0..victims {
            let ((_, victim), victim_bytes) = self.by_use.pop_last().expect("victims were counted among these");
            self.next_uses.remove(&victim);
            self.used_bytes -= victim_bytes;
            evicted.push(victim);
        }
        self.next_uses.insert(block, next_use);
        self.by_use.insert((next_use, block), bytes);
        self.used_bytes += bytes;
        true
    }

    fn remove(&mut self, block: BlockId) -> bool {
        let Some(next_use) = self.next_uses.remove(&block) else { return false };
        self.used_bytes -= self.by_use.remove(&(next_use, block)).expect("every block held has its place by use");
        true
    }
}
