//! The fuelrail command.
fn main() {}
