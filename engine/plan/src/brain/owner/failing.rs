//! What the owner does about fetches that fail: another attempt, none, or none for anybody while the server is down.

use super::{Fetch, Owner};
use crate::brain::words::{Attempt, Command, FetchId, GivenUp};
use crate::retry::{Tries, Verdict};
use core::cmp::Reverse;
use fuelrail_base::{Duration, Instant, Kind};
use std::collections::VecDeque;

impl<W> Owner<W> {
    pub(in crate::brain) fn failed(
        &mut self,
        now: Instant,
        id: FetchId,
        kind: Kind,
        retry_after: Option<Duration>,
        attempt: Attempt,
        out: &mut VecDeque<Command<W>>,
    ) {
        self.over(id);
        if let Some(spill) = &mut self.spill {
            spill.fetched(now, None);
        }
        self.troubled(now, kind, self.in_flight + 1);
        let &mut Fetch { block, doomed, .. } = self.fetch(id);
        if let Some(unserved_for) = doomed {
            return self.give_up(id, GivenUp::Unserved(unserved_for), out);
        }
        if self.restraint.failed(now, block, kind, attempt, self.window.round_trip()) {
            self.stats.retries += 1;
            self.fetch(id).failing_since = None;
            return self.tried.push(id);
        }
        let limit = self.request_limit;
        let fetch = &mut self.fetches[id.place as usize];
        let failing_for = now.since(*fetch.failing_since.get_or_insert(now));
        if !limit.is_zero() && failing_for >= limit {
            return self.give_up(id, GivenUp::Late(failing_for), out);
        }
        let mut excused = Tries::default();
        let tries = match attempt {
            Attempt::Barren => &mut fetch.tries,
            Attempt::Progress => {
                fetch.tries = Tries::default();
                &mut fetch.tries
            }
            Attempt::Excused => &mut excused,
        };
        match self.retry.verdict(tries, kind, retry_after) {
            Verdict::After(pause) => {
                self.stats.retries += 1;
                self.delayed.push(Reverse((now.after(pause), id)));
            }
            Verdict::GiveUp => self.give_up(id, GivenUp::Tried, out),
        }
    }

    fn give_up(&mut self, id: FetchId, why: GivenUp, out: &mut VecDeque<Command<W>>) {
        self.stats.given_up += 1;
        let Fetch { block, waiters, tries, .. } = self.take(id);
        // An excused attempt is not counted, and yet it was one.
        let attempts = tries.failed().max(1);
        out.push_back(Command::Refuse { block, waiters, attempts, why });
    }

    /// The server has been down for too long: nothing that waits is waited for any more.
    pub(super) fn end_outage(&mut self, now: Instant, out: &mut VecDeque<Command<W>>) {
        let Some(unserved_for) = self.restraint.take_end(now) else { return };
        let queued = core::mem::take(&mut self.queue).into_iter().map(|Reverse((.., id))| id);
        let delayed = core::mem::take(&mut self.delayed).into_iter().map(|Reverse((_, id))| id);
        for id in queued.chain(delayed).chain(core::mem::take(&mut self.tried)) {
            self.give_up(id, GivenUp::Unserved(unserved_for), out);
        }
        self.fetches.iter_mut().for_each(|(_, fetch)| fetch.doomed = Some(unserved_for));
    }

    /// The server did not serve a request, of so many in flight.
    pub(super) fn troubled(&mut self, now: Instant, kind: Kind, in_flight: usize) {
        if kind == Kind::Throttled {
            self.stats.throttled += 1;
            self.window.throttled(now);
            self.hedge.throttled(now);
        } else {
            self.window.failed(now);
        }
        if kind == Kind::Stalled {
            self.window.timed_out(now, in_flight);
        }
    }
}
