//! Least important leaves first, then least often used, with ghosts (SHADE, FAST 2023).
//!
//! The importance of a block is set by [`Policy::weigh`](super::Policy::weigh); without it this is least frequently used. A newcomer is taken
//! when there is room, or when every block that would have to go ranks below it: equals stay, so that blocks of one rank do
//! not chase each other out. A block that left is remembered as a ghost, and gets its count of uses back when it returns;
//! there are as many ghosts as blocks held at the fullest, the oldest goes first. Ignores next uses. O(log n) per call and
//! block evicted.

use super::rank::{BlockMap, Rank, map_bytes};
use super::ranked::Rule;
use crate::schedule::UseTime;
use fuelrail_base::BlockId;
use std::collections::VecDeque;

/// The key of a weight and a number of uses: what has the lowest leaves first.
fn key_of(weight: u32, uses: u32) -> u64 {
    !(u64::from(weight) << 32 | u64::from(uses))
}

fn parts_of(key: u64) -> (u32, u32) {
    ((!key >> 32) as u32, !key as u32)
}

/// Drops what matters least.
#[derive(Default)]
pub(super) struct Importance {
    /// Weight of the block that is to be offered next.
    told: Option<(BlockId, u32)>,
    /// Uses of each block that left, and when it left.
    ghosts: BlockMap<(u32, u64)>,
    /// The ghosts as they left; one that returned is still in line, with an older moment.
    line: VecDeque<(BlockId, u64)>,
    left: u64,
    /// Blocks held at the fullest.
    fullest: usize,
}

impl Rule for Importance {
    /// Its rank, a ghost, and two of the ghosts' line, which doubles when it grows.
    fn block_bytes(&self) -> u64 {
        Rank::BLOCK_BYTES + map_bytes::<(u32, u64)>() + 4 * size_of::<(BlockId, u64)>() as u64
    }

    fn first(&mut self, block: BlockId, _bytes: u64, _next_use: Option<UseTime>) -> Option<u64> {
        let weight = self.told.take().filter(|(told, _)| *told == block).map_or(0, |(_, weight)| weight);
        let uses = self.ghosts.get(&block).map_or(0, |(uses, _)| *uses);
        Some(key_of(weight, uses.saturating_add(1)))
    }

    fn again(&mut self, key: u64, _bytes: u64, _next_use: Option<UseTime>) -> Option<u64> {
        let (weight, uses) = parts_of(key);
        Some(key_of(weight, uses.saturating_add(1)))
    }

    fn weigh(&mut self, block: BlockId, held: Option<u64>, weight: u32) -> Option<u64> {
        if held.is_none() {
            self.told = Some((block, weight));
        }
        held.map(|key| key_of(weight, parts_of(key).1))
    }

    fn came(&mut self, block: BlockId, held: usize) {
        self.ghosts.remove(&block);
        self.fullest = self.fullest.max(held);
    }

    fn left(&mut self, block: BlockId, key: u64) {
        self.left += 1;
        self.ghosts.insert(block, (parts_of(key).1, self.left));
        self.line.push_back((block, self.left));
        while self.ghosts.len() > self.fullest || self.line.len() > 2 * self.fullest {
            let Some((oldest, when)) = self.line.pop_front() else { return };
            if self.ghosts.get(&oldest).is_some_and(|(_, left)| *left == when) {
                self.ghosts.remove(&oldest);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::ranked::{Policy, PolicyName};
    use super::*;
    use fuelrail_base::{SampleId, prng::Prng};

    fn block(sample: u32) -> BlockId {
        BlockId { sample: SampleId(sample.into()), index: 0 }
    }

    fn cache(capacity: u64) -> Policy {
        Policy::new(PolicyName::Importance, capacity, Box::<Importance>::default())
    }

    fn offer(cache: &mut Policy, sample: u32, weight: u32) -> (bool, Vec<u32>) {
        let mut evicted = Vec::new();
        cache.weigh(block(sample), weight);
        let taken = cache.offer(block(sample), 1, None, &mut evicted);
        (taken, evicted.into_iter().map(|block| block.sample.0 as u32).collect())
    }

    #[test]
    fn the_least_important_leaves_first_then_the_least_often_used() {
        let mut cache = cache(3);
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
        let mut cache = cache(2);
        offer(&mut cache, 1, 5);
        (0..4).for_each(|_| assert!(cache.hit(block(1), None, &mut Vec::new())));
        offer(&mut cache, 2, 5);
        assert_eq!(offer(&mut cache, 3, 6), (true, vec![2]));
        assert_eq!(offer(&mut cache, 4, 6), (true, vec![1]));
        // Six uses with this one, and 3 and 4 have had one.
        assert_eq!(offer(&mut cache, 1, 6), (true, vec![4]), "of equals the later name goes");
        assert!(cache.hit(block(3), None, &mut Vec::new()));
        assert_eq!(offer(&mut cache, 5, 6), (false, vec![]));
        assert_eq!(cache.key(block(1)), Some(key_of(6, 6)));
    }

    #[test]
    fn ghosts_are_no_more_than_blocks_ever_held() {
        let (mut rule, mut held, mut prng) = (Importance::default(), Vec::new(), Prng::new(1));
        for _ in 0..20_000 {
            let block = block(prng.below(500) as u32);
            if held.iter().any(|(other, _)| *other == block) {
                continue;
            }
            rule.weigh(block, None, prng.below(1_000) as u32);
            let key = rule.first(block, 1, None).unwrap();
            if held.len() == 20 {
                let (gone, key) = held.swap_remove(prng.below(20) as usize);
                rule.left(gone, key);
            }
            held.push((block, key));
            rule.came(block, held.len());
            if prng.below(4) == 0 {
                // Removed, not evicted: no ghost.
                held.swap_remove(prng.below(held.len() as u64) as usize);
            }
            assert!(rule.ghosts.len() <= rule.fullest && rule.line.len() <= 2 * rule.fullest);
        }
        assert!(rule.ghosts.len() > 10);
    }
}
