//! All integration tests of this crate, in one program: one link instead of one a file.
#![forbid(unsafe_code)]

mod canaries;
mod cluster;
mod disk;
mod forecast;
mod found;
mod killed_shards;
mod orders;
mod outage;
mod planted;
mod seeds;
mod swarm;
