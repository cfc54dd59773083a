//! Sync-Switch measured: a small model trained from a bucket by several ranks, one of them slow, in lockstep all the way, asynchronously all
//! the way, and switched from the one to the other after a small share of the work. The question behind `cargo x bench switch`.
//!
//! The trainer is a program of its own (`fuelrail-train`), for it needs libtorch and nothing here does. Settings take turns within a seed, and
//! each seed begins with another one, so that a machine that slows down slows all of them. Ratios are taken within a seed.
//!
//! Owns the bucket and the order of runs. Never trains and never prints.

mod log;
mod options;
mod report;
mod trainer;

pub use options::{Switching, TRAINER};
pub use report::{Curve, Figure, PUBLISHED, Published, Row, Run, SwitchReport, setting_name};

use std::time::Instant;

use fuelrail::Result;
use fuelrail_bucket::{Bucket, BucketConfig, DataSet, Source};

use crate::embedded;
use fuelrail_cli::machine::Machine;
use report::rows;

/// Seeds of the two sets: their pictures have nothing in common but what they show.
const TRAINING_SET: u64 = 1;
const TEST_SET: u64 = 2;

/// Measures. `watch` hears of every run that has ended.
///
/// # Errors
/// `Usage` for options; `Environment` when the trainer cannot be started or a run fails, with the failed rank's last words; `Stalled` when a run
/// takes longer than its limit; `Cancelled` when it was told to stop.
pub fn switch(switching: &Switching, watch: &mut dyn FnMut(&Run)) -> Result<SwitchReport> {
    switching.validate()?;
    let begun = Instant::now();
    let training = bucket(DataSet::digits(switching.count, TRAINING_SET))?;
    let test = bucket(DataSet::digits(switching.test_count, TEST_SET))?;
    let places = trainer::Places { training: training.url("training/"), test: test.url("training/") };
    let mut runs = Vec::new();
    let mut facts = None;
    for seed in 0..switching.seeds {
        for (place, share) in rotated(&switching.shares, seed as usize).into_iter().enumerate() {
            switching.stop.check()?;
            let (run, torch) = trainer::run(switching, &places, seed, share, place as u32)?;
            watch(&run);
            runs.push(run);
            facts = Some(torch);
        }
    }
    let (torch, device) = facts.unwrap_or_default();
    Ok(SwitchReport {
        schema: report::SCHEMA,
        ranks: switching.ranks,
        slow: switching.slow,
        seeds: switching.seeds,
        epochs: switching.epochs,
        count: switching.count,
        test_count: switching.test_count,
        batch_size: switching.batch_size,
        rate: switching.rate,
        rows: rows(switching, &runs),
        runs,
        published: PUBLISHED,
        torch,
        device,
        wall_s: begun.elapsed().as_secs_f64(),
        machine: Machine::here(),
    })
}

/// The settings in the order in which a seed runs them.
fn rotated(shares: &[f64], by: usize) -> Vec<f64> {
    let mut order = shares.to_vec();
    order.rotate_left(by % shares.len());
    order
}

fn bucket(set: DataSet) -> Result<Bucket> {
    let config = BucketConfig { source: Source::Generated(set), threads: 1, ..BucketConfig::default() };
    embedded::start(config)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_seed_begins_with_another_setting() {
        let shares = [1.0, 0.12, 0.05, 0.0];
        assert_eq!(rotated(&shares, 0), shares);
        assert_eq!(rotated(&shares, 1), [0.12, 0.05, 0.0, 1.0]);
        assert_eq!(rotated(&shares, 5), rotated(&shares, 1));
    }
}
