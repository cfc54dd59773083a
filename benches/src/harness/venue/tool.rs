//! Running the system's own tools (`ip`, `tc`, `openssl`, …) to their end, with their complaint in the error.
//!
//! Owns nothing.

use std::process::{Command, Stdio};

use fuelrail::{Error, Kind, Result};

/// Runs a tool that must succeed; returns its standard output.
pub(super) fn run(program: &str, args: &[&str]) -> Result<String> {
    let told = |why: String| Error::new(Kind::Environment, format!("{program} {}: {why}", args.join(" ")));
    let output = Command::new(program).args(args).stdin(Stdio::null()).output();
    let output = output.map_err(|error| told(error.to_string()).cure(format!("install {program}")))?;
    if !output.status.success() {
        let words = String::from_utf8_lossy(&output.stderr);
        let last = words.lines().rfind(|line| !line.trim().is_empty()).unwrap_or("it says nothing").trim().to_owned();
        return Err(told(last));
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}
