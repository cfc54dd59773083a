//! Second requests: the spare memory they land in, and what the ends of two requests mean for their one fetch.
//!
//! A second request has a window of its own, in a spare slot, because the first one's belongs to its connection until its last
//! operation is reaped. Whichever is whole first wins: when that is the second, its bytes are copied as soon as the other window is
//! home. Owns the spare slots and the pairs. Never talks to a connection: it says what is to be done.

use crate::conn::{Asked, Outcome, Proof, RaceId};
use fuelrail_base::{Duration, Instant, Kind};
use fuelrail_io::{Filling, Slot, Window};
use fuelrail_plan::brain::FetchId;
use slab::Slab;

/// Spare memory of one shard.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Spares {
    /// Second requests under way at once.
    pub slots: usize,
    /// The longest block one of them may be for. Of a longer one the first request is given up, and what is missing asked for
    /// elsewhere.
    pub slot_bytes: usize,
}

/// Spare slots at most.
const SPARES_MAX: u64 = 16;
/// Of the room for batches, spare slots take at most one part in so many.
const SPARE_SHARE: u64 = 32;

impl Spares {
    /// What a shard with so much room for batches sets aside when blocks are up to `longest` bytes long and `mean` on average:
    /// slots for the longest ones if a few of them find room, else for those up to twice the mean, else none.
    #[must_use]
    pub fn within(room_bytes: u64, longest: u64, mean: u64) -> Spares {
        let share = room_bytes / SPARE_SHARE;
        let fits = |bytes: u64, least: u64| (bytes > 0 && share / bytes >= least).then_some(bytes);
        let Some(bytes) = fits(longest, 4).or(fits((2 * mean).min(longest), 1)) else { return Spares::default() };
        Spares { slots: (share / bytes).min(SPARES_MAX) as usize, slot_bytes: bytes as usize }
    }

    /// All of them together, bytes.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        (self.slots * self.slot_bytes.next_multiple_of(fuelrail_base::limits::SAMPLE_ALIGN)) as u64
    }
}

/// Second requests of one fetch that may be under way at once: the second may be slow, too.
const SECONDS_MAX: usize = 2;

/// What the end of a request means.
pub(crate) enum Verdict {
    /// As if there had been no other. Others may be under way, into memory nobody waits for.
    Over(Outcome),
    /// A second was whole before the first; `asked` is the first's, the window is full and home.
    Outrun { asked: Asked, window: Window, proof: Proof, first_byte: Duration, total: Duration, waited: Duration },
    /// A second is whole: the first of this fetch is to be given up, so that its window comes home.
    GiveUp(FetchId),
    /// One ended in vain, another goes on.
    Halved { fetch: FetchId, kind: Option<Kind>, second: bool },
    /// Nobody waited for it.
    Nothing,
}

/// A block that came by a second request.
struct Whole {
    window: Window,
    proof: Proof,
    first_byte: Duration,
    total: Duration,
    at: Instant,
}

/// A second request.
enum Second {
    None,
    /// Under way, into this memory.
    Running(Filling),
    Whole(Filling, Whole),
}

#[expect(clippy::large_enum_variant, reason = "there are as few as spare slots")]
enum First {
    Running,
    /// It ended in vain; this is told if the others do, too.
    Ended(Outcome),
    /// The fetch is over.
    Settled,
}

/// The requests of one fetch.
struct Race {
    fetch: FetchId,
    /// When the first request was sent.
    since: Instant,
    first: First,
    seconds: [Second; SECONDS_MAX],
}

/// The second requests of one shard.
pub(crate) struct Hedges {
    slot_bytes: usize,
    slots: usize,
    spares: Vec<Slot>,
    races: Slab<Race>,
    /// Payload bytes landed in vain.
    pub wasted_bytes: u64,
    /// Payload bytes copied from spare slots.
    pub copied_bytes: u64,
}

impl Hedges {
    pub(crate) fn new(spares: Vec<Slot>) -> Hedges {
        Hedges {
            slot_bytes: spares.first().map_or(0, |slot| slot.len()),
            slots: spares.len(),
            races: Slab::with_capacity(spares.len()),
            spares,
            wasted_bytes: 0,
            copied_bytes: 0,
        }
    }

    /// Whether a block of this length can be asked for a second time now.
    pub(crate) fn has_room(&self, bytes: u64) -> bool {
        !self.spares.is_empty() && bytes <= self.slot_bytes as u64
    }

    /// Whether a second request of this fetch is under way.
    pub(crate) fn runs(&self, fetch: FetchId) -> bool {
        self.find(fetch).is_some()
    }

    /// Begins a second request of a fetch whose first was sent at `since`: its name, and where it lands. `None` without room.
    pub(crate) fn begin(&mut self, fetch: FetchId, since: Instant, bytes: u64) -> Option<(RaceId, Window)> {
        if !self.has_room(bytes) {
            return None;
        }
        let key = self.find(fetch).unwrap_or_else(|| {
            self.races.insert(Race {
                fetch,
                since,
                first: First::Running,
                seconds: [const { Second::None }; SECONDS_MAX],
            })
        });
        let at = self.races[key].seconds.iter().position(|second| matches!(second, Second::None))?;
        let mut filling = self.spares.pop()?.fill();
        let window = filling.carve(bytes as usize).expect("its length was looked at");
        self.races[key].seconds[at] = Second::Running(filling);
        Some((RaceId((key * SECONDS_MAX + at) as u32), window))
    }

