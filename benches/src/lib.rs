//! The benchmark harness: what a run costs, on which machine, and how the published system does beside it.
//!
//! Owns the shape of result files. Never draws on a terminal and never decides what a command line means.
#![forbid(unsafe_code)]

pub mod canned;
pub mod cores;
pub mod deli;
pub mod disk;
mod embedded;
pub mod external;
pub mod floor;
pub mod harness;
pub mod importance;
pub mod latency;
pub mod line;
pub mod machine;
pub mod mlperf;
pub mod own;
pub mod read;
pub mod report;
pub mod rings;
pub mod rivals;
pub mod soak;
pub mod spill;
pub mod switch;
pub mod tail;
pub mod throttle;
pub mod tiers;
pub mod tune;

pub use machine::Machine;
pub use read::{Event, Progress, ReadReport, Reading, read};
