//! One number over a set of objects that does not depend on the order they came in: the sum, modulo 2¹²⁸, of every object's
//! XXH3-128. Loaders that shuffle differently agree on it, and an object missing, doubled or wrong changes it.
//!
//! Owns the sum. Never reads anything.

use core::fmt;

use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::xxh3_128;

/// The hash of a set of objects, whatever their order.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct SetHash {
    sum: u128,
}

impl SetHash {
    pub fn add(&mut self, object: &[u8]) {
        self.add_hash(xxh3_128(object));
    }

    /// The hash of the same objects so many times.
    pub fn times(self, repeats: u32) -> SetHash {
        SetHash { sum: self.sum.wrapping_mul(repeats.into()) }
    }

    /// Adds an object by the XXH3-128 of its bytes.
    pub fn add_hash(&mut self, hash: u128) {
        self.sum = self.sum.wrapping_add(hash);
    }
}

/// 32 hexadecimal digits.
impl fmt::Display for SetHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.sum)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn order_does_not_matter_and_everything_else_does() {
        let of = |objects: &[&[u8]]| {
            let mut hash = SetHash::default();
            objects.iter().for_each(|object| hash.add(object));
            hash.to_string()
        };
        let known = of(&[b"a", b"b"]);
        assert_eq!((known.len(), &known), (32, &of(&[b"b", b"a"])));
        let mut once = SetHash::default();
        once.add(b"a");
        assert_eq!(once.times(3).to_string(), of(&[b"a", b"a", b"a"]));
        for other in [&[&b"a"[..]][..], &[b"a", b"b", b"b"], &[b"a", b"c"], &[b"ab"]] {
            assert_ne!(of(other), known);
        }
    }
}
