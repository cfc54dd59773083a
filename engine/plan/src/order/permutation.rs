//! A keyed permutation of `0..size`, both ways, in O(1) memory.
//!
//! A balanced Feistel network over the smallest domain of an even number of bits that holds all of them, with cycle
//! walking (Black, Rogaway, CT-RSA 2002) for what lies outside. Owns its round keys; never knows what it permutes.

use fuelrail_base::prng::mix64;

/// Rounds of the network. Four make a good cipher of wide halves (Luby, Rackoff 1988), but a data set of five samples
/// has halves of two bits: there, permutations come out equally often only from nine rounds on (`tests/order.rs` counts
/// all of them). Twelve leave a margin and still cost far less than a request.
const ROUNDS: usize = 12;

/// The permutation of one key.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Permutation {
    size: u64,
    /// Bits of each half of the domain; zero means the identity.
    half_bits: u32,
    keys: [u64; ROUNDS],
    /// Whether words 0 and 1 change places first: see [`Permutation::swapped`].
    swap: bool,
}

impl Permutation {
    /// The permutation of `0..size` under `key`.
    pub(super) fn new(size: u64, key: u64) -> Permutation {
        let bits = u64::BITS - size.saturating_sub(1).leading_zeros();
        Permutation {
            size,
            half_bits: bits.div_ceil(2),
            keys: core::array::from_fn(|round| mix64(key.wrapping_add(round as u64))),
            swap: mix64(key.wrapping_add(ROUNDS as u64)) >> 63 == 1,
        }
    }

    /// The one that moves nothing.
    pub(super) fn identity(size: u64) -> Permutation {
        Permutation { size, half_bits: 0, keys: [0; ROUNDS], swap: false }
    }

    /// What stands at a place, which is below the size.
    pub(super) fn at(&self, place: u64) -> u64 {
        self.walk(place, Permutation::forward)
    }

    /// Where it stands: the inverse of [`at`](Permutation::at).
    pub(super) fn of(&self, what: u64) -> u64 {
        self.walk(what, Permutation::backward)
    }

    fn walk(&self, from: u64, step: impl Fn(&Permutation, u64) -> u64) -> u64 {
        debug_assert!(from < self.size, "{from} of {}", self.size);
        let mut word = from;
        if self.half_bits > 0 {
            // The domain is less than four times the size, so the walk takes fewer than four steps on average, and it
            // ends: the orbit of a place comes back to that place, which is inside.
            loop {
                word = step(self, word);
                if word < self.size {
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
    /// exchange under half of the keys, small data sets would see even permutations more often than odd ones: 13 to 11
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
