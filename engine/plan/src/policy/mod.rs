//! What the RAM cache keeps: one trait, one structure behind it, six rules, one conformance suite.
//!
//! A policy owns the accounting of a byte capacity, never the bytes themselves: it names blocks to drop, and the caller
//! drops them. It never fetches, and never knows the order: next uses are told to it.

mod cost_aware;
mod importance;
mod index;
mod rank;
mod ranked;
mod simple;

#[doc(hidden)]
pub mod conformance;

pub use index::{BlockMap, map_bytes};

use crate::schedule::UseTime;
use core::fmt;
use core::str::FromStr;
use cost_aware::CostAware;
use fuelrail_base::{BlockId, Error, Kind, Result};
use importance::Importance;
use ranked::{Ranked, Rule};
use simple::{Fifo, Lru, NextUse, Pinned};

/// Decides which blocks stay, within a capacity in bytes.
///
/// Blocks that have to go are appended to `evicted`, each exactly once, and are no longer contained when the call
/// returns; the vector is never cleared here, so one can serve many calls.
pub trait Policy: Send {
    /// Which one it is.
    fn name(&self) -> PolicyName;

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

    /// Tells how important a block is: one that is held, or is about to be offered. Policies that go by something else ignore it.
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
    /// First come stays for ever: optimal over uniform epochs without any look-ahead.
    Pinned,
}

impl PolicyName {
    /// All of them, for help texts and tests.
    pub const ALL: [PolicyName; 6] = [
        PolicyName::Fifo,
        PolicyName::Lru,
        PolicyName::NextUse,
        PolicyName::Pinned,
        PolicyName::Dlcache,
        PolicyName::Importance,
    ];

    /// The name as written in configuration.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            PolicyName::Dlcache => "dlcache",
            PolicyName::Fifo => "fifo",
            PolicyName::Importance => "importance",
            PolicyName::Lru => "lru",
            PolicyName::NextUse => "next-use",
            PolicyName::Pinned => "pinned",
        }
    }
}

impl fmt::Display for PolicyName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.word())
    }
}

impl FromStr for PolicyName {
    type Err = Error;

    fn from_str(text: &str) -> Result<PolicyName> {
        PolicyName::ALL.into_iter().find(|name| name.word() == text).ok_or_else(|| {
            Error::new(Kind::Usage, format!("'{text}' is not a cache policy"))
                .cure("use next-use, pinned, lru, fifo, dlcache or importance")
        })
    }
}

/// Most bytes of memory a policy takes for each block it holds.
#[must_use]
pub fn block_bytes(name: PolicyName) -> u64 {
    match name {
        PolicyName::Fifo => Fifo::BLOCK_BYTES,
        PolicyName::Importance => Importance::BLOCK_BYTES,
        PolicyName::Lru => Lru::BLOCK_BYTES,
        PolicyName::NextUse => NextUse::BLOCK_BYTES,
        PolicyName::Dlcache => CostAware::BLOCK_BYTES,
        PolicyName::Pinned => Pinned::BLOCK_BYTES,
    }
}

/// A policy by name, empty, with this capacity. Zero is allowed: nothing is ever held.
#[must_use]
pub fn build(name: PolicyName, capacity_bytes: u64) -> Box<dyn Policy> {
    match name {
        PolicyName::Fifo => Box::new(Ranked::new(capacity_bytes, Fifo::default())),
        PolicyName::Importance => Box::new(Ranked::new(capacity_bytes, Importance::default())),
        PolicyName::Lru => Box::new(Ranked::new(capacity_bytes, Lru::default())),
        PolicyName::NextUse => Box::new(Ranked::new(capacity_bytes, NextUse)),
        PolicyName::Dlcache => Box::new(Ranked::new(capacity_bytes, CostAware::default())),
        PolicyName::Pinned => Box::new(Ranked::new(capacity_bytes, Pinned)),
    }
}
