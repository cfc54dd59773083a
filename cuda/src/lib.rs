//! Batches on NVIDIA GPUs: the loader's memory registered with CUDA, copies on a stream of their own, buffers that are reused
//! once the trainer's stream is past them.
//!
//! ```no_run
//! use fuelrail_cuda::{Feed, FeedConfig, RawStream};
//! # fn main() -> fuelrail::Result<()> {
//! let loader = fuelrail::Loader::builder("http://127.0.0.1:9000/bucket/training/").batch_size(64).build()?;
//! let mut feed = Feed::start(loader, FeedConfig::default())?;
//! while let Some(batch) = feed.next(RawStream::LEGACY) {
//!     let batch = batch?;
//!     println!("{} samples at {:#x}", batch.len(), batch.pointer());
//!     // Launch kernels on the stream; then drop the batch.
//! }
//! # Ok(())
//! # }
//! ```
//!
//! Owns one thread per feed. Needs no CUDA to build; at run time the driver of CUDA 11.4 is enough, and without one every entry point
//! returns an error that says what to do. Never waits for the device on the consumer's thread, never frees what a device
//! may still touch.

mod batch;
mod canary;
mod context;
mod copier;
mod device;
mod driver;
mod feed;
mod ring;
#[cfg(test)]
mod tests;

pub use batch::{DeviceBatch, RawStream};
pub use device::{Device, DeviceFacts, Pinned};
pub use driver::FUNCTIONS;
pub use feed::{DEPTH_MAX, DeviceTaken, Feed, FeedConfig};
pub use ring::FeedStats;
