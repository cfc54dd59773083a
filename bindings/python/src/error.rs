//! The engine's errors as Python exceptions, whose classes are in `fuelrail/_errors.py`.

use fuelrail::{Error, Kind};
use pyo3::prelude::*;

/// The exception for an error of the engine.
pub(crate) fn raised(py: Python<'_>, error: &Error) -> PyErr {
    let made = py.import("fuelrail._errors").and_then(|module| {
        let facts = (error.kind().word(), error.to_string(), error.object(), error.hint(), error.attempts());
        module.getattr("of_kind")?.call1(facts)
    });
    let made = made.map_or_else(|failed| failed, PyErr::from_value);
    // What a function of the program raised, with its traceback.
    if let Some(cause) = std::error::Error::source(error).and_then(|source| source.downcast_ref::<PyErr>()) {
        made.set_cause(py, Some(cause.clone_ref(py)));
    }
    made
}

/// Wrong use of this library.
pub(crate) fn usage(py: Python<'_>, cause: impl Into<String>, hint: &str) -> PyErr {
    raised(py, &Error::new(Kind::Usage, cause).with_hint(hint))
}
