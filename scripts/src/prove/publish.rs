//! The packages as a registry and its users have them: every public crate packed and compiled from its package (`cargo publish
//! --dry-run`), and the wheel built from the source distribution of the Python package, with the manylinux tag that auditwheel finds.

use super::python::wheel;
use super::session::{Finding, Session, passes};
use crate::steps::{cargo_in, printed, say};
use crate::tidy::packages;
use serde_json::{Value, json};
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
    publish.env("CARGO_PROFILE_DEV_DEBUG", "0");
    let mut build = Command::new(session.root.join("scripts/wheel"));
    build.args(["dev", "--sdist"]).env("CARGO_PROFILE_DEV_DEBUG", "0");
    if !passes(&mut publish)? || !passes(&mut build)? {
        return Ok((false, json!({ "crates": crates })));
    }
    // fuelrail-0.1.0-cp311-abi3-manylinux_2_34_x86_64; dots separate several tags.
    let wheel = wheel(session)?;
    let name = wheel.file_stem().unwrap_or_default().to_string_lossy();
    let auditwheel = session.python("auditwheel", &["auditwheel"])?;
    let audit = printed(Command::new(auditwheel).args(["-m", "auditwheel", "show", "--json"]).arg(&wheel))?;
    let audit: Value = serde_json::from_str(&audit).map_err(|e| format!("auditwheel: {e}"))?;
    let needed = audit["overall_tag"].as_str().unwrap_or_default();
    let is_right = needed.starts_with("manylinux")
        && name.rsplit('-').next().is_some_and(|tags| tags.split('.').any(|tag| tag == needed));
    if !is_right {
        say(&format!("{name}: auditwheel finds the tag {needed}"));
    }
    Ok((is_right, json!({ "crates": crates, "wheel": name, "auditwheel": needed })))
}
