//! Whether and when to retry a failed fetch.
//!
//! Waits follow exponential back-off with full jitter (Brooker, "Exponential Backoff And Jitter", AWS Architecture Blog,
//! 2015): uniform below a ceiling that doubles. A retry budget (token bucket, as in Finagle's `RetryBudget` and the AWS
//! SDKs' standard mode) keeps a failing server from getting twice as many requests as a healthy one: when it is spent, waits
//! stretch, but the run goes on; only the number of attempts per block ends it. Owns the budget and a seeded generator.
//! Never counts blocks or holds timers.

use crate::usage;
use fuelrail_base::{Duration, Kind, Result, prng::Prng};

/// Longest Retry-After that is honoured, µs; longer ones are cut to it.
const RETRY_AFTER_US_MAX: u64 = 60_000_000;
/// Successes that earn one retry: what it costs.
const PRICE: u64 = 10;
/// The budget when it is full, as which it starts: a hundred retries.
const BUDGET_MAX: u64 = 100 * PRICE;
/// How many times longer waits are while the budget is spent.
const SPENT_STRETCH: u64 = 4;

/// Limits of retrying. Times in microseconds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RetryConfig {
    /// Attempts per block in all, the first included.
    pub attempts_max: u32,
    /// Ceiling of the first wait.
    pub base_us: u64,
    /// Ceiling of the first wait after the server asked to slow down.
    pub throttled_base_us: u64,
    /// No ceiling grows beyond this.
    pub cap_us: u64,
    /// … nor beyond this after the server asked to slow down. Where the pace limits the rate of requests, waiting longer
    /// than it takes to find the rate has no use.
    pub throttled_cap_us: u64,
    /// How long one block may fail in all its attempts, those with progress too; outages do not count; 0 leaves it to the attempts.
    pub request_limit_us: u64,
    /// How long a server that is down is waited for, if it has served before; 0 leaves it to the attempts.
    pub outage_limit_us: u64,
}

impl Default for RetryConfig {
    fn default() -> RetryConfig {
        RetryConfig {
            attempts_max: 10,
            base_us: 50_000,
            throttled_base_us: 500_000,
            cap_us: 20_000_000,
            throttled_cap_us: 20_000_000,
            request_limit_us: 600_000_000,
            outage_limit_us: 300_000_000,
        }
    }
}

impl RetryConfig {
    /// Checks every field.
    ///
    /// # Errors
    /// [`Kind::Usage`], naming the field and its value.
    pub fn validate(&self) -> Result<()> {
        let &RetryConfig { base_us, throttled_base_us, cap_us, .. } = self;
        if self.attempts_max == 0 {
            return usage("retry attempts_max is 0", "1 means a single attempt and no retry");
        }
        if base_us == 0 || throttled_base_us == 0 {
            let cause = format!("retry waits start at {base_us} and {throttled_base_us} us");
            return usage(cause, "use at least 1 us: a retry without any wait floods the server");
        }
        if cap_us < base_us || cap_us < throttled_base_us {
            let cause = format!("retry cap_us {cap_us} is below the first waits {base_us} and {throttled_base_us} us");
            return usage(cause, "raise cap_us or lower the first waits");
        }
        Ok(())
    }
}

/// Failed attempts of one block so far.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Tries {
    failed: u32,
    changed: u32,
}

impl Tries {
    /// Failed attempts so far: what an error reports.
    pub fn failed(&self) -> u32 {
        self.failed
    }
}

/// The answer to a failure.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// Try again after this long.
    After(Duration),
    /// Report the error.
    GiveUp,
}

/// Decides on failures; one per shard.
#[derive(Clone, Debug)]
pub struct Retry {
    config: RetryConfig,
    random: Prng,
    /// The budget, in successes: a retry costs [`PRICE`] of them.
    budget: u64,
}

impl Retry {
    /// A full budget and a generator of jitter.
    ///
    /// # Errors
    /// [`Kind::Usage`] when the configuration is out of range.
    pub fn new(config: RetryConfig, seed: u64) -> Result<Retry> {
        config.validate()?;
        Ok(Retry { config, random: Prng::new(seed), budget: BUDGET_MAX })
    }

