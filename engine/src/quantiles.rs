//! Quantiles as they are reported.

use fuelrail_base::metrics::Summary;
use serde::{Deserialize, Serialize};

/// Quantiles of a latency, µs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Quantiles {
    /// Median.
    pub p50: u64,
    /// 99th percentile.
    pub p99: u64,
    /// 99.9th percentile.
    pub p999: u64,
    /// Largest.
    pub max: u64,
}

impl From<Summary> for Quantiles {
    fn from(s: Summary) -> Quantiles {
        Quantiles { p50: s.p50_us, p99: s.p99_us, p999: s.p999_us, max: s.max_us }
    }
}
