//! What `bench importance` is asked to measure, and whether it can be.
//!
//! Owns the defaults, which are those of the committed result.

use std::path::PathBuf;
use std::time::Duration;

use fuelrail::{Error, Kind, Result};

use crate::harness::Stop;
use fuelrail_cli::train::TRAINER;

/// The settings, as the loader's configuration names them; the first is what others are compared to.
pub const IMPORTANCE_MODES: [&str; 4] = ["uniform", "shade", "shade-corrected", "on"];

/// What to measure.
#[derive(Clone, Debug)]
pub struct Weighing {
    /// The trainer's program.
    pub trainer: PathBuf,
    /// Seeds of weights and order; every setting runs once with each.
    pub seeds: u32,
    /// Epochs, each as many samples as the set has.
    pub epochs: u64,
    /// Training samples of the clean set.
    pub count: u64,
    /// Of the harder set: the second half of the classes keep this share of their samples.
    pub rare_share: f64,
    /// … and this share of its samples lies in the folder of another class.
    pub noise_share: f64,
    /// Samples that accuracy is measured on, of another seed, all classes alike, all labels right.
    pub test_count: u64,
    /// Samples per batch.
    pub batch_size: u32,
    /// Learning rate.
    pub rate: f64,
    /// RAM cache, as a share of the set.
    pub cache_share: f64,
    /// Longest time of one run.
    pub limit: Duration,
    /// Ends the measurement early.
    pub stop: Stop,
}

impl Default for Weighing {
    fn default() -> Weighing {
        Weighing {
            trainer: PathBuf::from(TRAINER),
            seeds: 5,
            epochs: 8,
            count: 2_000,
            rare_share: 0.1,
            noise_share: 0.1,
            test_count: 1_000,
            batch_size: 32,
            rate: 0.02,
            cache_share: 0.2,
            limit: Duration::from_secs(300),
            stop: Stop::default(),
        }
    }
}

impl Weighing {
    /// Whether this can be measured at all.
    ///
    /// # Errors
    /// `Usage` that names the option.
    pub fn validate(&self) -> Result<()> {
        let check = |fine: bool, cause: String, cure: &str| {
            if fine { Ok(()) } else { Err(Error::new(Kind::Usage, cause).cure(cure)) }
        };
        let share = |share: f64| share > 0.0 && share <= 1.0;
        check(self.seeds > 0, "0 seeds".into(), "give at least 1; 5 show how results scatter")?;
        let work = self.epochs > 0 && self.count >= 100 && self.test_count > 0 && self.batch_size > 0;
        check(
            work,
            "too little to train on or to judge by".into(),
            "give at least 1 epoch, 100 samples and 1 test sample",
        )?;
        check(share(self.rare_share), format!("a rare share of {}", self.rare_share), "give a share above 0, up to 1")?;
        check(
            (0.0..1.0).contains(&self.noise_share),
            format!("a share of wrong labels of {}", self.noise_share),
            "give a share from 0 to below 1",
        )?;
        check(
            share(self.cache_share),
            format!("a cache share of {}", self.cache_share),
            "give a share above 0, up to 1",
        )?;
        check(self.rate > 0.0 && self.rate.is_finite(), format!("a learning rate of {}", self.rate), "give one above 0")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_be_measured_is_refused() {
        let plain = Weighing::default();
        plain.validate().unwrap();
        let refused = [
            Weighing { seeds: 0, ..plain.clone() },
            Weighing { count: 99, ..plain.clone() },
            Weighing { rare_share: 0.0, ..plain.clone() },
            Weighing { noise_share: 1.0, ..plain.clone() },
            Weighing { cache_share: 1.5, ..plain.clone() },
            Weighing { rate: f64::NAN, ..plain },
        ];
        for weighing in refused {
            assert_eq!(weighing.validate().unwrap_err().kind(), Kind::Usage, "{weighing:?}");
        }
    }
}
