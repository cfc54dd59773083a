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

/// What the end of a request means.
pub(crate) enum Verdict {
    /// As if there had been no other; `loser` is still under way, into memory nobody waits for.
    Over { outcome: Outcome, loser: Option<RaceId> },
    /// The second was whole before the first; `asked` is the first's, the window is full and home.
    Outrun { asked: Asked, window: Window, proof: Proof, first_byte: Duration, total: Duration, waited: Duration },
    /// The second is whole: the first of this fetch is to be given up, so that its window comes home.
    GiveUp(FetchId),
    /// One ended in vain, the other goes on.
    Halved { fetch: FetchId, kind: Option<Kind>, second: bool },
    /// Nobody waited for it.
    Nothing,
}

/// A block that came by the second request.
struct Whole {
    window: Window,
    proof: Proof,
    first_byte: Duration,
    total: Duration,
    at: Instant,
}

enum First {
    Running,
    /// It ended in vain; this is told if the second does, too.
    Ended(Outcome),
    /// The fetch is over.
    Settled,
}

struct Race {
    fetch: FetchId,
    /// When the first request was sent.
    since: Instant,
    filling: Filling,
    first: First,
    second: Option<Whole>,
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
            slot_bytes: spares.first().map_or(0, Slot::len),
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

    /// Begins a second request of a fetch whose first was sent at `since`: its name, and where it lands. `None` without room.
    pub(crate) fn begin(&mut self, fetch: FetchId, since: Instant, bytes: u64) -> Option<(RaceId, Window)> {
        if !self.has_room(bytes) {
            return None;
        }
        let mut filling = self.spares.pop()?.fill();
        let window = filling.carve(bytes as usize).expect("its length was looked at");
        let key = self.races.insert(Race { fetch, since, filling, first: First::Running, second: None });
        Some((RaceId(key as u32), window))
    }

    /// What the end of a request means for its fetch.
    pub(crate) fn judge(&mut self, outcome: Outcome, now: Instant) -> Verdict {
        match outcome.asked().second {
            Some(race) => self.judge_second(race, outcome, now),
            None if self.races.is_empty() => Verdict::Over { outcome, loser: None },
            None => self.judge_first(outcome),
        }
    }

    fn judge_first(&mut self, outcome: Outcome) -> Verdict {
        let fetch = outcome.asked().fetch;
        let race = self.races.iter_mut().find(|(_, race)| race.fetch == fetch && matches!(race.first, First::Running));
        let Some((key, race)) = race else { return Verdict::Over { outcome, loser: None } };
        match (outcome, race.second.is_some()) {
            (outcome @ Outcome::Landed { .. }, whole) => {
                race.first = First::Settled;
                if whole {
                    self.end(key);
                }
                Verdict::Over { outcome, loser: (!whole).then_some(RaceId(key as u32)) }
            }
            (outcome, false) => {
                let kind = outcome.failure();
                race.first = First::Ended(outcome);
                Verdict::Halved { fetch, kind, second: false }
            }
            (outcome, true) => self.outrun(key, outcome),
        }
    }

    fn judge_second(&mut self, RaceId(id): RaceId, outcome: Outcome, now: Instant) -> Verdict {
        let (key, kind) = (id as usize, outcome.failure());
        let race = &mut self.races[key];
        let fetch = race.fetch;
        let vain = match outcome {
            Outcome::Landed { window, proof, first_byte, total, .. } => {
                race.second = Some(Whole { window, proof, first_byte, total, at: now });
                None
            }
            vain => {
                let (rest, window) = vain.into_vain();
                self.wasted_bytes += window.filled() as u64;
                Some(rest)
            }
        };
        match (core::mem::replace(&mut race.first, First::Running), vain) {
            (First::Running, None) => Verdict::GiveUp(fetch),
            (First::Running, Some(_)) => {
                self.end(key);
                Verdict::Halved { fetch, kind, second: true }
            }
            (First::Ended(first), None) => self.outrun(key, first),
            (First::Ended(first), Some(vain)) => {
                self.end(key);
                // The first's end has been told of: now it is the second's turn.
                Verdict::Over { outcome: first.because_of(vain), loser: None }
            }
            (First::Settled, _) => {
                self.end(key);
                Verdict::Nothing
            }
        }
    }

    /// Both windows are home, and the second is whole.
    fn outrun(&mut self, key: usize, first: Outcome) -> Verdict {
        let (asked, mut window) = first.into_parts();
        let race = &mut self.races[key];
        let Whole { window: whole, proof, first_byte, total, at } = race.second.take().expect("it landed");
        let waited = at.since(race.since);
        self.wasted_bytes += window.filled() as u64;
        // What had landed may be of another version than what came whole.
        window.rewind(0);
        self.copied_bytes += window.put(whole.bytes()) as u64;
        drop(whole);
        self.end(key);
        Verdict::Outrun { asked, window, proof, first_byte, total, waited }
    }

    /// Forgets a pair of which nothing is under way; its memory is spare again.
    fn end(&mut self, key: usize) {
        let Race { filling, second, .. } = self.races.remove(key);
        if let Some(whole) = second {
            self.wasted_bytes += whole.window.filled() as u64;
        }
        self.spares.push(filling.seal().expect("its only window is home"));
    }

    /// One line for the watchdog.
    pub(crate) fn describe(&self) -> String {
        format!("hedge: {} second requests under way, {} of {} spare slots free", self.races.len(), self.spares.len(), self.slots)
    }
}
