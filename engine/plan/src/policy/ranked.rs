//! The one cache behind all policies: blocks ranked by a key, of which the greatest leaves first. A rule makes the keys.
//!
//! O(log n) per call and block evicted. After it has once been at its fullest, nothing is allocated any more.

use super::rank::Rank;
use crate::schedule::UseTime;
use fuelrail_base::BlockId;

/// The policies by name.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum PolicyName {
    /// Lowest by recency, frequency and cost of getting it again leaves first: DLCache's.
    Dlcache,
    /// First in, first out: the published baseline.
    Fifo,
    /// Least important leaves first, then least often used, with ghosts: SHADE's.
    Importance,
    /// Least recently used: the usual baseline.
    Lru,
    /// Farthest next use leaves first: optimal, as the order is known.
    #[default]
    NextUse,
    /// The first blocks stay for ever: optimal over uniform epochs without any look-ahead.
    Pinned,
}

fuelrail_base::named!(
    PolicyName,
    "a cache policy":
    Fifo = "fifo",
    Lru = "lru",
    NextUse = "next-use",
    Pinned = "pinned",
    Dlcache = "dlcache",
    Importance = "importance",
);

/// What makes a policy out of a ranking: the keys of blocks. The greatest leaves first.
pub(super) trait Rule: Send {
    /// Most bytes of memory for each block held.
    fn block_bytes(&self) -> u64 {
        Rank::BLOCK_BYTES
    }

    /// The key of a block that is new; `None`: it is not kept.
    fn first(&mut self, block: BlockId, bytes: u64, next_use: Option<UseTime>) -> Option<u64>;

    /// The key of a block that is used again; `None`: it leaves.
    fn again(&mut self, key: u64, _bytes: u64, _next_use: Option<UseTime>) -> Option<u64> {
        Some(key)
    }

    /// Blocks with greater keys than this leave for a newcomer.
    fn bar(&self, newcomer: u64) -> u64 {
        newcomer
    }

    /// The new key of a held block with this importance; for another block, the rule may remember it.
    fn weigh(&mut self, _block: BlockId, held: Option<u64>, _weight: u32) -> Option<u64> {
        held
    }

    /// A block came in, and so many are held now.
    fn came(&mut self, _block: BlockId, _held: usize) {}

    /// A block left for another one.
    fn left(&mut self, _block: BlockId, _key: u64) {}
}

/// Room for so many that leave for one newcomer: the first to leave, late in a run perhaps, allocates nothing.
const OUT_AT_START: usize = 16;

/// Decides which blocks stay, within a capacity in bytes.
///
/// Blocks that have to go are appended to `evicted`, each exactly once, and are no longer contained when the call
/// returns; the vector is never cleared here, so one can serve many calls.
pub struct Policy {
    name: PolicyName,
    capacity_bytes: u64,
    used_bytes: u64,
    rank: Rank,
    rule: Box<dyn Rule>,
    /// Blocks taken out for a newcomer, put back when it does not get in after all.
    out: Vec<(BlockId, u64, u64)>,
}

impl Policy {
    /// An empty cache of this capacity.
    pub(super) fn new(name: PolicyName, capacity_bytes: u64, rule: Box<dyn Rule>) -> Policy {
        let out = Vec::with_capacity(OUT_AT_START);
        Policy { name, capacity_bytes, used_bytes: 0, rank: Rank::default(), rule, out }
    }

    /// The key of a block that is held.
    #[cfg(test)]
    pub(super) fn key(&self, block: BlockId) -> Option<u64> {
        self.rank.get(&block).map(|(_, key)| key)
    }

    /// Which one it is.
    pub fn name(&self) -> PolicyName {
        self.name
    }

    /// Most bytes of memory it takes for each block it holds.
    pub fn block_bytes(&self) -> u64 {
        self.rule.block_bytes()
    }

    /// Bytes the cache may hold.
    pub fn capacity_bytes(&self) -> u64 {
        self.capacity_bytes
    }

    /// Bytes of the blocks held. Never above the capacity.
    pub fn used_bytes(&self) -> u64 {
        self.used_bytes
    }

    /// Number of blocks held.
    pub fn len(&self) -> usize {
        self.rank.len()
    }

    /// Whether nothing is held.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether the block is held. No use is recorded.
    pub fn contains(&self, block: &BlockId) -> bool {
        self.rank.contains(block)
    }

    /// Records a use of a block and when it is used next (`None`: not within the horizon). Returns whether the block was
    /// held: a miss changes nothing. The use itself may make the block worthless and evict it: `evicted` then names it.
    pub fn hit(&mut self, block: BlockId, next_use: Option<UseTime>, evicted: &mut Vec<BlockId>) -> bool {
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

    /// Offers a block of `bytes` that has just been used and is used next at `next_use`. Returns whether it is held
    /// afterwards; what was evicted for it is appended to `evicted`. A refusal evicts nothing. A block already held keeps
    /// its first size and counts as a hit.
    pub fn offer(&mut self, block: BlockId, bytes: u64, next_use: Option<UseTime>, evicted: &mut Vec<BlockId>) -> bool {
        if self.hit(block, next_use, evicted) {
            return self.contains(&block);
        }
        if bytes > self.capacity_bytes {
            return false;
        }
        let Some(key) = self.rule.first(block, bytes, next_use) else { return false };
        let free = self.capacity_bytes - self.used_bytes;
        let Some(free) = self.rank.make_room(bytes, free, self.rule.bar(key), &mut self.out) else { return false };
        self.used_bytes = self.capacity_bytes - free + bytes;
        self.rank.push(block, bytes, key);
        self.rule.came(block, self.rank.len());
        for (gone, _, key) in self.out.drain(..) {
            evicted.push(gone);
            self.rule.left(gone, key);
        }
        true
    }

    /// Sets the importance of a block that is held or about to be offered. Other policies ignore it.
    pub fn weigh(&mut self, block: BlockId, weight: u32) {
        if self.name != PolicyName::Importance {
            return;
        }
        let held = self.rank.get(&block).map(|(_, key)| key);
        if let Some(key) = self.rule.weigh(block, held, weight) {
            self.rank.rekey(&block, key);
        }
    }

    /// Forgets a block (its bytes were lost or found wrong). Returns whether it was held.
    pub fn remove(&mut self, block: BlockId) -> bool {
        let Some((bytes, _)) = self.rank.remove(block) else { return false };
        self.used_bytes -= bytes;
        true
    }
}
