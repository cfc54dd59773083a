//! Sync-Switch measured: a small model trained from a bucket by several ranks, one of them slow, in lockstep all the way, asynchronously all
//! the way, and switched from the one to the other after a small share of the work. The question behind `fuelrail bench switch`.
//!
//! The trainer is a program of its own (`fuelrail-train`), for it needs libtorch and nothing here does. Settings take turns within a seed, and
//! each seed begins with another one, so that a machine that slows down slows all of them. Ratios are taken within a seed.
//!
//! Owns the bucket and the order of runs. Never trains and never prints.

mod log;
mod ranks;
mod report;
mod trainer;

pub use report::{Curve, Figure, PUBLISHED, Published, Row, Run, SwitchReport, setting_name};
pub use trainer::{TRAINER, find_trainer};

use std::path::PathBuf;
use std::time::{Duration, Instant};

use fuelrail::{Error, Kind, Result};
use fuelrail_bucket::{Bucket, BucketConfig, DataSet, Source};

use crate::harness::Stop;
use crate::machine::Machine;
use report::rows;

/// What to measure.
#[derive(Clone, Debug)]
pub struct Switching {
    /// The trainer's program.
    pub trainer: PathBuf,
    /// Ranks, each a process.
    pub ranks: u32,
    /// The last rank takes so many times as long for its work.
    pub slow: f64,
    /// Seeds of weights and order; every setting runs once with each.
    pub seeds: u32,
    /// Shares of the work after which training goes asynchronous: 1 never, 0 at once. Speeds are compared to the first one that is 1.
    pub shares: Vec<f64>,
    /// Epochs of the training set that make up the work.
    pub epochs: u64,
    /// Training samples.
    pub count: u64,
    /// Samples that accuracy is measured on; of another seed, so that no rank has seen them.
    pub test_count: u64,
    /// Samples per batch and rank.
    pub batch_size: u32,
    /// Learning rate for the batch of all ranks together.
    pub rate: f64,
    /// Longest time of one run.
    pub limit: Duration,
    /// Ends the measurement early.
    pub stop: Stop,
}

impl Default for Switching {
    /// The published shares on two ranks, the second four times slower.
    fn default() -> Switching {
        Switching {
            trainer: PathBuf::from(TRAINER),
            ranks: 2,
            slow: 4.0,
            seeds: 3,
            shares: vec![1.0, 0.12, 0.05, 0.0],
            epochs: 48,
            count: 500,
            test_count: 4_000,
            batch_size: 64,
            rate: 0.05,
            limit: Duration::from_secs(300),
            stop: Stop::default(),
        }
    }
}

impl Switching {
    /// Whether this can be measured at all.
    ///
    /// # Errors
    /// `Usage` that names the option.
    pub fn validate(&self) -> Result<()> {
        let check = |fine: bool, cause: String, cure: &str| {
            if fine { Ok(()) } else { Err(Error::new(Kind::Usage, cause).cure(cure)) }
        };
        check(self.ranks >= 2, format!("{} rank(s) have nobody to wait for", self.ranks), "give at least 2")?;
        check(
            self.slow >= 1.0 && self.slow.is_finite(),
            format!("a slow rank of {} times", self.slow),
            "give 1 or more",
        )?;
        check(self.seeds > 0, "0 seeds".into(), "give at least 1; 3 show how results scatter")?;
        let shares = !self.shares.is_empty() && self.shares.iter().all(|share| (0.0..=1.0).contains(share));
        check(shares, format!("shares of the work {:?}", self.shares), "give shares from 0 to 1")?;
        check(
            self.shares.contains(&1.0),
            "no run stays synchronous".into(),
            "let 1 be among the shares: speeds are compared to it",
        )?;
        let work = self.epochs > 0 && self.count > 0 && self.test_count > 0 && self.batch_size > 0;
        check(work, "no samples to train on or to judge by".into(), "give at least 1 epoch, sample and test sample")?;
        check(self.rate > 0.0 && self.rate.is_finite(), format!("a learning rate of {}", self.rate), "give one above 0")
    }
}

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
    Bucket::start(config).map_err(|error| Error::new(Kind::Environment, format!("the embedded bucket: {error}")))
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

    #[test]
    fn what_cannot_be_measured_is_refused() {
        let plain = Switching::default();
        plain.validate().unwrap();
        let refused = [
            Switching { ranks: 1, ..plain.clone() },
            Switching { slow: 0.5, ..plain.clone() },
            Switching { seeds: 0, ..plain.clone() },
            Switching { shares: vec![0.5], ..plain.clone() },
            Switching { shares: vec![1.0, 1.5], ..plain.clone() },
            Switching { count: 0, ..plain.clone() },
            Switching { rate: 0.0, ..plain },
        ];
        for switching in refused {
            assert_eq!(switching.validate().unwrap_err().kind(), Kind::Usage, "{switching:?}");
        }
    }
}
