//! All integration tests of this crate, in one program: one link instead of one a file.
#![forbid(unsafe_code)]

mod common;
mod datasets;
mod directory;
mod faults;
mod http;
mod listing;
mod tls;
mod uploads;
