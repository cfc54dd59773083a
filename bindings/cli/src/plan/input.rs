//! The files that a plan is made from, and shares as people read them.

use std::path::Path;

use fuelrail::{Error, Result};

use crate::failure::{Outcome, file};

/// Reads a text file and makes something of it; an error names the file.
pub(super) fn read<T>(path: &Path, of: impl FnOnce(&str) -> Result<T>) -> Outcome<T> {
    let text = std::fs::read_to_string(path).map_err(|error| file("reading", path, &error))?;
    Ok(of(&text).map_err(|error: Error| error.within(path.display()))?)
}

/// A share of one, in percent.
pub(super) fn percent(share: f64) -> String {
    format!("{:.1} %", share * 100.0)
}
