//! Deterministic planning: which sample is next, when a block is used again, what to keep, how far to look ahead,
//! how many requests to have in flight, when to retry.
//!
//! Pure: facts, time and seeds are arguments, decisions are return values. Never reads a clock, starts a thread, opens a
//! file or socket, or draws ambient randomness.
#![forbid(unsafe_code)]

pub mod catalog;
pub mod health;
pub mod hedge;
pub mod homes;
pub mod importance;
pub mod order;
pub mod pace;
pub mod planner;
pub mod policy;
pub mod prefetch;
pub mod retry;
pub mod run;
pub mod schedule;
pub mod spill;
pub mod split;
pub mod sweep;
pub mod tune;
pub mod window;

/// The refusal of a configuration or a call: what is wrong with it, and what to do.
fn usage<T>(cause: impl Into<String>, cure: impl Into<String>) -> fuelrail_base::Result<T> {
    Err(fuelrail_base::Error::new(fuelrail_base::Kind::Usage, cause).with_hint(cure))
}
