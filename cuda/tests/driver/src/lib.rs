//! A CUDA driver for machines without one. As a shared library it stands in for `libcuda`: device memory is host memory
//! behind addresses that no processor can follow, each stream is a thread that works through a queue. It runs no kernels.
//! It is late on purpose, counts everything, can be told to fail, and writes down every misuse it sees.
//!
//! Owns the entry points of CUDA 11.4 that a loader needs, no others, and the control functions `fuelrail_driver_*`. As a
//! Rust library it offers tests what they need to run under it: [`under_driver`], [`Settings`], [`Control`]; and with
//! `FUELRAIL_DRIVER=real` on a device. Never shipped.

mod api;
mod capture;
mod code;
mod context;
mod control;
mod copy;
mod driver;
mod event;
mod exports;
mod fault;
mod harness;
mod memory;
mod pinned;
mod report;
mod settings;
mod stream;
mod tables;

pub use code::Code;
pub use control::Control;
pub use fault::{Fault, When};
pub use harness::{on_device, under_any_driver, under_driver};
pub use report::Report;
pub use settings::Settings;
