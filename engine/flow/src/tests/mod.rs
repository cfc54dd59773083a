//! Tests that look inside the crate: the connection against a plain parse, and each stage against a model.

mod addresses;
mod assemble;
mod cache;
mod channels;
mod conn;
mod deliver;
mod fetch;
mod files;
mod found;
mod hedge;
mod memory;
mod peers;
mod secure;
mod shard;
mod spill;
mod start;
mod world;
