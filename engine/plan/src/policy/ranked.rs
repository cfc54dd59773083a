//! The one cache behind all policies: blocks ranked by a key, of which the greatest leaves first. A rule makes the keys.
//!
//! O(log n) per call and block evicted. After it has once been at its fullest, nothing is allocated any more.

use super::contract::{Policy, PolicyName};
use super::rank::Rank;
use crate::schedule::UseTime;
use fuelrail_base::BlockId;

/// What makes a policy out of a ranking: the keys of blocks.
pub(super) trait Rule: Send {
    /// The greatest leaves first.
    type Key: Copy + Ord + Send;
    /// Which policy this is.
    const NAME: PolicyName;
    /// Most bytes of memory for each block held.
    const BLOCK_BYTES: u64 = Rank::<Self::Key>::BLOCK_BYTES;

    /// The key of a block that is new; `None`: it is not kept.
    fn first(&mut self, block: BlockId, bytes: u64, next_use: Option<UseTime>) -> Option<Self::Key>;

    /// The key of a block that is used again; `None`: it leaves.
    fn again(&mut self, key: Self::Key, _bytes: u64, _next_use: Option<UseTime>) -> Option<Self::Key> {
        Some(key)
    }

    /// Blocks with greater keys than this leave for a newcomer.
    fn bar(newcomer: Self::Key) -> Self::Key {
        newcomer
    }

    /// Ranks blocks by importance.
    const WEIGHS: bool = false;

    /// The new key of a held block with this importance; for another block, the rule may remember it.
    fn weigh(&mut self, _block: BlockId, held: Option<Self::Key>, _weight: u32) -> Option<Self::Key> {
        held
    }

    /// A block came in, and so many are held now.
    fn came(&mut self, _block: BlockId, _held: usize) {}

    /// A block left for another one.
    fn left(&mut self, _block: BlockId, _key: Self::Key) {}
}

/// Room for so many that leave for one newcomer: the first to leave, late in a run perhaps, allocates nothing.
const OUT_AT_START: usize = 16;

/// A cache under a rule.
pub(super) struct Ranked<R: Rule> {
    capacity_bytes: u64,
    used_bytes: u64,
    rank: Rank<R::Key>,
    pub(super) rule: R,
    /// Blocks taken out for a newcomer, put back when it does not get in after all.
    out: Vec<(BlockId, u64, R::Key)>,
}

impl<R: Rule> Ranked<R> {
    /// An empty cache of this capacity.
    pub(super) fn new(capacity_bytes: u64, rule: R) -> Ranked<R> {
        Ranked { capacity_bytes, used_bytes: 0, rank: Rank::default(), rule, out: Vec::with_capacity(OUT_AT_START) }
    }

    /// The key of a block that is held.
    #[cfg(test)]
    pub(super) fn key(&self, block: BlockId) -> Option<R::Key> {
        self.rank.get(&block).map(|(_, key)| key)
    }
}

impl<R: Rule> Policy for Ranked<R> {
    fn name(&self) -> PolicyName {
        R::NAME
    }

    fn block_bytes(&self) -> u64 {
        R::BLOCK_BYTES
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
        let Some((bytes, key)) = self.rank.get(&block) else { return false };
        match self.rule.again(key, bytes, next_use) {
            Some(again) if again == key => {}
            Some(again) => self.rank.rekey(&block, again),
            None => {
                self.remove(block);
                evicted.push(block);
            }
        }
        true
    }

    fn offer(&mut self, block: BlockId, bytes: u64, next_use: Option<UseTime>, evicted: &mut Vec<BlockId>) -> bool {
        if self.hit(block, next_use, evicted) {
            return self.contains(&block);
        }
        if bytes > self.capacity_bytes {
            return false;
        }
        let Some(key) = self.rule.first(block, bytes, next_use) else { return false };
        let free = self.capacity_bytes - self.used_bytes;
        let Some(free) = self.rank.make_room(bytes, free, R::bar(key), &mut self.out) else { return false };
        self.used_bytes = self.capacity_bytes - free + bytes;
        self.rank.push(block, bytes, key);
        self.rule.came(block, self.rank.len());
        for (gone, _, key) in self.out.drain(..) {
            evicted.push(gone);
            self.rule.left(gone, key);
        }
        true
    }

    fn weigh(&mut self, block: BlockId, weight: u32) {
        if !R::WEIGHS {
            return;
        }
        let held = self.rank.get(&block).map(|(_, key)| key);
        if let Some(key) = self.rule.weigh(block, held, weight) {
            self.rank.rekey(&block, key);
        }
    }

    fn remove(&mut self, block: BlockId) -> bool {
        let Some((bytes, _)) = self.rank.remove(block) else { return false };
        self.used_bytes -= bytes;
        true
    }
}
