//! What the owner does about requests that take too long: a second one, and what became of it.

use super::{HEDGES_MAX, Owner};
use crate::brain::words::{Command, FetchId};
use fuelrail_base::{Duration, Instant, Kind};
use std::collections::VecDeque;

impl<W> Owner<W> {
    /// Asks a second time for what is due.
    pub(in crate::brain) fn hedge_due(&mut self, now: Instant, idle: bool, out: &mut VecDeque<Command<W>>) {
        while let Some(number) = self.hedge.due(now, idle) {
            self.stats.hedges += 1;
            let fetch = &mut self.fetches[number as usize];
            fetch.hedges += 1;
            if fetch.hedges < HEDGES_MAX {
                // The second may be slow, too.
                self.hedge.again(now, number, self.catalog.block_len(fetch.block));
            }
            out.push_back(Command::Hedge { fetch: FetchId(number), block: fetch.block });
        }
    }

    /// The second request of a fetch brought the block.
    pub(in crate::brain) fn outrun(
        &mut self,
        now: Instant,
        id: FetchId,
        bytes: u64,
        times: (Duration, Duration),
        waited: Duration,
        out: &mut VecDeque<Command<W>>,
    ) {
        self.stats.hedges_won += 1;
        // What the first would have taken is at least this: estimates made from winners alone would sink with every hedge.
        self.hedge.took(bytes, waited);
        self.fetched(now, id, bytes, times, out);
    }

    pub(in crate::brain) fn unhedged(&mut self, now: Instant, id: FetchId) {
        self.stats.hedges -= 1;
        self.fetches[id.0 as usize].hedges -= 1;
        self.hedge.postponed(now, id.0, self.bytes_of(id));
    }

    pub(in crate::brain) fn halved(&mut self, now: Instant, id: FetchId, kind: Option<Kind>, second: bool) {
        if let Some(kind) = kind {
            self.troubled(now, kind, self.in_flight);
        }
        if second && self.fetches[id.0 as usize].hedges < HEDGES_MAX {
            self.hedge.again(now, id.0, self.bytes_of(id));
        }
    }

    pub(in crate::brain) fn displaced(&mut self, now: Instant, id: FetchId) {
        self.hedge.displaced();
        self.unserved(now, id);
    }
}
