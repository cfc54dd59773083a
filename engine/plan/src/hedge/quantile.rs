//! The 95th percentile of how long things took lately.
//!
//! A histogram of logarithmic buckets whose counts are halved whenever they have grown large: what was long ago fades. The answer is
//! the upper edge of a bucket, at most an eighth above the truth.

use fuelrail_base::Duration;

/// Buckets of each doubling.
const PER_OCTAVE: usize = 8;
/// Doublings, from a microsecond to more than an hour.
const OCTAVES: usize = 32;
/// Counts are halved at this sum: the answer rests on the last 1024 to 2048 landings.
const SUM_MAX: u64 = 2048;
/// The answer is worked out anew once in so many landings.
const STALE: u64 = 16;

#[derive(Clone, Debug)]
pub(super) struct Quantile {
    counts: [u16; PER_OCTAVE * OCTAVES],
    sum: u64,
    /// Recorded in all.
    recorded: u64,
    p95: Duration,
}

impl Default for Quantile {
    fn default() -> Quantile {
        Quantile { counts: [0; PER_OCTAVE * OCTAVES], sum: 0, recorded: 0, p95: Duration::ZERO }
    }
}

impl Quantile {
    pub(super) fn record(&mut self, took: Duration) {
        self.counts[bucket(took)] += 1;
        self.sum += 1;
        if self.sum == SUM_MAX {
            self.counts.iter_mut().for_each(|count| *count /= 2);
            self.sum = self.counts.iter().map(|count| u64::from(*count)).sum();
        }
        self.recorded += 1;
        if self.recorded.is_multiple_of(STALE) {
            self.p95 = self.find();
        }
    }

    /// The answer, once so many were recorded.
    pub(super) fn p95(&self, enough: u64) -> Option<Duration> {
        (self.recorded >= enough.max(STALE)).then_some(self.p95)
    }

    fn find(&self) -> Duration {
        let mut above = self.sum / 20;
        for (at, &count) in self.counts.iter().enumerate().rev() {
            if u64::from(count) > above {
                return upper_edge(at);
            }
            above -= u64::from(count);
        }
        Duration::ZERO
    }
}

fn bucket(took: Duration) -> usize {
    let us = u64::try_from(took.as_micros()).unwrap_or(u64::MAX).max(1);
    let octave = us.ilog2() as usize;
    // The three bits behind the first one.
    let part = if octave >= 3 { us >> (octave - 3) } else { us << (3 - octave) } as usize % PER_OCTAVE;
    (octave * PER_OCTAVE + part).min(PER_OCTAVE * OCTAVES - 1)
}

fn upper_edge(bucket: usize) -> Duration {
    let (octave, part) = (bucket / PER_OCTAVE, bucket % PER_OCTAVE);
    let us = ((PER_OCTAVE + part + 1) as u64) << octave;
    Duration::from_nanos(us * 1000 / PER_OCTAVE as u64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use fuelrail_base::prng::Prng;

    #[test]
    fn every_duration_lies_below_the_edge_of_its_bucket_and_close_to_it() {
        let mut at = 1u64;
        while at < 3_600_000_000 {
            let took = Duration::from_micros(at);
            let edge = upper_edge(bucket(took));
            assert!(took < edge, "{took:?} {edge:?}");
            assert!(at < 8 || edge <= took.mul_f64(1.126), "{took:?} {edge:?}");
            at = at * 21 / 20 + 1;
        }
        assert_eq!(bucket(Duration::MAX), PER_OCTAVE * OCTAVES - 1);
    }

    #[test]
    fn it_finds_the_percentile_and_follows_it() {
        let (mut quantile, mut prng) = (Quantile::default(), Prng::new(1));
        assert_eq!(quantile.p95(1), None);
        for median in [1_000u64, 40_000, 2_000] {
            for _ in 0..8_000 {
                quantile.record(Duration::from_micros(median / 2 + prng.below(median)));
            }
            let (truth, found) = (median as f64 * 1.45, quantile.p95(1).unwrap().as_secs_f64() * 1e6);
            assert!(found >= truth * 0.97 && found <= truth * 1.16, "{found} for {truth}");
        }
    }
}
