//! Looking ahead: DELI's watermarks step by step, and ours against a model of a bucket and a trainer in virtual time.

use fuelrail_base::{Duration, Instant, Kind};
use fuelrail_plan::prefetch::{Lookahead, Prefetch, Strategy, View, Watermarks};
use proptest::prelude::{ProptestConfig, any, prop_assert, prop_assert_eq, proptest};
use std::collections::VecDeque;

fn queue(opened_samples: u64, queued_samples: u64) -> View {
    View { opened_samples, queued_samples, next_batch_samples: u64::MAX, ..View::default() }
}

#[test]
fn full_fetch_asks_for_a_cache_full_when_the_queue_is_empty() {
    let mut deli = Strategy::named(Prefetch::FullFetch, 100).unwrap();
    assert_eq!(deli.credit(&queue(0, 0)), 100);
    assert_eq!(deli.credit(&queue(60, 60)), 40, "asked for once, however long opening takes");
    for left in (1..=100).rev() {
        assert_eq!(deli.credit(&queue(100, left)), 0, "{left} left");
    }
    assert_eq!(deli.credit(&queue(100, 0)), 100);
    assert_eq!(deli.credit(&queue(200, 100)), 0);
}

#[test]
fn half_and_half_keeps_between_half_and_all_of_the_cache() {
    let mut deli = Strategy::named(Prefetch::Half, 100).unwrap();
    assert_eq!(deli.credit(&queue(0, 0)), 100, "an empty queue asks; fifty in it is still no more than T: asks again");
    assert_eq!(deli.credit(&queue(100, 51)), 0);
    assert_eq!(deli.credit(&queue(100, 50)), 50);
    assert_eq!(deli.credit(&queue(150, 100)), 0);
    assert_eq!(deli.credit(&queue(150, 20)), 50, "a batch of 80 taken at once passes one threshold");
    let mut small = Watermarks::new(10, 5).unwrap();
    assert_eq!(small.credit(&queue(0, 0)), 10);
    assert_eq!(small.credit(&queue(10, 0)), 10);
    assert_eq!(small.credit(&View { next_batch_samples: 3, ..queue(20, 0) }), 10, "F counts samples, not batches");
}

#[test]
fn strategies_have_names_and_refuse_what_cannot_work() {
    assert!(matches!(Strategy::default(), Strategy::Lookahead(_)));
    assert!(matches!(Strategy::named(Prefetch::Lookahead, 0), Ok(Strategy::Lookahead(_))));
    let asked = |name| Strategy::named(name, 2048).unwrap().credit(&queue(0, 0));
    assert_eq!((asked(Prefetch::FullFetch), asked(Prefetch::Half)), (2048, 2048));
    assert_eq!("50/50".parse(), Ok(Prefetch::Half));
    assert_eq!("magic".parse::<Prefetch>().unwrap_err().kind(), Kind::Usage);
    for (name, cache_samples) in [(Prefetch::FullFetch, 0), (Prefetch::Half, 1)] {
        assert_eq!(Strategy::named(name, cache_samples).unwrap_err().kind(), Kind::Usage, "{name}");
    }
}

/// A bucket that starts a batch per `service`, and has it there `latency` later at the earliest; a trainer that computes
/// for `step` on each. Times in milliseconds.
struct Trainer {
    latency: u64,
    service: u64,
    step: u64,
    budget_batches: u64,
    lookahead: Lookahead,
    now: u64,
    bucket_free: u64,
    /// When each open batch is ready, in order.
    open: VecDeque<u64>,
    opened: u64,
    taken: u64,
    last_fill: u64,
    most_open: u64,
    /// One of so many batches needs the bucket, the others are ready at once.
    fetched_every: u64,
    /// What the look-ahead is told a fetch takes.
    fetch_time: u64,
}

