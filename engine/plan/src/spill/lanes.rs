//! Two lanes to one disk: reads that a trainer waits for, and writes in the background.
//!
//! Reads are never held back. Writes get as many places as leave reads alone: the mean time of reads that met writes is
//! compared with that of reads that met none, and the places grow by one while it stays near and halve when it does not,
//! as congestion windows do (Jacobson 1988). Owns two means and a number.

use fuelrail_base::Duration;

/// Writes under way at most. Deep enough to keep an NVMe drive's channels busy with blocks of 100 KiB and more.
const WRITES_MAX: f64 = 16.0;
/// Reads that met writes may take this much longer than those that did not.
const SLOWER_MAX: f64 = 1.25;
/// Weight of the newest read in a mean.
const WEIGHT: f64 = 1.0 / 16.0;

/// How many writes may be under way.
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
        *mean = Some(mean.map_or(time_s, |old| old + (time_s - old) * WEIGHT));
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
