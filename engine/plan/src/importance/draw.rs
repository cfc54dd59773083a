//! One epoch's draw: how often each sample shall come, and which sample stands in which of its places, both ways.
//!
//! A sample's **rate** is a fixed-point number of 16 bits. Whole numbers from scores to rates, so that every machine has the same
//! ones, and so that what was drawn is known exactly: a weight is the inverse of its rate, with nothing rounded between them. All
//! rates together are as many as there are places in the epoch.

use super::scores::Smoothing;
use crate::usage;
use fuelrail_base::prng::{Prng, mix64};
use fuelrail_base::{Result, SampleId};

/// Samples whose rates are added up between two marks, and among which the order is random.
const STRETCH: usize = 1 << STRETCH_BITS;
const STRETCH_BITS: u32 = 5;

/// How often every sample comes in one epoch.
///
/// Systematic sampling (Madow 1949): rates lie end to end on a line, and a comb with a tooth at every whole number is
/// laid on it at a random start. A sample comes as often as teeth fall on it: its rate rounded down or up, its rate on
/// average, and all together exactly as many as the line is long. Nothing comes more often than its rate rounded up. Rates
/// below one lie before the others, so how many of those samples come is known beforehand too, within one: that is the floor
/// under coverage. Samples are in the order of their keys, so classes keep their shares, but among neighbours the order is
/// random, or a comb of even teeth could comb out every second key.
///
/// The epoch has a **place** for every sample, and the epoch's permutation is laid over places as it is over samples. A
/// sample that comes stands in its own; when it comes more often, also in places of samples that do not come, in turn. So
/// when every sample comes once this is the plain epoch, and where a sample comes next in an epoch not yet drawn is known
/// before: where it always would, if at all.
///
/// Less than three bytes a sample; which sample stands in a place is a search, not a table.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Draw {
    rates: Vec<u16>,
    /// The low bits are where the comb starts, a fraction of a place; the others order neighbours.
    word: u64,
    /// The line up to every stretch.
    marks: Vec<Mark>,
    /// Samples that come at least once.
    distinct: u64,
    weighted: bool,
}

/// A point of the line, and what lies before it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
struct Mark {
    /// The point in its part of rates below one, the start included.
    low: u64,
    /// … and in the part of the others, with what of a place the first part leaves over.
    high: u64,
    /// Samples that do not come.
    absent: u32,
    /// Times that samples come beyond the first.
    extra: u32,
}

impl Mark {
    /// Passes a sample: how often it comes.
    fn pass(&mut self, rate: u16) -> u32 {
        let part = if rate < ONE { &mut self.low } else { &mut self.high };
        let before = *part >> RATE_BITS;
        *part += u64::from(rate);
        let times = ((*part >> RATE_BITS) - before) as u32;
        match times {
            0 => self.absent += 1,
            _ => self.extra += times - 1,
        }
        times
    }
}

impl Draw {
    /// The draw of these rates (in units of [`ONE`]) that a random word makes.
    ///
    /// # Errors
    /// [`Kind::Usage`] when the rates are not as many in all as there are samples.
    pub fn new(rates: Vec<u16>, word: u64, weighted: bool) -> Result<Draw> {
        let sum: u64 = rates.iter().map(|rate| u64::from(*rate)).sum();
        if sum != rates.len() as u64 * u64::from(ONE) {
            let cause = format!("a draw of {} samples has rates of {sum}/{ONE} in all", rates.len());
            return usage(cause, "resume with the scores saved with the state");
        }
        let low_sum: u64 = rates.iter().filter(|rate| **rate < ONE).map(|rate| u64::from(*rate)).sum();
        let start = word % u64::from(ONE);
        let mut at = Mark { low: start, high: (start + low_sum) % u64::from(ONE), ..Mark::default() };
        let mut draw =
            Draw { marks: Vec::with_capacity(rates.len() / STRETCH + 1), rates, word, distinct: 0, weighted };
        for first in (0..draw.rates.len()).step_by(STRETCH) {
            draw.marks.push(at);
            draw.stretch(first / STRETCH).for_each(|sample| _ = at.pass(draw.rates[sample]));
        }
        draw.distinct = draw.places() - u64::from(at.absent);
        Ok(draw)
    }

    /// Samples, and places, of the epoch.
    pub fn places(&self) -> u64 {
        self.rates.len() as u64
    }

