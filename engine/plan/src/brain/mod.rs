//! The brain of one shard: facts in, commands out. It thinks per block and per batch, never per byte.
//!
//! Owns the plan of this shard's two roles. As **home** of every `shards`-th batch it decides when a batch is opened
//! (`home.rs`); as **owner** of the blocks that hash to it, it decides what is served from the cache, what is fetched, in
//! which order, how often, and what is kept (`owner.rs`). Holds no byte of payload, no socket, no clock: time is an
//! argument of every fact. The same brain runs in the engine and in the simulator.

mod home;
mod owner;

use crate::catalog::Catalog;
use crate::policy::PolicyName;
use crate::prefetch::Strategy;
use crate::retry::RetryConfig;
use crate::run::Run;
use crate::schedule::UseTime;
use crate::window::WindowConfig;
use core::fmt;
use fuelrail_base::{BatchSeq, BlockId, Duration, Instant, Kind, Result, ShardId};
use home::Home;
use owner::Owner;
use std::collections::VecDeque;
use std::sync::Arc;

/// Names one request of a home shard for one block; given by flow, unique while open.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, PartialOrd, Ord)]
pub struct AskId(pub u32);

/// Names one fetch of a block, over all its attempts; given by the brain.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, PartialOrd, Ord)]
pub struct FetchId(pub u32);

/// What happened, as flow tells it.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Fact {
    /// The batch has its slot; its asks follow.
    Opened(BatchSeq),
    /// There is no room for the batch now.
    NoRoom(BatchSeq),
    /// Memory came home: room may have appeared.
    Room,
    /// All samples of a batch are in place (or given up).
    Ready(BatchSeq),
    /// The consumer took so many of this shard's batches in all, and is blocked waiting or not.
    Consumer {
        /// Batches of this shard taken since the start.
        taken: u64,
        /// Someone is inside `next_batch` with nothing to return.
        waits: bool,
    },
    /// A home wants a block in a window that flow holds under `ask`.
    Asked {
        /// The ask.
        ask: AskId,
        /// The block.
        block: BlockId,
        /// When its sample is due; asks due earlier are fetched first.
        at: UseTime,
        /// What is cached proved wrong: fetch it anew.
        fresh: bool,
    },
    /// A fetch put the whole block into the window of its first ask.
    Landed {
        /// The fetch.
        fetch: FetchId,
        /// Bytes of the block.
        bytes: u64,
        /// From the request to the first byte of its response.
        first_byte: Duration,
        /// From the request to the last byte.
        total: Duration,
    },
    /// A fetch failed this time.
    Failed {
        /// The fetch.
        fetch: FetchId,
        /// Why.
        kind: Kind,
        /// The server's own wish for a pause.
        retry_after: Option<Duration>,
        /// The attempt brought enough new bytes to count as progress.
        progressed: bool,
    },
    /// The connection closed before the request was looked at: not a failure of the object.
    Unserved(FetchId),
    /// The shard is about to sleep.
    Idle,
    /// Time passed.
    Tick,
}

/// What flow shall do. Commands are carried out in the order given.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Command {
    /// Find `bytes` of contiguous room for a batch, then ask for its blocks. Answer with `Opened` or `NoRoom`.
    Open {
        /// The batch.
        seq: BatchSeq,
        /// Room needed, alignment included.
        bytes: u64,
    },
    /// Copy a cached block into the window of `ask`.
    Serve {
        /// The ask.
        ask: AskId,
        /// The cached block.
        block: BlockId,
    },
    /// Request the block, or what is missing of it, into the window of `ask`.
    Fetch {
        /// The fetch.
        fetch: FetchId,
        /// Whose window receives it.
        ask: AskId,
        /// The block.
        block: BlockId,
    },
    /// Copy a landed block from one ask's window to another's: two batches wanted it at the same time.
    Share {
        /// The full window.
        from: AskId,
        /// The empty one.
        to: AskId,
    },
    /// Copy a landed block into the cache.
    Keep {
        /// The block.
        block: BlockId,
        /// Whose window holds it.
        ask: AskId,
    },
    /// Drop a block from the cache.
    Evict(BlockId),
    /// Hand the full window back to its home.
    Answer {
        /// The ask.
        ask: AskId,
        /// Where the bytes came from.
        source: Source,
    },
    /// Hand the window back with the error of the last attempt, which was reported for `failed`.
    Refuse {
        /// The ask.
        ask: AskId,
        /// The ask whose fetch failed.
        failed: AskId,
        /// How many attempts were made.
        attempts: u32,
    },
}

