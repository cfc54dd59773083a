//! The Python package as its users have it: the wheel in a fresh virtual environment, and its tests against the command's bucket.

use super::session::{Finding, Session, passes};
use crate::steps::{cargo_in, run, say};
use serde_json::json;
use std::collections::BTreeSet;
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
/// What DLIO needs for PyTorch. It also depends on DALI, which only NVIDIA's own index has: it is installed without its dependencies.
const DLIO: [&str; 7] =
    ["mpi4py", "pandas", "psutil", "omegaconf", "hydra-core", "tensorflow-cpu", "pydftracer==1.0.2"];
/// Where the report of pytest has its counts.
const SUITE: &str = "<testsuite ";

pub(super) fn prove(session: &Session<'_>) -> Finding {
    let place = session.target("python")?;
    if place.exists() {
        std::fs::remove_dir_all(&place).map_err(|e| format!("{}: {e}", place.display()))?;
    }
    run(&mut cargo_in(session.root, ["build", "--package", "fuelrail-cli", "--package", "fuelrail-cuda-driver"]))?;
    if !passes(Command::new(session.root.join("scripts/wheel")).arg("dev"))? {
        return Ok((false, json!({})));
    }
    run(Command::new("python3").args(["-m", "venv"]).arg(&place))?;
    let python = || Command::new(place.join("bin/python"));
    let installed = |what: &[&str]| {
        run(python().args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check"]).args(what))
    };
    installed(&[&wheel(session)?.to_string_lossy(), "numpy", "pytest"])?;
    // Gigabytes, mostly CUDA's, which torch's package for x86-64 loads without a GPU, too.
    if std::env::var_os("PROVE_TORCH").is_some() {
        session.ready("need mpirun openmpi-bin")?;
        installed(&[&SHELF[..], &DLIO[..]].concat())?;
        installed(&["--no-deps", "dlio-benchmark"])?;
    }
    let report = place.join("report.xml");
    let mut tests = python();
    tests.args(["-m", "pytest", "-q", "-rs", "-p", "no:cacheprovider", "bindings/python/tests", "--junitxml"]);
    tests.arg(&report).current_dir(session.root).env("BUCKET_COMMAND", session.target("debug/fuelrail")?);
    tests.env("CUDA_TEST_DRIVER", session.target("debug/libfuelrail_cuda_driver.so")?);
    let passed = run(&mut tests).inspect_err(|why| say(why)).is_ok();
    let text = std::fs::read_to_string(&report).unwrap_or_default();
    let suite = text.split_once(SUITE).map_or("", |(_, rest)| rest);
    let count = |name: &str| suite.split_once(&format!(" {name}=\""))?.1.split_once('"')?.0.parse::<u64>().ok();
    let skipped = text.split("<testcase ").filter(|case| case.contains("<skipped"));
    // Files of tests that were skipped. A file that was skipped as a whole is a test without a class.
    let files: BTreeSet<_> =
        skipped.filter_map(|case| case.split(['"', '.']).find(|word| word.starts_with("test_"))).collect();
    Ok((passed, json!({ "tests": count("tests"), "skipped": count("skipped"), "skipped_in": files })))
}

pub(super) fn wheel(session: &Session<'_>) -> Result<PathBuf, String> {
    let wheels = session.root.join("target/wheels");
    let listed = std::fs::read_dir(&wheels).map_err(|e| format!("{}: {e}", wheels.display()))?;
    let mut found =
        listed.flatten().map(|entry| entry.path()).filter(|path| path.extension().is_some_and(|e| e == "whl"));
    found.next().ok_or_else(|| format!("no wheel in {}", wheels.display()))
}
