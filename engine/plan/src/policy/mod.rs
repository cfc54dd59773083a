//! What the RAM cache keeps: one structure, six rules, one conformance suite.
//!
//! A policy owns the accounting of a byte capacity, never the bytes themselves: it names blocks to drop, and the caller
//! drops them. It never fetches, and never knows the order: next uses are passed to it.

mod cost_aware;
mod importance;
mod rank;
mod ranked;

#[doc(hidden)]
pub mod conformance;

pub use rank::{BlockMap, map_bytes};
pub use ranked::{Policy, PolicyName};

use crate::schedule::UseTime;
use cost_aware::CostAware;
use fuelrail_base::BlockId;
use importance::Importance;
use ranked::Rule;

/// Most bytes of memory a policy takes for each block it holds.
#[must_use]
pub fn block_bytes(name: PolicyName) -> u64 {
    build(name, 0).block_bytes()
}

/// A policy by name, empty, with this capacity. Zero is allowed: nothing is ever held.
#[must_use]
pub fn build(name: PolicyName, capacity_bytes: u64) -> Policy {
    let rule: Box<dyn Rule> = match name {
        PolicyName::Fifo => Box::new(Oldest::<false>::default()),
        PolicyName::Lru => Box::new(Oldest::<true>::default()),
        PolicyName::NextUse => Box::new(NextUse),
        PolicyName::Pinned => Box::new(Pinned),
        PolicyName::Dlcache => Box::new(CostAware::default()),
        PolicyName::Importance => Box::new(Importance::default()),
    };
    Policy::new(name, capacity_bytes, rule)
}

/// What came first leaves first: the published baseline (DELI), which ignores uses. Or, `BY_USE`, what was used longest ago: the usual
/// baseline, which does badly over epochs, where that is what comes again soonest.
#[derive(Default)]
struct Oldest<const BY_USE: bool> {
    moment: u64,
}

impl<const BY_USE: bool> Rule for Oldest<BY_USE> {
    fn first(&mut self, _block: BlockId, _bytes: u64, _next_use: Option<UseTime>) -> Option<u64> {
        self.moment += 1;
        Some(!self.moment)
    }

    fn again(&mut self, key: u64, _bytes: u64, _next_use: Option<UseTime>) -> Option<u64> {
        self.moment += u64::from(BY_USE);
        Some(if BY_USE { !self.moment } else { key })
    }
}

/// Farthest next use leaves first (Belady 1966), with bypass: optimal when the order is known, and here it is. A block not used
/// again within the horizon is not kept, nor one that is used later than all that would have to go for it.
struct NextUse;

impl Rule for NextUse {
    fn first(&mut self, _block: BlockId, _bytes: u64, next_use: Option<UseTime>) -> Option<u64> {
        next_use.map(|next| next.0)
    }

    fn again(&mut self, _key: u64, _bytes: u64, next_use: Option<UseTime>) -> Option<u64> {
        next_use.map(|next| next.0)
    }
}

/// First come stays: fills up and never evicts (MinIO in CoorDL, Mohan et al., VLDB 2021). It needs to know nothing about the future,
/// and over uniform epochs it loses nothing by it.
struct Pinned;

impl Rule for Pinned {
    fn first(&mut self, _block: BlockId, _bytes: u64, _next_use: Option<UseTime>) -> Option<u64> {
        Some(0)
    }
}
