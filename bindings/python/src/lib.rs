//! Fuelrail for Python: the extension module `fuelrail._fuelrail`, which the package in `python/fuelrail` re-exports.
//!
//! Owns the conversion between the engine's types and Python's. No byte of a sample is copied and none becomes a `bytes` object: batches
//! are read through the buffer protocol and DLPack. The GIL is released wherever the engine waits, and of the engine's threads only those
//! take it that call a program's own function, for which bytes are copied. `unsafe` is in `ffi` only.

#![deny(unsafe_code)]

mod batch;
mod device;
mod engine;
mod error;
#[allow(unsafe_code, reason = "the buffer protocol and DLPack hand out addresses")]
mod ffi;
mod known;
mod loader;
mod settings;
mod transform;
mod values;
mod warnings;

use pyo3::prelude::*;

#[pymodule]
fn _fuelrail(module: &Bound<'_, PyModule>) -> PyResult<()> {
    warnings::collect();
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    transform::begin();
    module.add_function(wrap_pyfunction!(transform::_end, module)?)?;
    module.py().import("atexit")?.call_method1("register", (module.getattr("_end")?,))?;
    module.add_function(wrap_pyfunction!(settings::_check, module)?)?;
    module.add_class::<loader::Loader>()?;
    module.add_class::<device::DeviceBatch>()?;
    module.add_class::<batch::Batch>()
}