    /// The sample that stands in a place.
    ///
    /// # Panics
    /// When the place is not one of the epoch.
    pub fn sample_in(&self, place: SampleId) -> SampleId {
        let own = self.find(place.0 as usize / STRETCH, |sample, _, _| sample == place.0 as usize);
        let (_, before, times) = own.expect("the place is one of the epoch");
        if times > 0 {
            return place;
        }
        let turn = before.absent;
        let stretch = self.marks.partition_point(|mark| mark.extra <= turn) - 1;
        let found = self.find(stretch, |_, before, times| turn < before.extra + times.saturating_sub(1));
        SampleId(found.expect("there are as many who come again as who do not come").0 as u64)
    }

    /// The places a sample stands in; none when it does not come.
    ///
    /// # Panics
    /// When the sample is not one of the data set.
    pub fn places_of(&self, sample: SampleId) -> impl Iterator<Item = SampleId> + '_ {
        let own = self.find(sample.0 as usize / STRETCH, |other, _, _| other == sample.0 as usize);
        let (_, before, times) = own.expect("the sample is one of the data set");
        let turns = before.extra..before.extra + times.saturating_sub(1);
        (0..times.min(1)).map(move |_| sample).chain(turns.map(|turn| self.empty_place(turn)))
    }

    /// The place of a sample that does not come, by its turn.
    fn empty_place(&self, turn: u32) -> SampleId {
        let stretch = self.marks.partition_point(|mark| mark.absent <= turn) - 1;
        let found = self.find(stretch, |_, before, times| times == 0 && before.absent == turn);
        SampleId(found.expect("there are as many who do not come as who come again").0 as u64)
    }

    /// The first sample of a stretch that fits, what lies before it, and how often it comes.
    fn find(&self, stretch: usize, fits: impl Fn(usize, &Mark, u32) -> bool) -> Option<(usize, Mark, u32)> {
        let mut at = self.marks[stretch];
        self.stretch(stretch).find_map(|sample| {
            let before = at;
            let times = at.pass(self.rates[sample]);
            fits(sample, &before, times).then_some((sample, before, times))
        })
    }

    /// How often a sample comes on average over all starts, in units of [`ONE`].
    ///
    /// # Panics
    /// When the sample is not one of the data set.
    pub fn rate(&self, sample: SampleId) -> u16 {
        self.rates[sample.0 as usize]
    }

    /// What a sample's loss is to be multiplied by: 1/(N p), where p is its share of the epoch's places on average, so that
    /// the mean over the epoch is on average the plain mean over all samples. 1 where weights are off.
    ///
    /// # Panics
    /// When the sample is not one of the data set.
    pub fn weight(&self, sample: SampleId) -> f32 {
        if self.weighted { f32::from(ONE) / f32::from(self.rate(sample).max(1)) } else { 1.0 }
    }

    /// Samples that come at least once.
    pub fn distinct(&self) -> u64 {
        self.distinct
    }

    /// What it was made of: rates, word, and whether weights are delivered.
    pub fn parts(&self) -> (&[u16], u64, bool) {
        (&self.rates, self.word, self.weighted)
    }

    /// The samples of a stretch in their random order: two rounds of a bijection of five bits.
    fn stretch(&self, stretch: usize) -> impl Iterator<Item = usize> + use<> {
        let key = mix64((self.word >> RATE_BITS).wrapping_add(stretch as u64));
        let factor = |at: u32| (key >> at) as usize | 1;
        let (first, second, shift) = (factor(0), factor(16), (key >> 32) as usize);
        let samples = self.rates.len();
        (0..STRETCH)
            .map(move |at| {
                let mixed = (at.wrapping_add(shift).wrapping_mul(first)) % STRETCH;
                let mixed = ((mixed ^ (mixed >> 2)).wrapping_mul(second)) % STRETCH;
                stretch * STRETCH + (mixed ^ (mixed >> 3))
            })
            .filter(move |sample| *sample < samples)
    }
}

/// The rate of a sample that comes once.
pub const ONE: u16 = 1 << RATE_BITS;
/// Bits of a rate after the point.
const RATE_BITS: u32 = 10;
/// The most often a sample may come in an epoch: as a rate it fits 16 bits.
pub const REPLAY_MAX: u32 = 63;
/// Bits after the point of a score that is about to become a rate.
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
