//! What `bench switch` is asked to measure, and whether it can be.
//!
//! Owns the defaults, which are those of the committed result.

use std::path::PathBuf;
use std::time::Duration;

use fuelrail::{Error, Kind, Result};

use crate::harness::Stop;

/// The trainer's name.
pub const TRAINER: &str = "fuelrail-train";

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

#[cfg(test)]
mod tests {
    use super::*;

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
