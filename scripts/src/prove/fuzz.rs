//! Fuzzing: one program, every target in turn (`engine/src/fuzz.rs`), two minutes each at least.
//!
//! What it finds is written beside the target's corpus, where the corpus test runs it from then on.

use crate::prove::session::{Finding, Session, passed};
use crate::steps::{run as run_command, say, target};
use serde_json::{Map, json};
use std::path::Path;
use std::process::Command;

const FOLDER: &str = "engine/fuzz";
const MINUTES: u64 = 60;
const SECONDS_MIN: u64 = 120;
/// Input of no parser has to be longer to meet all it does.
const BYTES_MAX: u64 = 1 << 16;

pub(super) fn run(session: &Session<'_>) -> Result<Finding, String> {
    session.need("fuzz")?;
    let folder = std::path::absolute(session.root.join(FOLDER)).map_err(|e| e.to_string())?;
    let built = std::path::absolute(target(session.root).join("fuzz")).map_err(|e| e.to_string())?;
    let mut build = session.cargo(["fuzz", "build", "--fuzz-dir", FOLDER, "--target-dir"]);
    // The sanitizer's flags are not stable; the compiler is the one that is there.
    build.arg(&built).arg("all").env("RUSTC_BOOTSTRAP", "1");
    passed(run_command(build))?;
    let targets = names(&folder.join("corpus"))?;
    let seconds = (60 * session.minutes.unwrap_or(MINUTES) / targets.len().max(1) as u64).max(SECONDS_MIN);
    let (mut counts, mut failed) = (Map::new(), Vec::new());
    for name in &targets {
        let (corpus, grown) = (folder.join("corpus").join(name), built.join("grown").join(name));
        std::fs::create_dir_all(&grown).map_err(|e| format!("{}: {e}", grown.display()))?;
        let mut fuzz = Command::new(program(&built)?);
        fuzz.args([&grown, &corpus]).env("FUELRAIL_FUZZ", name).env("ASAN_OPTIONS", "detect_leaks=1");
        fuzz.args([format!("-max_total_time={seconds}"), format!("-max_len={BYTES_MAX}")]);
        fuzz.args([format!("-seed={}", session.seed as u32), "-timeout=10".into(), "-print_final_stats=1".into()]);
        fuzz.arg(format!("-artifact_prefix={}/", corpus.display()));
        let output = fuzz.output().map_err(|e| format!("{name}: {e}"))?;
        let said = String::from_utf8_lossy(&output.stderr);
        let number =
            |after: &str| said.rsplit_once(after).and_then(|(_, rest)| rest.split_whitespace().next()?.parse().ok());
        let (runs, edges) = (number("stat::number_of_executed_units:"), number(" cov: "));
        let (runs, edges): (u64, u64) = (runs.unwrap_or(0), edges.unwrap_or(0));
        say(&format!("{name}: {runs} inputs in {seconds} s, {edges} edges"));
        counts.insert(name.clone(), json!({ "inputs": runs, "edges": edges }));
        if !output.status.success() || runs == 0 {
            say(&said);
            failed.push(name.clone());
        }
    }
    Ok(Finding {
        passed: failed.is_empty(),
        counts: json!({ "seconds_each": seconds, "targets": counts, "failed": failed }),
    })
}

/// The targets: each has a corpus.
fn names(corpus: &Path) -> Result<Vec<String>, String> {
    let read = || -> std::io::Result<Vec<String>> {
        let entries = std::fs::read_dir(corpus)?.collect::<std::io::Result<Vec<_>>>()?;
        Ok(entries.iter().map(|entry| entry.file_name().to_string_lossy().into_owned()).collect())
    };
    let mut names = read().map_err(|e| format!("{}: {e}", corpus.display()))?;
    names.sort();
    Ok(names)
}

/// cargo-fuzz compiles for the machine's own target by name.
fn program(built: &Path) -> Result<std::path::PathBuf, String> {
    let host = format!("{}-unknown-linux-gnu", std::env::consts::ARCH);
    let path = built.join(host).join("release/all");
    if path.exists() { Ok(path) } else { Err(format!("{} is not there", path.display())) }
}
