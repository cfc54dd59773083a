//! `decode_with`: a Python function that decodes batches on the decoding threads.

use crate::ffi::{Memory, View, copy_out, raise_exit_in, thread_number};
use crate::warnings::warn;
use fuelrail::internal::ForkGuard;
use fuelrail::{BadSamples, Decode, DecodeFunction, Error, Kind, Shape, Undecoded};
use pyo3::buffer::PyBuffer;
use pyo3::exceptions::PyRuntimeError;
use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::prelude::*;
use pyo3::types::PyList;
use std::cell::Cell;
use std::ffi::c_ulong;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

/// How long the end of the interpreter waits for functions to return.
const PATIENCE: Duration = Duration::from_secs(10);
const LOOK_EVERY: Duration = Duration::from_millis(10);
/// How long it leaves them alone before `SystemExit` is raised in them, each time.
const EXIT_EVERY: Duration = Duration::from_secs(2);

thread_local! {
    /// Address of the function that this thread is inside of; 0 outside.
    static INSIDE: Cell<usize> = const { Cell::new(0) };
}

/// The calls of functions in a process. The end of its interpreter waits for those under way, and no thread of ours is left waiting for the
/// GIL of an interpreter that is gone.
struct Calls {
    own: ForkGuard,
    ended: AtomicBool,
    under_way: AtomicUsize,
    /// Threads inside a function. Changed with the GIL alone: who has it finds there only threads that have not returned.
    inside: Mutex<Vec<c_ulong>>,
    /// Those of a process that was forked from this one: there, the threads that call are not.
    forked: OnceLock<Box<Calls>>,
}

/// Of the process that imported this.
static CALLS: OnceLock<Calls> = OnceLock::new();

impl Calls {
    fn new() -> Calls {
        let (ended, under_way) = (AtomicBool::new(false), AtomicUsize::new(0));
        Calls { own: ForkGuard::new(), ended, under_way, inside: Mutex::default(), forked: OnceLock::new() }
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

/// A thread inside a function, until it is dropped. With the GIL.
struct Inside(&'static Calls, usize);

impl Inside {
    fn of(calls: &'static Calls, function: &Held) -> Inside {
        calls.inside.lock().unwrap_or_else(PoisonError::into_inner).push(thread_number());
        Inside(calls, INSIDE.replace(function.address()))
    }
}

impl Drop for Inside {
    fn drop(&mut self) {
        let mut inside = self.0.inside.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(at) = inside.iter().rposition(|thread| *thread == thread_number()) {
            inside.swap_remove(at);
        }
        INSIDE.set(self.1);
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

/// Lets no function be called from here on, ends those that run Python code, and waits for them: not for ever, and Ctrl-C ends it. At exit. A
/// thread that wants the GIL after the interpreter's end is ended by it in the middle of a call, which ends the process.
#[pyfunction]
pub(crate) fn _end(py: Python<'_>) -> PyResult<()> {
    let (calls, begun) = (Calls::own(), Instant::now());
    calls.ended.store(true, Ordering::SeqCst);
    let mut raised = begun;
    while calls.under_way.load(Ordering::SeqCst) > 0 && begun.elapsed() < PATIENCE {
        py.detach(|| std::thread::sleep(LOOK_EVERY));
        py.check_signals()?;
        if raised.elapsed() >= EXIT_EVERY {
            raised = Instant::now();
            let inside = calls.inside.lock().unwrap_or_else(PoisonError::into_inner).clone();
            inside.into_iter().for_each(|thread| raise_exit_in(py, thread));
        }
    }
    if calls.under_way.load(Ordering::SeqCst) == 0 {
        return Ok(());
    }
    let waited = PATIENCE.as_secs();
    warn(
        py,
        &format!(
            "decode_with has not returned {waited} s after the program's end, and the interpreter may abort the process: let the function \
             return within a few seconds, and not catch SystemExit"
        ),
    )
}

/// A function of Python's, until the garbage collector takes it: what it belongs to may hold the loader that calls it. Locked with the GIL
/// alone, and for a moment.
#[derive(Clone, Default)]
pub(crate) struct Held(Arc<Mutex<Option<Py<PyAny>>>>);

impl Held {
    pub(crate) fn new(function: Py<PyAny>) -> Held {
        Held(Arc::new(Mutex::new(Some(function))))
    }

    fn address(&self) -> usize {
        Arc::as_ptr(&self.0).addr()
    }

    /// Whether this thread is inside the function.
    pub(crate) fn is_called_here(&self) -> bool {
        INSIDE.get() == self.address()
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
        let failed = |kind: Kind, cause: String, hint: &str, error: PyErr| {
            let failed = Error::new(kind, cause).with_hint(hint);
            if policy == BadSamples::Raise { failed.with_source(error) } else { failed }
        };
        let call = |py: Python<'_>| {
            let _inside = Inside::of(calls, &function);
            let made = function.get(py).and_then(|function| called(py, &function, samples)).map_err(|error| {
                let hint = "mend the function, or leave such samples out with bad_samples=\"skip\"";
                failed(Kind::Undecodable, format!("decode_with raised {error}"), hint, error)
            })?;
            let shape = Shape::new(samples.len(), &decode);
            fill(py, &made, shape, out).map_err(|error| {
                let (count, why) = (samples.len(), error.value(py));
                let cause = format!("what decode_with returned for {count} sample(s) does not fit: {why}");
                failed(Kind::Program, cause, "mend the function: what it returns has a row for each sample", error)
            })
        };
        let result = calls.call(|| Python::try_attach(call));
        result.unwrap_or_else(|| Err(Error::new(Kind::Cancelled, "the interpreter ends")))
    })
}

fn called<'py>(py: Python<'py>, function: &Py<PyAny>, samples: &[Undecoded<'_>]) -> PyResult<Bound<'py, PyAny>> {
    // Views: copying would hold the GIL, for which the training loop waits.
    let views: PyResult<Vec<_>> = samples.iter().map(|sample| View::over(py, Memory::Kept(sample.keep()))).collect();
    let views = PyList::new(py, views?)?;
    let ids = PyList::new(py, samples.iter().map(|sample| sample.id.0))?;
    function.bind(py).call1((views, ids, samples[0].epoch))
}

/// Copies what a function has returned.
fn fill(py: Python<'_>, made: &Bound<'_, PyAny>, shape: Shape, out: &mut [u8]) -> PyResult<()> {
    let checked = py.import("fuelrail._decode")?.getattr("numbers")?;
    let numbers: PyBuffer<u8> = checked.call1((made, shape.dims(), shape.dtype.word()))?.extract()?;
    copy_out(py, &numbers, out)
}
