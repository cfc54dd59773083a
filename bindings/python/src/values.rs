//! Values between Python and the engine: settings as text, states, and what serialises as Python objects.

use crate::error::{raised, usage};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use fuelrail::{Config, LoaderBuilder, State};
use pyo3::exceptions::{PyOverflowError, PyRuntimeError, PyTypeError};
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyBytes, PyDict, PyFloat, PyFrozenSet, PySet, PyString, PyType};
use serde::Serialize;
use serde_json::{Value, json};

/// A setting's value as text: texts, numbers, truths, paths, and lists, arrays and iterators of these; of a mixture also a dict of weights. `None`
/// for `None`, which sets nothing.
pub(crate) fn text(name: &str, value: &Bound<'_, PyAny>) -> PyResult<Option<String>> {
    // Of NumPy and torch: numbers become Python's own, arrays lists.
    let is_of_numpy = !value.is_instance_of::<PyType>() && value.hasattr("tolist")?;
    let value = if is_of_numpy { &value.call_method0("tolist")? } else { value };
    let value = if value.hasattr("__fspath__")? { &value.call_method0("__fspath__")? } else { value };
    if value.is_none() {
        return Ok(None);
    }
    if let Ok(truth) = value.cast::<PyBool>() {
        return Ok(Some(truth.is_true().to_string()));
    }
    if let Ok(number) = value.cast::<PyFloat>() {
        return number_text(name, number).map(Some);
    }
    if let Some(shares) = value.cast::<PyDict>().ok().filter(|_| ["mixture", "order.mixture"].contains(&name)) {
        let shares: Vec<String> = shares.iter().map(|(prefix, weight)| format!("{prefix}={weight}")).collect();
        return Ok(Some(shares.join(",")).filter(|_| !shares.is_empty()));
    }
    let is_other = value.is_instance_of::<PyDict>() || value.is_instance_of::<PyBytes>();
    if is_other || value.is_instance_of::<PySet>() || value.is_instance_of::<PyFrozenSet>() {
        let kind = value.get_type().name()?;
        return Err(PyTypeError::new_err(format!("{name} is a {kind}; pass text, a number, or a list, in its order")));
    }
    if value.hasattr("__iter__")? && !value.is_instance_of::<PyString>() {
        let items = value.try_iter()?.map(|item| text(name, &item?)).collect::<PyResult<Vec<_>>>()?;
        let items: Vec<String> = items.into_iter().flatten().collect();
        let has_comma = items.iter().any(|item| item.contains(','));
        let list = if has_comma { json!(items).to_string() } else { items.join(",") };
        return Ok(Some(list).filter(|_| !items.is_empty()));
    }
    value.str()?.extract().map(Some)
}

/// A number as text, without a point where it is whole. A part of a byte is refused: it would be rounded off.
fn number_text(name: &str, number: &Bound<'_, PyFloat>) -> PyResult<String> {
    let value = number.value();
    let is_size = Config::SETTINGS.iter().any(|setting| {
        let in_table = name.split_once('.') == Some((setting.group, setting.field));
        setting.key.ends_with("_bytes") && (in_table || [setting.name, setting.key].contains(&name))
    });
    if is_size && value.fract() != 0.0 {
        let cause = format!("{name} is {value} bytes");
        return Err(usage(number.py(), cause, "pass a whole number, or text with a unit, such as \"1.5GiB\""));
    }
    Ok(value.to_string())
}

/// A whole number that is not negative. `what` it is.
pub(crate) fn whole(value: &Bound<'_, PyAny>, what: &str) -> PyResult<u64> {
    value.extract::<u64>().map_err(|error| {
        let py = value.py();
        if !error.is_instance_of::<PyOverflowError>(py) {
            return error;
        }
        usage(py, format!("{what} is {value}"), "pass a number from 0 on")
    })
}

/// The field of a state in Python that the engine keeps beside it: the scores of importance sampling, as base64.
const SCORES: &str = "scores";

/// What `state_dict()` gave, or its JSON, and the scores in it.
pub(crate) fn state(value: &Bound<'_, PyAny>) -> PyResult<(State, Option<Vec<u8>>)> {
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
    Ok((State::from_json(&json).map_err(|error| raised(py, &error))?, scores))
}

/// A loader that goes on from a state.
pub(crate) fn resume(builder: LoaderBuilder, (state, scores): (State, Option<Vec<u8>>)) -> LoaderBuilder {
    let builder = builder.resume(state);
    match scores {
        Some(scores) => builder.scores(scores),
        None => builder,
    }
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
