//! Hedging against a model of a bucket: pure, in virtual time.

use super::*;
use fuelrail_base::Kind;
use fuelrail_base::prng::Prng;
use std::cmp::Reverse;
use std::collections::BinaryHeap;

const BYTES: u64 = 100 << 10;
const MS: u64 = 1_000_000;

/// How long answers take.
#[derive(Clone, Copy)]
struct Tail {
    usual_ms: u64,
    slow: f64,
    stuck: f64,
}

impl Tail {
    fn draw(self, prng: &mut Prng) -> Duration {
        let usual = Duration::from_nanos(self.usual_ms * MS / 2 + prng.below(self.usual_ms * MS));
        match prng.unit() {
            x if x < self.stuck => Duration::from_secs(30),
            x if x < self.stuck + self.slow => usual * 50,
            _ => usual,
        }
    }
}

struct Served {
    took: Vec<Duration>,
    hedges: u64,
}

impl Served {
    fn quantile(&mut self, share: f64) -> Duration {
        self.took.sort_unstable();
        self.took[(self.took.len() as f64 * share) as usize]
    }
}

/// Lets so many fetches run, 64 at a time. `spoil` may meddle with the hedge before each look.
fn serve(percent: u32, fetches: u64, tail: impl Fn(u64) -> Tail, spoil: impl Fn(&mut Hedge)) -> Served {
    let (mut hedge, mut prng) = (Hedge::new(HedgeConfig { percent, ..HedgeConfig::default() }).unwrap(), Prng::new(7));
    // When a request is answered, of which fetch, and when that began.
    let mut answers = BinaryHeap::new();
    let (mut began, mut started) = (vec![None; 64], 0);
    let mut served = Served { took: Vec::new(), hedges: 0 };
    let mut now = Instant(0);
    loop {
        for (number, slot) in began.iter_mut().enumerate() {
            if slot.is_none() && started < fetches {
                *slot = Some(now);
                hedge.sent(now, Some(number as u32), BYTES);
                let total = tail(started).draw(&mut prng);
                answers.push(Reverse((now.after(total), number as u32, now)));
                started += 1;
            }
        }
        spoil(&mut hedge);
        while let Some(number) = hedge.due(now, true) {
            served.hedges += 1;
            let at = began[number as usize].expect("only what is under way is hedged");
            let total = tail(started).draw(&mut prng);
            answers.push(Reverse((now.after(total), number, at)));
            hedge.again(now, number, BYTES);
        }
        let Some(&Reverse((next, number, at))) = answers.peek() else { return served };
        if let Some(look) = hedge.deadline().filter(|look| *look < next) {
            now = look;
            continue;
        }
        now = next;
        answers.pop();
        if began[number as usize] == Some(at) {
            let took = now.since(at);
            hedge.over(number, BYTES);
            hedge.took(BYTES, took);
            served.took.push(took);
            began[number as usize] = None;
        }
    }
}

const HEAVY: Tail = Tail { usual_ms: 10, slow: 0.01, stuck: 0.001 };

fn check_budget(served: &Served, fetches: u64, percent: u64) -> core::result::Result<(), String> {
    let most = fetches * percent / 100;
    if served.hedges <= most { Ok(()) } else { Err(format!("{} hedges, {most} allowed", served.hedges)) }
}

#[test]
fn a_heavy_tail_is_cut_off_within_the_budget() {
    let mut without = serve(0, 20_000, |_| HEAVY, |_| {});
    let mut with = serve(2, 20_000, |_| HEAVY, |_| {});
    assert_eq!((without.hedges, with.took.len()), (0, 20_000));
    check_budget(&with, 20_000, 2).unwrap();
    assert!(with.hedges > 180, "the slow ones are hedged: {}", with.hedges);
    assert!(without.quantile(0.995) > Duration::from_millis(250), "{:?}", without.quantile(0.995));
    assert!(with.quantile(0.995) < Duration::from_millis(50), "{:?}", with.quantile(0.995));
    assert!(without.quantile(0.9999) >= Duration::from_secs(30));
    assert!(with.quantile(0.999) < Duration::from_millis(600), "{:?}", with.quantile(0.999));
}

#[test]
fn the_budget_holds_whatever_the_bucket_does() {
    for percent in [1, 2, 5, 20] {
        for case in 0..6u64 {
            let tail = move |n: u64| match case {
                0 => Tail { usual_ms: 10, slow: 0.0, stuck: 0.0 },
                1 => Tail { usual_ms: 10, slow: 0.3, stuck: 0.0 },
                // Slow as a whole, all at once, and back.
                2 => Tail { usual_ms: if (n / 2_000).is_multiple_of(2) { 10 } else { 300 }, slow: 0.0, stuck: 0.0 },
                3 => Tail { usual_ms: 5, slow: 0.0, stuck: 0.05 },
                4 => Tail { usual_ms: 1 + n % 400, slow: 0.05, stuck: 0.0 },
                _ => Tail { usual_ms: 10, slow: if n % 1_000 < 200 { 0.5 } else { 0.0 }, stuck: 0.0 },
            };
            let served = serve(percent, 8_000, tail, |_| {});
            assert_eq!(served.took.len(), 8_000);
            check_budget(&served, 8_000, u64::from(percent)).unwrap();
        }
    }
}