impl Trainer {
    fn new(latency: u64, service: u64, step: u64, budget_batches: u64) -> Trainer {
        Trainer {
            latency,
            service,
            step,
            budget_batches,
            lookahead: Lookahead::default(),
            now: 0,
            bucket_free: 0,
            open: VecDeque::new(),
            opened: 0,
            taken: 0,
            last_fill: 0,
            most_open: 0,
            fetched_every: 1,
            fetch_time: 0,
        }
    }

    fn open_more(&mut self, consumer_waits: bool) {
        loop {
            let ready_batches = self.open.iter().filter(|ready| **ready <= self.now).count() as u64;
            let open_batches = self.open.len() as u64;
            let view = View {
                now: Instant(self.now * 1_000_000),
                opened_samples: self.opened * 10,
                queued_samples: open_batches * 10,
                open_batches,
                ready_batches,
                taken_batches: self.taken,
                consumer_waits: consumer_waits && ready_batches == 0,
                next_batch_samples: 10,
                next_batch_bytes: 1_000,
                // The trainer holds the batch it computes on.
                open_bytes: (open_batches + u64::from(self.taken > 0)) * 1_000,
                budget_bytes: self.budget_batches * 1_000,
                queued_fetches: 0,
                step_time: if self.taken > 1 { Duration::from_millis(self.step) } else { Duration::ZERO },
                fill_time: Duration::from_millis(self.last_fill),
                fetch_time: Duration::from_millis(self.fetch_time),
            };
            match self.lookahead.credit(&view) {
                0 => break,
                credit => assert_eq!(credit, 10, "a batch at a time"),
            }
            let mut ready = self.now;
            if self.opened.is_multiple_of(self.fetched_every) {
                self.bucket_free = self.bucket_free.max(self.now) + self.service;
                ready = self.bucket_free + self.latency;
            }
            self.last_fill = ready - self.now;
            self.open.push_back(ready);
            self.opened += 1;
            self.most_open = self.most_open.max(self.open.len() as u64);
        }
    }

    /// Takes `batches`, and returns how long the trainer waited in all.
    fn train(&mut self, batches: u64) -> u64 {
        let mut waited = 0;
        for _ in 0..batches {
            self.open_more(true);
            let ready = *self.open.front().expect("the next batch is always opened");
            while self.now < ready {
                self.now += 1;
                waited += 1;
                self.open_more(true);
            }
            self.open.pop_front();
            self.taken += 1;
            for _ in 0..self.step {
                self.open_more(false);
                self.now += 1;
            }
        }
        waited
    }
}

#[test]
fn a_far_bucket_is_hidden_after_the_first_batch() {
    let mut trainer = Trainer::new(500, 20, 50, 100);
    let first = trainer.train(1);
    assert_eq!(first, 520, "the first batch cannot be hidden");
    let opening = trainer.train(30);
    assert!(opening < 1_000, "two round trips until the depth is found: {opening} ms");
    assert_eq!(trainer.train(1_000), 0, "after that, none");
    assert!(trainer.lookahead.depth() <= 40, "no deeper than it takes: {}", trainer.lookahead.depth());
}

#[test]
fn a_fetch_that_is_rarely_needed_is_hidden() {
    let waits = |fetch_time| {
        let mut trainer = Trainer::new(100, 1, 10, 100);
        (trainer.fetched_every, trainer.fetch_time) = (400, fetch_time);
        trainer.train(1_000);
        (trainer.train(8_000), trainer.lookahead.depth())
    };
    let (waited, depth) = waits(101);
    assert!(waited == 0 && depth <= 24, "{waited} ms with {depth} batches ahead");
    let (waited, depth) = waits(0);
    assert!(waited > 500, "the last batch's time to fill says nothing of it: {waited} ms with {depth} batches ahead");
}

