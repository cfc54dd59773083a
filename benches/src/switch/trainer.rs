//! `fuelrail-train` from outside: where it is, what it is told, and what one run of it came to.
//!
//! Owns the words on its command line. Never trains.

use std::path::{Path, PathBuf};
use std::time::Instant;

use fuelrail::{Error, Kind, Result};

use super::log::{curve, outcome, steps, time_s};
use super::options::Switching;
use super::report::{Run, setting_name};
use fuelrail_cli::train::ranks::Ranks;

/// Where the samples are.
#[derive(Clone, Debug)]
pub(super) struct Places {
    pub training: String,
    pub test: String,
}

/// The trainer's torch and its device.
pub(super) type TorchFacts = (String, String);

/// Payload memory of each rank: more than both sets have bytes.
const MEMORY: &str = "134217728";

/// One run of all ranks.
pub(super) fn run(
    switching: &Switching,
    places: &Places,
    seed: u32,
    share: f64,
    place: u32,
) -> Result<(Run, TorchFacts)> {
    let named = |error: Error| {
        let cure = match error.kind() {
            Kind::Cancelled => return error,
            Kind::Stalled => "give less work, or more time with --limit",
            _ => "see what it says; the trainer must be a fuelrail-train of this version",
        };
        let title = setting_name(share);
        Error::new(error.kind(), format!("seed {seed}, {title}: {}", error.cause())).cure(cure)
    };
    one_run(switching, places, seed, share, place).map_err(named)
}

fn one_run(switching: &Switching, places: &Places, seed: u32, share: f64, place: u32) -> Result<(Run, TorchFacts)> {
    let folder = tempfile::tempdir()
        .map_err(|error| Error::new(Kind::File, format!("making a folder for what ranks leave: {error}")))?;
    let words = words(switching, places, seed, share, folder.path());
    let (load, begun) = (load(), Instant::now());
    let mut ranks = Ranks::start(&switching.trainer, &words, switching.ranks, folder.path())?;
    ranks.wait(switching.limit, &switching.stop)?;
    let total_s = begun.elapsed().as_secs_f64();
    let found = outcome(&json_file(folder.path()))?;
    let score = found.score.ok_or_else(|| Error::new(Kind::Environment, "the trainer did not judge its model"))?;
    let logs: Vec<_> =
        (0..switching.ranks).map(|rank| steps(&log_file(folder.path(), &rank.to_string()))).collect::<Result<_>>()?;
    let longest = logs.iter().map(|steps| time_s(steps)).fold(0.0, f64::max);
    let run = Run {
        seed,
        place,
        share,
        train_s: longest + found.outcome.switch_s.unwrap_or(0.0),
        total_s,
        accuracy: score.accuracy,
        test_loss: score.loss,
        samples: found.outcome.samples,
        steps: logs.iter().map(|steps| steps.len() as u64).collect(),
        switch_s: found.outcome.switch_s,
        stale: found.outcome.stale,
        data_wait_s: found.outcome.meter.data_wait_s,
        load,
        curve: curve(&logs[0]),
    };
    Ok((run, (found.torch, found.device)))
}

fn json_file(folder: &Path) -> PathBuf {
    folder.join("outcome.json")
}

fn log_file(folder: &Path, rank: &str) -> PathBuf {
    folder.join(format!("log-{rank}"))
}

fn words(switching: &Switching, places: &Places, seed: u32, share: f64, folder: &Path) -> Vec<String> {
    let slow = format!("{}={}", switching.ranks - 1, switching.slow);
    let options = [
        ("--eval-uri", places.test.clone()),
        ("--decode", "28x28x1".to_owned()),
        ("--model", "lenet".to_owned()),
        ("--device", "cpu".to_owned()),
        ("--batch-size", switching.batch_size.to_string()),
        ("--epochs", switching.epochs.to_string()),
        ("--rate", switching.rate.to_string()),
        ("--seed", seed.to_string()),
        ("--switch-after", share.to_string()),
        ("--slow", slow),
        ("--timeout-s", switching.limit.as_secs_f64().to_string()),
        ("--json", json_file(folder).display().to_string()),
        ("--step-log", log_file(folder, "{rank}").display().to_string()),
        // Ranks share the cores with each other and with the bucket.
        ("--set", "pin=false".to_owned()),
        ("--set", format!("memory_limit_bytes={MEMORY}")),
    ];
    let options = options.into_iter().flat_map(|(name, value)| [name.to_owned(), value]);
    std::iter::once(places.training.clone()).chain(options).collect()
}

/// The machine's load over the last minute.
fn load() -> Option<f64> {
    std::fs::read_to_string("/proc/loadavg").ok()?.split_whitespace().next()?.parse().ok()
}
