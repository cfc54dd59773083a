//! What the trainer leaves behind: its outcome as one JSON document, and a line of JSON for every step of every rank.
//!
//! Owns the reading of both. Fields that are not needed here may be anything.

use std::path::Path;

use fuelrail::{Error, Kind, Result};
use serde::Deserialize;

use super::report::Curve;

/// The outcome that rank 0 writes.
#[derive(Clone, PartialEq, Debug, Deserialize)]
pub(super) struct Outcome {
    pub outcome: Work,
    pub score: Option<Score>,
    pub device: String,
    pub torch: String,
}

#[derive(Clone, PartialEq, Debug, Deserialize)]
pub(super) struct Work {
    pub samples: u64,
    pub switch_s: Option<f64>,
    pub stale: u64,
    pub meter: Meter,
}

#[derive(Clone, PartialEq, Debug, Deserialize)]
pub(super) struct Meter {
    pub data_wait_s: f64,
}

#[derive(Clone, PartialEq, Debug, Deserialize)]
pub(super) struct Score {
    /// Infinite and not-a-number are written as null.
    pub loss: Option<f64>,
    pub accuracy: f64,
}

/// One step of one rank.
#[derive(Clone, PartialEq, Debug, Deserialize)]
pub(super) struct Step {
    pub loss: Option<f64>,
    pub wall_ms: f64,
}

/// The outcome in a file.
pub(super) fn outcome(path: &Path) -> Result<Outcome> {
    serde_json::from_str(&text(path)?).map_err(|error| strange(path, &error))
}

/// The steps in a log.
pub(super) fn steps(path: &Path) -> Result<Vec<Step>> {
    let text = text(path)?;
    text.lines().map(|line| serde_json::from_str(line).map_err(|error| strange(path, &error))).collect()
}

/// Time of the steps together, s.
pub(super) fn time_s(steps: &[Step]) -> f64 {
    steps.iter().map(|step| step.wall_ms).sum::<f64>() / 1e3
}

/// Points of a curve: enough for a chart.
const POINTS_MAX: usize = 60;

/// Loss over time, in stretches of as many steps. A stretch whose loss is no number ends the curve: what comes after is not training.
pub(super) fn curve(steps: &[Step]) -> Curve {
    let mut curve = Curve::default();
    let mut at_s = 0.0;
    for stretch in steps.chunks(steps.len().div_ceil(POINTS_MAX).max(1)) {
        at_s += time_s(stretch);
        let Some(sum) = stretch.iter().map(|step| step.loss).sum::<Option<f64>>() else { break };
        curve.at_s.push(rounded(at_s));
        curve.loss.push(rounded(sum / stretch.len() as f64));
    }
    curve
}

/// Four significant places: a chart shows no more, and results are kept.
fn rounded(value: f64) -> f64 {
    if value == 0.0 || !value.is_finite() {
        return value;
    }
    let scale = 10f64.powi(3 - value.abs().log10().floor() as i32);
    (value * scale).round() / scale
}

fn text(path: &Path) -> Result<String> {
    std::fs::read_to_string(path).map_err(|error| {
        let name = path.file_name().unwrap_or_default().display();
        Error::new(Kind::Environment, format!("the trainer left no {name}: {error}"))
    })
}

fn strange(path: &Path, error: &serde_json::Error) -> Error {
    let name = path.file_name().unwrap_or_default().display();
    Error::new(Kind::Environment, format!("the trainer's {name} is not as expected: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn steps(losses: &[Option<f64>]) -> Vec<Step> {
        losses.iter().map(|loss| Step { loss: *loss, wall_ms: 10.0 }).collect()
    }

    #[test]
    fn a_curve_has_few_points_and_ends_where_the_loss_does() {
        let long = curve(&steps(&[Some(2.0); 1_000]));
        assert!(long.at_s.len() <= POINTS_MAX && long.loss.iter().all(|loss| *loss == 2.0), "{long:?}");
        assert_eq!(long.at_s.last(), Some(&10.0));
        let broken = curve(&steps(&[Some(1.0), Some(3.0), None, Some(1.0)]));
        assert_eq!(broken, Curve { at_s: vec![0.01, 0.02], loss: vec![1.0, 3.0] });
        assert_eq!(curve(&[]), Curve::default());
    }

    #[test]
    fn places_that_a_chart_shows() {
        assert_eq!([0.123_456, 12.345_6, 123_456.0, 0.0].map(rounded), [0.123_5, 12.35, 123_500.0, 0.0]);
    }
}
