//! PTX, read and interpreted: the part of it that conversion kernels are made of.
//!
//! A module is read whole before anything runs, and refused with the line of the first thing that is not known here. It
//! runs thread by thread, so nothing that threads do together (shared memory, barriers, votes) is part of it.

mod arithmetic;
mod code;
mod instruction;
mod kind;
mod module;
mod reader;
mod run;
mod token;

pub(crate) use module::{Entry, Module, read};
pub(crate) use run::{Cause, Fault, Grid, Memory, run};

#[cfg(test)]
mod tests;