    /// What the end of a request means for its fetch.
    pub(crate) fn judge(&mut self, outcome: Outcome, now: Instant) -> Verdict {
        match outcome.asked().second {
            Some(race) => self.judge_second(race, outcome, now),
            None if self.races.is_empty() => Verdict::Over(outcome),
            None => self.judge_first(outcome),
        }
    }

    /// The pair of a fetch that is not over.
    fn find(&self, fetch: FetchId) -> Option<usize> {
        let of_it = |race: &Race| race.fetch == fetch && !matches!(race.first, First::Settled);
        self.races.iter().find(|(_, race)| of_it(race)).map(|(key, _)| key)
    }

    fn judge_first(&mut self, outcome: Outcome) -> Verdict {
        let fetch = outcome.asked().fetch;
        let Some(key) = self.find(fetch) else { return Verdict::Over(outcome) };
        if let Outcome::Landed { .. } = outcome {
            self.settle(key);
            return Verdict::Over(outcome);
        }
        if self.races[key].seconds.iter().any(|second| matches!(second, Second::Whole(..))) {
            return self.outrun(key, outcome);
        }
        let kind = outcome.failure();
        self.races[key].first = First::Ended(outcome);
        Verdict::Halved { fetch, kind, second: false }
    }

    fn judge_second(&mut self, RaceId(id): RaceId, outcome: Outcome, now: Instant) -> Verdict {
        let (key, at) = (id as usize / SECONDS_MAX, id as usize % SECONDS_MAX);
        let race = &mut self.races[key];
        let (kind, fetch) = (outcome.failure(), race.fetch);
        let Second::Running(filling) = core::mem::replace(&mut race.seconds[at], Second::None) else {
            unreachable!("a second request ends once")
        };
        let first = core::mem::replace(&mut race.first, First::Running);
        match (first, outcome) {
            (First::Running, Outcome::Landed { window, proof, first_byte, total, .. }) => {
                race.seconds[at] = Second::Whole(filling, Whole { window, proof, first_byte, total, at: now });
                Verdict::GiveUp(fetch)
            }
            (First::Ended(first), Outcome::Landed { window, proof, first_byte, total, .. }) => {
                race.seconds[at] = Second::Whole(filling, Whole { window, proof, first_byte, total, at: now });
                self.outrun(key, first)
            }
            (First::Settled, outcome) => {
                self.waste(filling, outcome.into_parts().1);
                self.settle(key);
                Verdict::Nothing
            }
            (First::Running, outcome) => {
                self.waste(filling, outcome.into_parts().1);
                self.forget_alone(key);
                Verdict::Halved { fetch, kind, second: true }
            }
            (First::Ended(first), outcome) => {
                let (vain, window) = outcome.into_vain();
                self.waste(filling, window);
                if self.forget_alone(key) {
                    // The first's end has been told of: now it is the second's turn.
                    return Verdict::Over(first.because_of(vain));
                }
                self.races[key].first = First::Ended(first);
                Verdict::Nothing
            }
        }
    }

    /// The first's window is home, and a second is whole.
    fn outrun(&mut self, key: usize, first: Outcome) -> Verdict {
        let (asked, mut window) = first.into_parts();
        let race = &mut self.races[key];
        let since = race.since;
        let whole = race.seconds.iter_mut().find(|second| matches!(second, Second::Whole(..)));
        let whole = whole.map(|second| core::mem::replace(second, Second::None));
        let Some(Second::Whole(filling, Whole { window: came, proof, first_byte, total, at })) = whole else {
            unreachable!("one is whole")
        };
        self.wasted_bytes += window.filled() as u64;
        // What had landed may be of another version than what came whole.
        window.rewind(0);
        self.copied_bytes += window.put(came.bytes()) as u64;
        drop(came);
        self.take_back(filling);
        self.settle(key);
        Verdict::Outrun { asked, window, proof, first_byte, total, waited: at.since(since) }
    }

    /// The fetch is over: what is whole is dropped, what is under way may end.
    fn settle(&mut self, key: usize) {
        self.races[key].first = First::Settled;
        for at in 0..SECONDS_MAX {
            let second = &mut self.races[key].seconds[at];
            if let Second::Whole(..) = second
                && let Second::Whole(filling, Whole { window, .. }) = core::mem::replace(second, Second::None)
            {
                self.waste(filling, window);
            }
        }
        self.forget_alone(key);
    }

    /// Forgets a race in which nothing is under way or whole, but perhaps the first. True when it did.
    fn forget_alone(&mut self, key: usize) -> bool {
        let alone = self.races[key].seconds.iter().all(|second| matches!(second, Second::None));
        if alone {
            self.races.remove(key);
        }
        alone
    }

    /// What came into this memory is not needed.
    fn waste(&mut self, filling: Filling, window: Window) {
        self.wasted_bytes += window.filled() as u64;
        drop(window);
        self.take_back(filling);
    }

    fn take_back(&mut self, filling: Filling) {
        self.spares.push(filling.seal().expect("its only window is home"));
    }

    /// One line for the watchdog.
    pub(crate) fn describe(&self) -> String {
        let (races, free, all) = (self.races.len(), self.spares.len(), self.slots);
        format!("hedge: {races} fetches asked for twice, {free} of {all} spare slots free")
    }
}
