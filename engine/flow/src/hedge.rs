//! Second requests: the spare memory they land in, and what the ends of two requests mean for their one fetch.
//!
//! A second request has a window of its own, in a spare slot, because the first one's belongs to its connection until its last
//! operation is reaped. Whichever is whole first wins: when that is the second, its bytes are copied as soon as the other window is
//! returned. Owns the spare slots; the state of a race is in its fetch's record. Never touches a connection: it returns verdicts.

use crate::conn::{End, Outcome, Proof};
use fuelrail_base::{Duration, Instant, Kind};
use fuelrail_io::{Filling, Slot, Window};

/// Spare memory of one shard.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Spares {
    /// Second requests under way at once.
    pub slots: usize,
    /// The longest block one of them may be for. For a longer one the first request is given up, and the rest requested
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
    pub fn within(room_bytes: u64, longest: u64, mean: u64) -> Spares {
        let share = room_bytes / SPARE_SHARE;
        let fits = |bytes: u64, least: u64| (bytes > 0 && share / bytes >= least).then_some(bytes);
        let Some(bytes) = fits(longest, 4).or(fits((2 * mean).min(longest), 1)) else { return Spares::default() };
        Spares { slots: (share / bytes).min(SPARES_MAX) as usize, slot_bytes: bytes as usize }
    }

    /// All of them together, bytes.
    pub fn bytes(&self) -> u64 {
        (self.slots * self.slot_bytes.next_multiple_of(fuelrail_base::limits::SAMPLE_ALIGN)) as u64
    }
}

/// What the end of a request means.
#[expect(clippy::large_enum_variant, reason = "it is taken apart where it arrives")]
pub(crate) enum Verdict {
    /// The fetch is over with this outcome. Others may be under way, into memory that is not needed.
    Over(Outcome),
    /// A second was complete before the first; `window` is the first's, full and returned.
    Outrun { window: Window, proof: Proof, first_byte: Duration, total: Duration, waited: Duration },
    /// A second is complete: the first is to be given up, so that its window is returned.
    GiveUp,
    /// One ended and brought nothing, another goes on.
    Halved { kind: Option<Kind>, second: bool },
    /// The outcome was not needed.
    Nothing,
}

/// The requests of a fetch that was sent more than once: part of its record.
pub(crate) struct Race {
    /// When the first request was sent.
    since: Instant,
    /// How the first ended, if it failed: reported if the others fail, too.
    first: Option<Outcome>,
    /// Second requests under way.
    running: u32,
    /// The second request that brought the block, and when.
    whole: Option<(Outcome, Instant)>,
}

/// The spare memory of one shard, and what its races cost.
pub(crate) struct Hedges {
    slot_bytes: usize,
    slots: usize,
    spares: Vec<Slot>,
    /// Payload bytes that landed and were not needed.
    pub wasted_bytes: u64,
    /// Payload bytes copied from spare slots.
    pub copied_bytes: u64,
}

impl Hedges {
    pub(crate) fn new(spares: Vec<Slot>) -> Hedges {
        let (slot_bytes, slots) = (spares.first().map_or(0, |slot| slot.len()), spares.len());
        Hedges { slot_bytes, slots, spares, wasted_bytes: 0, copied_bytes: 0 }
    }

    /// Whether there is memory for a second request for a block of this length.
    pub(crate) fn has_room(&self, bytes: u64) -> bool {
        !self.spares.is_empty() && bytes <= self.slot_bytes as u64
    }

    /// Begins a second request of a fetch whose first was sent at `since`: where it lands.
    ///
    /// # Panics
    /// Without [room](Hedges::has_room).
    pub(crate) fn begin(&mut self, race: &mut Option<Box<Race>>, since: Instant, bytes: u64) -> (Filling, Window) {
        let mut spare = self.spares.pop().expect("there is room").fill();
        let window = spare.carve(bytes as usize).expect("its length was looked at");
        race.get_or_insert_with(|| Box::new(Race { since, first: None, running: 0, whole: None })).running += 1;
        (spare, window)
    }

    /// What the end of a request means for its fetch.
    pub(crate) fn judge(&mut self, place: &mut Option<Box<Race>>, outcome: Outcome, now: Instant) -> Verdict {
        let Some(race) = place else { return Verdict::Over(outcome) };
        let (landed, kind) = (matches!(outcome.end, End::Landed { .. }), outcome.failure());
        let second = outcome.asked.second;
        race.running -= u32::from(second);
        match (second, landed) {
            (false, true) => {
                if let Some((whole, _)) = race.whole.take() {
                    self.waste(whole);
                }
                *place = None;
                Verdict::Over(outcome)
            }
            (false, false) if race.whole.is_some() => self.outrun(place, outcome),
            (false, false) => {
                race.first = Some(outcome);
                Verdict::Halved { kind, second }
            }
            (true, true) if race.whole.is_some() => {
                self.waste(outcome);
                Verdict::Nothing
            }
            (true, true) => {
                race.whole = Some((outcome, now));
                match race.first.take() {
                    Some(first) => self.outrun(place, first),
                    None => Verdict::GiveUp,
                }
            }
            (true, false) => {
                let end = self.waste(outcome);
                let first = if race.running == 0 { race.first.take() } else { None };
                if let Some(first) = first {
                    *place = None;
                    // The first's end was reported as `Halved`: the second's now ends the fetch.
                    return Verdict::Over(first.because_of(end));
                }
                if race.first.is_some() {
                    return Verdict::Nothing;
                }
                if race.running == 0 && race.whole.is_none() {
                    *place = None;
                }
                Verdict::Halved { kind, second }
            }
        }
    }

    /// Ends a race whose first window is returned and whose second request is complete.
    fn outrun(&mut self, place: &mut Option<Box<Race>>, first: Outcome) -> Verdict {
        let whole = place.take().and_then(|race| Some((race.since, race.whole?)));
        let Some((since, (whole, at))) = whole else { unreachable!("a second is complete") };
        let End::Landed { proof, first_byte, total } = whole.end else { unreachable!("it landed") };
        let mut window = first.window;
        self.wasted_bytes += window.filled() as u64;
        // What had landed may be of another version than the complete copy.
        window.rewind(0);
        self.copied_bytes += window.put(whole.window.bytes()) as u64;
        self.take_back(whole.window, whole.spare);
        Verdict::Outrun { window, proof, first_byte, total, waited: at.since(since) }
    }

    /// Discards what a second request brought; returns how it ended.
    pub(crate) fn waste(&mut self, second: Outcome) -> End {
        self.wasted_bytes += second.window.filled() as u64;
        self.take_back(second.window, second.spare);
        second.end
    }

    fn take_back(&mut self, window: Window, spare: Option<Filling>) {
        drop(window);
        let spare = spare.expect("a second request lands in spare memory");
        self.spares.push(spare.seal().expect("its only window is returned"));
    }

    /// One line for the watchdog.
    pub(crate) fn describe(&self) -> String {
        let (busy, all) = (self.slots - self.spares.len(), self.slots);
        format!("hedge: {busy} of {all} spare slots in use by second requests")
    }
}
