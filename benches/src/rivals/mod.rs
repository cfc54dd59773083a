//! Other people's clients and loaders: who there is, where each is found, and how it is run.

mod programs;
mod python;
mod roster;

pub use programs::{Absent, Programs};
pub use python::Python;
pub use roster::{Origin, Packing, RIVALS, Rival};
