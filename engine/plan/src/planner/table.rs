//! The block table: one record per block in flight, from its first waiter to the command that hands all windows back.
//!
//! Every decision about a block reads its record's state; a block that has landed or was given up has left the table. States change
//! only here, along the allowed transitions. The queues are indexes of the states. Never decides anything.

use super::types::{FetchId, Origin, Waiters};
use crate::policy::BlockMap;
use crate::retry::Tries;
use crate::schedule::UseTime;
use core::cmp::Reverse;
use fuelrail_base::canary::{self, Mistake};
use fuelrail_base::{BlockId, Duration, Instant};
use slab::Slab;
use std::collections::BinaryHeap;

/// Waiter lists allocated at the start: few blocks have more than one waiter.
const LISTS_AT_START: usize = 64;

/// The state of a block in flight.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum State {
    /// Waits to be sent, the most urgent first; while the server is down, those that were probes less often.
    Queued,
    /// Failed, and is queued again at this time.
    Backoff(Instant),
    /// A transport is fetching it.
    Sent(Origin),
    /// Being fetched from the bucket for the last time: nothing at all had been served for so long.
    LastAttempt(Duration),
}

impl State {
    /// A request for it is under way.
    fn is_requested(self) -> bool {
        matches!(self, State::Sent(Origin::Bucket) | State::LastAttempt(_))
    }

    fn may_become(self, next: State) -> bool {
        match next {
            State::Queued => self != State::Queued,
            State::Sent(Origin::Bucket) => self == State::Queued,
            State::Backoff(_) | State::LastAttempt(_) => self == State::Sent(Origin::Bucket),
            // The disk is read first or not at all, and so is another rank asked.
            State::Sent(Origin::Disk(_) | Origin::Peer { .. }) => false,
        }
    }
}

/// One block in flight, over all attempts.
pub(super) struct Block<W> {
    serial: u32,
    pub(super) id: BlockId,
    pub(super) bytes: u64,
    state: State,
    pub(super) waiters: Waiters<W>,
    /// When the first waiter's sample is due: the urgency.
    at: UseTime,
    /// When the last one's is due: the next use lies after it.
    pub(super) last_at: UseTime,
    pub(super) tries: Tries,
    /// Requests for it that failed since the server went down.
    probes: u32,
    /// When it failed first, outages aside.
    pub(super) failing_since: Option<Instant>,
    /// How often it was hedged: bounded, as a block may always take long.
    pub(super) hedges: u32,
    /// A cached copy proved damaged after this fetch was sent.
    pub(super) doubted: bool,
}

impl<W> Block<W> {
    pub(super) fn state(&self) -> State {
        self.state
    }
}

/// Probes, when it is due, and the order of arrival.
type Urgency = (u32, UseTime, u64);

pub(super) struct BlockTable<W> {
    blocks: Slab<Block<W>>,
    by_id: BlockMap<FetchId>,
    /// Records begun.
    serial: u32,
    /// Emptied lists of waiters: a warm shard allocates none.
    spare: Vec<Vec<W>>,
    queued: BinaryHeap<Reverse<(Urgency, FetchId)>>,
    arrivals: u64,
    backoff: BinaryHeap<Reverse<(Instant, FetchId)>>,
    /// Some of those that are queued were probes.
    probed: bool,
    /// Requests under way.
    pub(super) requested: usize,
}

impl<W> BlockTable<W> {
    pub(super) fn new() -> BlockTable<W> {
        BlockTable {
            blocks: Slab::with_capacity(1024),
            by_id: BlockMap::with_capacity_and_hasher(1024, Default::default()),
            serial: 0,
            spare: (0..LISTS_AT_START).map(|_| Vec::with_capacity(2)).collect(),
            queued: BinaryHeap::with_capacity(1024),
            arrivals: 0,
            backoff: BinaryHeap::with_capacity(64),
            probed: false,
            requested: 0,
        }
    }

    /// A new record, for a waiter whose sample is due at `at`.
    pub(super) fn insert(&mut self, (id, bytes): (BlockId, u64), waiter: W, at: UseTime, state: State) -> FetchId {
        self.serial = self.serial.wrapping_add(1);
        let place = self.blocks.insert(Block {
            serial: self.serial,
            id,
            bytes,
            state,
            waiters: Waiters { first: waiter, others: Vec::new() },
            at,
            last_at: at,
            tries: Tries::default(),
            probes: 0,
            failing_since: None,
            hedges: 0,
            doubted: false,
        });
        let place = u32::try_from(place).expect("blocks in flight are bounded by the batches' samples, below 2^32");
        let fetch = FetchId { place, serial: self.serial };
        self.by_id.insert(id, fetch);
        self.index(fetch, (0, at), state);
        fetch
    }

    /// Adds a waiter to the block's record, or returns it when there is none. `doubts` when a copy of the block proved damaged.
    pub(super) fn join(&mut self, id: BlockId, waiter: W, at: UseTime, doubts: bool) -> Result<(), W> {
        let Some(fetch) = self.by_id.get(&id) else { return Err(waiter) };
        let block = &mut self.blocks[fetch.place as usize];
        if block.waiters.others.is_empty() {
            block.waiters.others = self.spare.pop().unwrap_or_default();
        }
        block.waiters.others.push(waiter);
        block.last_at = block.last_at.max(at);
        block.doubted |= doubts;
        Ok(())
    }

