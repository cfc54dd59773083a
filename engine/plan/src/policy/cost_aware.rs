//! Recency, frequency and the cost of getting a block again: the policy of DLCache (ISORC 2023), in the log domain.
//!
//! Published: a chunk's score is `Σ cost / d · (1 / p)^(λ d)` over its uses, `d` seconds ago, `p` and `λ` constants; the
//! lowest score leaves. After some hours without a use all scores are zero in floating point, and what leaves is the
//! order of a list.
//!
//! Here the score of a block is `Σ value · 2^(-d / half_life)`, `d` counted in uses of any block, and what is kept is its
//! logarithm, with the part that is the same for all left out:
//!
//! ```text
//! score = log2(value) + log2 Σ 2^(t / half_life)        t: when it was used
//! ```
//!
//! which grows slowly and never under- or overflows; a use adds to the sum by `log2(2^a + 2^b)`. Ours: time in uses, so
//! that a paused trainer ages nothing; value is cost **per byte** (`cost = request + bytes / rate`), because bytes are what the
//! cache has a limit of; and no `1 / d`, for under it two blocks can change places while neither is used, and no heap would
//! hold them. Ignores next uses. What is new always comes in. O(log n) per call and block evicted.

use super::ranked::Rule;
use crate::schedule::UseTime;
use fuelrail_base::BlockId;

/// What it costs to get a block again, and how fast uses are forgotten.
pub(super) struct CostAware {
    /// Of a request, whatever it is for, µs.
    request_us: f64,
    /// Of a byte, µs.
    byte_us: f64,
    /// Uses of any block after which a use counts half.
    half_life_uses: f64,
    uses: u64,
}

impl Default for CostAware {
    /// A bucket in the same region: 20 ms to the first byte, then 100 MB/s.
    fn default() -> CostAware {
        CostAware { request_us: 20_000.0, byte_us: 0.01, half_life_uses: 10_000.0, uses: 0 }
    }
}

impl CostAware {
    /// log2 of what keeping a byte of this block saves.
    fn log_value(&self, bytes: u64) -> f64 {
        let bytes = bytes.max(1) as f64;
        ((self.request_us.max(f64::MIN_POSITIVE) + self.byte_us.max(0.0) * bytes) / bytes).log2()
    }

    /// What a use now adds to a block of these bytes.
    fn worth(&mut self, bytes: u64) -> f64 {
        self.uses += 1;
        self.log_value(bytes) + self.uses as f64 / self.half_life_uses.max(1.0)
    }
}

/// The key of a score, which is never NaN: the lowest score has the greatest.
fn key_of(score: f64) -> u64 {
    let bits = score.to_bits();
    if bits >> 63 == 1 { bits } else { !bits & !(1 << 63) }
}

fn score_of(key: u64) -> f64 {
    f64::from_bits(if key >> 63 == 1 { key } else { !key & !(1 << 63) })
}

impl Rule for CostAware {
    fn first(&mut self, _block: BlockId, bytes: u64, _next_use: Option<UseTime>) -> Option<u64> {
        Some(key_of(self.worth(bytes)))
    }

    fn again(&mut self, key: u64, bytes: u64, _next_use: Option<UseTime>) -> Option<u64> {
        let (before, now) = (score_of(key), self.worth(bytes));
        // log2(2^before + 2^now), from the larger of the two.
        let score = before.max(now) + (-(before - now).abs()).exp2().ln_1p() / core::f64::consts::LN_2;
        Some(key_of(score))
    }

    fn bar(&self, _newcomer: u64) -> u64 {
        key_of(f64::INFINITY)
    }
}

#[cfg(test)]
mod tests {
    use super::super::ranked::{Policy, PolicyName};
    use super::*;
    use fuelrail_base::SampleId;

    fn block(sample: u32) -> BlockId {
        BlockId { sample: SampleId(sample.into()), index: 0 }
    }

    fn held(policy: &Policy) -> Vec<u32> {
        (0..100).filter(|sample| policy.contains(&block(*sample))).collect()
    }

    #[test]
    fn recency_frequency_and_cost_each_decide_when_the_others_are_equal() {
        let cost = || Box::new(CostAware { request_us: 100.0, byte_us: 1.0, half_life_uses: 4.0, uses: 0 });
        let (mut policy, mut evicted) = (Policy::new(PolicyName::Dlcache, 30, cost()), Vec::new());
        (0..3).for_each(|sample| assert!(policy.offer(block(sample), 10, None, &mut evicted)));
        assert!(policy.offer(block(3), 10, None, &mut evicted));
        assert_eq!((evicted.as_slice(), held(&policy)), ([block(0)].as_slice(), vec![1, 2, 3]), "the oldest");
        (0..2).for_each(|_| assert!(policy.hit(block(1), None, &mut evicted)));
        policy.hit(block(2), None, &mut evicted);
        policy.offer(block(4), 10, None, &mut evicted);
        assert_eq!(held(&policy), [1, 2, 4], "used once, before two that were used again");
        policy.offer(block(5), 10, None, &mut evicted);
        assert_eq!(held(&policy), [1, 2, 5], "used seldom, though last");
        let mut policy = Policy::new(PolicyName::Dlcache, 30, cost());
        policy.offer(block(0), 2, None, &mut evicted);
        policy.offer(block(1), 26, None, &mut evicted);
        policy.offer(block(2), 20, None, &mut evicted);
        assert_eq!(
            held(&policy),
            [0, 2],
            "a byte of the large one is cheaper to get again, though the small one is older"
        );
    }

    /// The published score is zero for all of these: 2^-5000 and less. Here they keep their order.
    #[test]
    fn scores_do_not_underflow() {
        let cost = || Box::new(CostAware { request_us: 1.0, byte_us: 0.0, half_life_uses: 1.0, uses: 0 });
        let (mut policy, mut evicted) = (Policy::new(PolicyName::Dlcache, 3, cost()), Vec::new());
        (0..3).for_each(|sample| assert!(policy.offer(block(sample), 1, None, &mut evicted)));
        (0..5_000).for_each(|_| assert!(policy.hit(block(0), None, &mut evicted)));
        assert_eq!(0.5f64.powi(5_000), 0.0, "as published");
        policy.offer(block(3), 1, None, &mut evicted);
        policy.offer(block(4), 1, None, &mut evicted);
        assert_eq!(evicted, [block(1), block(2)]);
        assert!(policy.key(block(0)).map(score_of).is_some_and(|score| score.is_finite() && score > 5_000.0));
    }

    /// Against the sum itself, where it does not underflow.
    #[test]
    fn the_logarithm_is_that_of_the_sum() {
        let cost = || Box::new(CostAware { request_us: 300.0, byte_us: 2.0, half_life_uses: 7.0, uses: 0 });
        let (mut policy, mut evicted, mut sum) = (Policy::new(PolicyName::Dlcache, 10, cost()), Vec::new(), 0.0);
        for at in 1..=40u32 {
            policy.offer(block(u32::from(at % 3 == 0)), 5, None, &mut evicted);
            if at % 3 != 0 {
                sum += (300.0 + 2.0 * 5.0) / 5.0 * (f64::from(at) / 7.0).exp2();
            }
        }
        let score = score_of(policy.key(block(0)).unwrap());
        assert!((score - sum.log2()).abs() < 1e-9, "{score} {}", sum.log2());
    }
}
