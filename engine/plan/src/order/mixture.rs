//! Mixtures: several data sets in one order, each as often as its weight says.
//!
//! A run of a mixture has **places**, as many an epoch as it is told. They are cut into windows, and in every window each data set has its
//! share to within two samples; the order is a random one within each window. How many places a data set has before a given one is
//! arithmetic, over the whole run and over changes of weights. So the draws of a data set are numbered, from the first of the run on: it is
//! gone through in a permutation of its own, and in another one each time it is used up. Nothing is stored, and a run goes on at any
//! position, on any number of ranks.

use super::permutation::Permutation;
use crate::usage;
use core::fmt;
use core::ops::Range;
use fuelrail_base::prng::mix64;
use fuelrail_base::search::first_wanted;
use fuelrail_base::{Result, SampleId, limits};

/// Most data sets of a mixture.
pub const SETS_MAX: usize = 64;

/// Weights from a position of the run on.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Weights {
    /// The first place that they hold for, counted over all epochs.
    pub from: u64,
    /// One for each data set, whole numbers of any unit; not all are 0.
    pub of: Vec<u64>,
}

/// How long an epoch of a mixture is.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum MixtureEpoch {
    /// As many samples as all data sets have.
    #[default]
    Total,
    /// Until, in the first epoch, one more sample would be one that has come before: the data set that is used up first ends it.
    FirstUsedUp,
    /// Until, in the first epoch, every data set that has a weight has come whole.
    AllUsedUp,
}

fuelrail_base::named!(
    MixtureEpoch,
    "a length of a mixture's epochs":
    Total = "total",
    FirstUsedUp = "first-used-up",
    AllUsedUp = "all-used-up",
);

/// Several data sets, what part of a run each is, and in which order the samples of each come.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Mixture {
    sets: Vec<Range<u64>>,
    weights: Vec<(Weights, Counts)>,
    places: u64,
    window: u64,
    seed: u64,
    shuffle: bool,
}

/// Places of each data set.
type Counts = [u64; SETS_MAX];

impl Mixture {
    /// Data sets as ranges of samples that do not overlap, and their weights, the first of which hold from 0 on. In each window of `window`
    /// places the data sets have their shares. Without `shuffle` each data set comes in its own order.
    ///
    /// # Errors
    /// [`Kind::Usage`](fuelrail_base::Kind) when there are no or too many data sets, one is empty, weights are missing, all 0 or out of
    /// order, or the epoch would be empty or longer than a run may be.
    pub fn new(
        sets: Vec<Range<u64>>,
        weights: Vec<Weights>,
        (epoch, window): (MixtureEpoch, u64),
        (seed, shuffle): (u64, bool),
    ) -> Result<Mixture> {
        let cure = "give every data set of the mixture a weight, at least one of them above 0";
        if sets.is_empty() || sets.len() > SETS_MAX || sets.iter().any(Range::is_empty) || window == 0 {
            let cause = format!("a mixture of {} data sets, in windows of {window}", sets.len());
            return usage(cause, format!("mix 1 to {SETS_MAX} data sets, none of them empty"));
        }
        let fits = |weights: &Weights| {
            weights.of.len() == sets.len()
                && (1..=WEIGHT_MAX).contains(&weights.of.iter().copied().fold(0, u64::saturating_add))
        };
        let is_ordered = weights.windows(2).all(|pair| pair[0].from < pair[1].from);
        if weights.first().is_none_or(|first| first.from > 0) || !is_ordered || !weights.iter().all(fits) {
            return usage("weights of a mixture that are missing, all 0, too large or out of order", cure);
        }
        let mut mixture = Mixture { sets, weights: Vec::new(), places: 0, window, seed: mix64(seed ^ MIXED), shuffle };
        for weights in weights {
            let before = if mixture.weights.is_empty() { [0; SETS_MAX] } else { mixture.counts(weights.from) };
            mixture.weights.push((weights, before));
        }
        mixture.places = mixture.length(epoch)?;
        Ok(mixture)
    }

    /// Places of an epoch.
    pub fn places(&self) -> u64 {
        self.places
    }

    /// Places of a window.
    pub fn window(&self) -> u64 {
        self.window
    }

    /// The samples of each data set.
    pub fn sets(&self) -> &[Range<u64>] {
        &self.sets
    }

    fn length(&self, epoch: MixtureEpoch) -> Result<u64> {
        let sizes = || self.sets.iter().map(|set| set.end - set.start);
        let total = sizes().sum();
        let is_weighted = |set: usize| self.weights.iter().any(|(weights, _)| weights.of[set] > 0);
        let places = match epoch {
            MixtureEpoch::Total => total,
            // One place more, and a data set has more than it has samples.
            MixtureEpoch::FirstUsedUp => {
                first_wanted(0..total, |places| sizes().zip(self.counts(places + 1)).any(|(size, count)| count > size))
            }
            MixtureEpoch::AllUsedUp => {
                let all = |places| {
                    let mut counted = sizes().zip(self.counts(places)).enumerate();
                    counted.all(|(set, (size, count))| count >= size || !is_weighted(set))
                };
                let places = first_wanted(0..limits::SAMPLES_MAX, all);
                if !all(places) {
                    return usage(
                        format!("a data set of the mixture is not used up within {} samples", limits::SAMPLES_MAX),
                        "raise the least weights, or choose another length of epochs",
                    );
                }
                places
            }
        };
        if places == 0 || places > limits::SAMPLES_MAX {
            return usage(format!("an epoch of the mixture has {places} samples"), "choose another length of epochs");
        }
        Ok(places)
    }

