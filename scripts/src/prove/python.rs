//! The Python package as its users have it: the wheel in a fresh virtual environment, and its tests against the command's bucket.

use super::session::{Finding, Session};
use crate::steps::{cargo_in, run, say, target};
use serde_json::json;
use std::path::PathBuf;
use std::process::Command;

/// What the tests of `fuelrail.torch`, of trainers and of the pairs in MIGRATION.md need.
const SHELF: [&str; 10] = [
    "torch",
    "torchdata",
    "torchvision",
    "lightning",
    "accelerate",
    "ray[train]",
    "mosaicml-streaming",
    "webdataset",
    "litdata",
    "s3torchconnector",
];
/// Where the report of pytest has its counts.
const SUITE: &str = "<testsuite ";

pub(super) fn prove(session: &Session<'_>) -> Finding {
    let place = session.target("python")?;
    if place.exists() {
        std::fs::remove_dir_all(&place).map_err(|e| format!("{}: {e}", place.display()))?;
    }
    run(&mut cargo_in(session.root, ["build", "--package", "fuelrail-cli", "--package", "fuelrail-cuda-driver"]))?;
    run(Command::new(session.root.join("scripts/wheel")).arg("dev"))?;
    run(Command::new("python3").args(["-m", "venv"]).arg(&place))?;
    let python = || Command::new(place.join("bin/python"));
    let installed = |what: &[&str]| {
        run(python().args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check"]).args(what))
    };
    installed(&[&wheel(session)?.to_string_lossy(), "numpy", "pytest"])?;
    // Gigabytes: without them their tests are skipped, by name.
    if std::env::var_os("PROVE_TORCH").is_some() {
        installed(&SHELF)?;
    }
    let report = place.join("report.xml");
    let mut tests = python();
    tests.args(["-m", "pytest", "-q", "-rs", "-p", "no:cacheprovider", "bindings/python/tests", "--junitxml"]);
    tests.arg(&report).current_dir(session.root).env("BUCKET_COMMAND", session.target("debug/fuelrail")?);
    tests.env("CUDA_TEST_DRIVER", session.target("debug/libfuelrail_cuda_driver.so")?);
    let passed = run(&mut tests).inspect_err(|why| say(why)).is_ok();
    let text = std::fs::read_to_string(&report).map_err(|e| format!("{}: {e}", report.display()))?;
    let suite = text.split_once(SUITE).map_or("", |(_, rest)| rest);
    let count = |name: &str| suite.split_once(&format!(" {name}=\""))?.1.split_once('"')?.0.parse::<u64>().ok();
    Ok((passed, json!({ "tests": count("tests"), "skipped": count("skipped") })))
}

/// The one that was built.
fn wheel(session: &Session<'_>) -> Result<PathBuf, String> {
    let wheels = target(session.root).join("wheels");
    let listed = std::fs::read_dir(&wheels).map_err(|e| format!("{}: {e}", wheels.display()))?;
    let mut found =
        listed.flatten().map(|entry| entry.path()).filter(|path| path.extension().is_some_and(|e| e == "whl"));
    found.next().ok_or_else(|| format!("no wheel in {}", wheels.display()))
}
