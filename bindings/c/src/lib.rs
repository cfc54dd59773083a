//! Fuelrail for C and C++: `libfuelrail`, whose header is `include/fuelrail.h`.
//!
//! Owns the conversion between the engine's types and C's, and the promise that no call panics across the boundary. No byte of a sample is
//! copied. `unsafe` is in `ffi` only; the rest hands it addresses that stay valid as long as their handle.

#![deny(unsafe_code)]

mod batch;
mod error;
#[allow(unsafe_code, reason = "C hands in and is handed addresses")]
pub mod ffi;
mod loader;
