//! All integration tests of this crate, in one program: one link instead of one a file.
#![forbid(unsafe_code)]

mod command;
mod cores;
mod floor;
mod harness;
mod results;
#[path = "../../engine/tests/common/skip.rs"]
mod skip;
mod soak;
mod staying;
mod venue;
