//! Fuelrail for `tch`: batches as tensors without a copy, and a data-parallel trainer on libtorch's own process groups.
//!
//! ```no_run
//! # fn main() -> fuelrail::Result<()> {
//! use fuelrail_tch::TensorBatch;
//! let digits = fuelrail::Decode::exact(28, 28, 1);
//! let loader = fuelrail::Loader::builder("http://127.0.0.1:9000/bucket/training/").decode(digits).batch_size(64).build()?;
//! for batch in loader {
//!     let batch = TensorBatch::over(batch?)?;
//!     println!("{:?} {:?}", batch.bytes.size(), batch.labels.size());
//! }
//! # Ok(())
//! # }
//! ```
//!
//! Owns the conversion of a lease to a tensor, the ranks' rendezvous, the training loop and its checkpoints. Never copies a batch on
//! the CPU, never exits the process. `unsafe` is in `ffi` only.

#![deny(unsafe_code)]
#![allow(
    clippy::needless_borrows_for_generic_args,
    reason = "old versions of tch take slices where new ones take any list"
)]

mod checkpoint;
mod command;
mod feed;
#[allow(unsafe_code, reason = "the border to libtorch")]
mod ffi;
mod meter;
pub mod models;
mod notice;
mod optimiser;
mod ranks;
mod switch;
mod task;
mod trainer;

pub use checkpoint::{About, Checkpoint, Vault};
pub use command::{Facts, NoOptions, run, run_with};
pub use feed::{Fed, Feed, GpuFeed, HostFeed, TensorBatch};
pub use ffi::{Backend, Group, Reducer, caught, load_cuda, tensor_of_bytes, torch_version};
pub use meter::{Meter, StepTime};
pub use notice::{ASK_EVERY, METADATA_ADDRESS, Notice, Service};
pub use optimiser::{Decay, Moments, Precision, Rate, Rule};
pub use ranks::Ranks;
pub use switch::{Mode, Policy, Reason, Slow, SwitchConfig};
pub use task::{Classifier, Judged, LanguageModel, Task};
pub use trainer::{End, Event, Outcome, Score, StepReport, TrainConfig, Trainer};

/// The example of the README compiles.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
