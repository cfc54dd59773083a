//! Outcomes of requests: what a shard tells its planner, and second requests for slow ones.

use super::Shard;
use crate::conn::{Asked, End, Fault, Outcome, Proof};
use crate::fetch::Second;
use crate::hedge::Verdict;
use fuelrail_base::{BlockId, Kind};
use fuelrail_io::{Ring, Window};
use fuelrail_plan::planner::{Attempt, Fact, FetchId};

/// An attempt that brought fewer new bytes than this (or than a 64th of the block) counts as a failed one.
const PROGRESS_BYTES_MIN: usize = 4096;

impl<R: Ring> Shard<R> {
    pub(super) fn take_outcome(&mut self, outcome: Outcome) {
        let (now, fetch) = (self.now, outcome.asked.fetch);
        let Some(waiter) = self.planner.first(fetch) else {
            // A second request of a fetch that is over.
            self.hedges.waste(outcome);
            return;
        };
        let raced = waiter.race.is_some();
        let verdict = self.hedges.judge(&mut waiter.race, outcome, now);
        if let Verdict::Over(_) | Verdict::Outrun { .. } = verdict {
            self.requests.passed(now);
            if raced {
                self.fetch.cancel_seconds(&mut self.ring, now, fetch);
            }
        }
        match verdict {
            Verdict::Over(outcome) => self.end_fetch(outcome),
            Verdict::Outrun { window, proof, first_byte, total, waited } => {
                self.fetch.landed(window.len() as u64, waited);
                self.land(fetch, window, proof);
                self.tell(Fact::Landed { fetch, first_byte, total, outran: Some(waited) });
            }
            Verdict::GiveUp => self.fetch.cancel(&mut self.ring, now, fetch),
            Verdict::Halved { kind, second } => self.tell(Fact::Halved { fetch, kind, second }),
            Verdict::Nothing => {}
        }
    }

    fn end_fetch(&mut self, outcome: Outcome) {
        let Outcome { asked: Asked { fetch, .. }, window, end, .. } = outcome;
        match end {
            End::Landed { proof, first_byte, total } => {
                self.fetch.landed(window.len() as u64, total);
                let seen = self.waiter(fetch).seen;
                self.land(fetch, window, seen.with(proof));
                self.tell(Fact::Landed { fetch, first_byte, total, outran: None });
            }
            End::Failed { proof, new_bytes, fault } => {
                let Fault { error, retry_after, server_time, idled_out } = fault;
                let error = self.fetch.judged(error, server_time);
                let (kind, len) = (error.kind(), window.len());
                let first = self.waiter(fetch);
                first.seen = if window.filled() == 0 { Proof::default() } else { first.seen.with(proof) };
                first.window = Some(window);
                if kind == Kind::Cancelled {
                    // We closed the connection ourselves, so that the rest is requested elsewhere.
                    return self.tell(Fact::Unserved { fetch, displaced: false });
                }
                first.error = Some(error);
                let attempt = match new_bytes >= PROGRESS_BYTES_MIN.max(len / 64) {
                    _ if idled_out => Attempt::Excused,
                    true => Attempt::Progress,
                    false => Attempt::Barren,
                };
                self.tell(Fact::Failed { fetch, kind, retry_after, attempt });
            }
            End::Unserved { displaced } => {
                self.waiter(fetch).window = Some(window);
                self.tell(Fact::Unserved { fetch, displaced });
            }
        }
    }

    /// The whole block is in the window of its first waiter.
    pub(super) fn land(&mut self, fetch: FetchId, window: Window, proof: Proof) {
        let first = self.waiter(fetch);
        (first.window, first.proof) = (Some(window), proof);
    }

    /// Sends the request of a fetch under way a second time, or a third. Where there is no memory or no connection for a second,
    /// gives the first up: the rest is requested anew.
    pub(super) fn hedge(&mut self, fetch: FetchId, block: BlockId) {
        let asked = Asked { second: true, ..self.asked(fetch, block, 0) };
        let depth = self.planner.depth(asked.len);
        let race = &mut self.planner.first(fetch).expect("it is under way").race;
        let (raced, hedges) = (race.is_some(), &mut self.hedges);
        let has_room = hedges.has_room(asked.len);
        let begin = has_room.then_some(|since| hedges.begin(race, since, asked.len));
        match self.fetch.second(&mut self.ring, self.now, asked, depth, begin) {
            Second::Sent => {}
            Second::NoRoom if !raced => self.fetch.cancel(&mut self.ring, self.now, fetch),
            Second::NoRoom | Second::Early => self.tell(Fact::Unhedged(fetch)),
        }
    }
}
