//! The packages as a registry and its users have them: every public crate packed and compiled from its package (`cargo publish
//! --dry-run`), and the wheel built from the source distribution of the Python package.

use super::session::{Finding, Session};
use crate::steps::{cargo_in, run, target};
use crate::tidy::packages;
use serde_json::json;
use std::process::Command;

pub(super) fn prove(session: &Session<'_>) -> Finding {
    // The one that links libtorch is left out where there is none (`scripts/libtorch`): the record lists the others.
    let has_torch = std::env::var_os("LIBTORCH").is_some();
    let mut crates = packages(session.root)?;
    crates.retain(|package| package.publish.is_none() && (has_torch || package.name != "fuelrail-tch"));
    let crates: Vec<String> = crates.into_iter().map(|package| package.name).collect();
    let mut publish = cargo_in(session.root, ["publish", "--dry-run", "--locked", "--allow-dirty"]);
    publish.args(crates.iter().flat_map(|name| ["--package", name]));
    // Compiled to see that it compiles: without what debuggers need, which would be gigabytes.
    run(publish.env("CARGO_PROFILE_DEV_DEBUG", "0"))?;
    let mut wheel = Command::new(session.root.join("scripts/wheel"));
    run(wheel.args(["dev", "--sdist"]).env("CARGO_PROFILE_DEV_DEBUG", "0"))?;
    let wheels = target(session.root).join("wheels");
    let listed = std::fs::read_dir(&wheels).map_err(|e| format!("{}: {e}", wheels.display()))?;
    let names: Vec<_> = listed.flatten().map(|file| file.file_name().to_string_lossy().into_owned()).collect();
    Ok((true, json!({ "crates": crates, "files": names })))
}
