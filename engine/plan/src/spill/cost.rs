//! What is measured of the disk: what a block costs from there and from the bucket, and how many writes leave reads alone.

use fuelrail_base::{Duration, Instant};

/// Work a block is beside its bytes, in bytes: a request or a seek costs about as much as so many bytes more.
const FIXED_BYTES: f64 = 65_536.0;
/// Blocks a measurement is made of.
const BLOCKS: u32 = 32;
/// Weight of the newest measurement.
const WEIGHT: f64 = 1.0 / 4.0;

/// What one source costs.
///
/// The time it is busy per unit of work, not the latency of one block: requests overlap, and a source with many requests at once takes
/// longer over each and is not dearer for it. Kept as the logarithm of seconds, so that costs which differ by orders of magnitude are
/// compared by a subtraction and nothing under- or overflows.
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

/// Writes under way at most. Deep enough to keep an NVMe drive's channels busy with blocks of 100 KiB and more.
const WRITES_MAX: f64 = 16.0;
/// Reads that met writes may take this much longer than those that did not.
const SLOWER_MAX: f64 = 1.25;
/// Weight of the newest read in a mean.
const READ_WEIGHT: f64 = 1.0 / 16.0;

/// How many writes may be under way.
///
/// Reads that a trainer waits for are never held back. Writes get as many places as leave reads alone: the mean time of reads that met
/// writes is compared with that of reads that met none, and the places grow by one while it stays near and halve when it does not, as
/// congestion windows do (Jacobson 1988).
#[derive(Clone, Debug)]
pub(super) struct Lanes {
    places: f64,
    alone_s: Option<f64>,
    beside_s: Option<f64>,
}

impl Default for Lanes {
    fn default() -> Lanes {
        Lanes { places: WRITES_MAX / 4.0, alone_s: None, beside_s: None }
    }
}

impl Lanes {
    /// Writes that may be under way now, at least one, so that reads without end do not end writing.
    pub(super) fn writes_max(&self, reads_under_way: usize) -> usize {
        if reads_under_way == 0 { WRITES_MAX as usize } else { self.places as usize }
    }

    /// A read of `bytes` took `time`; `writes` were under way when it began.
    pub(super) fn read(&mut self, bytes: u64, time: Duration, writes: usize) {
        // Larger reads take longer by themselves: compared is the time of a read of one page and what 64 KiB add to it.
        let size = 1.0 + bytes as f64 / 65_536.0;
        let time_s = time.as_secs_f64() / size;
        let mean = if writes == 0 { &mut self.alone_s } else { &mut self.beside_s };
        *mean = Some(mean.map_or(time_s, |old| old + (time_s - old) * READ_WEIGHT));
        let (true, Some(alone), Some(beside)) = (writes > 0, self.alone_s, self.beside_s) else { return };
        if beside > alone * SLOWER_MAX {
            self.places = (self.places / 2.0).max(1.0);
            // The measurement belongs to the old depth: the next decision is on the new one.
            self.beside_s = None;
        } else {
            self.places = (self.places + 1.0 / self.places).min(WRITES_MAX);
        }
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

    /// A disk where each write under way makes reads slower by so much.
    fn settle(slower_by: f64) -> Lanes {
        let mut lanes = Lanes::default();
        for n in 0..4000 {
            let writes = if n % 5 == 0 { 0 } else { lanes.writes_max(1) };
            let time = 100e-6 * (1.0 + slower_by * writes as f64);
            lanes.read(4096, Duration::from_secs_f64(time), writes);
        }
        lanes
    }

    #[test]
    fn writes_get_what_reads_do_not_feel() {
        assert_eq!(settle(0.001).writes_max(1), WRITES_MAX as usize);
        assert!((1..=4).contains(&settle(0.1).writes_max(1)));
        assert_eq!(settle(3.0).writes_max(1), 1, "one is always allowed");
        assert_eq!(settle(3.0).writes_max(0), WRITES_MAX as usize, "nobody reads");
    }
}
