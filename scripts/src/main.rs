//! cargo x.
fn main() {}
