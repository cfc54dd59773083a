//! What the RAM cache keeps: one trait, one structure behind it, six rules, one conformance suite.
//!
//! A policy owns the accounting of a byte capacity, never the bytes themselves: it names blocks to drop, and the caller
//! drops them. It never fetches, and never knows the order: next uses are passed to it.

mod contract;
mod cost_aware;
mod importance;
mod index;
mod rank;
mod ranked;
mod simple;

#[doc(hidden)]
pub mod conformance;

pub use contract::{Policy, PolicyName};
pub use index::{BlockMap, map_bytes};

use cost_aware::CostAware;
use importance::Importance;
use ranked::Ranked;
use simple::{Fifo, Lru, NextUse, Pinned};

/// Most bytes of memory a policy takes for each block it holds.
#[must_use]
pub fn block_bytes(name: PolicyName) -> u64 {
    build(name, 0).block_bytes()
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
