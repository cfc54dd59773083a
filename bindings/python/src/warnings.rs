//! The engine's warnings, for Python's `logging`: its threads only collect them, and they are logged by the next call from Python, so that
//! no thread of the engine ever waits for the GIL.

use pyo3::prelude::*;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

/// Most warnings that wait for the next call from Python; further ones are dropped.
const KEPT_MAX: usize = 1000;

static COLLECTED: Mutex<Vec<String>> = Mutex::new(Vec::new());
static ARE_SOME: AtomicBool = AtomicBool::new(false);

/// Collects warnings from here on.
pub(crate) fn collect() {
    fuelrail::on_warning(|text| {
        let mut collected = COLLECTED.lock().unwrap_or_else(PoisonError::into_inner);
        if collected.len() < KEPT_MAX {
            collected.push(text.to_owned());
        }
        ARE_SOME.store(true, Ordering::Release);
    });
}

/// Gives what was collected to the logger `fuelrail`.
pub(crate) fn log(py: Python<'_>) -> PyResult<()> {
    if !ARE_SOME.swap(false, Ordering::Acquire) {
        return Ok(());
    }
    let collected = std::mem::take(&mut *COLLECTED.lock().unwrap_or_else(PoisonError::into_inner));
    collected.iter().try_for_each(|text| warn(py, text))
}

/// Gives one warning to the logger `fuelrail`.
pub(crate) fn warn(py: Python<'_>, text: &str) -> PyResult<()> {
    let logger = py.import("logging")?.call_method1("getLogger", ("fuelrail",))?;
    logger.call_method1("warning", ("%s", text)).map(drop)
}
