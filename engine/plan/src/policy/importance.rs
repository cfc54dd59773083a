//! Least important leaves first, then least often used, with ghosts (SHADE, FAST 2023).
//!
//! How important a block is, is told ([`Policy::weigh`]); with nothing told this is least frequently used. A newcomer is taken
//! when there is room, or when every block that would have to go ranks below it: equals stay, so that blocks of one rank do
//! not chase each other out. A block that left is remembered as a ghost, and gets its count of uses back when it returns;
//! there are as many ghosts as blocks held at the fullest, the oldest goes first. Ignores next uses. O(log n) per call and
//! block evicted.

use super::contract::{Policy, PolicyName};
use super::index::{BlockMap, map_bytes};
use super::rank::Rank;
use crate::schedule::UseTime;
use fuelrail_base::BlockId;
use std::collections::VecDeque;

/// Drops what matters least.
#[derive(Debug)]
pub struct Importance {
    capacity_bytes: u64,
    used_bytes: u64,
    rank: Rank,
    /// Uses of each block held.
    uses: BlockMap<u32>,
    /// Weight of the block that is to be offered next.
    told: Option<(BlockId, u32)>,
    /// Uses of each block that left, and when it left.
    ghosts: BlockMap<(u32, u64)>,
    /// The ghosts as they left; one that returned is still in line, with an older moment.
    line: VecDeque<(BlockId, u64)>,
    left: u64,
    /// Blocks held at the fullest.
    fullest: usize,
    /// Blocks taken out for a newcomer, put back when it does not get in after all.
    out: Vec<(BlockId, u64, UseTime)>,
}

/// Most bytes of memory for each block held: its rank, its uses, a ghost, and two of the ghosts' line, which doubles when it grows.
pub(super) const BLOCK_BYTES: u64 = Rank::<UseTime>::BLOCK_BYTES
    + map_bytes::<u32>()
    + map_bytes::<(u32, u64)>()
    + 4 * size_of::<(BlockId, u64)>() as u64;

/// Weight and uses as a place in the rank, whose first is what has the highest: so the other way round.
fn place(weight: u32, uses: u32) -> UseTime {
    UseTime(!(u64::from(weight) << 32 | u64::from(uses)))
}

fn weight(place: UseTime) -> u32 {
    (!place.0 >> 32) as u32
}

impl Importance {
    /// An empty cache of this capacity.
    #[must_use]
    pub fn new(capacity_bytes: u64) -> Importance {
        Importance {
            capacity_bytes,
            used_bytes: 0,
            rank: Rank::default(),
            uses: BlockMap::default(),
            told: None,
            ghosts: BlockMap::default(),
            line: VecDeque::new(),
            left: 0,
            fullest: 0,
            out: Vec::new(),
        }
    }

    /// Blocks remembered although they left.
    #[must_use]
    pub fn ghosts(&self) -> usize {
        self.ghosts.len()
    }

    /// Remembers a block that left.
    fn haunt(&mut self, block: BlockId) {
        let uses = self.uses.remove(&block).expect("a block that leaves was held");
        self.left += 1;
        self.ghosts.insert(block, (uses, self.left));
        self.line.push_back((block, self.left));
        while self.ghosts.len() > self.fullest || self.line.len() > 2 * self.fullest {
            let Some((oldest, when)) = self.line.pop_front() else { return };
            if self.ghosts.get(&oldest).is_some_and(|(_, left)| *left == when) {
                self.ghosts.remove(&oldest);
            }
        }
    }

    fn rank_again(&mut self, block: BlockId, weight_now: Option<u32>, more_uses: u32) -> bool {
        let Some((bytes, before)) = self.rank.remove(block) else { return false };
        let uses = self.uses.get_mut(&block).expect("a block held has its uses counted");
        *uses = uses.saturating_add(more_uses);
        self.rank.push(block, bytes, place(weight_now.unwrap_or(weight(before)), *uses));
        true
    }
}

impl Policy for Importance {
    fn name(&self) -> &'static str {
        PolicyName::Importance.word()
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

    fn weigh(&mut self, block: BlockId, weight: u32) {
        if !self.rank_again(block, Some(weight), 0) {
            self.told = Some((block, weight));
        }
    }

