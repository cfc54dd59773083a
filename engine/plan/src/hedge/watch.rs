//! Requests under way, in the order they were sent, each found by its number; and how long requests took lately.

use fuelrail_base::{Duration, Instant};
use std::collections::VecDeque;

/// Room for numbers and in line to begin with: which of its numbers a shard's requests get first is chance, and a warm shard allocates nothing.
const PLACES_AT_START: usize = 256;

/// Requests under way: neither sending nor landing costs a search.
#[derive(Clone, Debug, Default)]
pub(super) struct Watch {
    /// When each was sent, by number.
    sent: Vec<Option<Instant>>,
    /// In the order they were sent; entries that disagree with [`Watch::sent`] have left. The first one has not.
    line: VecDeque<(Instant, u32)>,
}

impl Watch {
    /// Puts a request at the end. One that is there already moves.
    pub(super) fn insert(&mut self, number: u32, sent: Instant) {
        self.remove(number);
        let at = number as usize;
        if self.sent.len() <= at {
            self.sent.resize((at + 1).max(PLACES_AT_START), None);
        }
        self.sent[at] = Some(sent);
        if self.line.len() == self.line.capacity() {
            // What has left makes room first: a warm line allocates nothing.
            self.line.retain(|(sent, number)| self.sent[*number as usize] == Some(*sent));
            if 2 * self.line.len() >= self.line.capacity() {
                self.line.reserve(self.line.len().max(PLACES_AT_START));
            }
        }
        self.line.push_back((sent, number));
    }

    /// Takes a request out, if it is there.
    pub(super) fn remove(&mut self, number: u32) {
        if let Some(sent) = self.sent.get_mut(number as usize) {
            *sent = None;
        }
        while self.line.front().is_some_and(|(sent, number)| self.sent[*number as usize] != Some(*sent)) {
            self.line.pop_front();
        }
    }

    /// When the oldest was sent.
    pub(super) fn oldest(&self) -> Option<Instant> {
        self.line.front().map(|(sent, _)| *sent)
    }

    /// Takes the oldest out.
    pub(super) fn pop(&mut self) -> Option<(u32, Instant)> {
        let &(sent, number) = self.line.front()?;
        self.remove(number);
        Some((number, sent))
    }
}

/// Buckets of each doubling.
const PER_OCTAVE: usize = 8;
/// Doublings, from a microsecond to more than an hour.
const OCTAVES: usize = 32;
/// Counts are halved at this sum: the answer rests on the last 1024 to 2048 landings.
const SUM_MAX: u64 = 2048;
/// The answer is worked out anew once in so many landings.
const STALE: u64 = 16;

/// The 95th percentile of how long things took lately: a histogram of logarithmic buckets whose counts are halved whenever they have
/// grown large, so that what was long ago fades. The answer is the upper edge of a bucket, at most an eighth above the truth.
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
    // The three bits after the first one.
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
    fn a_number_that_comes_late_allocates_nothing() {
        let mut watch = Watch::default();
        watch.insert(3, Instant(1));
        let room = |watch: &Watch| (watch.sent.capacity(), watch.line.capacity());
        let before = room(&watch);
        watch.insert(PLACES_AT_START as u32 - 1, Instant(2));
        assert_eq!(room(&watch), before);
    }

    #[test]
    fn it_is_a_queue_from_which_any_may_leave() {
        let (mut watch, mut model, mut prng) = (Watch::default(), Vec::new(), Prng::new(2));
        for step in 0..20_000u64 {
            let number = prng.below(40) as u32;
            match prng.below(3) {
                0 => {
                    watch.insert(number, Instant(step));
                    model.retain(|(other, _)| *other != number);
                    model.push((number, Instant(step)));
                }
                1 => {
                    watch.remove(number);
                    model.retain(|(other, _)| *other != number);
                }
                _ => {
                    let oldest = (!model.is_empty()).then(|| model.remove(0));
                    assert_eq!(watch.pop(), oldest, "step {step}");
                }
            }
            assert_eq!(watch.oldest(), model.first().map(|(_, sent)| *sent));
        }
    }

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
