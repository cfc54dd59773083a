//! All integration tests of this crate, in one program: one link instead of one a file.
#![forbid(unsafe_code)]

mod blocks;
mod bodies;
mod fuzz_corpus;
mod heads;
mod kept;
mod listings;
mod listings_azure;
mod ranks;
mod round_trips;
mod signing;
mod tls;