#[test]
fn a_trainer_that_only_reads_gets_all_the_budget() {
    let mut trainer = Trainer::new(500, 5, 0, 60);
    trainer.train(200);
    let steady = trainer.train(1_000);
    assert!((60..=61).contains(&(trainer.most_open + 1)), "{} open", trainer.most_open);
    assert!(trainer.lookahead.depth() <= 128, "depth is no cure for a budget: {}", trainer.lookahead.depth());
    // 59 batches per round trip of 505 ms, and no worse than the pipe allows.
    assert!(steady < 1_000 * 505 / 58, "{steady} ms");
}

#[test]
fn memory_not_needed_is_given_back_slowly() {
    let mut trainer = Trainer::new(500, 5, 10, 200);
    trainer.train(300);
    let deep = trainer.lookahead.depth();
    assert!(deep >= 50, "{deep}");
    trainer.latency = 5;
    trainer.train(100);
    assert!(trainer.lookahead.depth() > deep / 2, "a quiet moment is not enough: {}", trainer.lookahead.depth());
    trainer.train(100_000);
    assert!(trainer.lookahead.depth() <= 6, "{}", trainer.lookahead.depth());
    assert_eq!(trainer.train(1_000), 0, "and still nothing waits");
}

#[test]
fn one_pause_of_the_bucket_deepens_by_the_pause_and_is_forgotten() {
    let mut trainer = Trainer::new(10, 1, 20, 1_000);
    trainer.train(100);
    let before = trainer.lookahead.depth();
    trainer.bucket_free = trainer.now + 400;
    trainer.train(1);
    assert!(trainer.lookahead.depth() <= 400 / 20 + 4, "{}", trainer.lookahead.depth());
    trainer.train(10_000);
    assert!(trainer.lookahead.depth() <= before + 2, "{} before, {} after", before, trainer.lookahead.depth());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(ProptestConfig::default().cases.div_ceil(4)))]
    /// Whatever it is told: never above the budget, never stuck with nothing open, never more than the next batch.
    #[test]
    fn never_above_the_budget_and_never_stuck(
        views in proptest::collection::vec((0u64..2_000, 0u64..30, 0u64..30, any::<bool>(), 0u64..5_000, 0u64..50_000), 1..200),
    ) {
        let mut lookahead = Lookahead::default();
        let (mut now, mut taken) = (0, 0);
        for (pause, open_batches, ready, consumer_waits, next_batch_bytes, open_bytes) in views {
            now += pause;
            taken += pause % 3;
            let view = View {
                now: Instant(now * 1_000_000),
                open_batches,
                ready_batches: ready.min(open_batches),
                taken_batches: taken,
                consumer_waits,
                next_batch_samples: 10,
                next_batch_bytes,
                open_bytes,
                budget_bytes: 40_000,
                step_time: Duration::from_millis(pause % 100),
                fill_time: Duration::from_millis(pause % 700),
                ..View::default()
            };
            let credit = lookahead.credit(&view);
            let fits = open_bytes + next_batch_bytes <= 40_000;
            prop_assert!(credit == 0 || (credit == 10 && fits));
            if open_batches == 0 {
                prop_assert_eq!(credit > 0, fits, "progress whenever there is room");
            }
        }
    }
}

#[test]
fn a_source_that_is_the_limit_is_not_given_more_to_queue() {
    let mut lookahead = Lookahead::default();
    let view = |open_batches, queued_fetches| View {
        open_batches,
        queued_fetches,
        consumer_waits: true,
        next_batch_samples: 10,
        next_batch_bytes: 1,
        budget_bytes: 1_000,
        ..View::default()
    };
    assert_eq!(lookahead.credit(&view(1, 500)), 10, "one to deliver, one to follow, whatever is queued");
    assert_eq!(lookahead.credit(&view(2, 500)), 0);
    let before = lookahead.depth();
    for _ in 0..100 {
        assert_eq!(lookahead.credit(&view(2, 1)), 0);
    }
    assert_eq!(lookahead.depth(), before, "waiting for a slow source is no reason to look further ahead");
}
