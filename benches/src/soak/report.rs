//! The result of a soak, and its verdict: criteria with their numbers, and the test for flat memory.

use std::collections::BTreeMap;

use fuelrail::{Config, Stats};
use serde::{Deserialize, Serialize};

use super::Gauge;
use crate::harness::Spread;
use fuelrail_cli::machine::Machine;

#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Moment {
    /// Time since the start, s.
    pub at_s: f64,
    /// Whether the loader has been open long enough to have touched its memory.
    pub settled: bool,
    pub gauge: Gauge,
    /// Slots in use, including cache and scratch memory of connections.
    pub slots: u64,
    pub operations: u64,
    pub leases: u64,
    pub samples: u64,
    pub gb: f64,
    pub retries: u64,
    pub reopened: u64,
    pub phase: String,
    pub faults: BTreeMap<String, u64>,
}

#[derive(Clone, PartialEq, Default, Debug, Serialize, Deserialize)]
pub struct Totals {
    /// Samples that the consumer recorded, and those that the last loader's state counts.
    pub samples: u64,
    pub expected: u64,
    pub bytes: u64,
    pub epochs: u64,
    /// Errors in delivery: out of order, repeated, missing, or with wrong bytes.
    pub wrong: u64,
    /// Times the loader was closed in mid-run and reopened from its state.
    pub reopened: u64,
    pub requests: u64,
    pub retries: u64,
    /// Connections that the loaders opened, and those that failed.
    pub connections: u64,
    pub connections_failed: u64,
    /// Blocks requested, those served from the cache, and those read from disk.
    pub asks: u64,
    pub hits: u64,
    #[serde(default)]
    pub disk_hits: u64,
    pub served_requests: u64,
    pub absences: u64,
    pub faults: BTreeMap<String, u64>,
    /// Operations not returned, over all closings.
    pub operations_left: u64,
    /// Slots not returned, over all closings, except those of batches held on purpose.
    pub slots_left: u64,
    pub stalls: u64,
}

impl Totals {
    pub(super) fn add(&mut self, stats: &Stats) {
        self.requests += stats.requests;
        self.retries += stats.retries;
        self.connections += stats.connections;
        self.connections_failed += stats.connections_failed;
        self.asks += stats.asks;
        self.hits += stats.hits;
        self.disk_hits += stats.disk.as_ref().map_or(0, |disk| disk.hits);
    }
}

#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct SoakReport {
    /// Version of the result's schema.
    pub schema: u32,
    pub question: String,
    pub criteria: Vec<Criterion>,
    /// The trend of memory, when there are enough points to judge it.
    pub memory: Option<Flatness>,
    /// The growth of memory outside the arena, with its interval.
    #[serde(default)]
    pub slope: Option<Slope>,
    pub totals: Totals,
    /// The gauge before the first loader and after the last.
    pub before: Gauge,
    pub after: Gauge,
    pub moments: Vec<Moment>,
    /// Number of objects in the bucket, and their total bytes.
    pub objects: u64,
    pub object_bytes: u64,
    pub seed: u64,
    /// Requested and actual duration, s.
    pub asked_s: f64,
    pub wall_s: f64,
    pub notices: Vec<String>,
    pub config: Config,
    /// The ring and the kernel features it used.
    pub ring: String,
    pub machine: Machine,
}

impl SoakReport {
    pub fn holds(&self) -> bool {
        self.criteria.iter().all(|criterion| criterion.holds != Some(false))
    }

    pub fn criterion(&self, name: &str) -> Option<&Criterion> {
        self.criteria.iter().find(|criterion| criterion.name == name)
    }
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Criterion {
    pub name: String,
    /// Whether it holds; `None` when the soak was too short to judge it.
    pub holds: Option<bool>,
    /// The finding, with numbers.
    pub text: String,
}

/// Least number of points to judge a trend.
const POINTS_MIN: usize = 20;
/// Largest allowed growth, as a share.
const GROWTH_SHARE_MAX: f64 = 0.02;

/// The trend of memory. Only growth counts: memory that shrinks does not leak.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
pub struct Flatness {
    pub points: usize,
    /// Median of the second tenth of the points, bytes.
    pub early_bytes: f64,
    /// Median of the last tenth of the points, bytes.
    pub late_bytes: f64,
    /// Slope of the least-squares line through the second half, bytes per second.
    pub slope_bytes_per_s: f64,
    /// That slope times the length of the second half, bytes.
    pub growth_bytes: f64,
    /// Limit for either growth: 2 % of the early median, and at least the tolerance.
    pub allowed_bytes: f64,
}

impl Flatness {
    /// Fits points (seconds, bytes) in order of time; `None` when there are too few.
    pub fn of(points: &[(f64, f64)], tolerance_bytes: u64) -> Option<Flatness> {
        let count = points.len();
        if count < POINTS_MIN {
            return None;
        }
        let median = |points: &[(f64, f64)]| Spread::of(points.iter().map(|point| point.1)).map(|spread| spread.median);
        let early_bytes = median(&points[count / 10..count / 5])?;
        let late_bytes = median(&points[count - count / 10..])?;
        let half = &points[count / 2..];
        let slope = Line::through(half).slope;
        Some(Flatness {
            points: count,
            early_bytes,
            late_bytes,
            slope_bytes_per_s: slope,
            growth_bytes: slope * (half[half.len() - 1].0 - half[0].0),
            allowed_bytes: (early_bytes * GROWTH_SHARE_MAX).max(tolerance_bytes as f64),
        })
    }