/// The canary: with the budget switched off, the check above must say so.
#[test]
fn the_budget_is_what_holds() {
    let slow_at_times =
        |n: u64| Tail { usual_ms: if (n / 2_000).is_multiple_of(2) { 10 } else { 300 }, slow: 0.0, stuck: 0.0 };
    let unbounded = |hedge: &mut Hedge| hedge.balance = BURST * PRICE;
    let served = serve(1, 8_000, slow_at_times, unbounded);
    assert!(check_budget(&served, 8_000, 1).is_err(), "{} hedges", served.hedges);
}

/// A hedge that has seen so many requests of 20 ms and has earned what it can.
fn experienced(percent: u32) -> Hedge {
    let mut hedge = Hedge::new(HedgeConfig { percent, ..HedgeConfig::default() }).unwrap();
    for _ in 0..2_000 {
        hedge.sent(Instant(0), Some(0), BYTES);
        hedge.over(0, BYTES);
        hedge.took(BYTES, Duration::from_millis(20));
    }
    hedge
}

#[test]
fn nothing_is_hedged_before_enough_has_landed_or_with_a_share_of_zero() {
    let mut hedge = Hedge::new(HedgeConfig::default()).unwrap();
    for n in 0..31u32 {
        hedge.sent(Instant(0), Some(n), BYTES);
        hedge.took(BYTES, Duration::from_millis(1));
    }
    assert_eq!((hedge.delay(BYTES), hedge.deadline()), (None, None));
    hedge.took(BYTES, Duration::from_millis(1));
    assert_eq!(hedge.delay(BYTES), Some(Duration::from_millis(10)), "a floor below which no difference means anything");
    assert_eq!(hedge.delay(64 * BYTES), None, "longer ones are another matter");
    let mut off = experienced(0);
    off.sent(Instant(0), Some(1), BYTES);
    assert_eq!((off.deadline(), off.due(Instant(u64::MAX), true)), (None, None));
}

#[test]
fn the_oldest_is_due_first_after_a_delay_that_stretches_as_the_budget_is_spent() {
    let mut hedge = experienced(2);
    let full = hedge.delay(BYTES).unwrap();
    assert!(full >= Duration::from_millis(30) && full < Duration::from_millis(34), "{full:?}");
    for n in 0..40 {
        hedge.sent(Instant(u64::from(n)), Some(n), BYTES);
    }
    hedge.over(0, BYTES);
    assert_eq!(hedge.deadline(), Some(Instant(1).after(full)));
    assert_eq!(hedge.due(Instant(full.as_nanos() as u64), true), None);
    assert_eq!(hedge.due(Instant(1).after(full), true), Some(1));
    let stretched = hedge.delay(BYTES).unwrap();
    let busy = |hedge: &mut Hedge, delays: u32| hedge.due(Instant(2).after(stretched * delays), false);
    assert_eq!((busy(&mut hedge, 1), busy(&mut hedge, 2)), (None, Some(2)), "a busy core is more patient");
    assert!(stretched > full);
    let late = Instant(MS * 1_000);
    let hedged = core::iter::from_fn(|| hedge.due(late, true)).count();
    assert_eq!(hedged as i64, BURST - 2, "all that was saved up, and no more");
    assert_eq!(hedge.deadline(), None, "nothing is left to spend");
    assert!(hedge.delay(BYTES).unwrap() > stretched);
}

#[test]
fn what_could_not_be_sent_costs_nothing_and_waits_anew_and_what_a_hedge_displaced_is_paid_for() {
    let mut hedge = experienced(2);
    hedge.sent(Instant(0), Some(5), BYTES);
    let late = Instant(MS * 1_000);
    let before = hedge.balance;
    assert_eq!(hedge.due(late, true), Some(5));
    hedge.postponed(late, 5, BYTES);
    assert_eq!((hedge.balance, hedge.due(late, true)), (before, None));
    assert!(hedge.deadline().unwrap() > late);
    let later = Instant(MS * 2_000);
    assert_eq!(hedge.due(later, true), Some(5));
    hedge.again(later, 5, BYTES);
    hedge.displaced();
    assert_eq!(hedge.balance, before - 2 * PRICE);
    assert!(hedge.deadline().is_some(), "it may be hedged again");
}

#[test]
fn a_server_that_asks_to_slow_down_is_not_asked_more() {
    let mut hedge = experienced(2);
    hedge.sent(Instant(0), Some(5), BYTES);
    let late = Instant(MS * 1_000);
    hedge.throttled(late);
    assert_eq!((hedge.due(late, true), hedge.deadline()), (None, Some(late.after(THROTTLED_PAUSE))));
    assert_eq!(hedge.due(late.after(THROTTLED_PAUSE), true), Some(5));
}

#[test]
fn lengths_have_classes() {
    let lengths = [1, 64 << 10, (64 << 10) + 1, 256 << 10, 1 << 20, 4 << 20, 16 << 20, 1 << 30];
    assert_eq!(lengths.map(class_of), [0, 0, 1, 1, 2, 3, 4, 5]);
}

#[test]
fn refuses_a_share_that_would_be_a_second_load() {
    assert_eq!(Hedge::new(HedgeConfig { percent: 21, ..HedgeConfig::default() }).unwrap_err().kind(), Kind::Usage);
}
