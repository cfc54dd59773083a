//! What a cache policy is: the trait, and the policies' names. Owns nothing.

use crate::schedule::UseTime;
use core::fmt;
use fuelrail_base::BlockId;

/// Decides which blocks stay, within a capacity in bytes.
///
/// Blocks that have to go are appended to `evicted`, each exactly once, and are no longer contained when the call
/// returns; the vector is never cleared here, so one can serve many calls.
pub trait Policy: Send {
    /// Which one it is.
    fn name(&self) -> PolicyName;

    /// Most bytes of memory it takes for each block it holds.
    fn block_bytes(&self) -> u64;

    /// Bytes the cache may hold.
    fn capacity_bytes(&self) -> u64;

    /// Bytes of the blocks held. Never above the capacity.
    fn used_bytes(&self) -> u64;

    /// Number of blocks held.
    fn len(&self) -> usize;

    /// Whether nothing is held.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether the block is held. No use is recorded.
    fn contains(&self, block: &BlockId) -> bool;

    /// Records a use of a block and when it is used next (`None`: not within the horizon). Returns whether the block was
    /// held: a miss changes nothing. The use itself may make the block worthless and evict it: `evicted` then names it.
    fn hit(&mut self, block: BlockId, next_use: Option<UseTime>, evicted: &mut Vec<BlockId>) -> bool;

    /// Offers a block of `bytes` that has just been used and is used next at `next_use`. Returns whether it is held
    /// afterwards; what was evicted for it is appended to `evicted`. A refusal evicts nothing. A block already held keeps
    /// its first size and counts as a hit.
    fn offer(&mut self, block: BlockId, bytes: u64, next_use: Option<UseTime>, evicted: &mut Vec<BlockId>) -> bool;

    /// Sets the importance of a block that is held or about to be offered. Other policies ignore it.
    fn weigh(&mut self, _block: BlockId, _weight: u32) {}

    /// Forgets a block (its bytes were lost or found wrong). Returns whether it was held.
    fn remove(&mut self, block: BlockId) -> bool;
}

impl fmt::Debug for dyn Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {} of {} bytes", self.name(), self.used_bytes(), self.capacity_bytes())
    }
}

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
