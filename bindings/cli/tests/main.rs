//! All integration tests of this crate, in one program: one link instead of one a file.
#![forbid(unsafe_code)]

mod cli;
mod deli;
mod demo;
mod feed;
mod latency;
mod read;
mod secrets;
#[path = "../../../engine/tests/common/skip.rs"]
mod skip;
mod train;
mod tune;
