//! `fuelrail-train` from outside: what it is told, and what one run of it came to.
//!
//! Owns the words on its command line and the reading of its outcome. Never trains.

use std::path::{Path, PathBuf};
use std::time::Instant;

use fuelrail::{Error, Kind, Result};
use serde::Deserialize;

use super::options::Weighing;
use super::report::{ImportanceRun, Mark};
use fuelrail_cli::train::ranks::Ranks;

/// Where the samples are, and how many bytes of them a cache holds.
#[derive(Clone, Debug)]
pub(super) struct Places {
    pub training: String,
    pub test: String,
    pub cache_bytes: u64,
}

/// The trainer's torch and its device.
pub(super) type TorchFacts = (String, String);

/// Payload memory: far more than the sets have bytes.
const MEMORY: &str = "134217728";

#[derive(Deserialize)]
struct Found {
    epochs: Vec<Epoch>,
    device: String,
    torch: String,
}

#[derive(Deserialize)]
struct Epoch {
    samples: u64,
    score: Score,
    loader: Option<Loader>,
}

#[derive(Deserialize)]
struct Score {
    accuracy: f64,
}

#[derive(Deserialize)]
struct Loader {
    landed_bytes: u64,
    hit_ratio: f64,
    coverage: f64,
}

/// One run.
pub(super) fn run(
    weighing: &Weighing,
    places: &Places,
    set: &str,
    seed: u32,
    mode: &str,
) -> Result<(ImportanceRun, TorchFacts)> {
    let named = |error: Error| {
        let cure = match error.kind() {
            Kind::Cancelled => return error,
            Kind::Stalled => "give less work, or more time with --limit",
            _ => "see what it says; the trainer must be a fuelrail-train of this version",
        };
        Error::new(error.kind(), format!("{set}, seed {seed}, {mode}: {}", error.cause())).cure(cure)
    };
    one_run(weighing, places, set, seed, mode).map_err(named)
}

fn one_run(
    weighing: &Weighing,
    places: &Places,
    set: &str,
    seed: u32,
    mode: &str,
) -> Result<(ImportanceRun, TorchFacts)> {
    let folder = tempfile::tempdir()
        .map_err(|error| Error::new(Kind::File, format!("making a folder for what the trainer leaves: {error}")))?;
    let begun = Instant::now();
    let words = words(weighing, places, seed, mode, folder.path());
    let mut ranks = Ranks::start(&weighing.trainer, &words, 1, folder.path())?;
    ranks.wait(weighing.limit, &weighing.stop)?;
    let total_s = begun.elapsed().as_secs_f64();
    let found = outcome(&json_file(folder.path()))?;
    let marks = found.epochs.iter().map(|epoch| {
        let loader =
            epoch.loader.as_ref().ok_or_else(|| Error::new(Kind::Environment, "the trainer asked no loader"))?;
        Ok(Mark {
            samples: epoch.samples,
            bytes_read: loader.landed_bytes,
            accuracy: epoch.score.accuracy,
            hit_ratio: loader.hit_ratio,
            coverage: loader.coverage,
        })
    });
    let marks: Vec<Mark> = marks.collect::<Result<_>>()?;
    if marks.is_empty() {
        return Err(Error::new(Kind::Environment, "the trainer did not judge its model"));
    }
    let run = ImportanceRun { set: set.to_owned(), seed, mode: mode.to_owned(), total_s, marks };
    Ok((run, (found.torch, found.device)))
}

fn outcome(path: &Path) -> Result<Found> {
    let text = std::fs::read_to_string(path)
        .map_err(|error| Error::new(Kind::File, format!("reading the trainer's outcome: {error}")))?;
    serde_json::from_str(&text).map_err(|error| {
        let cause = format!("the trainer's outcome is not as expected: {error}");
        Error::new(Kind::Environment, cause)
    })
}

fn json_file(folder: &Path) -> PathBuf {
    folder.join("outcome.json")
}

fn words(weighing: &Weighing, places: &Places, seed: u32, mode: &str, folder: &Path) -> Vec<String> {
    // SHADE's own cache beside SHADE's draws; the others keep what is used soonest.
    let policy = if mode.starts_with("shade") { "importance" } else { "next-use" };
    let options = [
        ("--eval-uri", places.test.clone()),
        ("--decode", "28x28x1".to_owned()),
        ("--model", "lenet".to_owned()),
        ("--device", "cpu".to_owned()),
        ("--batch-size", weighing.batch_size.to_string()),
        ("--epochs", weighing.epochs.to_string()),
        ("--rate", weighing.rate.to_string()),
        ("--seed", seed.to_string()),
        ("--importance", mode.to_owned()),
        ("--timeout-s", weighing.limit.as_secs_f64().to_string()),
        ("--json", json_file(folder).display().to_string()),
        ("--set", format!("cache_policy={policy}")),
        ("--set", format!("cache_limit_bytes={}", places.cache_bytes)),
        ("--set", format!("memory_limit_bytes={MEMORY}")),
        ("--set", "pin=false".to_owned()),
        ("--set", "shards=1".to_owned()),
    ];
    let options = options.into_iter().flat_map(|(name, value)| [name.to_owned(), value]);
    [places.training.clone(), "--eval-every-epoch".to_owned()].into_iter().chain(options).collect()
}
