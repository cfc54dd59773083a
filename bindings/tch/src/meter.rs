//! The stall meter: time of the steps by what they waited for. Owns sums and the last window; reads no clock.

use fuelrail_cost::diagnosis::Shares;
use serde::Serialize;
use std::fmt;
use std::time::Duration;

/// Time of one step, by what it waited for.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct StepTime {
    /// Inside the loader's `next_batch`, where the batch was not there at once; else zero.
    pub data_wait: Duration,
    /// The batch was there when it was asked for.
    pub ready: bool,
    /// For sums over the ranks that the backward pass did not hide; in asynchronous mode for the exchange with rank 0.
    pub all_reduce: Duration,
    /// The whole step.
    pub wall: Duration,
}

impl StepTime {
    /// What is left: forward, backward, optimiser, taking batches that were there.
    pub fn compute(&self) -> Duration {
        self.wall.saturating_sub(self.data_wait + self.all_reduce)
    }
}

/// Sums over steps.
#[derive(Clone, Copy, PartialEq, Debug, Default, Serialize)]
pub struct Meter {
    /// Steps counted.
    pub steps: u64,
    /// Steps whose batch was there at once.
    pub ready: u64,
    /// Seconds.
    pub data_wait_s: f64,
    /// Seconds.
    pub compute_s: f64,
    /// Seconds.
    pub all_reduce_s: f64,
    /// Seconds.
    pub wall_s: f64,
}

impl Meter {
    /// Counts a step.
    pub fn count(&mut self, step: &StepTime) {
        self.steps += 1;
        self.ready += u64::from(step.ready);
        self.data_wait_s += step.data_wait.as_secs_f64();
        self.compute_s += step.compute().as_secs_f64();
        self.all_reduce_s += step.all_reduce.as_secs_f64();
        self.wall_s += step.wall.as_secs_f64();
    }

    /// The parts of a mean step, for a diagnosis.
    pub(crate) fn shares(&self, decode_share: f64) -> Shares {
        let each = |seconds: f64| seconds / self.steps.max(1) as f64;
        Shares {
            wall_s: each(self.wall_s),
            data_wait_s: each(self.data_wait_s),
            compute_s: each(self.compute_s),
            all_reduce_s: each(self.all_reduce_s),
            decode_share,
        }
    }

    /// Share of the steps whose batch was there at once; 1 before the first.
    pub fn readiness(&self) -> f64 {
        if self.steps == 0 { 1.0 } else { self.ready as f64 / self.steps as f64 }
    }
}

impl fmt::Display for Meter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let each = |seconds: f64| seconds * 1e3 / (self.steps.max(1) as f64);
        let share = |seconds: f64| if self.wall_s > 0.0 { 100.0 * seconds / self.wall_s } else { 0.0 };
        write!(f, "{} steps of {:.2} ms:", self.steps, each(self.wall_s))?;
        for (what, seconds) in
            [("data wait", self.data_wait_s), ("compute", self.compute_s), ("all-reduce", self.all_reduce_s)]
        {
            write!(f, " {what} {:.2} ms ({:.1} %),", each(seconds), share(seconds))?;
        }
        write!(f, " readiness {:.3}", self.readiness())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_parts_make_up_the_step() {
        let ms = Duration::from_millis;
        let step = StepTime { data_wait: ms(2), ready: false, all_reduce: ms(4), wall: ms(20) };
        assert_eq!(step.compute(), ms(14));
        let mut meter = Meter::default();
        assert_eq!(meter.readiness(), 1.0);
        meter.count(&step);
        meter.count(&StepTime { ready: true, ..step });
        assert_eq!(meter.readiness(), 0.5);
        let parts = meter.data_wait_s + meter.compute_s + meter.all_reduce_s;
        assert!((parts - meter.wall_s).abs() < 1e-9);
        assert!(meter.to_string().contains("data wait 2.00 ms (10.0 %)"), "{meter}");
    }
}
