//! The project's own commands, run as `cargo x`: checks of the house (`tidy`), and the steps of `test`, `prove`, `demo`, `sim`, `bench`.
//!
//! Imports nothing of ours: it must compile and complain while the rest does not.
#![forbid(unsafe_code)]

pub mod house;
pub mod prove;
pub mod rooms;
pub mod source;
pub mod steps;
pub mod test;
pub mod tidy;
pub mod tree;
