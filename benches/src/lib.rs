//! The lab: what the loader costs beside floors and rivals, and how it does in scenarios of slow, refusing and failing buckets.
//!
//! Owns the shape of result files.
#![forbid(unsafe_code)]
// A program: its library half is for its own tests.
#![allow(missing_docs)]

pub mod command;
pub mod cores;
pub mod decode;
pub mod floor;
pub mod harness;
mod line;
pub mod own;
pub mod report;
pub mod rivals;
mod scenario;
pub mod soak;
