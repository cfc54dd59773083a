//! All integration tests of this crate, in one program: one link instead of one a file.
#![forbid(unsafe_code)]

mod native;
mod python;
#[path = "../../../engine/tests/common/skip.rs"]
mod skip;