    fn hit(&mut self, block: BlockId, _next_use: Option<UseTime>, _evicted: &mut Vec<BlockId>) -> bool {
        self.rank_again(block, None, 1)
    }

    fn offer(&mut self, block: BlockId, bytes: u64, next_use: Option<UseTime>, evicted: &mut Vec<BlockId>) -> bool {
        if self.hit(block, next_use, evicted) {
            return true;
        }
        let weight = self.told.take().filter(|(told, _)| *told == block).map_or(0, |(_, weight)| weight);
        let uses = self.ghosts.get(&block).map_or(0, |(uses, _)| *uses).saturating_add(1);
        let (free, newcomer) = (self.capacity_bytes - self.used_bytes, place(weight, uses));
        let Some(free) = self.rank.make_room(bytes, free, newcomer, &mut self.out) else { return false };
        self.ghosts.remove(&block);
        self.rank.push(block, bytes, newcomer);
        self.uses.insert(block, uses);
        self.used_bytes = self.capacity_bytes - free + bytes;
        while let Some((gone, ..)) = self.out.pop() {
            evicted.push(gone);
            self.haunt(gone);
        }
        self.fullest = self.fullest.max(self.rank.len());
        true
    }

    fn remove(&mut self, block: BlockId) -> bool {
        let Some((bytes, _)) = self.rank.remove(block) else { return false };
        self.used_bytes -= bytes;
        self.uses.remove(&block);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use fuelrail_base::{SampleId, prng::Prng};

    fn block(sample: u32) -> BlockId {
        BlockId { sample: SampleId(sample.into()), index: 0 }
    }

    fn offer(cache: &mut Importance, sample: u32, weight: u32) -> (bool, Vec<u32>) {
        let mut evicted = Vec::new();
        cache.weigh(block(sample), weight);
        let taken = cache.offer(block(sample), 1, None, &mut evicted);
        (taken, evicted.into_iter().map(|block| block.sample.0 as u32).collect())
    }

    #[test]
    fn the_least_important_leaves_first_then_the_least_often_used() {
        let mut cache = Importance::new(3);
        for (sample, weight) in [(1, 10), (2, 5), (3, 5)] {
            assert_eq!(offer(&mut cache, sample, weight), (true, vec![]));
        }
        assert!(cache.hit(block(3), None, &mut Vec::new()));
        assert_eq!(offer(&mut cache, 4, 4), (false, vec![]), "less important than all of them");
        assert_eq!(offer(&mut cache, 5, 5), (false, vec![]), "an equal does not push an equal out");
        assert_eq!(offer(&mut cache, 6, 7), (true, vec![2]), "as important as 3, but used less");
        cache.weigh(block(1), 1);
        assert_eq!(offer(&mut cache, 7, 5), (true, vec![1]), "its weight has fallen");
    }

    #[test]
    fn one_that_returns_gets_its_uses_back() {
        let mut cache = Importance::new(2);
        offer(&mut cache, 1, 5);
        (0..4).for_each(|_| assert!(cache.hit(block(1), None, &mut Vec::new())));
        offer(&mut cache, 2, 5);
        assert_eq!(offer(&mut cache, 3, 6), (true, vec![2]));
        assert_eq!(offer(&mut cache, 4, 6), (true, vec![1]));
        assert_eq!(cache.ghosts(), 2);
        // Six uses with this one, and 3 and 4 have had one.
        assert_eq!(offer(&mut cache, 1, 6), (true, vec![4]), "of equals the later name goes");
        assert!(cache.hit(block(3), None, &mut Vec::new()));
        assert_eq!(offer(&mut cache, 5, 6), (false, vec![]));
        assert_eq!(cache.uses[&block(1)], 6);
    }

    #[test]
    fn ghosts_are_no_more_than_blocks_ever_held() {
        let (mut cache, mut prng) = (Importance::new(20), Prng::new(1));
        for _ in 0..20_000 {
            offer(&mut cache, prng.below(500) as u32, prng.below(1_000) as u32);
            cache.remove(block(prng.below(500) as u32));
            assert!(cache.ghosts() <= cache.fullest && cache.line.len() <= 2 * cache.fullest);
            assert_eq!(cache.uses.len(), cache.len());
        }
        assert!(cache.ghosts() > 10);
    }
}
