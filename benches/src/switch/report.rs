//! The shape of a result of `bench switch`, and how runs become rows: means over seeds, ratios within a seed.
//!
//! Owns the shape and the arithmetic. Never measures.

use serde::{Deserialize, Serialize};

use super::options::Switching;
use fuelrail_cli::machine::Machine;

/// Version of the result's shape.
pub(super) const SCHEMA: u32 = 1;

/// What the authors of Sync-Switch report (ICDCS 2021): 8 K80, switched after 5 %. Shown beside our numbers, never an input to them.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Published {
    /// Share of the work that was synchronous.
    pub share: f64,
    /// Speed over that of the synchronous run.
    pub speed: f64,
    /// The same with the restart that its switch is.
    pub speed_with_restart: f64,
    /// Accuracy after the switch.
    pub accuracy: f64,
    /// Accuracy of the synchronous run.
    pub accuracy_synchronous: f64,
    /// What its switch takes: the job is started again.
    pub switch_s: f64,
}

/// The published figures.
pub const PUBLISHED: Published = Published {
    share: 0.05,
    speed: 5.1,
    speed_with_restart: 4.7,
    accuracy: 0.917,
    accuracy_synchronous: 0.920,
    switch_s: 187.0,
};

/// Loss over time.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Curve {
    /// Time of training at the end of each stretch of rank 0's steps, s.
    pub at_s: Vec<f64>,
    /// Mean training loss of the stretch.
    pub loss: Vec<f64>,
}

/// One run of all ranks.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Run {
    /// Seed of weights and order.
    pub seed: u32,
    /// Which run of the seed it was, from 0.
    pub place: u32,
    /// Share of the work after which training goes asynchronous.
    pub share: f64,
    /// From the first step to the last, of the rank that took longest, the switch included, s.
    pub train_s: f64,
    /// From the start of the processes to the end of the last, with the test at the end, s.
    pub total_s: f64,
    /// Share of the test samples that were named rightly.
    pub accuracy: f64,
    /// Mean loss on the test samples; absent when it is no number.
    pub test_loss: Option<f64>,
    /// Samples trained on by all ranks.
    pub samples: u64,
    /// Steps of each rank.
    pub steps: Vec<u64>,
    /// What the switch took, s; absent when there was none.
    pub switch_s: Option<f64>,
    /// Gradients thrown away because too many updates had come before them.
    pub stale: u64,
    /// Time rank 0 spent waiting for samples, s.
    pub data_wait_s: f64,
    /// Others on this machine: its load over the last minute, before the run; absent where the kernel does not say.
    pub load: Option<f64>,
    /// Loss over time.
    pub curve: Curve,
}

/// Mean, least and most over the seeds.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Figure {
    /// The mean.
    pub mean: f64,
    /// The least.
    pub min: f64,
    /// The most.
    pub max: f64,
}

impl Figure {
    /// Of these values; none when there are none.
    #[must_use]
    pub fn of(values: impl IntoIterator<Item = f64>) -> Option<Figure> {
        let values: Vec<f64> = values.into_iter().collect();
        let count = values.len();
        (count > 0).then(|| Figure {
            mean: values.iter().sum::<f64>() / count as f64,
            min: values.iter().copied().fold(f64::INFINITY, f64::min),
            max: values.iter().copied().fold(f64::NEG_INFINITY, f64::max),
        })
    }

    /// The mean, and in brackets the least and the most, each put into words.
    #[must_use]
    pub fn range(&self, words: impl Fn(f64) -> String) -> String {
        format!("{} ({} to {})", words(self.mean), words(self.min), words(self.max))
    }
}

/// One setting over all seeds.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Row {
    /// Share of the work after which training goes asynchronous.
    pub share: f64,
    /// Time of training, s.
    pub train_s: Figure,
    /// With the start of the processes and the test, s.
    pub total_s: Figure,
    /// Accuracy on the test samples.
    pub accuracy: Figure,
    /// Time of the synchronous run over the time of this one, seed by seed.
    pub speed: Figure,
    /// What that would be if steps took nothing but work and the slow rank's delay.
    pub speed_expected: f64,
    /// Accuracy less that of the synchronous run, seed by seed.
    pub accuracy_difference: Figure,
    /// What the switch took, s; absent where there was none.
    pub switch_s: Option<Figure>,
    /// Gradients thrown away, in all runs together.
    pub stale: u64,
}

/// The whole result.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SwitchReport {
    /// Version of this shape.
    pub schema: u32,
    /// Ranks, each a process.
    pub ranks: u32,
    /// The last rank took so many times as long for its work.
    pub slow: f64,
    /// Seeds.
    pub seeds: u32,
    /// Epochs.
    pub epochs: u64,
    /// Training samples.
    pub count: u64,
    /// Test samples.
    pub test_count: u64,
    /// Samples per batch and rank.
    pub batch_size: u32,
    /// Learning rate for the batch of all ranks together.
    pub rate: f64,
    /// A row for each setting.
    pub rows: Vec<Row>,
    /// Every run, in order.
    pub runs: Vec<Run>,
    /// What the authors report.
    pub published: Published,
    /// The trainer's torch.
    pub torch: String,
    /// What it trained on.
    pub device: String,
    /// The whole measurement, s.
    pub wall_s: f64,
    /// Where it was measured.
    pub machine: Machine,
}

