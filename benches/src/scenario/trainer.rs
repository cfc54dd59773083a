//! `fuelrail-train` from outside: what one run of it came to.
//!
//! Owns the reading of what it leaves. Never trains.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, Instant};

use fuelrail::{Error, Kind, Result};
use fuelrail_cli::stop::Stop;
use fuelrail_cli::train::ranks::Ranks;
use serde_json::Value;

use super::figures::{Figures, add};

/// Runs all ranks: their figures, and the texts of the outcome, such as the version of torch. `train_s` is from the first step to the
/// last, of the rank that took longest, with the switch.
pub(super) fn train(
    trainer: &Path,
    ranks: u32,
    mut options: Vec<String>,
    limit: Duration,
    stop: &Stop,
) -> Result<(Figures, BTreeMap<String, String>)> {
    let folder = tempfile::tempdir()
        .map_err(|error| Error::new(Kind::File, format!("making a folder for what ranks leave: {error}")))?;
    let path = |name: &str| folder.path().join(name);
    let text = |name: &str| path(name).display().to_string();
    for (option, value) in [
        ("--json", text("outcome.json")),
        ("--step-log", text("log-{rank}")),
        ("--timeout-s", limit.as_secs_f64().to_string()),
    ] {
        options.extend([option.to_owned(), value]);
    }
    let begun = Instant::now();
    Ranks::start(trainer, &options, ranks, folder.path())?.wait(limit, stop).map_err(|error| match error.kind() {
        Kind::Stalled => error.with_hint("train less, or allow more time with --limit"),
        _ => error,
    })?;
    let mut figures = Figures::from([("total_s".to_owned(), begun.elapsed().as_secs_f64())]);
    let outcome = lines(&path("outcome.json"))?.remove(0);
    add(&mut figures, "", &outcome);
    let mut longest_ms = 0.0_f64;
    for rank in 0..ranks {
        let steps = lines(&path(&format!("log-{rank}")))?;
        figures.insert(format!("steps.{rank}"), steps.len() as f64);
        longest_ms = longest_ms.max(steps.iter().filter_map(|step| step["wall_ms"].as_f64()).sum());
    }
    let switch_s = figures.get("outcome.switch_s").copied().unwrap_or(0.0);
    figures.insert("train_s".to_owned(), longest_ms / 1e3 + switch_s);
    let texts = outcome.as_object().into_iter().flatten();
    let facts = texts.filter_map(|(name, value)| Some((name.clone(), value.as_str()?.to_owned()))).collect();
    Ok((figures, facts))
}

/// The documents in a file, one or more.
fn lines(path: &Path) -> Result<Vec<Value>> {
    let name = path.file_name().unwrap_or_default().display();
    let failed = |what: String| Error::new(Kind::Environment, what).with_hint("give a fuelrail-train of this version");
    let text = std::fs::read_to_string(path).map_err(|error| failed(format!("the trainer left no {name}: {error}")))?;
    let documents: std::result::Result<Vec<Value>, _> = serde_json::Deserializer::from_str(&text).into_iter().collect();
    let documents = documents.map_err(|error| failed(format!("the trainer's {name} is not as expected: {error}")))?;
    if documents.is_empty() { Err(failed(format!("the trainer's {name} is empty"))) } else { Ok(documents) }
}
