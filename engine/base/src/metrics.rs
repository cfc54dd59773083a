//! Latency histograms (HDR, three significant digits) and their summary.

use crate::time::Duration;

/// A latency histogram in microseconds, from 1 µs to one hour. Values outside are clamped, never lost.
#[derive(Clone, Debug)]
pub struct Histogram {
    inner: hdrhistogram::Histogram<u64>,
    sum_us: u64,
}

const HIGHEST_US: u64 = 3_600_000_000;

impl Default for Histogram {
    fn default() -> Histogram {
        Histogram::new()
    }
}

impl Histogram {
    /// An empty histogram. All memory is allocated here.
    #[must_use]
    pub fn new() -> Histogram {
        let inner = hdrhistogram::Histogram::new_with_bounds(1, HIGHEST_US, 3)
            .expect("constant bounds are valid: low 1, high 3.6e9, 3 digits");
        Histogram { inner, sum_us: 0 }
    }

    /// Records one duration, rounded down to microseconds (zero counts as zero).
    pub fn record(&mut self, value: Duration) {
        let micros = u64::try_from(value.as_micros()).unwrap_or(HIGHEST_US).min(HIGHEST_US);
        self.inner.saturating_record(micros);
        self.sum_us += micros;
    }

    /// Adds all of `other`.
    pub fn merge(&mut self, other: &Histogram) {
        self.inner.add(&other.inner).expect("all histograms here share their bounds");
        self.sum_us += other.sum_us;
    }

    /// Number of values.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.inner.len()
    }

    /// p50, p99, p99.9, maximum, count and sum; zeroes when empty.
    #[must_use]
    pub fn summary(&self) -> Summary {
        let quantile = |q| if self.inner.is_empty() { 0 } else { self.inner.value_at_quantile(q) };
        Summary {
            p50_us: quantile(0.5),
            p99_us: quantile(0.99),
            p999_us: quantile(0.999),
            max_us: self.inner.max(),
            count: self.count(),
            sum_us: self.sum_us,
        }
    }
}

/// A histogram in six numbers; times in microseconds.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Summary {
    /// Median.
    pub p50_us: u64,
    /// 99th percentile.
    pub p99_us: u64,
    /// 99.9th percentile.
    pub p999_us: u64,
    /// Largest.
    pub max_us: u64,
    /// Number of values.
    pub count: u64,
    /// All values together.
    pub sum_us: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn summary_and_clamp() {
        let mut h = Histogram::new();
        assert_eq!(h.summary(), Summary::default());
        for us in 1..=1000 {
            h.record(Duration::from_micros(us));
        }
        h.record(Duration::from_secs(1 << 30));
        let s = h.summary();
        assert_eq!((s.count, s.sum_us), (1001, 500_500 + HIGHEST_US));
        assert!((498..=503).contains(&s.p50_us), "{s:?}");
        assert!(s.max_us >= HIGHEST_US, "clamped, not lost: {s:?}");
    }
}
