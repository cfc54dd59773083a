//! Seeded randomness: SplitMix64 (Steele, Lea, Flood, OOPSLA 2014) and xoshiro256** (Blackman, Vigna, 2018).
//!
//! Small, fast, the same on every machine. Not for secrets.

/// The SplitMix64 finaliser: a bijection of 64-bit words with full avalanche.
#[must_use]
pub fn mix64(x: u64) -> u64 {
    let mut z = x.wrapping_add(0x9E37_79B9_7F4A_7C15);
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

/// xoshiro256**, seeded through SplitMix64.
#[derive(Clone, Debug)]
pub struct Prng {
    state: [u64; 4],
}

impl Prng {
    /// A generator for this seed.
    #[must_use]
    pub fn new(seed: u64) -> Prng {
        let mut s = seed;
        let mut next = || {
            let word = mix64(s);
            s = s.wrapping_add(0x9E37_79B9_7F4A_7C15);
            word
        };
        Prng { state: [next(), next(), next(), next()] }
    }

    /// 64 uniform bits.
    #[expect(clippy::should_implement_trait, reason = "an endless source, not an iterator")]
    pub fn next(&mut self) -> u64 {
        let s = &mut self.state;
        let result = s[1].wrapping_mul(5).rotate_left(7).wrapping_mul(9);
        let t = s[1] << 17;
        s[2] ^= s[0];
        s[3] ^= s[1];
        s[1] ^= s[2];
        s[0] ^= s[3];
        s[2] ^= t;
        s[3] = s[3].rotate_left(45);
        result
    }

    /// Uniform in `0..bound` without modulo bias (Lemire's multiply-shift with rejection).
    ///
    /// # Panics
    /// When `bound` is zero.
    pub fn below(&mut self, bound: u64) -> u64 {
        assert!(bound > 0, "an empty range has no members");
        loop {
            let product = u128::from(self.next()) * u128::from(bound);
            let low = product as u64;
            if low >= bound || low >= bound.wrapping_neg() % bound {
                return (product >> 64) as u64;
            }
        }
    }

    /// Uniform in `[0, 1)` with 53 bits.
    pub fn unit(&mut self) -> f64 {
        (self.next() >> 11) as f64 * (1.0 / (1u64 << 53) as f64)
    }

    /// True with probability `p`.
    pub fn chance(&mut self, p: f64) -> bool {
        self.unit() < p
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn golden() {
        assert_eq!(mix64(0), 0xE220_A839_7B1D_CDAF, "published first output of SplitMix64 with seed 0");
        let mut p = Prng::new(0);
        assert_eq!([p.next(), p.next()], [0x99EC_5F36_CB75_F2B4, 0xBF6E_1F78_4956_452A]);
    }

    #[test]
    fn bounded_and_spread() {
        let mut p = Prng::new(7);
        let mut hits = [0u32; 5];
        for _ in 0..50_000 {
            hits[p.below(5) as usize] += 1;
        }
        assert!(hits.iter().all(|h| (9_600..10_400).contains(h)), "{hits:?}");
        assert!((0..1_000).all(|_| (0.0..1.0).contains(&p.unit())));
    }
}
