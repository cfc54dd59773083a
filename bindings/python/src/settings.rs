//! The settings of a loader, from keyword arguments.

use crate::error::raised;
use crate::values;
use fuelrail::{Config, Overrides};
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyString};

/// The configuration that arguments, variables and a file give.
pub(crate) fn config(
    uri: &Bound<'_, PyAny>,
    batch_size: Option<&Bound<'_, PyAny>>,
    settings: Option<&Bound<'_, PyDict>>,
) -> PyResult<Config> {
    let py = uri.py();
    if !(uri.is_none() || uri.is_instance_of::<PyString>() || uri.hasattr("__fspath__")?) {
        let kind = uri.get_type().name()?;
        let cause = format!("uri is a {kind}; it is one, with braces for several: \"s3://bucket/{{train,extra}}/\"");
        return Err(PyTypeError::new_err(cause));
    }
    let mut overrides = Overrides::new();
    let mut set = |name: String, value: &Bound<'_, PyAny>| {
        overrides.extend(values::text(&name, value)?.map(|text| (name, text)));
        PyResult::Ok(())
    };
    set("uri".into(), uri)?;
    batch_size.map(|value| set("batch_size".into(), value)).transpose()?;
    settings.into_iter().flatten().try_for_each(|(name, value)| set(name.extract()?, &value))?;
    let environment = fuelrail::environment_variables();
    let config = environment.and_then(|environment| {
        Config::check_once(&overrides)?;
        Config::load(None, environment, &overrides)
    });
    config.map_err(|error| raised(py, &error))
}

/// Refuses what a loader refuses before it lists the bucket.
#[pyfunction]
#[pyo3(signature = (uri, **settings))]
pub(crate) fn _check(uri: &Bound<'_, PyAny>, settings: Option<&Bound<'_, PyDict>>) -> PyResult<()> {
    config(uri, None, settings).map(drop)
}
