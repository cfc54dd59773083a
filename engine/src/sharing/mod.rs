//! One read for many jobs: a process reads a data set, and hands each batch to every job of the machine that trains on it in the same order.
//!
//! The process that reads is `passes`: it listens, and has a `reader` for each pass, which owns a loader with its caches, and each batch until
//! all jobs have released it. A job's loader has no shards: a relay (`job`) takes the batches as slots over the other process's memory, and
//! where that ends a loader of its own. What the two say to each other is `protocol`.

mod job;
mod passes;
mod protocol;
mod reader;
#[cfg(test)]
mod tests;
mod thread;

pub(crate) use job::join;
pub use passes::Sharing;
pub(crate) use passes::{DECODED_AHEAD, listen};
pub use reader::SharingOptions;
pub(crate) use thread::RelayThread;
