//! Which ranks are up: a circuit breaker for each, shared by the shards of this rank.
//!
//! Shards report requests that failed and blocks that were sent; health checks report ranks that have recovered. Owns one word for each
//! rank, which is read for every block that another rank keeps. Sends no request.

use core::sync::atomic::{AtomicU64, Ordering::Relaxed};
use fuelrail_base::Duration;

/// The rank failed, and no health check has succeeded since.
const DOWN: u64 = 1 << 63;
/// Counts failures, …
const FAILURE: u64 = 1 << 40;
/// … up to so many.
const FAILURES_MAX: u64 = 255;
/// The bits of the limit, microseconds.
const LIMIT: u64 = FAILURE - 1;

/// The status of every rank of a job, as the shards of one of them know it.
#[derive(Debug)]
pub struct Health {
    words: Box<[AtomicU64]>,
}

/// Which requests a rank is sent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Status {
    /// All.
    Up,
    /// One at a time, until it sends a block: it failed, and a health check has succeeded.
    HalfOpen,
    /// None.
    Down,
}

/// A rank that is down.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Down {
    /// Which one.
    pub rank: u16,
    /// Failures in a row: no block was sent in between.
    pub failures: u32,
    /// The longest response time at which it counts as recovered.
    pub limit: Duration,
}

impl Health {
    /// The status of so many ranks, all up.
    pub fn new(ranks: u16) -> Health {
        Health { words: (0..ranks).map(|_| AtomicU64::new(0)).collect() }
    }

    /// The status of a rank.
    ///
    /// # Panics
    /// When there is no such rank; so do the other methods.
    pub fn of(&self, rank: u16) -> Status {
        match self.words[usize::from(rank)].load(Relaxed) {
            0 => Status::Up,
            word if word & DOWN == 0 => Status::HalfOpen,
            _ => Status::Down,
        }
    }

    /// A request to a rank failed, or its responses take longer than `limit`. Failures while it is down are not counted.
    pub fn failed(&self, rank: u16, limit: Duration) {
        let micros = u64::try_from(limit.as_micros()).unwrap_or(LIMIT).min(LIMIT);
        let down = |word: u64| {
            let failures = (word / FAILURE + 1).min(FAILURES_MAX) * FAILURE;
            (word & DOWN == 0).then_some(DOWN | failures | micros)
        };
        // Another shard has said so already.
        let _ = self.words[usize::from(rank)].fetch_update(Relaxed, Relaxed, down);
    }

    /// A health check of a rank that is down has succeeded.
    pub fn recovered(&self, rank: u16) {
        self.words[usize::from(rank)].fetch_and(!DOWN, Relaxed);
    }

    /// A rank has sent a block. One that was requested before the rank went down changes nothing.
    pub fn sent(&self, rank: u16) {
        let word = &self.words[usize::from(rank)];
        let seen = word.load(Relaxed);
        if seen != 0 && seen & DOWN == 0 {
            // It may be down by now.
            let _ = word.compare_exchange(seen, 0, Relaxed, Relaxed);
        }
    }

    /// The ranks that are down.
    pub fn down(&self) -> impl Iterator<Item = Down> {
        (0..).zip(&self.words).filter_map(|(rank, word)| {
            let word = word.load(Relaxed);
            let down = || {
                let failures = u32::try_from((word & !DOWN) / FAILURE).expect("a byte");
                Down { rank, failures, limit: Duration::from_micros(word & LIMIT) }
            };
            (word & DOWN != 0).then(down)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rank_is_down_until_it_answers_and_on_trial_until_it_sends_a_block() {
        let (health, ms) = (Health::new(3), Duration::from_millis);
        let down = |failures, limit| vec![Down { rank: 1, failures, limit }];
        health.sent(1);
        assert_eq!((health.of(1), health.down().count()), (Status::Up, 0));
        health.failed(1, ms(60));
        health.failed(1, ms(90));
        assert_eq!((health.of(1), health.down().collect::<Vec<_>>()), (Status::Down, down(1, ms(60))));
        health.sent(1);
        assert_eq!(health.of(1), Status::Down, "it was asked before");
        health.recovered(1);
        assert_eq!((health.of(1), health.down().count()), (Status::HalfOpen, 0));
        health.failed(1, Duration::MAX);
        let longest = Duration::from_micros(LIMIT);
        assert_eq!(health.down().collect::<Vec<_>>(), down(2, longest), "no block came between");
        health.recovered(1);
        health.sent(1);
        assert_eq!([0, 1, 2].map(|rank| health.of(rank)), [Status::Up; 3]);
        for _ in 0..300 {
            health.failed(1, ms(60));
            health.recovered(1);
        }
        health.failed(1, ms(60));
        assert_eq!(health.down().collect::<Vec<_>>(), down(255, ms(60)));
    }
}
