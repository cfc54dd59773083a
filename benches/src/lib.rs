//! The lab: what the loader costs beside floors and rivals, and how it does in scenarios of slow, refusing and failing buckets.
//!
//! Owns the shape of result files.
#![forbid(unsafe_code)]

pub mod command;
pub mod cores;
mod embedded;
pub mod floor;
pub mod harness;
pub mod importance;
pub mod line;
pub mod own;
pub mod report;
pub mod rivals;
pub mod soak;
pub mod switch;
pub mod tail;
pub mod throttle;
pub mod tiers;
