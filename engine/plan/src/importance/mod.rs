//! Importance sampling: which samples an epoch takes more than once, and which not at all.
//!
//! After SHADE (FAST 2023), put right. A trainer reports losses ([`Horizons::report`]); ranks within a step become scores
//! ([`Scores`]); every epoch is a horizon whose [`Draw`] is frozen from the scores of a stated moment: the same on every
//! rank, without any communication, and the same when a run is resumed. Owns scores and draws. Never looks at ranks,
//! batches, losses of its own, or the cache.

mod draw;
mod horizons;
mod scores;

pub use draw::{Draw, ONE, REPLAY_MAX};
pub use horizons::{Drawn, Horizons, Keepsake, Known};
pub use scores::{Scores, Smoothing};

use crate::usage;
use fuelrail_base::Result;

/// How an epoch is drawn.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Mode {
    /// Every sample once, whatever is reported: the baseline.
    Uniform,
    /// SHADE as it was released: drawn with replacement, what is cached replayed, and scores written to samples other
    /// than those they were measured on.
    Shade,
    /// SHADE as it was meant: the same, with scores kept by the samples they were measured on.
    ShadeCorrected,
    /// Ours: without needless repetition, with a floor under every sample's rate, a cap on repetition, and weights that
    /// make the mean over an epoch unbiased.
    On,
}

fuelrail_base::named!(
    Mode,
    "a mode of importance, nor is it off":
    Uniform = "uniform",
    Shade = "shade",
    ShadeCorrected = "shade-corrected",
    On = "on",
);

/// What draws are made by.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct ImportanceConfig {
    /// How.
    pub mode: Mode,
    /// Under [`Mode::On`]: the least rate of a sample, as a share of the uniform rate of once an epoch, above 0 up to 1. Each
    /// epoch then has at least this share of all samples in it, and no weight is above its inverse.
    pub coverage: f64,
    /// Under [`Mode::On`], the most often a sample comes in one epoch; under SHADE's modes, how often what is cached comes
    /// for each time it was drawn.
    pub replay: u32,
    /// Under [`Mode::On`]: whether weights other than 1 are delivered.
    pub weights: bool,
    /// For SHADE's modes: samples that the cache holds.
    pub cached_samples: u64,
}

impl Default for ImportanceConfig {
    /// Ours. A floor of a half: on average nothing stays away for longer than two epochs, and no gradient counts more than
    /// twice. Replay as SHADE released it.
    fn default() -> ImportanceConfig {
        ImportanceConfig { mode: Mode::On, coverage: 0.5, replay: 3, weights: true, cached_samples: 0 }
    }
}

impl ImportanceConfig {
    /// Checks every field.
    ///
    /// # Errors
    /// [`Kind::Usage`], with the number that does not fit.
    pub fn validate(&self) -> Result<()> {
        if !(self.coverage > 0.0 && self.coverage <= 1.0) {
            return usage(
                format!("importance_coverage_percent is {}", self.coverage * 100.0),
                "choose 1 to 100 per cent: at 0 some samples would never come and no weight could make up for it",
            );
        }
        if self.replay == 0 || self.replay > REPLAY_MAX {
            return usage(format!("importance_replay is {}", self.replay), "choose between 1 and 63 times an epoch");
        }
        Ok(())
    }
}
