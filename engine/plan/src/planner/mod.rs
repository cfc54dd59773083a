//! The planner of one shard: facts in, commands out. It decides per block and per batch, never per byte.
//!
//! Owns the plan of this shard's two roles. As **assembler** of every `shards`-th batch it decides when a batch is opened
//! (`assembler.rs`); as **owner** of the blocks that hash to it, it decides what is served from the cache, what is fetched, in
//! which order, how often, and what is kept (`owner.rs`, over the records of `table.rs`). Holds no byte of payload, no socket, no clock: time is an
//! argument of every fact. The same planner runs in the engine and in the simulator.

mod admission;
mod assembler;
mod owner;
mod peers;
mod table;
mod types;

pub use types::{
    Asker, Attempt, Command, Fact, FetchId, GivenUp, Keep, Origin, PlannerConfig, PlannerStats, Role, Source, Waiters,
    Want,
};

use crate::catalog::Catalog;
use crate::importance::Known;
use crate::run::Run;
use crate::spill::Spill;
use assembler::Assembler;
use core::fmt;
use fuelrail_base::{Duration, Instant, Result};
use owner::Owner;
use std::collections::VecDeque;
use std::sync::Arc;

/// The planner of one shard. `W` is flow's record of a request that waits for a block, with its window: the planner keeps it with the
/// block, from [`Planner::ask`] to the command that hands it back, and never looks into it.
pub struct Planner<W> {
    assembler: Assembler,
    owner: Owner<W>,
    commands: VecDeque<Command<W>>,
    /// Records begun when the last batch was opened, before its blocks were requested.
    begun_at_opening: Option<u32>,
}

impl<W> Planner<W> {
    /// A planner for this run over this catalog.
    ///
    /// # Errors
    /// `Usage` when the retry or window configuration is out of range.
    pub fn new(config: &PlannerConfig, run: Run, catalog: Arc<Catalog>) -> Result<Planner<W>> {
        Ok(Planner {
            owner: Owner::new(config, &run, Arc::clone(&catalog))?,
            assembler: Assembler::new(config, run, catalog),
            commands: VecDeque::with_capacity(256),
            begun_at_opening: None,
        })
    }

    /// Takes a fact in. [`Planner::pop`] returns the commands that follow from it.
    pub fn tell(&mut self, now: Instant, fact: Fact) {
        let out = &mut self.commands;
        match fact {
            Fact::Opened(seq) => self.assembler.opened(now, seq),
            Fact::NoRoom(seq) => self.assembler.no_room(seq),
            Fact::Room => self.assembler.room(),
            Fact::Ready(seq) => self.assembler.ready(now, seq),
            Fact::Consumer { taken, waits } => {
                self.assembler.consumer(now, taken, waits);
                self.owner.hedge_due(now, false, out);
            }
            Fact::Landed { fetch, first_byte, total, outran } => {
                if self.owner.landed(now, fetch, (first_byte, total), outran, out) {
                    self.assembler.fetched();
                }
            }
            Fact::Sent { fetch, transit, passed } => self.owner.sent(now, fetch, (transit, passed), out),
            Fact::Unhedged(fetch) => self.owner.unhedged(now, fetch),
            Fact::Halved { fetch, kind, second } => self.owner.halved(now, fetch, kind, second),
            Fact::Failed { fetch, kind, retry_after, attempt } => {
                self.owner.failed(now, fetch, kind, retry_after, attempt, out);
            }
            Fact::Unserved { fetch, displaced } => self.owner.unserved(now, fetch, displaced, out),
            Fact::Idle => self.owner.idle(now, out),
        }
        self.follow_up(now);
    }

    /// Requests a block into the window that `waiter` holds: what is due earlier is fetched first.
    pub fn ask(&mut self, now: Instant, waiter: W, want: Want) {
        self.owner.asked(now, waiter, want, &mut self.commands);
        self.follow_up(now);
    }

    /// The clock by which it is told is so far behind the machine's from now on, as its thread did not run for a while. The rate that
    /// shards and processes share goes by the machine's; and what was under way tells little of other ranks.
    pub fn falls_behind(&mut self, now: Instant, behind: Duration) {
        self.owner.falls_behind(now, behind);
    }

    /// Recalls requests to other ranks that are late at this time. All that had come by then must have been told before.
    pub fn recall(&mut self, now: Instant) {
        self.owner.recall(now, &mut self.commands);
    }

    /// Does what a fact or request may have made possible: trims the disk and sends queued fetches.
    fn follow_up(&mut self, now: Instant) {
        self.owner.tidy(&mut self.commands);
        self.owner.issue(now, &mut self.commands);
    }

    /// Takes back the emptied list of a delivered block's other waiters, to use its memory again.
    pub fn recycle(&mut self, others: Vec<W>) {
        self.owner.table.recycle(others);
    }

    /// The first waiter of a fetch. `None` when the fetch is over.
    pub fn first(&mut self, fetch: FetchId) -> Option<&mut W> {
        self.owner.table.find(fetch).map(|block| &mut block.waiters.first)
    }

    /// The disk tier: it is handed segments, and told how writes and segments end. `None` without a disk.
    pub fn spill(&mut self) -> Option<&mut Spill> {
        self.owner.spill.as_mut()
    }

    /// Takes in which epochs are drawn: their batches may be opened, and next uses in them are exact.
    pub fn learn(&mut self, known: &Known) {
        self.assembler.learn(known);
        self.owner.schedule.learn(known);
    }

    /// Commands the next batch to be opened, when it is time; true when it did. Call it only when [`Planner::ask`] was called for every
    /// block of the batches opened so far: before that, the source looks idle, and batch after batch would be opened for it.
    pub fn look_ahead(&mut self, now: Instant) -> bool {
        let table = &self.owner.table;
        // Until a batch was filled, the look-ahead is a guess: nothing but requests may be under way, or the disk would be read as far
        // as memory has room. And the batch opened last must have brought some: blocks already on their way say nothing about the source.
        let begun = table.begun();
        let queued = match self.assembler.has_filled() {
            true => table.queued(),
            false => table.len() - table.requested + usize::from(self.begun_at_opening == Some(begun)),
        };
        let fetch_time = self.owner.window.round_trip();
        let opens = self.assembler.open_next(now, queued as u64, fetch_time, &mut self.commands);
        if opens {
            self.begun_at_opening = Some(begun);
        }
        opens
    }

    /// The next command to carry out.
    pub fn pop(&mut self) -> Option<Command<W>> {
        self.commands.pop_front()
    }

    /// The latest time at which the planner must be told its next fact, of any kind.
    pub fn deadline(&self) -> Option<Instant> {
        self.owner.deadline()
    }

    /// Connections wanted now.
    pub fn connections(&self) -> usize {
        self.owner.window.connections()
    }

    /// Requests wanted at once on one connection, for blocks of this length.
    pub fn depth(&self, block_bytes: u64) -> usize {
        self.owner.window.depth(block_bytes)
    }

    /// Fetches that wait to be sent.
    pub fn queued(&self) -> usize {
        self.owner.table.queued()
    }

    /// The next batch waits for room.
    pub fn is_blocked(&self) -> bool {
        self.assembler.blocked
    }

    /// All batches of this shard have been opened.
    pub fn all_opened(&self) -> bool {
        self.assembler.all_opened()
    }

    /// Counters since the start.
    pub fn stats(&self) -> PlannerStats {
        self.owner.stats()
    }
}

impl<W> fmt::Display for Planner<W> {
    /// One line for the watchdog: what this shard waits for.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}; {}", self.assembler, self.owner)
    }
}