    /// Whether to retry a block that has just failed with `kind`, and after how long. `retry_after` is the pause that the
    /// server requested, if any. Counts the failure in `tries`.
    pub fn verdict(&mut self, tries: &mut Tries, kind: Kind, retry_after: Option<Duration>) -> Verdict {
        tries.failed += 1;
        tries.changed += u32::from(kind == Kind::Changed);
        // One stale replica may answer with another ETag; two different answers mean that the object did change.
        if !kind.retryable() || tries.failed >= self.config.attempts_max || tries.changed > 1 {
            return Verdict::GiveUp;
        }
        let spent = self.budget < PRICE;
        if !spent {
            self.budget -= PRICE;
        }
        let stretch = if spent { SPENT_STRETCH } else { 1 };
        let throttled = kind == Kind::Throttled;
        let first = if throttled { self.config.throttled_base_us } else { self.config.base_us };
        let cap = if throttled { self.config.throttled_cap_us.min(self.config.cap_us) } else { self.config.cap_us };
        let doublings = (tries.failed - 1).min(63);
        let ceiling = first.saturating_mul(1 << doublings).saturating_mul(stretch).min(cap);
        let wait = match retry_after {
            // On top of the pause requested, or all would retry at the same moment.
            Some(asked) => {
                let asked = u64::try_from(asked.as_micros()).unwrap_or(u64::MAX);
                asked.min(RETRY_AFTER_US_MAX).saturating_add(self.up_to(first))
            }
            // The budget is spent: waits are stretched.
            None if spent => ceiling / 2 + self.up_to(ceiling - ceiling / 2),
            None => self.up_to(ceiling),
        };
        Verdict::After(Duration::from_micros(wait))
    }

    /// Records a fetch that succeeded: it earns a part of a retry.
    pub fn success(&mut self) {
        self.budget = (self.budget + 1).min(BUDGET_MAX);
    }

