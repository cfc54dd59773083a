//! A gate: the queue gauge of a bounded hand-off between two stages. Near full means downstream is slow, near empty means
//! upstream is.

use core::fmt;
use fuelrail_base::Instant;

/// Occupancy of one hand-off, integrated over time.
#[derive(Clone, Debug)]
pub struct Gate {
    name: &'static str,
    capacity: usize,
    entered: u64,
    left: u64,
    /// Sum of occupancy × nanoseconds.
    area: u128,
    since: Option<Instant>,
    start: Option<Instant>,
}

/// Occupancy and wait of one gate.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct GateFacts {
    /// Which stage it leads into or through.
    pub name: &'static str,
    /// Most things it may hold.
    pub capacity: usize,
    /// Things that have gone through.
    pub passed: u64,
    /// Things inside now.
    pub occupancy: u64,
    /// Mean number of things inside since the first came.
    pub occupancy_mean: f64,
    /// Mean time inside, µs.
    pub wait_us_mean: f64,
}

impl Gate {
    /// A gate that has seen nothing yet.
    pub fn new(name: &'static str, capacity: usize) -> Gate {
        Gate { name, capacity, entered: 0, left: 0, area: 0, since: None, start: None }
    }

    fn integrate(&mut self, now: Instant) {
        self.start.get_or_insert(now);
        let since = self.since.replace(now).unwrap_or(now);
        self.area += u128::from(self.occupancy()) * now.since(since).as_nanos();
    }

    /// One more thing is inside.
    pub fn entered(&mut self, now: Instant) {
        self.integrate(now);
        self.entered += 1;
    }

    /// `left` things have gone through in all.
    pub(crate) fn left(&mut self, now: Instant, left: u64) {
        if left != self.left {
            self.integrate(now);
            self.left = left;
        }
    }

    /// One more thing has gone through.
    pub fn passed(&mut self, now: Instant) {
        self.left(now, self.left + 1);
    }

    /// Its figures now. The mean time inside is the mean occupancy over the throughput (Little's law).
    pub fn facts(&self) -> GateFacts {
        let occupancy_mean = match (self.start, self.since) {
            (Some(start), Some(since)) if since > start => self.area as f64 / since.since(start).as_nanos() as f64,
            _ => 0.0,
        };
        GateFacts {
            name: self.name,
            capacity: self.capacity,
            passed: self.left,
            occupancy: self.occupancy(),
            occupancy_mean,
            wait_us_mean: if self.left == 0 { 0.0 } else { self.area as f64 / self.left as f64 / 1e3 },
        }
    }

    /// Things inside now.
    pub fn occupancy(&self) -> u64 {
        self.entered.saturating_sub(self.left)
    }
}

impl fmt::Display for Gate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let GateFacts { name, capacity, occupancy, occupancy_mean, wait_us_mean, .. } = self.facts();
        write!(f, "gate {name}: {occupancy} of {capacity} (mean {occupancy_mean:.1}, mean wait {wait_us_mean:.0} µs)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn occupancy_is_integrated_over_time() {
        let mut gate = Gate::new("test", 4);
        gate.entered(Instant(0));
        gate.entered(Instant(1_000));
        gate.left(Instant(3_000), 2);
        gate.left(Instant(4_000), 2);
        assert_eq!(gate.occupancy(), 0);
        assert!(matches!(gate.facts(), GateFacts { name: "test", capacity: 4, passed: 2, occupancy: 0, .. }));
        // One thing for 1 µs, two for 2 µs: 5 thing-µs over 3 µs.
        assert!((gate.facts().occupancy_mean - 5.0 / 3.0).abs() < 1e-9, "{gate}");
        assert!((gate.facts().wait_us_mean - 2.5).abs() < 1e-9, "{gate}");
        assert_eq!(gate.to_string(), "gate test: 0 of 4 (mean 1.7, mean wait 2 µs)");
        gate.entered(Instant(4_000));
        gate.passed(Instant(5_000));
        assert_eq!((gate.facts().passed, gate.facts().occupancy_mean, gate.facts().wait_us_mean), (3, 1.2, 2.0));
        let unused = Gate::new("test", 4).facts();
        assert_eq!((unused.occupancy_mean, unused.wait_us_mean), (0.0, 0.0));
    }
}