/// A setting in words.
#[must_use]
pub fn setting_name(share: f64) -> String {
    match share {
        share if share >= 1.0 => "synchronous".to_owned(),
        share if share <= 0.0 => "asynchronous".to_owned(),
        share => format!("switched at {} %", (share * 1e4).round() / 1e2),
    }
}

/// A row for each setting that ran.
pub(super) fn rows(switching: &Switching, runs: &[Run]) -> Vec<Row> {
    switching.shares.iter().filter_map(|share| row(switching, *share, runs)).collect()
}

fn row(switching: &Switching, share: f64, runs: &[Run]) -> Option<Row> {
    let of = |share: f64| runs.iter().filter(move |run| run.share == share);
    let figure = |what: fn(&Run) -> f64| Figure::of(of(share).map(what));
    // Every run beside the synchronous one of its seed.
    let pairs = || of(share).filter_map(|run| Some((run, of(1.0).find(|other| other.seed == run.seed)?)));
    Some(Row {
        share,
        train_s: figure(|run| run.train_s)?,
        total_s: figure(|run| run.total_s)?,
        accuracy: figure(|run| run.accuracy)?,
        speed: Figure::of(pairs().map(|(run, synchronous)| synchronous.train_s / run.train_s.max(f64::MIN_POSITIVE)))?,
        speed_expected: speed_expected(switching.ranks, switching.slow, share),
        accuracy_difference: Figure::of(pairs().map(|(run, synchronous)| run.accuracy - synchronous.accuracy))?,
        switch_s: Figure::of(of(share).filter_map(|run| run.switch_s)),
        stale: of(share).map(|run| run.stale).sum(),
    })
}

/// In lockstep all ranks go as the slow one does; each for itself, all but one go at full speed.
fn speed_expected(ranks: u32, slow: f64, share: f64) -> f64 {
    let ranks = f64::from(ranks);
    let asynchronous = (ranks - 1.0 + 1.0 / slow) / (ranks / slow);
    1.0 / (share + (1.0 - share) / asynchronous)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(seed: u32, share: f64, train_s: f64, accuracy: f64) -> Run {
        Run {
            seed,
            place: 0,
            share,
            train_s,
            total_s: train_s + 1.0,
            accuracy,
            test_loss: None,
            samples: 100,
            steps: vec![1, 1],
            switch_s: (share < 1.0).then_some(0.002),
            stale: 2,
            data_wait_s: 0.0,
            load: None,
            curve: Curve::default(),
        }
    }

    #[test]
    fn speeds_and_differences_are_taken_within_a_seed() {
        // The machine is three times slower for the second seed.
        let runs = [run(0, 1.0, 10.0, 0.99), run(0, 0.0, 4.0, 0.97), run(1, 0.0, 12.0, 0.96), run(1, 1.0, 30.0, 0.98)];
        let switching = Switching { shares: vec![1.0, 0.0, 0.5], ..Switching::default() };
        let rows = rows(&switching, &runs);
        let [synchronous, asynchronous] = &rows[..] else { panic!("what never ran has no row: {rows:?}") };
        assert_eq!((synchronous.speed.min, synchronous.speed.max, synchronous.switch_s), (1.0, 1.0, None));
        assert_eq!((asynchronous.speed.min, asynchronous.speed.max, asynchronous.stale), (2.5, 2.5, 4));
        assert!((asynchronous.accuracy_difference.mean + 0.02).abs() < 1e-12, "{asynchronous:?}");
        assert_eq!(asynchronous.train_s, Figure { mean: 8.0, min: 4.0, max: 12.0 });
    }

    #[test]
    fn the_arithmetic_of_a_slow_rank() {
        // Of 8 steps' work in lockstep 2 ranks do 2 in 4; each for itself they do 5 in 4.
        assert!((speed_expected(2, 4.0, 0.0) - 2.5).abs() < 1e-12);
        assert_eq!(speed_expected(2, 4.0, 1.0), 1.0);
        assert!((speed_expected(2, 4.0, 0.5) - 1.0 / 0.7).abs() < 1e-12);
        assert_eq!(speed_expected(3, 1.0, 0.0), 1.0);
    }

    #[test]
    fn settings_have_names() {
        let names = [1.0, 0.12, 0.05, 0.125, 0.0].map(setting_name);
        assert_eq!(names, ["synchronous", "switched at 12 %", "switched at 5 %", "switched at 12.5 %", "asynchronous"]);
    }
}
