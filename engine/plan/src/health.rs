//! Which ranks answer: told by the shards that ask them for blocks, and by whoever looks after those that did not.
//!
//! One word for each rank, read for every block that is another's. Owns those words. Never asks anybody.

use core::sync::atomic::{AtomicU64, Ordering::Relaxed};
use fuelrail_base::Duration;

/// The rank did not answer, and has not been found well since.
const DOWN: u64 = 1 << 63;
/// Counts failures, …
const FAILURE: u64 = 1 << 40;
/// … up to so many.
const FAILURES_MAX: u64 = 255;
/// The bits of the limit, microseconds.
const LIMIT: u64 = FAILURE - 1;

/// What the shards of a rank, together, know of the others.
#[derive(Debug)]
pub struct Health {
    words: Box<[AtomicU64]>,
}

/// Whether a rank is asked for blocks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Standing {
    /// It is.
    Well,
    /// For one at a time, until it sends one: it failed before.
    OnTrial,
    /// It is not.
    Down,
}

/// A rank that is down.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Down {
    /// Which one.
    pub rank: u16,
    /// Times it was found to be, with no block sent between.
    pub failures: u32,
    /// It is well again once it answers within this.
    pub limit: Duration,
}

impl Health {
    /// All of so many ranks are well.
    #[must_use]
    pub fn new(ranks: u16) -> Health {
        Health { words: (0..ranks).map(|_| AtomicU64::new(0)).collect() }
    }

    /// Whether a rank is asked for blocks.
    ///
    /// # Panics
    /// When there is no such rank; so do the others.
    #[must_use]
    pub fn of(&self, rank: u16) -> Standing {
        match self.words[usize::from(rank)].load(Relaxed) {
            0 => Standing::Well,
            word if word & DOWN == 0 => Standing::OnTrial,
            _ => Standing::Down,
        }
    }

    /// A rank failed, or takes longer than `limit`. What fails while it is down counts no more.
    pub fn failed(&self, rank: u16, limit: Duration) {
        let micros = u64::try_from(limit.as_micros()).unwrap_or(LIMIT).min(LIMIT);
        let down = |word: u64| {
            let failures = (word / FAILURE + 1).min(FAILURES_MAX) * FAILURE;
            (word & DOWN == 0).then_some(DOWN | failures | micros)
        };
        // Another shard has said so already.
        let _ = self.words[usize::from(rank)].fetch_update(Relaxed, Relaxed, down);
    }

    /// A rank that was down answers.
    pub fn answers(&self, rank: u16) {
        self.words[usize::from(rank)].fetch_and(!DOWN, Relaxed);
    }

    /// A rank has sent a block. One that was asked before it was down changes nothing.
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
        assert_eq!((health.of(1), health.down().count()), (Standing::Well, 0));
        health.failed(1, ms(60));
        health.failed(1, ms(90));
        assert_eq!((health.of(1), health.down().collect::<Vec<_>>()), (Standing::Down, down(1, ms(60))));
        health.sent(1);
        assert_eq!(health.of(1), Standing::Down, "it was asked before");
        health.answers(1);
        assert_eq!((health.of(1), health.down().count()), (Standing::OnTrial, 0));
        health.failed(1, Duration::MAX);
        let longest = Duration::from_micros(LIMIT);
        assert_eq!(health.down().collect::<Vec<_>>(), down(2, longest), "no block came between");
        health.answers(1);
        health.sent(1);
        assert_eq!([0, 1, 2].map(|rank| health.of(rank)), [Standing::Well; 3]);
        for _ in 0..300 {
            health.failed(1, ms(60));
            health.answers(1);
        }
        health.failed(1, ms(60));
        assert_eq!(health.down().collect::<Vec<_>>(), down(255, ms(60)));
    }
}
