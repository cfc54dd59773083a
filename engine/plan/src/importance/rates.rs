//! How often each sample shall come in an epoch: its rate, a fixed-point number of 16 bits.
//!
//! Whole numbers from scores to rates, so that every machine has the same ones, and so that what was drawn is known
//! exactly: a weight is the inverse of its rate, with nothing rounded between them. All rates together are as many as there
//! are places in the epoch.

use super::smoothing::Smoothing;
use fuelrail_base::prng::Prng;

/// The rate of a sample that comes once.
pub const ONE: u16 = 1 << RATE_BITS;
/// Bits of a rate behind the point.
pub(super) const RATE_BITS: u32 = 10;
/// The most often a sample may come in an epoch: as a rate it fits 16 bits.
pub const REPLAY_MAX: u32 = 63;
/// Bits behind the point of a score that is about to become a rate.
const SCORE_BITS: u32 = 20;
/// The score of a sample never reported, in SHADE's modes: what its weights start with.
const SHADE_FIRST: f64 = 1.0;
/// Scales tried run up to this: with it the least score there is reaches the greatest rate.
const SCALE_MAX: u64 = 1 << 29;

/// A score and what is added to it as a whole number; below 2^33.
fn whole(score: f64, smoothing: &Smoothing) -> u64 {
    // ln 10 is the least score reported, 1 the least of all. Not below one either when a saved table says so.
    ((score.max(1.0) + smoothing.added) * f64::from(1u32 << SCORE_BITS)) as u64
}

/// Rates in proportion to score and smoothing, none below `floor` nor above `cap`: the scale is found by bisection (as water
/// finds its level), and the last few units go to the first samples that have room. Samples never reported count as the
/// mean of the others.
pub(super) fn levelled(scores: &[f32], smoothing: &Smoothing, floor: u16, cap: u16) -> Vec<u16> {
    let known = || scores.iter().filter(|score| !score.is_nan());
    let reported = known().count() as u64;
    if reported == 0 {
        return vec![ONE; scores.len()];
    }
    let mean = known().map(|score| whole(f64::from(*score), smoothing)).sum::<u64>() / reported;
    let rate = |score: f32, scale: u64| {
        let score = if score.is_nan() { mean } else { whole(f64::from(score), smoothing) };
        // Below 2^33 times at most 2^29.
        ((score * scale) >> 32).clamp(u64::from(floor), u64::from(cap)) as u16
    };
    let sum = |scale| scores.iter().map(|score| u64::from(rate(*score, scale))).sum::<u64>();
    let places = scores.len() as u64 * u64::from(ONE);
    // At `low` the rates are not too many, above `high` they are; at the greatest scale all are at the cap.
    let (mut low, mut high) = (0, SCALE_MAX);
    while low < high {
        let middle = (low + high).div_ceil(2);
        if sum(middle) <= places {
            low = middle;
        } else {
            high = middle - 1;
        }
    }
    let mut left = places - sum(low);
    scores
        .iter()
        .map(|score| {
            let (now, next) = (rate(*score, low), rate(*score, low + 1));
            let more = u64::from(next - now).min(left);
            left -= more;
            now + more as u16
        })
        .collect()
}

/// SHADE's epoch as whole rates. As many draws with replacement as there are places; of those, what is cached (the samples
/// with the highest scores) comes `replay` times, and the others fill what is left.
pub(super) fn shade(scores: &[f32], smoothing: &Smoothing, cached: u64, replay: u32, seed: u64) -> Vec<u16> {
    let mut prng = Prng::new(seed);
    let score = |at: usize| if scores[at].is_nan() { SHADE_FIRST } else { f64::from(scores[at]) };
    let mut sum = 0;
    let ends: Vec<u64> = (0..scores.len())
        .map(|at| {
            sum += whole(score(at), smoothing);
            sum
        })
        .collect();
    let mut drawn = vec![0u32; scores.len()];
    for _ in 0..scores.len() {
        let point = prng.below(sum);
        drawn[ends.partition_point(|end| *end <= point)] += 1;
    }
    drop(ends);
    let held = most_important(scores, cached as usize);
    let places = scores.len() as u64;
    let hits: u64 = drawn.iter().zip(&held).filter(|(_, held)| **held).map(|(times, _)| u64::from(*times)).sum();
    let replayed = hits * u64::from(replay);
    let (mut hits_taken, mut misses_taken) = (
        Selection { left: replayed.min(places), of: replayed },
        Selection { left: places - replayed.min(places), of: places - hits },
    );
    let times = drawn.iter().zip(held).map(|(times, held)| match held {
        true => (0..times * replay).filter(|_| hits_taken.takes(&mut prng)).count() as u64,
        false => (0..*times).filter(|_| misses_taken.takes(&mut prng)).count() as u64,
    });
    bounded(times.collect())
}

/// The samples with the highest scores, as flags: as SHADE's cache holds them when it has settled.
fn most_important(scores: &[f32], count: usize) -> Vec<bool> {
    let mut ranked: Vec<u32> = (0..scores.len() as u32).filter(|at| !scores[*at as usize].is_nan()).collect();
    let order = |a: &u32, b: &u32| scores[*b as usize].total_cmp(&scores[*a as usize]).then(a.cmp(b));
    if count < ranked.len() {
        ranked.select_nth_unstable_by(count, order);
        ranked.truncate(count);
    }
    let mut held = vec![false; scores.len()];
    ranked.into_iter().for_each(|at| held[at as usize] = true);
    held
}

/// Takes `left` of the `of` things still to come, each selection as likely as any other (Knuth, volume 2, 3.4.2 S).
struct Selection {
    left: u64,
    of: u64,
}

impl Selection {
    fn takes(&mut self, prng: &mut Prng) -> bool {
        let taken = prng.below(self.of) < self.left;
        self.of -= 1;
        self.left -= u64::from(taken);
        taken
    }
}

/// Whole rates; what is above the most that a rate can say goes to the next samples that have room.
fn bounded(times: Vec<u64>) -> Vec<u16> {
    let mut over = 0;
    let mut rates: Vec<u64> = times;
    while rates.iter().any(|times| *times > u64::from(REPLAY_MAX)) || over > 0 {
        for times in &mut rates {
            let wanted = *times + over;
            *times = wanted.min(u64::from(REPLAY_MAX));
            over = wanted - *times;
        }
    }
    rates.into_iter().map(|times| (times << RATE_BITS) as u16).collect()
}
