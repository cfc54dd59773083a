//! The planner of one shard: facts in, commands out. It decides per block and per batch, never per byte.
//!
//! Owns the plan of this shard's two roles. As **home** of every `shards`-th batch it decides when a batch is opened
//! (`home.rs`); as **owner** of the blocks that hash to it, it decides what is served from the cache, what is fetched, in
//! which order, how often, and what is kept (`owner.rs`, over the records of `table.rs`). Holds no byte of payload, no socket, no clock: time is an
//! argument of every fact. The same planner runs in the engine and in the simulator.

mod home;
mod owner;
mod restraint;
mod table;
mod types;

pub use types::{Attempt, Command, Fact, FetchId, GivenUp, Keep, Origin, PlannerConfig, PlannerStats, Source, Waiters};

use crate::catalog::Catalog;
use crate::importance::Known;
use crate::run::Run;
use crate::schedule::UseTime;
use crate::spill::Spill;
use core::fmt;
use fuelrail_base::{BlockId, Instant, Result};
use home::Home;
use owner::Owner;
use std::collections::VecDeque;
use std::sync::Arc;

/// The planner of one shard. `W` is what flow knows of one that waits for a block, its window above all: the planner keeps it with the
/// block, from [`Planner::ask`] to the command that hands it back, and never looks into it.
pub struct Planner<W> {
    home: Home,
    owner: Owner<W>,
    commands: VecDeque<Command<W>>,
    /// Records begun when the last batch was opened, before its blocks were asked for.
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
            home: Home::new(config, run, catalog),
            commands: VecDeque::with_capacity(256),
            begun_at_opening: None,
        })
    }

    /// Takes a fact in. Commands that follow from it wait in [`Planner::pop`].
    pub fn tell(&mut self, now: Instant, fact: Fact) {
        let out = &mut self.commands;
        match fact {
            Fact::Opened(seq) => self.home.opened(now, seq),
            Fact::NoRoom(seq) => self.home.no_room(seq),
            Fact::Room => self.home.room(),
            Fact::Ready(seq) => self.home.ready(now, seq),
            Fact::Consumer { taken, waits } => {
                self.home.consumer(now, taken, waits);
                self.owner.hedge_due(now, false, out);
            }
            Fact::Landed { fetch, first_byte, total, outran } => {
                self.owner.landed(now, fetch, (first_byte, total), outran, out);
            }
            Fact::Unhedged(fetch) => self.owner.unhedged(now, fetch),
            Fact::Halved { fetch, kind, second } => self.owner.halved(now, fetch, kind, second),
            Fact::Failed { fetch, kind, retry_after, attempt } => {
                self.owner.failed(now, fetch, kind, retry_after, attempt, out);
            }
            Fact::Unserved { fetch, displaced } => self.owner.unserved(now, fetch, displaced),
            Fact::Idle => self.owner.idle(now, out),
        }
        self.follow_up(now);
    }

    /// A home wants a block, in a window that `waiter` holds, for a sample that is due at `at`: what is due earlier is fetched first. `fresh`
    /// when what is cached proved wrong and it must be fetched anew.
    pub fn ask(&mut self, now: Instant, waiter: W, (block, at, fresh): (BlockId, UseTime, bool)) {
        self.owner.asked(now, waiter, (block, at, fresh), &mut self.commands);
        self.follow_up(now);
    }

    /// What any news may make possible.
    fn follow_up(&mut self, now: Instant) {
        self.owner.tidy(&mut self.commands);
        self.owner.issue(now, &mut self.commands);
    }

    /// Takes the emptied list of a delivered block's other waiters back, so that its memory is used again.
    pub fn recycle(&mut self, others: Vec<W>) {
        self.owner.table.recycle(others);
    }

    /// The first that waits for a fetch. `None` when that is over.
    pub fn first(&mut self, fetch: FetchId) -> Option<&mut W> {
        self.owner.table.find(fetch).map(|block| &mut block.waiters.first)
    }

    /// The tier on disk: it is handed segments, and told how writes and segments end. `None` when there is none.
    pub fn spill(&mut self) -> Option<&mut Spill> {
        self.owner.spill.as_mut()
    }

    /// More epochs are settled: their batches may be opened, and next uses in them are exact.
    pub fn learn(&mut self, known: &Known) {
        self.home.learn(known);
        self.owner.schedule.learn(known);
    }

    /// Commands the next batch to be opened, when it is time. Ask when every ask of the batches opened so far has been told:
    /// before that, the source looks idle, and batch after batch would be opened for it. True when there is a command now.
    pub fn look_ahead(&mut self, now: Instant) -> bool {
        let table = &self.owner.table;
        // Until a batch was filled, the look-ahead is a guess: nothing but requests may be under way, or the disk would be asked for all
        // that memory has room for.
        // And the batch opened last must have brought some: one whose blocks are all on their way tells nothing of the source.
        let begun = table.begun();
        let queued = match self.home.has_filled() {
            true => table.queued(),
            false => table.len() - table.requested() + usize::from(self.begun_at_opening == Some(begun)),
        };
        let opens = self.home.open_next(now, queued as u64, &mut self.commands);
        if opens {
            self.begun_at_opening = Some(begun);
        }
        opens
    }

    /// The next command to carry out.
    pub fn pop(&mut self) -> Option<Command<W>> {
        self.commands.pop_front()
    }

    /// When the planner wants to hear a fact at the latest, whichever.
    #[must_use]
    pub fn deadline(&self) -> Option<Instant> {
        self.owner.deadline()
    }

    /// Connections wanted now.
    #[must_use]
    pub fn connections(&self) -> usize {
        self.owner.window.connections()
    }

    /// Requests wanted at once on one connection, for blocks of this length.
    #[must_use]
    pub fn depth(&self, block_bytes: u64) -> usize {
        self.owner.window.depth(block_bytes)
    }

    /// Fetches that wait for a place.
    #[must_use]
    pub fn queued(&self) -> usize {
        self.owner.table.queued()
    }

    /// The next batch waits for room.
    #[must_use]
    pub fn is_blocked(&self) -> bool {
        self.home.is_blocked()
    }

    /// All batches of this shard have been opened.
    #[must_use]
    pub fn all_opened(&self) -> bool {
        self.home.all_opened()
    }

    /// Counters since the start.
    #[must_use]
    pub fn stats(&self) -> PlannerStats {
        self.owner.stats()
    }
}

impl<W> fmt::Display for Planner<W> {
    /// One line for the watchdog: what is waited for.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}; {}", self.home, self.owner)
    }
}
