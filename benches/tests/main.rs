//! All integration tests of this crate, in one program: one link instead of one a file.
#![forbid(unsafe_code)]

mod cores;
mod deli;
mod floor;
mod harness;
mod latency;
mod mlperf;
mod read;
mod results;
#[path = "../../engine/tests/common/skip.rs"]
mod skip;
mod soak;
mod staying;
mod switch;
mod tune;
mod venue;
