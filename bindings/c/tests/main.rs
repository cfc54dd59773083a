//! The library as C and C++ programs have it: its header, its symbols, and programs that are compiled against it and read a bucket.
#![forbid(unsafe_code)]

mod header;
mod programs;
#[path = "../../../engine/tests/common/skip.rs"]
mod skip;