    pub fn holds(&self) -> bool {
        self.late_bytes - self.early_bytes <= self.allowed_bytes && self.growth_bytes <= self.allowed_bytes
    }

    pub fn text(&self) -> String {
        format!(
            "median of the second tenth {:.1} MiB, of the last tenth {:.1} MiB; the line through the second half grows by {:.1} MiB; \
             allowed {:.1} MiB each ({} points, those soon after an opening left out)",
            self.early_bytes / MIB,
            self.late_bytes / MIB,
            self.growth_bytes / MIB,
            self.allowed_bytes / MIB,
            self.points
        )
    }
}

/// Limit for the width of the slope's 95 % interval, beyond which it is not judged, and for its upper end, bytes per hour.
const SLOPE_BYTES_PER_H_MAX: f64 = 8.0 * MIB;
const MIB: f64 = (1u64 << 20) as f64;

/// Growth of anonymous memory outside the arena: the least-squares line after the first tenth, with its 95 % interval.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
pub struct Slope {
    pub bytes_per_h: f64,
    pub low_bytes_per_h: f64,
    pub high_bytes_per_h: f64,
}

impl Slope {
    /// Fits points (seconds, bytes) in order of time; `None` when there are too few.
    ///
    /// Adjacent points have correlated errors (memory drifts and returns), so a plain fit's error is too small. It is widened by
    /// `sqrt((1 + r) / (1 - r))` for the residuals' correlation `r` between adjacent points, as for a first-order process.
    pub fn of(points: &[(f64, f64)]) -> Option<Slope> {
        let points = &points[points.len() / 10..];
        if points.len() < POINTS_MIN {
            return None;
        }
        let count = points.len() as f64;
        let Line { slope, mean_x, mean_y, spread_x } = Line::through(points);
        let left: Vec<f64> = points.iter().map(|(x, y)| y - mean_y - slope * (x - mean_x)).collect();
        let squares: f64 = left.iter().map(|r| r * r).sum();
        let along: f64 = left.windows(2).map(|pair| pair[0] * pair[1]).sum();
        let r = if squares > 0.0 { (along / squares).clamp(0.0, 0.99) } else { 0.0 };
        let error = (squares / (count - 2.0) / spread_x).sqrt() * ((1.0 + r) / (1.0 - r)).sqrt();
        // Student's factor for this many independent points, within 1 % from 4 points on.
        let independent = (count * (1.0 - r) / (1.0 + r) - 2.0).max(1.0);
        let reach = (1.96 + 2.4 / independent + 2.8 / (independent * independent)) * error;
        let [low, at, high] = [slope - reach, slope, slope + reach].map(|per_s| per_s * 3600.0);
        Some(Slope { bytes_per_h: at, low_bytes_per_h: low, high_bytes_per_h: high })
    }

    pub fn is_known(&self) -> bool {
        self.high_bytes_per_h - self.low_bytes_per_h < SLOPE_BYTES_PER_H_MAX
    }

    /// Whether memory stays flat; `None` while the interval is too wide to tell.
    pub fn holds(&self) -> Option<bool> {
        self.is_known().then_some(self.high_bytes_per_h <= SLOPE_BYTES_PER_H_MAX)
    }

