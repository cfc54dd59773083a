//! Importance measured: a small model trained from a bucket, its epochs drawn uniformly, as SHADE draws them (as it was released, and put
//! right), and as we do; on clean digits and on harder ones (rare classes, wrong labels). The question behind `cargo x bench importance`.
//!
//! Accuracy stands against samples trained on and against bytes read from the bucket, and the hit ratio of the cache never stands without
//! coverage: a cache that is asked for the same few samples over and over hits.
//!
//! The trainer is a program of its own (`fuelrail-train`), for it needs libtorch and nothing here does. Settings take turns within a seed,
//! and each seed begins with another one. Owns the buckets and the order of runs. Never trains and never prints.

mod options;
mod report;
mod samples;
mod trainer;

pub use options::{IMPORTANCE_MODES, Weighing};
pub use report::{ImportanceReport, ImportanceRow, ImportanceRun, Mark};

use std::time::Instant;

use fuelrail::{Error, Kind, Result};
use fuelrail_bucket::{Bucket, BucketConfig, DataSet, Source};

use crate::embedded;
use fuelrail_cli::machine::Machine;

/// Seeds of the two sets: their pictures have nothing in common but what they show.
const TRAINING_SET: u64 = 1;
const TEST_SET: u64 = 2;

/// Measures. `watch` hears of every run that has ended.
///
/// # Errors
/// `Usage` for options; `Environment` when the trainer cannot be started or a run fails, with the last words; `Stalled` when a run takes longer
/// than its limit; `Cancelled` when it was told to stop; `File` when the harder set cannot be written.
pub fn importance(weighing: &Weighing, watch: &mut dyn FnMut(&ImportanceRun)) -> Result<ImportanceReport> {
    weighing.validate()?;
    let begun = Instant::now();
    let digits = DataSet::digits(weighing.count, TRAINING_SET);
    let folder = tempfile::tempdir()
        .map_err(|error| Error::new(Kind::File, format!("making a folder for the harder set: {error}")))?;
    let harder_bytes = samples::write_harder(&digits, weighing, folder.path())?;
    let test = bucket(Source::Generated(DataSet::digits(weighing.test_count, TEST_SET)))?;
    let sets = [
        ("digits", digits.total_bytes(), bucket(Source::Generated(digits.clone()))?),
        ("harder", harder_bytes, bucket(Source::Directory(folder.path().to_owned()))?),
    ];
    let mut runs = Vec::new();
    let mut facts = None;
    for (set, bytes, samples) in &sets {
        let cache_bytes = (*bytes as f64 * weighing.cache_share) as u64;
        let places = trainer::Places { training: samples.url("training/"), test: test.url("training/"), cache_bytes };
        for seed in 0..weighing.seeds {
            for turn in 0..IMPORTANCE_MODES.len() {
                weighing.stop.check()?;
                let mode = IMPORTANCE_MODES[(turn + seed as usize) % IMPORTANCE_MODES.len()];
                let (run, torch) = trainer::run(weighing, &places, set, seed, mode)?;
                watch(&run);
                runs.push(run);
                facts = Some(torch);
            }
        }
    }
    let (torch, device) = facts.unwrap_or_default();
    Ok(ImportanceReport {
        schema: report::SCHEMA,
        seeds: weighing.seeds,
        epochs: weighing.epochs,
        count: weighing.count,
        rare_share: weighing.rare_share,
        noise_share: weighing.noise_share,
        test_count: weighing.test_count,
        batch_size: weighing.batch_size,
        rate: weighing.rate,
        cache_share: weighing.cache_share,
        rows: report::rows(&runs),
        runs,
        torch,
        device,
        wall_s: begun.elapsed().as_secs_f64(),
        machine: Machine::here(),
    })
}

fn bucket(source: Source) -> Result<Bucket> {
    let config = BucketConfig { source, threads: 1, ..BucketConfig::default() };
    embedded::start(config)
}
