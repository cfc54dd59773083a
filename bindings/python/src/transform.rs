//! `decode_with`: a Python function that decodes batches on the decoding threads.

use crate::ffi::{Memory, View, copy_out};
use fuelrail::internal::ForkGuard;
use fuelrail::{Decode, DecodeFunction, Error, Kind, Shape, Undecoded};
use pyo3::buffer::PyBuffer;
use pyo3::prelude::*;
use pyo3::types::PyList;
use std::sync::{OnceLock, PoisonError, RwLock};

/// Whether the interpreter is about to end. A call holds it to read: the end waits for the calls under way, and no thread of ours is left
/// waiting for the GIL of an interpreter that is gone.
static ENDED: RwLock<bool> = RwLock::new(false);

/// Of the process that imported this.
static OWN: OnceLock<ForkGuard> = OnceLock::new();

/// Remembers the process. At import.
pub(crate) fn begin() {
    OWN.get_or_init(ForkGuard::new);
}

/// Lets no function be called from here on. At exit; not in a forked child, where a thread that is not there may hold the lock.
#[pyfunction]
pub(crate) fn _end(py: Python<'_>) {
    if OWN.get().is_some_and(ForkGuard::holds) {
        py.detach(|| *ENDED.write().unwrap_or_else(PoisonError::into_inner) = true);
    }
}

/// The engine's form of a Python function of samples, ids and epoch.
pub(crate) fn function(function: Py<PyAny>, decode: Decode) -> DecodeFunction {
    DecodeFunction::of_batches(move |samples, out| {
        let ended = ENDED.read().unwrap_or_else(PoisonError::into_inner);
        let call = |py: Python<'_>| {
            called(py, &function, &decode, samples, out).map_err(|error| {
                let cause = format!("decode_with raised {error}");
                let failed = Error::new(Kind::Undecodable, cause).with_source(error);
                failed.with_hint("mend the function, or leave such samples out with bad_samples=\"skip\"")
            })
        };
        let result = if *ended { None } else { Python::try_attach(call) };
        result.unwrap_or_else(|| Err(Error::new(Kind::Cancelled, "the interpreter ends")))
    })
}

fn called(
    py: Python<'_>,
    function: &Py<PyAny>,
    decode: &Decode,
    samples: &[Undecoded<'_>],
    out: &mut [u8],
) -> PyResult<()> {
    // Views: copying would hold the GIL, for which the training loop waits.
    let views: PyResult<Vec<_>> = samples.iter().map(|sample| View::over(py, Memory::Kept(sample.keep()))).collect();
    let views = PyList::new(py, views?)?;
    let ids = PyList::new(py, samples.iter().map(|sample| sample.id.0))?;
    let made = function.bind(py).call1((views, ids, samples[0].epoch))?;
    let shape = Shape::new(samples.len(), decode);
    let checked = py.import("fuelrail._decode")?.getattr("numbers")?;
    let numbers: PyBuffer<u8> = checked.call1((made, shape.dims(), shape.dtype.word()))?.extract()?;
    copy_out(py, &numbers, out)
}
