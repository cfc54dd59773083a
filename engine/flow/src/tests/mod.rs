//! Tests that look inside the crate: the connection against a plain parse, and each stage against a model.

mod conn;
mod memory;
