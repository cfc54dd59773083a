//! Command-line arguments as settings of a loader, and their values.

use std::path::Path;

use fuelrail::{ByteSize, Config, Kind, Overrides, Result};
use serde::Serialize;
use serde_json::Value;

use crate::failure::{Outcome, usage};

/// The fields that were given, by their names; what is absent or skipped is left to environment, file and default.
pub(crate) fn given(arguments: &impl Serialize) -> Overrides {
    let fields = serde_json::to_value(arguments).expect("arguments are plain structures");
    let text = |value: &Value| match value {
        Value::Null => None,
        Value::String(text) => Some(text.clone()),
        other => Some(other.to_string()),
    };
    fields.as_object().into_iter().flatten().filter_map(|(name, value)| Some((name.clone(), text(value)?))).collect()
}

/// The configuration: what was given over the environment over the file over the defaults.
pub(crate) fn load(file: Option<&Path>, given: &Overrides) -> Outcome<Config> {
    // The one file it reads is named on the command line: when it is not there, that was wrong.
    Config::load(file, fuelrail::environment_variables()?, given).map_err(|error| match error.kind() {
        Kind::File => usage(error.cause(), "give a TOML file that can be read"),
        _ => error.into(),
    })
}

/// Reads a size as the bytes it has.
///
/// # Errors
/// What is wrong with it.
pub(crate) fn bytes(text: &str) -> Result<u64> {
    text.parse::<ByteSize>().map(|size| size.0)
}
