//! What it costs to get a block again, as measured: from the bucket, and from the disk.
//!
//! A source's cost is the time it is busy per unit of work, not the latency of one block: requests overlap, and a source with
//! many requests at once takes longer over each and is not dearer for it. Kept as the logarithm of seconds, so that costs
//! which differ by orders of magnitude are compared by a subtraction and nothing under- or overflows. Owns a few numbers.

use fuelrail_base::{Duration, Instant};

/// Work a block is beside its bytes, in bytes: a request or a seek costs about as much as so many bytes more.
const FIXED_BYTES: f64 = 65_536.0;
/// Blocks a measurement is made of.
const BLOCKS: u32 = 32;
/// Weight of the newest measurement.
const WEIGHT: f64 = 1.0 / 4.0;

/// What one source costs.
#[derive(Clone, Debug, Default)]
pub(super) struct Source {
    under_way: usize,
    since: Instant,
    busy: Duration,
    work: f64,
    blocks: u32,
    ln_cost: Option<f64>,
}

impl Source {
    /// A block is requested from this source.
    pub(super) fn begin(&mut self, now: Instant) {
        if self.under_way == 0 {
            self.since = now;
        }
        self.under_way += 1;
    }

    /// That request ended, with so many bytes, or without the block.
    pub(super) fn end(&mut self, now: Instant, bytes: Option<u64>) {
        let passed = now.since(self.since);
        // Blocks that end at one moment were worked on in the same time: a measurement ends between moments.
        if self.blocks >= BLOCKS && !passed.is_zero() {
            self.conclude();
        }
        self.under_way = self.under_way.saturating_sub(1);
        self.busy += passed;
        self.since = now;
        if let Some(bytes) = bytes {
            self.work += bytes as f64 + FIXED_BYTES;
            self.blocks += 1;
        }
    }

    fn conclude(&mut self) {
        let ln = (self.busy.as_secs_f64().max(1e-9) / self.work).ln();
        self.ln_cost = Some(self.ln_cost.map_or(ln, |old| old + (ln - old) * WEIGHT));
        (self.busy, self.work, self.blocks) = (Duration::ZERO, 0.0, 0);
    }
}

/// Measured costs of both sources.
#[derive(Clone, Debug, Default)]
pub(super) struct Costs {
    pub(super) bucket: Source,
    pub(super) disk: Source,
}

impl Costs {
    /// How much dearer the bucket is than the disk, as a logarithm: above zero, the disk pays. `None` while either is unknown.
    pub(super) fn gain_ln(&self) -> Option<f64> {
        Some(self.bucket.ln_cost? - self.disk.ln_cost?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `rounds` times so many blocks at once, each round taking `round_us`.
    fn run(source: &mut Source, at_once: u64, round_us: u64, rounds: u64) {
        let mut now = Instant(7);
        for _ in 0..rounds {
            (0..at_once).for_each(|_| source.begin(now));
            now = now.after(Duration::from_micros(round_us));
            (0..at_once).for_each(|_| source.end(now, Some(100_000)));
            // Nobody asks for a while: that is nobody's cost.
            now = now.after(Duration::from_secs(1));
        }
    }

    #[test]
    fn a_source_is_dear_by_the_time_it_is_busy_and_not_by_latency() {
        let mut costs = Costs::default();
        assert_eq!(costs.gain_ln(), None);
        // The same rate, at sixteen times the latency of each block.
        run(&mut costs.bucket, 64, 64_000, 10);
        run(&mut costs.disk, 4, 4_000, 160);
        assert!(costs.gain_ln().unwrap().abs() < 0.05, "{:?}", costs.gain_ln());
        run(&mut costs.disk, 4, 40, 400);
        assert!((costs.gain_ln().unwrap() - 100f64.ln()).abs() < 0.2, "{:?}", costs.gain_ln());
        costs.disk.end(Instant(0), None);
    }
}
