//! The ledger of the request rate: a few words of memory that all processes that share it read and write without a lock.
//!
//! The header holds the law's numbers and the end of the present round; the first process that finds the round over closes it.
//! Every process has a slot: what it counted since, the time up to which its permission is spent, and when it was held back last.
//! The rate is shared out at the end of a round: those that were held back share evenly what the others leave. A process that
//! is gone is held back no more, and so its share is free within a second. Owns the memory's meaning; never where it
//! comes from. A number that makes no sense counts as none: others may have written it.

use super::law::{Law, RATE_LEAST, RATE_MOST, Round};
use core::fmt;
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};
use fuelrail_base::prng::Prng;
use fuelrail_base::{Duration, Instant};
use std::sync::Arc;

/// Words of a ledger: a page.
pub const LEDGER_WORDS: usize = 512;
/// The first slot's first word. The first two words are free for the owner of the memory.
pub const SLOTS_FROM: usize = 24;
/// Words of a slot: a cache line.
pub const SLOT_WORDS: usize = 8;
/// Slots there are.
pub const PROCESSES_MAX: usize = (LEDGER_WORDS - SLOTS_FROM) / SLOT_WORDS;

/// A round is at least this long, and a round trip.
const ROUND: Duration = Duration::from_millis(100);
/// … and at most this.
const ROUND_MOST: Duration = Duration::from_secs(1);
/// Permission not used for so long is lost.
const SAVED: Duration = Duration::from_millis(10);
/// The shortest time to the next try: a timer more often costs more than it brings.
const AGAIN_LEAST: Duration = Duration::from_micros(500);
/// Held back so lately, a process wants more than it gets.
const WANTING: Duration = Duration::from_millis(500);
/// A time further ahead than this was written before the machine started anew.
const AHEAD_MOST: Duration = Duration::from_secs(60);

// The header's words.
const RATE: usize = 2;
const ROUND_BEGAN: usize = 3;
const ROUND_ENDS: usize = 4;
const CUT_AT: usize = 6;
/// Slots in use: the highest one's number and one.
const SLOTS: usize = 16;
const BUSY_AT: usize = 17;

/// The header's words that hold a law's numbers, but for its rate, which puts it in force.
fn numbers(law: &mut Law) -> [(usize, &mut f64); 10] {
    let [served, refused] = &mut law.judged;
    [
        (5, &mut law.known),
        (7, &mut law.grown_s),
        (8, &mut law.served),
        (9, &mut law.served_s),
        (10, served),
        (11, refused),
        (12, &mut law.noise),
        (13, &mut law.early),
        (14, &mut law.before),
        (15, &mut law.mute),
    ]
}

// A slot's words; its first is free for the owner of the memory.
const SPENT_UNTIL: usize = 1;
const SERVED: usize = 2;
const REFUSED: usize = 3;
const SHARE: usize = 4;
const HELD_AT: usize = 5;

/// The memory of a ledger.
type Words = dyn AsRef<[AtomicU64]> + Send + Sync;

/// A hold on a ledger, as one process of those that share it. Clones are the same process.
#[derive(Clone)]
pub struct Ledger {
    words: Arc<Words>,
    slot: usize,
}

impl fmt::Debug for Ledger {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Ledger(slot {})", self.slot)
    }
}

impl Default for Ledger {
    /// One of a single process, in memory of its own.
    fn default() -> Ledger {
        let words: Box<[AtomicU64]> = (0..SLOTS_FROM + SLOT_WORDS).map(|_| AtomicU64::new(0)).collect();
        Ledger::new(Arc::new(words), 0)
    }
}

impl Ledger {
    /// A hold on these words, zero at first, as the process of this slot.
    ///
    /// # Panics
    /// When there is no such slot in them.
    pub fn new(words: Arc<Words>, slot: usize) -> Ledger {
        let len = words.as_ref().as_ref().len();
        assert!(SLOTS_FROM + (slot + 1) * SLOT_WORDS <= len, "slot {slot} is outside of {len} words");
        let ledger = Ledger { words, slot };
        for at in 1..SLOT_WORDS {
            ledger.of(slot, at).store(0, Relaxed);
        }
        ledger.word(SLOTS).fetch_max(slot as u64 + 1, Relaxed);
        ledger
    }

    fn word(&self, at: usize) -> &AtomicU64 {
        &self.words.as_ref().as_ref()[at]
    }

    fn of(&self, slot: usize, at: usize) -> &AtomicU64 {
        self.word(SLOTS_FROM + slot * SLOT_WORDS + at)
    }

    fn own(&self, at: usize) -> &AtomicU64 {
        self.of(self.slot, at)
    }

    fn slots(&self) -> usize {
        let most = (self.words.as_ref().as_ref().len() - SLOTS_FROM) / SLOT_WORDS;
        (self.word(SLOTS).load(Relaxed) as usize).min(most)
    }

    pub(super) fn is_in_force(&self) -> bool {
        self.word(RATE).load(Relaxed) != 0
    }

    /// Requests a second of this process.
    pub(super) fn share(&self) -> f64 {
        if !self.is_in_force() {
            return f64::INFINITY;
        }
        let rate = rate_in(self.word(RATE));
        match number(self.own(SHARE)) {
            // Nothing shared out yet since it came.
            share if share <= 0.0 => rate / self.slots().max(1) as f64,
            share => share.min(rate),
        }
        .max(RATE_LEAST / PROCESSES_MAX as f64)
    }

    pub(super) fn served(&self) {
        self.own(SERVED).fetch_add(1, Relaxed);
    }

    pub(super) fn refused(&self) {
        self.own(REFUSED).fetch_add(1, Relaxed);
    }