    /// How many of the run's first places each data set has. Of what the data sets before leave over, each has its share, rounded down: so
    /// no count ever falls, and all together are exactly as many as there are places.
    fn counts(&self, places: u64) -> Counts {
        let at = self.weights.partition_point(|(weights, _)| weights.from <= places).saturating_sub(1);
        let (weights, mut counts) = (&self.weights[at].0, self.weights[at].1);
        let (mut left, mut weight_left) = (places - weights.from, weights.of.iter().sum::<u64>());
        for (count, weight) in counts.iter_mut().zip(&weights.of).filter(|(_, weight)| **weight > 0) {
            let share = (u128::from(left) * u128::from(*weight) / u128::from(weight_left)) as u64;
            *count += share;
            (left, weight_left) = (left - share, weight_left - weight);
        }
        counts
    }

    /// Of the window of a place of an epoch: its first place, and how often each data set comes before it and before its end.
    fn window_around(&self, epoch: u64, place: u64) -> (u64, Counts, Counts) {
        let first = place / self.window * self.window;
        let [from, to] = [first, self.places.min(first + self.window)].map(|at| self.counts(epoch * self.places + at));
        (first, from, to)
    }

    /// The sample in a place of an epoch.
    ///
    /// # Panics
    /// When the epoch has no such place.
    pub fn sample_in(&self, epoch: u64, place: u64) -> SampleId {
        assert!(place < self.places, "place {place} of {}", self.places);
        let (first, from, to) = self.window_around(epoch, place);
        let mut within = place - first;
        for (set, samples) in self.sets.iter().enumerate() {
            let here = to[set] - from[set];
            if within < here {
                let (draw, size) = (from[set] + within, samples.end - samples.start);
                return SampleId(samples.start + self.pass(set, draw / size).at(draw % size));
            }
            within -= here;
        }
        unreachable!("the data sets have all places of a window")
    }

    /// The places of an epoch that a sample comes in, window by window, from that of `place` on.
    pub fn places_of(&self, epoch: u64, sample: SampleId, place: u64) -> impl Iterator<Item = u64> + '_ {
        let set = self.sets.iter().position(|set| set.contains(&sample.0));
        set.into_iter().flat_map(move |set| {
            let (samples, (_, from, _)) = (&self.sets[set], self.window_around(epoch, place));
            let (size, from, to) =
                (samples.end - samples.start, from[set], self.counts((epoch + 1) * self.places)[set]);
            let member = sample.0 - samples.start;
            let draws = (from / size..to.div_ceil(size)).map(move |pass| pass * size + self.pass(set, pass).of(member));
            draws.filter(move |draw| (from..to).contains(draw)).map(move |draw| self.place_of(epoch, set, draw))
        })
    }

    /// Where in an epoch a draw of a data set is.
    fn place_of(&self, epoch: u64, set: usize, draw: u64) -> u64 {
        let windows = 1..self.places.div_ceil(self.window);
        let behind = first_wanted(windows, |n| self.counts(epoch * self.places + n * self.window)[set] > draw);
        let (first, from, to) = self.window_around(epoch, (behind - 1) * self.window);
        let before: u64 = from.iter().zip(&to).take(set).map(|(from, to)| to - from).sum();
        first + before + draw - from[set]
    }

    /// The order in which a data set is gone through for the `pass`th time.
    fn pass(&self, set: usize, pass: u64) -> Permutation {
        let size = self.sets[set].end - self.sets[set].start;
        if !self.shuffle {
            return Permutation::identity(size);
        }
        Permutation::new(size, mix64(self.seed ^ mix64(set as u64)).wrapping_add(pass))
    }
}

/// All that the order follows from, but for seed and shuffle.
impl fmt::Display for Mixture {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let sets: Vec<String> = self.sets.iter().map(|set| format!("{}..{}", set.start, set.end)).collect();
        write!(f, "a mixture of {} with weights", sets.join(" "))?;
        for (at, (weights, _)) in self.weights.iter().enumerate() {
            let of: Vec<String> = weights.of.iter().map(u64::to_string).collect();
            write!(f, "{} {} from {}", if at > 0 { "," } else { "" }, of.join(":"), weights.from)?;
        }
        write!(f, ", in windows of {}", self.window)
    }
}

/// The order within each window of a mixture: a permutation of the epoch's places.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Windows {
    pub places: u64,
    pub window: u64,
    pub key: u64,
}

impl Windows {
    /// The place that comes at a position.
    pub(super) fn at(&self, position: u64) -> u64 {
        let (first, order) = self.around(position);
        first + order.at(position - first)
    }

    /// The position of a place.
    pub(super) fn of(&self, place: u64) -> u64 {
        let (first, order) = self.around(place);
        first + order.of(place - first)
    }

    fn around(&self, at: u64) -> (u64, Permutation) {
        let first = at / self.window * self.window;
        let length = self.window.min(self.places - first);
        (first, Permutation::new(length, mix64(self.key ^ mix64(first))))
    }
}

/// Separates a data set's permutations from those of epochs under the same seed.
const MIXED: u64 = 0x4D49_5854;
/// The most that weights may add up to.
const WEIGHT_MAX: u64 = 1 << 60;
