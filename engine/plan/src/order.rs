//! The order of samples as a function: a keyed permutation of `0..samples` for every epoch.
//!
//! A balanced Feistel network over the smallest domain of an even number of bits that holds all samples, with cycle
//! walking (Black, Rogaway, CT-RSA 2002) for what lies outside. Owns a seed and nothing else: O(1) memory, seekable in
//! both directions, the same on every machine. Never looks at ranks or batches. The golden vectors in `tests/order.rs`
//! pin it for ever: a run saved today must resume on the same samples in ten years.

use fuelrail_base::{SampleId, limits, prng::mix64};

/// Rounds of the network. Four make a good cipher of wide halves (Luby, Rackoff 1988), but a data set of five samples
/// has halves of two bits: there, permutations come out equally often only from nine rounds on (`tests/order.rs` counts
/// all of them). Twelve leave a margin and still cost far less than a request.
const ROUNDS: usize = 12;

/// The order of a data set over all epochs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Order {
    samples: u64,
    seed: u64,
    shuffle: bool,
}

impl Order {
    /// The order of `samples` samples under `seed`. Without `shuffle` every epoch is `0, 1, 2, …`.
    ///
    /// # Panics
    /// When `samples` exceeds [`limits::SAMPLES_MAX`]; `Run::new` refuses such a data set with an error.
    #[must_use]
    pub fn new(samples: u64, seed: u64, shuffle: bool) -> Order {
        assert!(samples <= limits::SAMPLES_MAX, "{samples} samples do not fit 32-bit ids");
        Order { samples, seed, shuffle }
    }

    /// Number of samples.
    #[must_use]
    pub fn samples(&self) -> u64 {
        self.samples
    }

    /// The permutation of one epoch, with its round keys worked out: cheap to copy, for many look-ups in one epoch.
    #[must_use]
    pub fn epoch(&self, epoch: u64) -> EpochOrder {
        let base = mix64(mix64(self.seed).wrapping_add(epoch));
        let bits = u64::BITS - self.samples.saturating_sub(1).leading_zeros();
        EpochOrder {
            samples: self.samples,
            half_bits: if self.shuffle { bits.div_ceil(2) } else { 0 },
            keys: core::array::from_fn(|round| mix64(base.wrapping_add(round as u64))),
            swap: mix64(base.wrapping_add(ROUNDS as u64)) >> 63 == 1,
        }
    }

    /// The sample at `position` (in `0..samples`) of `epoch`.
    ///
    /// # Panics
    /// When `position` is not below `samples`.
    #[must_use]
    pub fn sample_at(&self, epoch: u64, position: u64) -> SampleId {
        self.epoch(epoch).sample_at(position)
    }

    /// Where in `epoch` the sample comes: the inverse of [`sample_at`](Order::sample_at).
    ///
    /// # Panics
    /// When the sample is not one of the data set.
    #[must_use]
    pub fn position_of(&self, epoch: u64, sample: SampleId) -> u64 {
        self.epoch(epoch).position_of(sample)
    }
}

/// The permutation of one epoch.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct EpochOrder {
    samples: u64,
    /// Bits of each half of the domain; zero means the identity.
    half_bits: u32,
    keys: [u64; ROUNDS],
    /// Whether words 0 and 1 change places first: see [`EpochOrder::swapped`].
    swap: bool,
}

impl EpochOrder {
    /// The sample at `position` (in `0..samples`).
    ///
    /// # Panics
    /// When `position` is not below the number of samples.
    #[must_use]
    pub fn sample_at(&self, position: u64) -> SampleId {
        assert!(position < self.samples, "position {position} of {} samples", self.samples);
        let mut word = position;
        if self.half_bits > 0 {
            // The domain is less than four times the data set, so the walk takes fewer than four steps on average, and
            // it ends: the orbit of a position comes back to that position, which is inside.
            loop {
                word = self.forward(word);
                if word < self.samples {
                    break;
                }
            }
        }
        SampleId(word as u32)
    }

    /// The position of a sample.
    ///
    /// # Panics
    /// When the sample is not one of the data set.
    #[must_use]
    pub fn position_of(&self, sample: SampleId) -> u64 {
        let mut word = u64::from(sample.0);
        assert!(word < self.samples, "sample {word} of {}", self.samples);
        if self.half_bits > 0 {
            loop {
                word = self.backward(word);
                if word < self.samples {
                    break;
                }
            }
        }
        word
    }

    fn forward(&self, word: u64) -> u64 {
        let word = self.swapped(word);
        let (mut left, mut right) = (word >> self.half_bits, word & self.half_mask());
        for key in self.keys {
            (left, right) = (right, left ^ self.round(key, right));
        }
        (left << self.half_bits) | right
    }

    fn backward(&self, word: u64) -> u64 {
        let (mut left, mut right) = (word >> self.half_bits, word & self.half_mask());
        for key in self.keys.iter().rev() {
            (left, right) = (right ^ self.round(*key, left), left);
        }
        self.swapped((left << self.half_bits) | right)
    }

    /// Every round of a Feistel network is an even permutation (of four bits or more), and so is the network. Without an
    /// exchange in half of the epochs, small data sets would see even permutations more often than odd ones: 13 to 11
    /// for five samples.
    fn swapped(&self, word: u64) -> u64 {
        if self.swap && word < 2 { word ^ 1 } else { word }
    }

    fn round(&self, key: u64, half: u64) -> u64 {
        mix64(key ^ half) >> (u64::BITS - self.half_bits)
    }

    fn half_mask(&self) -> u64 {
        (1 << self.half_bits) - 1
    }
}
