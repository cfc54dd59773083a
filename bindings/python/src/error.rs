//! The engine's errors as Python exceptions, whose classes are in `fuelrail/_errors.py`.

use fuelrail::{Error, Kind};
use pyo3::prelude::*;
use std::io;

/// The exception for an error of the engine.
pub(crate) fn raised(py: Python<'_>, error: &Error) -> PyErr {
    let source = std::error::Error::source(error);
    let of_system = source.and_then(|source| source.downcast_ref::<io::Error>()).map(io::Error::kind);
    let kind = match (error.kind(), of_system) {
        (Kind::File, Some(io::ErrorKind::NotFound)) => Kind::NotFound,
        (kind, _) => kind,
    };
    let made = py.import("fuelrail._errors").and_then(|module| {
        let facts = (kind.word(), error.to_string(), error.object(), error.hint(), error.attempts());
        module.getattr("of_kind")?.call1(facts)
    });
    let made = made.map_or_else(|failed| failed, PyErr::from_value);
    // What a function of the program raised, with its traceback.
    if let Some(cause) = source.and_then(|source| source.downcast_ref::<PyErr>()) {
        made.set_cause(py, Some(cause.clone_ref(py)));
    }
    made
}

/// The error to keep, without what a function of the program raised: its traceback would stay as long as the loader, and may hold it.
pub(crate) fn kept(error: &Error) -> Error {
    if std::error::Error::source(error).is_none_or(|source| !source.is::<PyErr>()) {
        return error.clone();
    }
    let copy = Error::new(error.kind(), error.cause()).with_attempts(error.attempts());
    let copy = error.object().into_iter().fold(copy, Error::with_object);
    error.hint().into_iter().fold(copy, Error::with_hint)
}

/// Wrong use of this library.
pub(crate) fn usage(py: Python<'_>, cause: impl Into<String>, hint: &str) -> PyErr {
    raised(py, &Error::new(Kind::Usage, cause).with_hint(hint))
}
