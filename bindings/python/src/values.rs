//! Values between Python and the engine: settings as text, states, and what serialises as Python objects.

use crate::error::raised;
use fuelrail::State;
use pyo3::IntoPyObjectExt as _;
use pyo3::exceptions::{PyRuntimeError, PyTypeError};
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyDict, PyList, PyString, PyTuple};
use serde::Serialize;
use serde_json::Value;

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
        return Ok(Some(items.join(",")).filter(|items| !items.is_empty()));
    }
    let value = if value.hasattr("__fspath__")? { &value.call_method0("__fspath__")? } else { value };
    value.str()?.extract().map(Some)
}

/// A state from what `state_dict()` gave, or its JSON.
pub(crate) fn state(value: &Bound<'_, PyAny>) -> PyResult<State> {
    let py = value.py();
    let json: String = if value.is_instance_of::<PyDict>() {
        py.import("json")?.call_method1("dumps", (value,))?.extract()?
    } else if value.is_instance_of::<PyString>() {
        value.extract()?
    } else {
        let kind = value.get_type().name()?;
        return Err(PyTypeError::new_err(format!("a state is a dict or its JSON, not {kind}")));
    };
    State::from_json(&json).map_err(|error| raised(py, &error))
}

/// What serialises, as a dict.
pub(crate) fn dict<'py>(py: Python<'py>, of: &impl Serialize) -> PyResult<Bound<'py, PyAny>> {
    let value = serde_json::to_value(of).map_err(|error| PyRuntimeError::new_err(error.to_string()))?;
    object(py, &value)
}

fn object<'py>(py: Python<'py>, value: &Value) -> PyResult<Bound<'py, PyAny>> {
    match value {
        Value::Null => Ok(py.None().into_bound(py)),
        Value::Bool(truth) => truth.into_bound_py_any(py),
        Value::String(text) => text.into_bound_py_any(py),
        Value::Number(number) => match number.as_u64() {
            Some(whole) => whole.into_bound_py_any(py),
            None => number.as_f64().into_bound_py_any(py),
        },
        Value::Array(items) => {
            let items = items.iter().map(|item| object(py, item)).collect::<PyResult<Vec<_>>>()?;
            PyList::new(py, items).map(Bound::into_any)
        }
        Value::Object(fields) => {
            let dict = PyDict::new(py);
            fields.iter().try_for_each(|(name, field)| dict.set_item(name, object(py, field)?))?;
            Ok(dict.into_any())
        }
    }
}
