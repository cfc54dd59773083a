//! What the RAM cache keeps: one trait, six policies, one conformance suite.
//!
//! A policy owns the accounting of a byte capacity, never the bytes themselves: it names blocks to drop, and the caller
//! drops them. It never fetches, and never knows the order: next uses are told to it.

mod contract;
mod cost_aware;
mod fifo;
mod importance;
mod index;
mod lru;
mod next_use;
mod pinned;
mod queue;
mod rank;

#[doc(hidden)]
pub mod conformance;

pub use contract::{Policy, PolicyName};
pub use cost_aware::{Cost, CostAware};
pub use fifo::Fifo;
pub use importance::Importance;
pub use index::{BlockMap, map_bytes};
pub use lru::Lru;
pub use next_use::NextUse;
pub use pinned::Pinned;

use crate::schedule::UseTime;
use rank::Rank;

/// Most bytes of memory a policy takes for each block it holds.
#[must_use]
pub fn block_bytes(name: PolicyName) -> u64 {
    match name {
        PolicyName::Fifo | PolicyName::Lru => queue::BLOCK_BYTES,
        PolicyName::NextUse => Rank::<UseTime>::BLOCK_BYTES,
        PolicyName::Dlcache => cost_aware::BLOCK_BYTES,
        PolicyName::Importance => importance::BLOCK_BYTES,
        PolicyName::Pinned => map_bytes::<u64>(),
    }
}

/// A policy by name, empty, with this capacity. Zero is allowed: nothing is ever held.
#[must_use]
pub fn build(name: PolicyName, capacity_bytes: u64) -> Box<dyn Policy> {
    match name {
        PolicyName::Fifo => Box::new(Fifo::new(capacity_bytes)),
        PolicyName::Importance => Box::new(Importance::new(capacity_bytes)),
        PolicyName::Lru => Box::new(Lru::new(capacity_bytes)),
        PolicyName::NextUse => Box::new(NextUse::new(capacity_bytes)),
        PolicyName::Dlcache => Box::new(CostAware::new(capacity_bytes, Cost::default())),
        PolicyName::Pinned => Box::new(Pinned::new(capacity_bytes)),
    }
}
