//! `decode_with`: a Python function that decodes batches on the decoding threads.

use crate::ffi::{Memory, View, copy_out};
use fuelrail::internal::ForkGuard;
use fuelrail::{BadSamples, Decode, DecodeFunction, Error, Kind, Shape, Undecoded};
use pyo3::buffer::PyBuffer;
use pyo3::exceptions::PyRuntimeError;
use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::prelude::*;
use pyo3::types::PyList;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

/// How long the end of the interpreter waits for functions to return.
const PATIENCE: Duration = Duration::from_secs(10);
const LOOK_EVERY: Duration = Duration::from_millis(10);

/// The calls of functions in a process. The end of its interpreter waits for those under way, and no thread of ours is left waiting for the
/// GIL of an interpreter that is gone.
struct Calls {
    own: ForkGuard,
    ended: AtomicBool,
    under_way: AtomicUsize,
    /// Those of a process that was forked from this one: there, the threads that call are not.
    forked: OnceLock<Box<Calls>>,
}

/// Of the process that imported this.
static CALLS: OnceLock<Calls> = OnceLock::new();

impl Calls {
    fn new() -> Calls {
        let (ended, under_way) = (AtomicBool::new(false), AtomicUsize::new(0));
        Calls { own: ForkGuard::new(), ended, under_way, forked: OnceLock::new() }
    }

    /// Those of this process.
    fn own() -> &'static Calls {
        let mut calls = CALLS.get_or_init(Calls::new);
        while !calls.own.holds() {
            calls = calls.forked.get_or_init(|| Box::new(Calls::new()));
        }
        calls
    }

    /// What the call gives; `None` when the interpreter ends.
    fn call<T>(&self, call: impl FnOnce() -> Option<T>) -> Option<T> {
        // Before it is looked whether it ends: the end looks at this after it has said so.
        self.under_way.fetch_add(1, Ordering::SeqCst);
        let result = if self.ended.load(Ordering::SeqCst) { None } else { call() };
        self.under_way.fetch_sub(1, Ordering::SeqCst);
        result
    }
}

/// Remembers the process. At import.
pub(crate) fn begin() {
    Calls::own();
}

/// Whether the interpreter has ended while a function had not returned: the thread that calls it never ends.
pub(crate) fn is_stuck() -> bool {
    let calls = Calls::own();
    calls.ended.load(Ordering::SeqCst) && calls.under_way.load(Ordering::SeqCst) > 0
}

/// Lets no function be called from here on, and waits for those that are: not for ever, and Ctrl-C ends it. At exit.
#[pyfunction]
pub(crate) fn _end(py: Python<'_>) -> PyResult<()> {
    let (calls, begun) = (Calls::own(), Instant::now());
    calls.ended.store(true, Ordering::SeqCst);
    while calls.under_way.load(Ordering::SeqCst) > 0 && begun.elapsed() < PATIENCE {
        py.detach(|| std::thread::sleep(LOOK_EVERY));
        py.check_signals()?;
    }
    Ok(())
}

/// A function of Python's, until the garbage collector takes it: what it belongs to may hold the loader that calls it. Locked with the GIL
/// alone, and for a moment.
#[derive(Clone, Default)]
pub(crate) struct Held(Arc<Mutex<Option<Py<PyAny>>>>);

impl Held {
    pub(crate) fn new(function: Py<PyAny>) -> Held {
        Held(Arc::new(Mutex::new(Some(function))))
    }

    fn get(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        let function = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        function
            .as_ref()
            .map(|function| function.clone_ref(py))
            .ok_or_else(|| PyRuntimeError::new_err("the garbage collector has taken it"))
    }

    /// For the garbage collector.
    pub(crate) fn traverse(&self, visit: &PyVisit<'_>) -> Result<(), PyTraverseError> {
        self.0.try_lock().map_or(Ok(()), |function| visit.call(&*function))
    }

    /// For the garbage collector: breaks the cycle.
    pub(crate) fn clear(&self) {
        // Dropped behind the lock: it may free what calls this.
        let function = self.0.lock().unwrap_or_else(PoisonError::into_inner).take();
        drop(function);
    }
}

/// The engine's form of a Python function of samples, ids and epoch. What it raises is kept, with its traceback and all that hangs on that, only
/// where it ends the run: errors of samples that are left out may stay as long as the loader.
pub(crate) fn function(function: Held, decode: Decode, policy: BadSamples) -> DecodeFunction {
    let calls = Calls::own();
    DecodeFunction::of_batches(move |samples, out| {
        let call = |py: Python<'_>| {
            let made = function.get(py).and_then(|function| called(py, &function, &decode, samples, out));
            made.map_err(|error| {
                let cause = format!("decode_with raised {error}");
                let failed = Error::new(Kind::Undecodable, cause);
                let failed = if policy == BadSamples::Raise { failed.with_source(error) } else { failed };
                failed.with_hint("mend the function, or leave such samples out with bad_samples=\"skip\"")
            })
        };
        let result = calls.call(|| Python::try_attach(call));
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