/// Where the bytes of an answer came from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Source {
    /// Fetched for this ask.
    Bucket,
    /// Already in the RAM cache.
    Cache,
    /// Fetched for another ask of the same time.
    Shared,
}

/// Plain configuration of one brain.
#[derive(Clone, Debug)]
pub struct BrainConfig {
    /// Which shard this is.
    pub shard: ShardId,
    /// How many there are.
    pub shards: u16,
    /// How far to look ahead.
    pub prefetch: Strategy,
    /// What to keep.
    pub policy: PolicyName,
    /// This shard's share of the cache, payload bytes.
    pub cache_bytes: u64,
    /// This shard's room for batches, bytes.
    pub batch_room_bytes: u64,
    /// Epochs the next use of a block is looked for.
    pub horizon_epochs: u64,
    /// How often to try again.
    pub retry: RetryConfig,
    /// How many connections and requests at once.
    pub window: WindowConfig,
    /// Seed of the retry jitter.
    pub seed: u64,
}

/// Counters of one brain since its start.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct BrainStats {
    /// Blocks asked for.
    pub asks: u64,
    /// … served from the cache.
    pub hits: u64,
    /// … served by a fetch already under way.
    pub shared: u64,
    /// Payload bytes asked for.
    pub asked_bytes: u64,
    /// Payload bytes served from the cache.
    pub hit_bytes: u64,
    /// Attempts after the first.
    pub retries: u64,
    /// Fetches given up.
    pub given_up: u64,
    /// Blocks dropped from the cache.
    pub evictions: u64,
    /// Times the server asked to slow down.
    pub throttled: u64,
}

/// The brain of one shard.
pub struct Brain {
    home: Home,
    owner: Owner,
    commands: VecDeque<Command>,
}

impl Brain {
    /// A brain for this run over this catalog.
    ///
    /// # Errors
    /// `Usage` when the retry or window configuration is out of range.
    pub fn new(config: &BrainConfig, run: Run, catalog: Arc<Catalog>) -> Result<Brain> {
        Ok(Brain {
            home: Home::new(config, run, Arc::clone(&catalog)),
            owner: Owner::new(config, &run, catalog)?,
            commands: VecDeque::with_capacity(256),
        })
    }

    /// Takes a fact in. Commands that follow from it wait in [`Brain::pop`].
    pub fn tell(&mut self, now: Instant, fact: Fact) {
        let out = &mut self.commands;
        match fact {
            Fact::Opened(seq) => self.home.opened(now, seq),
            Fact::NoRoom(seq) => self.home.no_room(seq),
            Fact::Room => self.home.room(),
            Fact::Ready(seq) => self.home.ready(now, seq),
            Fact::Consumer { taken, waits } => self.home.consumer(now, taken, waits),
            Fact::Asked { ask, block, at, fresh } => self.owner.asked(ask, block, at, fresh, out),
            Fact::Landed { fetch, bytes, first_byte, total } => {
                self.owner.landed(now, fetch, bytes, first_byte, total, out);
            }
            Fact::Failed { fetch, kind, retry_after, progressed } => {
                self.owner.failed(now, fetch, kind, retry_after, progressed, out);
            }
            Fact::Unserved(fetch) => self.owner.unserved(fetch),
            Fact::Idle => self.owner.idle(now),
            Fact::Tick => {}
        }
        self.owner.issue(now, out);
        self.home.open_next(now, self.owner.queued() as u64, out);
    }

    /// The next command to carry out.
    pub fn pop(&mut self) -> Option<Command> {
        self.commands.pop_front()
    }

    /// When the brain wants a `Tick` at the latest, if nothing happens before.
    #[must_use]
    pub fn deadline(&self) -> Option<Instant> {
        self.owner.deadline()
    }

    /// Connections wanted now.
    #[must_use]
    pub fn connections(&self) -> usize {
        self.owner.connections()
    }

    /// Requests wanted at once on one connection, for blocks of this length.
    #[must_use]
    pub fn depth(&self, block_bytes: u64) -> usize {
        self.owner.depth(block_bytes)
    }

    /// Fetches that wait for a place.
    #[must_use]
    pub fn queued(&self) -> usize {
        self.owner.queued()
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
    pub fn stats(&self) -> BrainStats {
        self.owner.stats()
    }
}

impl fmt::Display for Brain {
    /// One line for the watchdog: what is waited for.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}; {}", self.home, self.owner)
    }
}