    /// Uniform in `0..=ceiling`.
    fn up_to(&mut self, ceiling: u64) -> u64 {
        self.random.below(ceiling.saturating_add(1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn retry() -> Retry {
        Retry::new(RetryConfig::default(), 7).unwrap()
    }

    /// Waits of one block that keeps failing with `kind`, until the verdict is to give up.
    fn waits(retry: &mut Retry, kind: Kind) -> Vec<Duration> {
        let mut tries = Tries::default();
        let mut waits = Vec::new();
        while let Verdict::After(wait) = retry.verdict(&mut tries, kind, None) {
            waits.push(wait);
        }
        assert_eq!(tries.failed() as usize, waits.len() + 1);
        waits
    }

    #[test]
    fn attempts_end_and_final_kinds_are_never_retried() {
        assert_eq!(waits(&mut retry(), Kind::Network).len(), 9, "ten attempts, nine waits between");
        for kind in [Kind::NotFound, Kind::Denied, Kind::Usage, Kind::Cancelled, Kind::File] {
            assert_eq!(waits(&mut retry(), kind).len(), 0, "{kind:?}");
        }
    }

    #[test]
    fn changed_is_retried_once_whatever_else_failed() {
        assert_eq!(waits(&mut retry(), Kind::Changed).len(), 1);
        let (mut retry, mut tries) = (retry(), Tries::default());
        for kind in [Kind::Network, Kind::Changed, Kind::Truncated] {
            assert!(matches!(retry.verdict(&mut tries, kind, None), Verdict::After(_)), "{kind:?}");
        }
        assert_eq!(retry.verdict(&mut tries, Kind::Changed, None), Verdict::GiveUp);
    }

    #[test]
    fn ceilings_double_up_to_the_cap_and_jitter_fills_them() {
        let config = RetryConfig { attempts_max: 12, ..RetryConfig::default() };
        for (kind, base_us) in [(Kind::Network, config.base_us), (Kind::Throttled, config.throttled_base_us)] {
            let mut retry = Retry::new(config, 3).unwrap();
            let mut block = || {
                retry.budget = BUDGET_MAX;
                waits(&mut retry, kind)
            };
            let blocks: Vec<_> = (0..400).map(|_| block()).collect();
            for attempt in 0..11 {
                let ceiling = Duration::from_micros((base_us << attempt).min(config.cap_us));
                let longest = *blocks.iter().map(|waits| &waits[attempt]).max().unwrap();
                let mean = blocks.iter().map(|waits| waits[attempt]).sum::<Duration>() / 400;
                assert!(
                    longest <= ceiling && longest > ceiling * 9 / 10,
                    "{kind:?} {attempt}: {longest:?} {ceiling:?}"
                );
                assert!(mean > ceiling * 4 / 10 && mean < ceiling * 6 / 10, "{kind:?} {attempt}: mean {mean:?}");
            }
        }
    }

    #[test]
    fn under_a_pace_waits_after_throttling_do_not_grow() {
        let config = RetryConfig { throttled_cap_us: 500_000, ..RetryConfig::default() };
        let mut retry = Retry { budget: 0, ..Retry::new(config, 3).unwrap() };
        let longest = |waits: Vec<Duration>| waits.into_iter().max().unwrap();
        assert!(longest(waits(&mut retry, Kind::Throttled)) <= Duration::from_millis(500));
        assert!(longest(waits(&mut retry, Kind::Server)) > Duration::from_secs(5), "others do");
    }

    #[test]
    fn retry_after_is_honoured_within_bounds() {
        let first = Duration::from_micros(RetryConfig::default().throttled_base_us);
        for (asked, least) in [(3, 3), (86_400, 60)] {
            let mut tries = Tries::default();
            let asked = Some(Duration::from_secs(asked));
            let Verdict::After(wait) = retry().verdict(&mut tries, Kind::Throttled, asked) else { panic!("gave up") };
            let least = Duration::from_secs(least);
            assert!(wait >= least && wait <= least + first, "{wait:?}");
        }
    }

    #[test]
    fn a_spent_budget_stretches_waits_and_successes_refill_it() {
        let mut retry = retry();
        assert_eq!(retry.budget / PRICE, 100);
        let first_wait = |retry: &mut Retry| match retry.verdict(&mut Tries::default(), Kind::Server, None) {
            Verdict::After(wait) => wait,
            Verdict::GiveUp => panic!("a spent budget must not end the run"),
        };
        let ceiling = Duration::from_micros(RetryConfig::default().base_us);
        assert!((0..100).all(|_| first_wait(&mut retry) <= ceiling));
        assert_eq!(retry.budget / PRICE, 0);
        assert!((0..100).all(|_| (ceiling * 2..=ceiling * 4).contains(&first_wait(&mut retry))));
        (0..9).for_each(|_| retry.success());
        assert_eq!(retry.budget / PRICE, 0);
        retry.success();
        assert_eq!(retry.budget / PRICE, 1);
        assert!(first_wait(&mut retry) <= ceiling);
        (0..10_000).for_each(|_| retry.success());
        assert_eq!(retry.budget / PRICE, 100, "no fuller than full");
    }

    #[test]
    fn one_seed_one_sequence() {
        let sequence = |seed| waits(&mut Retry::new(RetryConfig::default(), seed).unwrap(), Kind::Stalled);
        assert_eq!(sequence(1), sequence(1));
        assert_ne!(sequence(1), sequence(2));
    }

    #[test]
    fn refuses_a_configuration_that_cannot_work() {
        let good = RetryConfig::default();
        for bad in [
            RetryConfig { attempts_max: 0, ..good },
            RetryConfig { base_us: 0, ..good },
            RetryConfig { throttled_base_us: 0, ..good },
            RetryConfig { cap_us: 1, ..good },
        ] {
            assert_eq!(Retry::new(bad, 0).unwrap_err().kind(), Kind::Usage, "{bad:?}");
        }
    }
}