    /// Whether the block is in flight.
    pub(super) fn has(&self, id: BlockId) -> bool {
        self.by_id.contains_key(&id)
    }

    /// Takes back the emptied list of a delivered block's other waiters.
    pub(super) fn recycle(&mut self, others: Vec<W>) {
        if others.capacity() > 0 {
            self.spare.push(others);
        }
    }

    /// The record of a fetch, if it is still in flight.
    pub(super) fn find(&mut self, fetch: FetchId) -> Option<&mut Block<W>> {
        self.blocks.get_mut(fetch.place as usize).filter(|block| block.serial == fetch.serial)
    }

    /// The record of a fetch in flight.
    pub(super) fn get(&mut self, fetch: FetchId) -> &mut Block<W> {
        self.find(fetch).expect("the fetch is in flight")
    }

    /// The record in this place, and its name.
    pub(super) fn at(&mut self, place: u32) -> (FetchId, &mut Block<W>) {
        let block = &mut self.blocks[place as usize];
        (FetchId { place, serial: block.serial }, block)
    }

    /// Moves a record to its next state. What leaves a queue is the first in it.
    pub(super) fn enter(&mut self, fetch: FetchId, next: State) {
        let block = self.get(fetch);
        debug_assert!(block.state.may_become(next), "{fetch:?} from {:?} to {next:?}", block.state);
        let (left, urgency) = (core::mem::replace(&mut block.state, next), (block.probes, block.at));
        let first = match left {
            State::Queued => self.queued.pop().map(|Reverse((_, first))| first),
            State::Backoff(_) => self.backoff.pop().map(|Reverse((_, first))| first),
            State::Sent(_) | State::LastAttempt(_) => Some(fetch),
        };
        debug_assert_eq!(first, Some(fetch), "what leaves {left:?} is the first of them");
        self.leave(left);
        self.index(fetch, urgency, next);
    }

    fn index(&mut self, fetch: FetchId, (probes, at): (u32, UseTime), state: State) {
        match state {
            State::Queued => {
                self.arrivals += 1;
                self.queued.push(Reverse(((probes, at, self.arrivals), fetch)));
            }
            State::Backoff(due) => self.backoff.push(Reverse((due, fetch))),
            State::Sent(_) | State::LastAttempt(_) => self.requested += usize::from(state.is_requested()),
        }
    }

    fn leave(&mut self, state: State) {
        self.requested -= usize::from(state.is_requested() && !canary::on(Mistake::WindowLeaks));
    }

    /// Removes a record that no queue holds: it was sent, or [`BlockTable::end_waiting`] named it.
    pub(super) fn take(&mut self, fetch: FetchId) -> Block<W> {
        let block = self.blocks.remove(fetch.place as usize);
        self.by_id.remove(&block.id);
        self.leave(block.state);
        block
    }

    /// The most urgent of the queued.
    pub(super) fn most_urgent(&self) -> Option<(FetchId, &Block<W>)> {
        let &Reverse((_, fetch)) = self.queued.peek()?;
        Some((fetch, &self.blocks[fetch.place as usize]))
    }

    /// Queues a block again whose request failed because the server is down.
    pub(super) fn probed(&mut self, fetch: FetchId) {
        self.probed = true;
        self.get(fetch).probes += 1;
        self.enter(fetch, State::Queued);
    }

    /// Queues what is due. Once the server is up, probes no longer count.
    pub(super) fn wake(&mut self, now: Instant, is_down: bool) {
        while let Some(&Reverse((due, fetch))) = self.backoff.peek()
            && due <= now
        {
            self.enter(fetch, State::Queued);
        }
        if self.probed && !is_down {
            self.probed = false;
            self.blocks.iter_mut().for_each(|(_, block)| block.probes = 0);
            let queued = core::mem::take(&mut self.queued).into_iter();
            self.queued = queued.map(|Reverse(((_, at, n), fetch))| Reverse(((0, at, n), fetch))).collect();
        }
    }

    /// Ends an outage that lasted too long: returns all that wait, for the caller to take, and makes this the last attempt of the rest.
    pub(super) fn end_waiting(&mut self, unserved_for: Duration) -> Vec<FetchId> {
        self.queued.clear();
        self.backoff.clear();
        let mut waiting = Vec::new();
        for (place, block) in &mut self.blocks {
            match block.state {
                State::Sent(Origin::Bucket) => block.state = State::LastAttempt(unserved_for),
                State::Sent(_) | State::LastAttempt(_) => {}
                _ => waiting.push(FetchId { place: place as u32, serial: block.serial }),
            }
        }
        waiting
    }

    /// Records begun so far.
    pub(super) fn begun(&self) -> u32 {
        self.serial
    }

    /// Blocks in flight.
    pub(super) fn len(&self) -> usize {
        self.blocks.len()
    }

    pub(super) fn queued(&self) -> usize {
        self.queued.len()
    }

    /// Blocks that wait for their next attempt, and when the first is due.
    pub(super) fn backoff(&self) -> (usize, Option<Instant>) {
        (self.backoff.len(), self.backoff.peek().map(|Reverse((due, _))| *due))
    }
}

#[cfg(test)]
mod tests;
