//! The engine without its features, cold, and its tests; and with each feature alone. Warnings are errors.

use super::session::{Finding, Session};
use crate::steps::{Outcome, cargo_in, need, run, say};
use crate::tidy::minimal_packages;
use serde_json::json;
use std::time::Instant;

/// Those that are on by default.
const FEATURES: [&str; 5] = ["clouds", "decode", "formats", "tls", "toml"];

pub(super) fn prove(session: &Session<'_>) -> Finding {
    need(session.root, "nextest")?;
    let target = session.target("features")?;
    if target.exists() {
        std::fs::remove_dir_all(&target).map_err(|e| format!("{}: {e}", target.display()))?;
    }
    let ran = |command: &[&str], more: &[&str]| -> Outcome {
        let mut cargo = cargo_in(session.root, command.iter().copied());
        cargo.args(["--package", "fuelrail", "--no-default-features"]).args(more);
        run(cargo.env("CARGO_TARGET_DIR", &target).env("RUSTFLAGS", "-Dwarnings")).inspect_err(|why| say(why))
    };
    let begun = Instant::now();
    let built = ran(&["build"], &[]);
    let cold_build_s = begun.elapsed().as_secs();
    let alone = FEATURES.map(|feature| ran(&["check"], &["--features", feature]));
    let tested = ran(&["nextest", "run", "--profile", "prove"], &["--no-tests", "fail", "--test", "minimal"]);
    let passed = [built, tested].iter().chain(&alone).all(Result::is_ok);
    Ok((passed, json!({ "packages": minimal_packages(session.root)?.len(), "cold_build_s": cold_build_s })))
}
