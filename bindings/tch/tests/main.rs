//! All integration tests of this crate, in one program: one link instead of one a file.
#![forbid(unsafe_code)]

mod averages;
mod common;
mod findings;
mod importance;
mod late;
mod library;
mod lost_rank;
mod places;
#[path = "../../../engine/tests/common/ports.rs"]
mod ports;
mod ranks;
mod resume;
#[path = "../../../engine/tests/common/skip.rs"]
mod skip;
mod slow;
mod switch;
mod torchrun;
