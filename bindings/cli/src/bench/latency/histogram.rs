//! Latencies as HDR histograms: three significant digits from 1 µs to an hour, no value lost; as `.hgrm` text for the
//! field's plotters and as JSON for ours.
//!
//! Owns the two formats. Never measures.

use core::fmt::Write;
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// A histogram of latencies, kept in nanoseconds.
#[derive(Clone, Debug)]
pub struct Latencies {
    inner: hdrhistogram::Histogram<u64>,
    /// The largest recorded, exactly: the histogram knows it to three digits only.
    most_ns: u64,
}

const LOWEST_NS: u64 = 1_000;
const HIGHEST_NS: u64 = 3_600_000_000_000;
/// Steps of the percentile output between one halving of the rest and the next, as HdrHistogram's own tools have it.
const TICKS_PER_HALVING: u32 = 5;
const NS_PER_US: f64 = 1e3;

impl Default for Latencies {
    fn default() -> Latencies {
        let inner =
            hdrhistogram::Histogram::new_with_bounds(LOWEST_NS, HIGHEST_NS, 3).expect("constant bounds are valid");
        Latencies { inner, most_ns: 0 }
    }
}

impl Latencies {
    /// Adds one latency; below a microsecond it counts as one, beyond an hour as an hour.
    pub fn record(&mut self, latency: Duration) {
        let ns = u64::try_from(latency.as_nanos()).unwrap_or(HIGHEST_NS);
        let ns = ns.clamp(LOWEST_NS, HIGHEST_NS);
        self.inner.saturating_record(ns);
        self.most_ns = self.most_ns.max(ns);
    }

    /// Adds all of `other`.
    pub fn merge(&mut self, other: &Latencies) {
        self.inner.add(&other.inner).expect("all histograms here share their bounds");
        self.most_ns = self.most_ns.max(other.most_ns);
    }

    /// How many were recorded.
    pub fn count(&self) -> u64 {
        self.inner.len()
    }

    /// The figures and the curve.
    pub fn summary(&self) -> LatencySummary {
        let at = |quantile: f64| self.us(self.inner.value_at_quantile(quantile));
        LatencySummary {
            count: self.count(),
            mean_us: self.inner.mean() / NS_PER_US,
            p50_us: at(0.5),
            p90_us: at(0.9),
            p99_us: at(0.99),
            p999_us: at(0.999),
            max_us: self.us(self.most_ns),
            curve: self.curve().map(|(quantile, us, _)| (quantile, us)).collect(),
        }
    }

    /// The percentile distribution in HdrHistogram's text format, values in microseconds.
    pub fn hgrm(&self) -> String {
        let mut text =
            format!("{:>12} {:>14} {:>10} {:>14}\n\n", "Value", "Percentile", "TotalCount", "1/(1-Percentile)");
        // Writing to a String cannot fail, here and below.
        for (quantile, us, count) in self.curve() {
            let _ = write!(text, "{us:12.3} {quantile:2.12} {count:10}");
            let _ = if quantile < 1.0 { writeln!(text, " {:14.2}", 1.0 / (1.0 - quantile)) } else { writeln!(text) };
        }
        let (mean, deviation) = (self.inner.mean() / NS_PER_US, self.inner.stdev() / NS_PER_US);
        let _ = writeln!(text, "#[Mean    = {mean:12.3}, StdDeviation   = {deviation:12.3}]");
        let _ = writeln!(text, "#[Max     = {:12.3}, Total count    = {:12}]", self.us(self.most_ns), self.count());
        let _ = writeln!(text, "#[Buckets = {:12}, SubBuckets     = {:12}]", self.inner.buckets(), SUB_BUCKETS);
        text
    }

    /// Quantile, value in µs, and how many values are at most that; each quantile once.
    fn curve(&self) -> impl Iterator<Item = (f64, f64, u64)> {
        let mut below = 0;
        self.inner.iter_quantiles(TICKS_PER_HALVING).map(move |step| {
            below += step.count_since_last_iteration();
            (step.quantile_iterated_to(), self.us(step.value_iterated_to()), below)
        })
    }

    fn us(&self, ns: u64) -> f64 {
        // A counter stands for the highest of the values that share it; nothing was larger than the largest recorded.
        ns.min(self.most_ns) as f64 / NS_PER_US
    }
}

/// Counters per bucket for three significant digits.
const SUB_BUCKETS: u32 = 2048;

/// A histogram in a few figures and a curve; times in microseconds.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LatencySummary {
    /// How many.
    pub count: u64,
    /// Mean.
    pub mean_us: f64,
    /// Median.
    pub p50_us: f64,
    /// 90th percentile.
    pub p90_us: f64,
    /// 99th percentile.
    pub p99_us: f64,
    /// 99.9th percentile.
    pub p999_us: f64,
    /// Largest.
    pub max_us: f64,
    /// Value over quantile, from HdrHistogram's percentile steps.
    pub curve: Vec<(f64, f64)>,
}

/// One latency run in a result.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LatencyResult {
    /// What was asked for: `GET 128.0 KiB`.
    pub name: String,
    /// How: `closed loop, 8 connections`, `open loop, 1000/s poisson, 8 connections`.
    pub load: String,
    /// Requests a second that were meant; none in a closed loop.
    pub intended_per_s: Option<f64>,
    /// Requests a second that were answered.
    pub achieved_per_s: f64,
    /// Requests before the measured ones.
    pub warm_up: u64,
    /// From the moment a request was meant to be sent to its last byte. In a closed loop that is when it was sent.
    pub response: LatencySummary,
    /// From the moment it was sent: what a load generator sees that waits for slow answers and calls it their speed.
    pub service: LatencySummary,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_text_is_what_plotters_read() {
        let mut latencies = Latencies::default();
        (1..=1000).for_each(|us| latencies.record(Duration::from_micros(us)));
        let text = latencies.hgrm();
        let rows: Vec<Vec<f64>> = text
            .lines()
            .skip(2)
            .take_while(|line| !line.starts_with('#'))
            .map(|line| line.split_whitespace().map(|word| word.parse().unwrap()).collect())
            .collect();
        assert!(text.starts_with("       Value     Percentile TotalCount 1/(1-Percentile)\n\n"), "{text}");
        assert!(rows.windows(2).all(|pair| pair[0][0] <= pair[1][0] && pair[0][1] <= pair[1][1]), "{text}");
        let last = rows.last().unwrap();
        assert_eq!((last[0], last[1], last[2], last.len()), (1000.0, 1.0, 1000.0, 3));
        let half = rows.iter().find(|row| row[1] == 0.5).unwrap();
        assert!((half[0] - 500.0).abs() < 1.0 && (half[2] - 500.0).abs() < 2.0 && half[3] == 2.0, "{half:?}");
        assert!(text.contains("#[Max     =     1000.000, Total count    =         1000]"), "{text}");
    }

    #[test]
    fn figures_and_limits() {
        let mut latencies = Latencies::default();
        assert_eq!((latencies.summary().count, latencies.summary().max_us), (0, 0.0));
        latencies.record(Duration::ZERO);
        latencies.record(Duration::from_secs(86_400));
        let mut other = Latencies::default();
        other.record(Duration::from_millis(2));
        latencies.merge(&other);
        let summary = latencies.summary();
        assert_eq!((summary.count, summary.max_us), (3, 3_600_000_000.0));
        assert!((summary.p50_us - 2_000.0).abs() <= 2.0 && summary.curve.last().unwrap().0 == 1.0, "{summary:?}");
        let back: LatencySummary = serde_json::from_str(&serde_json::to_string(&summary).unwrap()).unwrap();
        assert_eq!(back, summary);
    }
}