    pub fn text(&self) -> String {
        let [at, low, high] = [self.bytes_per_h, self.low_bytes_per_h, self.high_bytes_per_h].map(|bytes| bytes / MIB);
        let too_wide = "; not judged: an interval of 8 MiB/h or more tells nothing, soak longer";
        let note = if self.is_known() { "" } else { too_wide };
        format!(
            "anonymous memory outside the arena grows by {at:.1} MiB/h, 95 % interval {low:.1} to {high:.1}, \
             allowed {:.0}{note}",
            SLOPE_BYTES_PER_H_MAX / MIB
        )
    }
}

struct Line {
    /// Zero when all points have the same time.
    slope: f64,
    mean_x: f64,
    mean_y: f64,
    /// Sum of the squared distances from `mean_x`.
    spread_x: f64,
}

impl Line {
    fn through(points: &[(f64, f64)]) -> Line {
        let count = points.len() as f64;
        let mean = |of: fn(&(f64, f64)) -> f64| points.iter().map(of).sum::<f64>() / count;
        let (mean_x, mean_y) = (mean(|point| point.0), mean(|point| point.1));
        let (above, spread_x) = points.iter().fold((0.0, 0.0), |(above, below), (x, y)| {
            (above + (x - mean_x) * (y - mean_y), below + (x - mean_x) * (x - mean_x))
        });
        let slope = if spread_x > 0.0 { above / spread_x } else { 0.0 };
        Line { slope, mean_x, mean_y, spread_x }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use fuelrail_base::prng::Prng;

    const TOLERANCE: u64 = 16 << 20;

    fn run(points: usize, at: impl Fn(f64) -> f64) -> Flatness {
        let points: Vec<(f64, f64)> = (0..points).map(|n| n as f64 * 5.0).map(|s| (s, at(s) * MIB)).collect();
        Flatness::of(&points, TOLERANCE).unwrap()
    }

    #[test]
    fn what_stays_or_swings_or_shrinks_is_flat() {
        let level = run(360, |_| 400.0);
        assert!(level.holds() && level.slope_bytes_per_s == 0.0, "{level:?}");
        assert!((level.early_bytes, level.late_bytes) == (400.0 * MIB, 400.0 * MIB));
        // A swing of 10 MiB, and a start that fills up within the first tenth.
        assert!(run(360, |s| 400.0 + 10.0 * (s / 7.0).sin()).holds());
        assert!(run(360, |s| 400.0 * (s / 100.0).min(1.0)).holds());
        assert!(run(360, |s| 400.0 - s / 20.0).holds());
    }

    #[test]
    fn a_leak_is_found_early_or_late_fast_or_slow() {
        // 1 MiB a minute, where 16 MiB in all are allowed: from the start.
        assert!(!run(360, |s| 400.0 + s / 60.0).holds());
        // Only in the second half: the line sees it as well.
        let late = run(360, |s| 400.0 + (s - 900.0).max(0.0) / 30.0);
        assert!(!late.holds() && late.growth_bytes > late.allowed_bytes, "{late:?}");
        // One step in the middle is a leak, too, although both halves are level.
        let step = run(360, |s| if s < 700.0 { 400.0 } else { 440.0 });
        assert!(!step.holds() && step.growth_bytes.abs() < 1.0, "{step:?}");
        // Within the tolerance it cannot be told from noise.
        assert!(run(360, |s| 400.0 + s / 300.0).holds());
    }

    /// An hour of points 5 s apart, with noise of ±`noise` MiB whose correlation with the point before is `lean`.
    fn hour(per_h: f64, noise: f64, lean: f64, seed: u64) -> Slope {
        let mut prng = Prng::new(seed);
        let mut before = 0.0;
        let points: Vec<(f64, f64)> = (0..720)
            .map(|n| {
                before = before * lean + (prng.unit() * 2.0 - 1.0) * noise * (1.0 - lean * lean).sqrt();
                let s = f64::from(n) * 5.0;
                (s, (400.0 + per_h * s / 3600.0 + before) * MIB)
            })
            .collect();
        Slope::of(&points).unwrap()
    }

    #[test]
    fn a_slope_is_judged_when_its_interval_is_narrow() {
        assert_eq!(hour(0.0, 1.0, 0.0, 1).holds(), Some(true));
        assert_eq!(hour(12.0, 1.0, 0.0, 1).holds(), Some(false));
        // Ten minutes of noise cannot distinguish 8 MiB an hour from zero.
        assert_eq!(hour(0.0, 60.0, 0.0, 1).holds(), None);
    }

    #[test]
    fn nineteen_of_twenty_intervals_hold_the_slope_also_when_noise_drifts() {
        for lean in [0.0, 0.5, 0.9] {
            let held = (0..400).map(|seed| hour(3.0, 2.0, lean, seed));
            let held = held.filter(|s| (s.low_bytes_per_h..s.high_bytes_per_h).contains(&(3.0 * MIB))).count();
            assert!((360..=396).contains(&held), "{held} of 400 at {lean}");
        }
    }

    #[test]
    fn a_line_has_its_slope() {
        let line: Vec<(f64, f64)> = [(0.0, 1.0), (1.0, 3.0), (2.0, 5.0), (4.0, 9.0)].to_vec();
        assert!((Line::through(&line).slope - 2.0).abs() < 1e-12);
        assert_eq!(Line::through(&[(1.0, 4.0), (1.0, 9.0)]).slope, 0.0);
        assert_eq!(Flatness::of(&line, 0), None, "four points are no trend");
    }

    #[test]
    fn large_memory_is_allowed_its_share() {
        let large = run(100, |_| 2000.0);
        assert!((large.allowed_bytes / MIB - 40.0).abs() < 1e-9, "{large:?}");
    }
}
