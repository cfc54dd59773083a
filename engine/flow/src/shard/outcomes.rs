//! What a shard makes of how requests ended, and what it does about those that take too long.

use super::Shard;
use crate::conn::{Asked, Outcome, Proof};
use crate::hedge::Verdict;
use fuelrail_base::{BlockId, Kind};
use fuelrail_io::{Ring, Window};
use fuelrail_plan::brain::{Attempt, Fact, FetchId};

/// An attempt that brought fewer new bytes than this (or than a 64th of the block) counts as a failed one.
const PROGRESS_BYTES_MIN: usize = 4096;

impl<R: Ring> Shard<R> {
    pub(super) fn take_outcome(&mut self, outcome: Outcome) {
        let now = self.now;
        if outcome.asked().second.is_some() {
            self.fetch.second_over();
        }
        match self.hedges.judge(outcome, now) {
            Verdict::Over(outcome) => {
                self.requests.passed(now);
                self.end_fetch(outcome);
            }
            Verdict::Outrun { asked, window, proof, first_byte, total, waited } => {
                self.requests.passed(now);
                self.fetch.lose(&mut self.ring, now, asked.fetch);
                let bytes = window.len() as u64;
                self.fetch.landed(bytes, waited);
                self.land(asked.fetch, window, proof);
                self.tell(Fact::Outrun { fetch: asked.fetch, bytes, first_byte, total, waited });
            }
            Verdict::GiveUp(fetch) => {
                if let Some((at, _)) = self.fetch.front(fetch) {
                    self.fetch.give_up(&mut self.ring, now, at);
                }
            }
            Verdict::Halved { fetch, kind, second } => self.tell(Fact::Halved { fetch, kind, second }),
            Verdict::Nothing => {}
        }
    }

    fn end_fetch(&mut self, outcome: Outcome) {
        match outcome {
            Outcome::Landed { asked, window, proof, first_byte, total } => {
                self.fetch.lose(&mut self.ring, self.now, asked.fetch);
                let bytes = window.len() as u64;
                self.fetch.landed(bytes, total);
                let seen = self.brain.first(asked.fetch).seen;
                self.land(asked.fetch, window, seen.with(proof));
                self.tell(Fact::Landed { fetch: asked.fetch, bytes, first_byte, total });
            }
            Outcome::Failed { asked, window, proof, error, retry_after, server_time, new_bytes, idled_out } => {
                let error = self.fetch.judged(error, server_time);
                let (kind, len) = (error.kind(), window.len());
                let first = self.brain.first(asked.fetch);
                first.seen = if window.filled() == 0 { Proof::default() } else { first.seen.with(proof) };
                first.window = Some(window);
                if kind == Kind::Cancelled {
                    // We closed the connection ourselves, so that what is missing is asked for elsewhere.
                    return self.tell(Fact::Unserved(asked.fetch));
                }
                first.error = Some(error);
                let attempt = match new_bytes >= PROGRESS_BYTES_MIN.max(len / 64) {
                    _ if idled_out => Attempt::Excused,
                    true => Attempt::Progress,
                    false => Attempt::Barren,
                };
                self.tell(Fact::Failed { fetch: asked.fetch, kind, retry_after, attempt });
            }
            Outcome::Unserved { asked, window, displaced } => {
                let fetch = asked.fetch;
                self.brain.first(fetch).window = Some(window);
                self.tell(if displaced { Fact::Displaced(fetch) } else { Fact::Unserved(fetch) });
            }
        }
    }

    /// The whole block is in the window of its first waiter.
    fn land(&mut self, fetch: FetchId, window: Window, proof: Proof) {
        let first = self.brain.first(fetch);
        (first.window, first.proof) = (Some(window), proof);
    }

    /// Sends the request of a fetch under way a second time, or a third. Where there is no memory or no connection for a second,
    /// gives the first up: what is missing is asked for anew.
    pub(super) fn hedge(&mut self, fetch: FetchId, block: BlockId) {
        let Some((first, since)) = self.fetch.front(fetch) else { return self.tell(Fact::Unhedged(fetch)) };
        let bytes = self.objects.catalog().block_len(block);
        let rival = match self.hedges.has_room(bytes) {
            true => self.fetch.rival(&mut self.ring, self.now, first, self.brain.depth(bytes)),
            false => None,
        };
        let begun = rival.and_then(|at| Some((at, self.hedges.begin(fetch, since, bytes)?)));
        match begun {
            Some((at, (race, window))) => {
                let asked = Asked { second: Some(race), ..self.asked(fetch, block, 0) };
                self.fetch.send_second((at, first), asked, window, self.now);
            }
            None if self.hedges.runs(fetch) => self.tell(Fact::Unhedged(fetch)),
            None => self.fetch.give_up(&mut self.ring, self.now, first),
        }
    }
}
