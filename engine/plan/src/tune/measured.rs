//! The measurements of one trial, and of all trials at one point.

/// What one trial of a point brought.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct Measured {
    /// Payload delivered per second of wall time.
    pub bytes_per_s: f64,
    /// Processor time of all shards per byte delivered.
    pub cpu_s_per_byte: f64,
    /// Share of the time in which the busiest shard's core was at work.
    pub busy: f64,
    /// Median time from a request to its last byte, s.
    pub latency_s: f64,
    /// Mean number of requests under way.
    pub requests_in_flight: f64,
    /// Times the server asked to slow down.
    pub throttled: u64,
}

/// What a saving of processor time is worth against speed: ten per cent less for two per cent slower.
const CPU_WEIGHT: f64 = 0.2;

impl Measured {
    /// How good this is; more is better. Differences are relative: 0.01 is one per cent of speed.
    #[must_use]
    pub fn score(&self) -> f64 {
        let least = f64::MIN_POSITIVE;
        self.bytes_per_s.max(least).ln() - CPU_WEIGHT * self.cpu_s_per_byte.max(least).ln()
    }
}

/// All trials of one point.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Trials {
    told: Vec<Measured>,
    /// It could not even be tried.
    pub(super) refused: bool,
}

impl Trials {
    pub(super) fn add(&mut self, measured: Measured) {
        self.told.push(measured);
    }

    /// The trials, in order.
    #[must_use]
    pub fn told(&self) -> &[Measured] {
        &self.told
    }

    /// Mean score; minus infinity for what was refused or not tried.
    #[must_use]
    pub fn score(&self) -> f64 {
        if self.told.is_empty() { f64::NEG_INFINITY } else { self.mean_of(Measured::score) }
    }

    /// The mean of something over the trials; 0 when there are none.
    #[must_use]
    pub fn mean_of(&self, what: impl Fn(&Measured) -> f64) -> f64 {
        self.told.iter().map(what).sum::<f64>() / self.told.len().max(1) as f64
    }

    /// Sum of squared deviations of the scores from their mean.
    pub(super) fn squares(&self) -> f64 {
        let mean = self.score();
        self.told.iter().map(|measured| (measured.score() - mean).powi(2)).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn speed_comes_first_and_thrift_decides_between_equals() {
        let base = Measured { bytes_per_s: 1e9, cpu_s_per_byte: 1e-9, ..Measured::default() };
        let faster = Measured { bytes_per_s: 1.1e9, cpu_s_per_byte: 1.3e-9, ..base };
        let thrifty = Measured { cpu_s_per_byte: 0.5e-9, ..base };
        assert!(faster.score() > base.score() && thrifty.score() > base.score());
        assert!(Measured::default().score().is_finite(), "nothing delivered is bad, not infinitely bad");
        assert_eq!(Trials::default().score(), f64::NEG_INFINITY);
    }
}
