//! Fuzzing: one program, every target wanted in turn (`engine/src/fuzz.rs`), two minutes each at least.
//!
//! What it finds is written beside the target's corpus, where the corpus test runs it from then on.

use super::session::{Finding, Session, host};
use crate::steps::{Outcome, cargo_in, need, run as run_command, say};
use serde_json::json;
use std::path::Path;
use std::process::Command;

const FOLDER: &str = "engine/fuzz";
const MINUTES: u64 = 60;
const SECONDS_MIN: u64 = 120;
/// Input of no parser has to be longer to meet all it does.
const BYTES_MAX: u64 = 1 << 16;

/// Runs the targets asked for, each with a record of its own.
pub(super) fn run(session: &Session<'_>, wanted: &[String]) -> Outcome {
    need(session.root, "fuzz")?;
    let (corpora, built) = (session.root.join(FOLDER).join("corpus"), session.target("fuzz")?);
    let mut targets = names(&corpora).map_err(|e| format!("{}: {e}", corpora.display()))?;
    if let Some(unknown) = wanted.iter().find(|name| !targets.contains(name)) {
        return Err(format!("no target is named {unknown}: there are {}", targets.join(", ")));
    }
    targets.retain(|name| wanted.is_empty() || wanted.contains(name));
    let mut build = cargo_in(session.root, ["fuzz", "build", "--fuzz-dir", FOLDER, "--target-dir"]);
    // The sanitizer's flags are not stable; the compiler is the one that is there.
    run_command(build.arg(&built).arg("all").env("RUSTC_BOOTSTRAP", "1"))?;
    let minutes = session.minutes.unwrap_or(MINUTES);
    let seconds = (60 * minutes / targets.len().max(1) as u64).max(SECONDS_MIN);
    let mut outcome = Ok(());
    for name in &targets {
        let tried = session.record(&format!("fuzz {name}"), || target(session, name, seconds, &built, &corpora));
        outcome = outcome.and(tried.inspect_err(|why| say(why)));
    }
    outcome
}

fn target(session: &Session<'_>, name: &str, seconds: u64, built: &Path, corpora: &Path) -> Finding {
    let (corpus, grown) = (corpora.join(name), built.join("grown").join(name));
    std::fs::create_dir_all(&grown).map_err(|e| format!("{}: {e}", grown.display()))?;
    let mut fuzz = Command::new(built.join(host()).join("release/all"));
    fuzz.args([&grown, &corpus]).env("FUELRAIL_FUZZ", name).env("ASAN_OPTIONS", "detect_leaks=1");
    fuzz.args([format!("-max_total_time={seconds}"), format!("-max_len={BYTES_MAX}")]);
    fuzz.args([format!("-seed={}", session.seed as u32), "-timeout=10".into(), "-print_final_stats=1".into()]);
    fuzz.arg(format!("-artifact_prefix={}/", corpus.display()));
    let output = fuzz.output().map_err(|e| format!("{name}: {e}"))?;
    let said = String::from_utf8_lossy(&output.stderr);
    let number = |after| said.rsplit_once(after).and_then(|(_, rest)| rest.split_whitespace().next()?.parse().ok());
    let [inputs, edges] = ["stat::number_of_executed_units:", " cov: "].map(|after| number(after).unwrap_or(0_u64));
    say(&format!("{name}: {inputs} inputs in {seconds} s, {edges} edges"));
    let passed = output.status.success() && inputs > 0;
    if !passed {
        say(&said);
    }
    Ok((passed, json!({ "inputs": inputs, "edges": edges })))
}

/// The targets: each has a corpus.
fn names(corpora: &Path) -> std::io::Result<Vec<String>> {
    let named = |entry: std::io::Result<std::fs::DirEntry>| Ok(entry?.file_name().to_string_lossy().into_owned());
    let mut names = std::fs::read_dir(corpora)?.map(named).collect::<std::io::Result<Vec<_>>>()?;
    names.sort();
    Ok(names)
}
