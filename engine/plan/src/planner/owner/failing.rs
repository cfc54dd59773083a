//! What the owner does about fetches that fail: retry, give up, or probe while the server is down.

use super::{Block, Owner, State};
use crate::planner::types::{Attempt, Command, FetchId, GivenUp};
use crate::retry::{Tries, Verdict};
use fuelrail_base::{Duration, Instant, Kind};
use std::collections::VecDeque;

impl<W> Owner<W> {
    pub(in crate::planner) fn failed(
        &mut self,
        now: Instant,
        id: FetchId,
        kind: Kind,
        retry_after: Option<Duration>,
        attempt: Attempt,
        out: &mut VecDeque<Command<W>>,
    ) {
        self.over(now, id, None);
        self.troubled(now, kind, self.table.requested());
        let record = self.table.get(id);
        let (state, block) = (record.state(), record.id);
        if let State::LastAttempt(unserved_for) = state {
            return self.give_up(id, GivenUp::Unserved(unserved_for), out);
        }
        if self.admission.failed(now, block, kind, attempt, self.window.round_trip()) {
            self.stats.retries += 1;
            self.table.get(id).failing_since = None;
            return self.table.probed(id);
        }
        let limit = self.request_limit;
        let block = self.table.get(id);
        let failing_for = now.since(*block.failing_since.get_or_insert(now));
        if !limit.is_zero() && failing_for >= limit {
            return self.give_up(id, GivenUp::Late(failing_for), out);
        }
        let mut excused = Tries::default();
        let tries = match attempt {
            Attempt::Barren => &mut block.tries,
            Attempt::Progress => {
                block.tries = Tries::default();
                &mut block.tries
            }
            Attempt::Excused => &mut excused,
        };
        match self.retry.verdict(tries, kind, retry_after) {
            Verdict::After(pause) => {
                self.stats.retries += 1;
                self.table.enter(id, State::Backoff(now.after(pause)));
            }
            Verdict::GiveUp => self.give_up(id, GivenUp::Tried, out),
        }
    }

    fn give_up(&mut self, id: FetchId, why: GivenUp, out: &mut VecDeque<Command<W>>) {
        self.stats.given_up += 1;
        let Block { id: block, waiters, tries, .. } = self.table.take(id);
        // An excused attempt does not count against the limit, but is reported.
        let attempts = tries.failed().max(1);
        out.push_back(Command::Refuse { block, waiters, attempts, why });
    }

    /// Gives up every waiting fetch once the server has been down for longer than the limit.
    pub(super) fn end_outage(&mut self, now: Instant, out: &mut VecDeque<Command<W>>) {
        let Some(unserved_for) = self.admission.take_end(now) else { return };
        for id in self.table.end_waiting(unserved_for) {
            self.give_up(id, GivenUp::Unserved(unserved_for), out);
        }
    }

    /// Tells window and hedging that a request failed with `in_flight` under way.
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
