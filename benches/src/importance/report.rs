//! The shape of a result of `bench importance`, and how runs become rows: means over seeds, differences within a seed.
//!
//! Owns the shape and the arithmetic. Never measures.

use serde::{Deserialize, Serialize};

use super::options::IMPORTANCE_MODES;
use crate::switch::Figure;
use fuelrail_cli::machine::Machine;

/// Version of the result's shape.
pub(super) const SCHEMA: u32 = 1;

/// How a run stood behind an epoch.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Mark {
    /// Samples trained on.
    pub samples: u64,
    /// Payload bytes read from the bucket, what was read ahead included.
    pub bytes_read: u64,
    /// Share of the test samples that were named rightly.
    pub accuracy: f64,
    /// Of what was asked for, the share that the cache had.
    pub hit_ratio: f64,
    /// Of the samples of the epochs begun, the share that was distinct.
    pub coverage: f64,
}

/// One run.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ImportanceRun {
    /// `digits` or `harder`.
    pub set: String,
    /// Seed of weights and order.
    pub seed: u32,
    /// How epochs were drawn.
    pub mode: String,
    /// From the start of the process to its end, tests included, s.
    pub total_s: f64,
    /// Epoch by epoch.
    pub marks: Vec<Mark>,
}

impl ImportanceRun {
    fn last(&self) -> Option<&Mark> {
        self.marks.last()
    }
}

/// One setting on one set, over all seeds.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ImportanceRow {
    /// The set.
    pub set: String,
    /// How epochs were drawn.
    pub mode: String,
    /// Accuracy at the end.
    pub accuracy: Figure,
    /// … less that of the uniform run, seed by seed.
    pub accuracy_difference: Figure,
    /// Accuracy half-way.
    pub accuracy_half: Figure,
    /// Bytes read over those of the uniform run, seed by seed.
    pub bytes_ratio: Figure,
    /// Hit ratio of the cache.
    pub hit_ratio: Figure,
    /// Distinct samples over places.
    pub coverage: Figure,
}

/// The whole result.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ImportanceReport {
    /// Version of this shape.
    pub schema: u32,
    /// Seeds.
    pub seeds: u32,
    /// Epochs.
    pub epochs: u64,
    /// Samples of the clean set.
    pub count: u64,
    /// Of the harder set: share of the samples that rare classes keep.
    pub rare_share: f64,
    /// … and share of wrong labels.
    pub noise_share: f64,
    /// Test samples.
    pub test_count: u64,
    /// Samples per batch.
    pub batch_size: u32,
    /// Learning rate.
    pub rate: f64,
    /// RAM cache, as a share of the set.
    pub cache_share: f64,
    /// Settings, set by set.
    pub rows: Vec<ImportanceRow>,
    /// Every run, in order.
    pub runs: Vec<ImportanceRun>,
    /// The trainer's torch.
    pub torch: String,
    /// … and its device.
    pub device: String,
    /// The whole measurement, s.
    pub wall_s: f64,
    /// Where.
    pub machine: Machine,
}

/// Rows of the settings that ran, set by set.
pub(super) fn rows(runs: &[ImportanceRun]) -> Vec<ImportanceRow> {
    let mut sets: Vec<&str> = runs.iter().map(|run| run.set.as_str()).collect();
    sets.dedup();
    sets.into_iter().flat_map(|set| IMPORTANCE_MODES.iter().filter_map(move |mode| row(runs, set, mode))).collect()
}

fn row(runs: &[ImportanceRun], set: &str, mode: &str) -> Option<ImportanceRow> {
    let of = |mode: &str| runs.iter().filter(|run| run.set == set && run.mode == mode).collect::<Vec<_>>();
    let (own, uniform) = (of(mode), of(IMPORTANCE_MODES[0]));
    let last = |what: fn(&Mark) -> f64| Figure::of(own.iter().filter_map(|run| run.last()).map(what));
    // Against the uniform run of the same seed.
    let against = |what: fn(&Mark, &Mark) -> f64| {
        let pairs = own.iter().filter_map(|run| {
            let plain = uniform.iter().find(|plain| plain.seed == run.seed)?;
            Some(what(run.last()?, plain.last()?))
        });
        Figure::of(pairs)
    };
    Some(ImportanceRow {
        set: set.to_owned(),
        mode: mode.to_owned(),
        accuracy: last(|mark| mark.accuracy)?,
        accuracy_difference: against(|own, plain| own.accuracy - plain.accuracy)?,
        accuracy_half: Figure::of(own.iter().filter_map(|run| run.marks.get(run.marks.len() / 2)).map(|m| m.accuracy))?,
        bytes_ratio: against(|own, plain| own.bytes_read as f64 / plain.bytes_read.max(1) as f64)?,
        hit_ratio: last(|mark| mark.hit_ratio)?,
        coverage: last(|mark| mark.coverage)?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn differences_are_taken_within_a_seed() {
        let run = |set: &str, seed, mode: &str, accuracy: f64, bytes_read| ImportanceRun {
            set: set.into(),
            seed,
            mode: mode.into(),
            total_s: 1.0,
            marks: [0.5, accuracy]
                .map(|accuracy| Mark { samples: 10, bytes_read, accuracy, hit_ratio: 0.2, coverage: 0.9 })
                .to_vec(),
        };
        let runs = [
            run("digits", 0, "uniform", 0.80, 100),
            run("digits", 0, "on", 0.82, 90),
            run("digits", 1, "on", 0.99, 95),
            run("digits", 1, "uniform", 0.98, 100),
            run("harder", 0, "uniform", 0.5, 70),
        ];
        let rows = rows(&runs);
        let names: Vec<(&str, &str)> = rows.iter().map(|row| (row.set.as_str(), row.mode.as_str())).collect();
        assert_eq!(names, [("digits", "uniform"), ("digits", "on"), ("harder", "uniform")]);
        let on = &rows[1];
        assert!((on.accuracy_difference.min - 0.01).abs() < 1e-9 && (on.accuracy_difference.max - 0.02).abs() < 1e-9);
        assert!((on.bytes_ratio.mean - 0.925).abs() < 1e-9);
        assert_eq!(rows[0].accuracy_difference, Figure { mean: 0.0, min: 0.0, max: 0.0 });
    }
}
