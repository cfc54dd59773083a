//! Values between Python and the engine: settings as text, states, and what serialises as Python objects.

use crate::error::{raised, usage};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use fuelrail::{LoaderBuilder, State};
use pyo3::exceptions::{PyRuntimeError, PyTypeError};
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyDict, PyList, PyString, PyTuple};
use serde::Serialize;
use serde_json::{Value, json};

/// A setting's value as text: texts, numbers, truths, paths, and lists of these. `None` for `None`, which sets nothing.
pub(crate) fn text(value: &Bound<'_, PyAny>) -> PyResult<Option<String>> {
    if value.is_none() {
        return Ok(None);
    }
    if let Ok(truth) = value.cast::<PyBool>() {
        return Ok(Some(truth.is_true().to_string()));
    }
    if value.is_instance_of::<PyList>() || value.is_instance_of::<PyTuple>() {
        let items = value.try_iter()?.map(|item| text(&item?)).collect::<PyResult<Vec<_>>>()?;
        let items: Vec<String> = items.into_iter().flatten().collect();
        let has_comma = items.iter().any(|item| item.contains(','));
        let list = if has_comma { json!(items).to_string() } else { items.join(",") };
        return Ok(Some(list).filter(|_| !items.is_empty()));
    }
    let value = if value.hasattr("__fspath__")? { &value.call_method0("__fspath__")? } else { value };
    value.str()?.extract().map(Some)
}

/// The field of a state in Python that the engine keeps beside it: the scores of importance sampling, as base64.
const SCORES: &str = "scores";

/// A loader that goes on from what `state_dict()` gave, or its JSON.
pub(crate) fn resume(builder: LoaderBuilder, value: &Bound<'_, PyAny>) -> PyResult<LoaderBuilder> {
    let py = value.py();
    let mut json: String = if value.is_instance_of::<PyDict>() {
        py.import("json")?.call_method1("dumps", (value,))?.extract()?
    } else if value.is_instance_of::<PyString>() {
        value.extract()?
    } else {
        let kind = value.get_type().name()?;
        return Err(PyTypeError::new_err(format!("a state is a dict or its JSON, not {kind}")));
    };
    let mut scores = None;
    if let Ok(Value::Object(mut fields)) = serde_json::from_str(&json)
        && let Some(text) = fields.remove(SCORES)
    {
        let bytes = text.as_str().and_then(|text| STANDARD.decode(text).ok());
        let hint = "pass what state_dict() returned";
        scores = Some(bytes.ok_or_else(|| usage(py, "the state's scores are damaged", hint))?);
        json = Value::Object(fields).to_string();
    }
    let builder = builder.resume(State::from_json(&json).map_err(|error| raised(py, &error))?);
    Ok(match scores {
        Some(scores) => builder.scores(scores),
        None => builder,
    })
}

/// A state as a dict.
pub(crate) fn state_dict<'py>(py: Python<'py>, state: &State, scores: Option<&[u8]>) -> PyResult<Bound<'py, PyAny>> {
    let fields = dict(py, state)?;
    if let Some(scores) = scores {
        fields.set_item(SCORES, STANDARD.encode(scores))?;
    }
    Ok(fields)
}

/// Numbers of a list, an array, a tensor or a memoryview of one dimension. `what` they are, and `of` what kind.
pub(crate) fn numbers<'py, T>(value: &Bound<'py, PyAny>, what: &str, of: &str) -> PyResult<Vec<T>>
where
    Vec<T>: for<'a> FromPyObject<'a, 'py, Error = PyErr>,
{
    let items = if value.hasattr("tolist")? { &value.call_method0("tolist")? } else { value };
    let hint = "pass batch.ids and a loss for each of them, in one dimension";
    items.extract().map_err(|error| {
        let failed = usage(value.py(), format!("{what} are not {of}"), hint);
        failed.set_cause(value.py(), Some(error));
        failed
    })
}

/// What serialises, as Python's own.
pub(crate) fn dict<'py>(py: Python<'py>, of: &impl Serialize) -> PyResult<Bound<'py, PyAny>> {
    let text = serde_json::to_string(of).map_err(|error| PyRuntimeError::new_err(error.to_string()))?;
    py.import("json")?.call_method1("loads", (text,))
}
