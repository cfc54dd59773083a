//! The feed against the test driver: a real bucket, real loaders, a driver that is late on purpose and sees every misuse.
#![cfg(test)]

mod canaries;
mod conformance;
mod failures;
mod several;
mod sharing;
#[path = "../../../engine/tests/common/skip.rs"]
mod skip;
mod stand;
mod symbols;