    /// Puts the rate in force, after `served` requests in `time`. One of those that come at once does it.
    pub(super) fn engage(&self, now: Instant, served: f64, time: Duration) {
        let law = Law::new(now, served, time);
        if self.word(RATE).compare_exchange(0, law.rate.to_bits(), Relaxed, Relaxed).is_ok() {
            for slot in 0..self.slots() {
                [SERVED, REFUSED, SHARE].iter().for_each(|at| self.of(slot, *at).store(0, Relaxed));
            }
            self.write(law);
            self.word(ROUND_BEGAN).store(now.0, Relaxed);
            self.word(ROUND_ENDS).store(now.after(ROUND).0, Relaxed);
        }
    }

    /// Permission for one request: spacing by the time up to which permission is spent, which is one word (the generic cell rate
    /// algorithm of ATM). Spacings are random: of two processes at one limit that send at regular intervals, the quicker one comes just when the
    /// server admits the next request, and the other one is refused again and again (phase effects: Floyd and Jacobson 1992). Where
    /// requests are rare they are less so, because a server then lets through only a few at once.
    pub(super) fn take(&self, now: Instant) -> Result<(), Instant> {
        let mean_s = 1.0 / self.share();
        let spread_s = mean_s.min(SAVED.as_secs_f64().powi(2) / mean_s);
        let saved = Instant(now.0.saturating_sub(SAVED.as_nanos() as u64));
        loop {
            let word = self.own(SPENT_UNTIL).load(Relaxed);
            let spent = Instant(word);
            if spent > now && spent.since(now) < AHEAD_MOST {
                self.own(HELD_AT).store(now.0, Relaxed);
                return Err(spent.max(now.after(AGAIN_LEAST)));
            }
            let from = if spent > now { now } else { spent.max(saved) };
            let random = Prng::new(from.0 ^ self.slot as u64).unit();
            let next = from.after(Duration::from_secs_f64(mean_s + (2.0 * random - 1.0) * spread_s)).0;
            if self.own(SPENT_UNTIL).compare_exchange_weak(word, next, Relaxed, Relaxed).is_ok() {
                return Ok(());
            }
        }
    }

    /// Closes the round if it is over.
    pub(super) fn close_round(&self, now: Instant, round_trip: Duration) {
        let ends = self.word(ROUND_ENDS).load(Relaxed);
        if now.0 < ends && Instant(ends).since(now) < AHEAD_MOST {
            return;
        }
        let next = now.after(round_trip.clamp(ROUND, ROUND_MOST)).0;
        if self.word(ROUND_ENDS).compare_exchange(ends, next, Relaxed, Relaxed).is_err() {
            return;
        }
        let began = Instant(self.word(ROUND_BEGAN).swap(now.0, Relaxed));
        // After a long silence of all processes: a round like any other.
        let elapsed = now.since(began).clamp(ROUND / 2, ROUND_MOST);
        let (mut served, mut refused, mut wanting, mut others) = (0, 0, 0u32, 0.0);
        for slot in 0..self.slots() {
            let own = [SERVED, REFUSED].map(|at| self.of(slot, at).swap(0, Relaxed).min(COUNT_MOST));
            (served, refused) = (served + own[0], refused + own[1]);
            let held = Instant(self.of(slot, HELD_AT).load(Relaxed));
            if held != Instant::ZERO && held <= now && now.since(held) < WANTING.max(elapsed) {
                wanting += 1;
            } else {
                others += (own[0] + own[1]) as f64 / elapsed.as_secs_f64();
            }
        }
        let mut law = self.read(now);
        let limited = wanting > 0;
        if law.step(&Round { now, elapsed, served, refused, limited, round_trip }) {
            self.share_out(law.rate, wanting, others);
            self.write(law);
            self.word(RATE).store(law.rate.to_bits(), Relaxed);
        } else {
            self.word(RATE).store(0, Relaxed);
        }
    }

    fn share_out(&self, rate: f64, wanting: u32, others: f64) {
        let users = self.slots().max(1) as f64;
        // What the others leave, but never less than an even share: they may want more in a moment.
        let share = if wanting == 0 { rate } else { ((rate - others) / f64::from(wanting)).max(rate / users) };
        for slot in 0..self.slots() {
            self.of(slot, SHARE).store(share.to_bits(), Relaxed);
        }
    }

    fn read(&self, now: Instant) -> Law {
        // What lies ahead was written before the machine started anew.
        let instant = |at| Instant(self.word(at).load(Relaxed)).min(now);
        let rate = rate_in(self.word(RATE));
        let mut law = Law { rate, cut_at: instant(CUT_AT), busy_at: instant(BUSY_AT), ..Law::default() };
        for (at, value) in numbers(&mut law) {
            *value = number(self.word(at));
        }
        law.known = law.known.clamp(RATE_LEAST, RATE_MOST);
        law.before = law.before.clamp(RATE_LEAST, RATE_MOST);
        law.grown_s = law.grown_s.min(COUNT_MOST as f64);
        law.noise = law.noise.min(1.0);
        law
    }

    fn write(&self, mut law: Law) {
        for (at, value) in numbers(&mut law) {
            self.word(at).store(value.to_bits(), Relaxed);
        }
        self.word(CUT_AT).store(law.cut_at.0, Relaxed);
        self.word(BUSY_AT).store(law.busy_at.0, Relaxed);
    }
}

/// More of anything in one round is not a count.
const COUNT_MOST: u64 = 1 << 32;

fn number(word: &AtomicU64) -> f64 {
    let value = f64::from_bits(word.load(Relaxed));
    if value.is_finite() { value.clamp(0.0, 1e12) } else { 0.0 }
}

fn rate_in(word: &AtomicU64) -> f64 {
    number(word).clamp(RATE_LEAST, RATE_MOST)
}
