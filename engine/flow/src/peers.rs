//! Blocks for other ranks: how they are asked, and the stage that serves what they ask of this one.
//!
//! What another rank asks for is one more request for a block: from the cache, the disk, a fetch under way, or a fetch of its own. It lands
//! in a slot of the stage, which is lent to the server that sends it, and comes back. Owns the slots. Knows no socket of a server.

use crate::channels::{BlockRequest, SpanId};
use crate::conn::{Asked, Proof};
use crate::objects::{Objects, Server};
use core::fmt;
use core::ops::Range;
use crossbeam_queue::ArrayQueue;
use fuelrail_base::limits::SAMPLE_ALIGN;
use fuelrail_base::{BlockId, Result, SampleId, ShardId};
use fuelrail_io::{Filling, Receiver, Sender, Slot, Waker, Window, channel};
use fuelrail_plan::planner::{Asker, Source};
use fuelrail_plan::schedule::UseTime;
use fuelrail_wire::Etag;
use slab::Slab;
use std::fmt::Write as _;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};

/// Marks the spans of blocks that other ranks ask for.
const OF_PEERS: u32 = u32::MAX - 1;

impl SpanId {
    /// The place of a request of another rank, where it is one.
    pub(crate) fn peer(self) -> Option<usize> {
        (self.batch == OF_PEERS).then_some(self.sample as usize)
    }
}

/// How another rank is asked for blocks.
#[derive(Clone)]
pub struct PeerRoute {
    prefix: String,
    bearer: Option<Arc<str>>,
}

impl PeerRoute {
    /// Blocks are at `prefix/SAMPLE`, and the header names `bearer`, where there is one.
    pub fn new(prefix: String, bearer: Option<Arc<str>>) -> PeerRoute {
        PeerRoute { prefix, bearer }
    }

    /// The path that all others are below.
    pub fn prefix(&self) -> &str {
        &self.prefix
    }

    /// Appends the path of a sample's blocks, for their use at a moment.
    pub fn push_path(&self, path: &mut String, sample: SampleId, at: UseTime) {
        let _ = write!(path, "{}/{}?at={}", self.prefix, sample.0, at.0); // writing to memory cannot fail
    }

    /// What the header names.
    pub fn bearer(&self) -> Option<&str> {
        self.bearer.as_deref()
    }

    /// Adds the header lines that show the secret, and that the block is not to be fetched, to a request.
    pub(crate) fn add_lines(&self, request: &mut Vec<u8>, asked: &Asked) {
        // They go before the empty one that ends the head.
        request.truncate(request.len() - 2);
        if let Some(bearer) = &self.bearer {
            for piece in [&b"Authorization: Bearer "[..], bearer.as_bytes(), b"\r\n"] {
                request.extend_from_slice(piece);
            }
        }
        if asked.rank.is_some_and(|rank| rank.if_held) {
            request.extend_from_slice(b"Cache-Control: only-if-cached\r\n");
        }
        request.extend_from_slice(b"\r\n");
    }
}

impl fmt::Debug for PeerRoute {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PeerRoute").field("prefix", &self.prefix).finish_non_exhaustive()
    }
}

/// Another rank.
#[derive(Clone, Debug)]
pub struct PeerLink {
    /// Where it serves.
    pub server: Server,
    /// How it is asked.
    pub route: PeerRoute,
}

/// Memory of one shard for other ranks.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct PeerRoom {
    /// Connections to all other ranks together, …
    pub connections: usize,
    /// … and the scratch memory of each.
    pub scratch_bytes: usize,
    /// Blocks that are served at a time.
    pub slots: usize,
    /// The longest block.
    pub slot_bytes: usize,
}

impl PeerRoom {
    /// All of it, bytes.
    pub fn bytes(&self) -> u64 {
        let slot_bytes = self.slot_bytes.next_multiple_of(SAMPLE_ALIGN);
        (self.connections * self.scratch_bytes.next_multiple_of(SAMPLE_ALIGN) + self.slots * slot_bytes) as u64
    }
}

/// What a shard has to do with other ranks.
pub struct PeerSetup {
    /// By rank; this one's own place is empty.
    pub links: Vec<Option<PeerLink>>,
    /// What they ask for.
    pub inbox: PeerInbox,
}

/// A block that another rank asks for.
pub struct PeerRequest {
    /// Which one.
    pub block: BlockId,
    /// When that rank uses it.
    pub at: UseTime,
    /// Who asks.
    pub asker: Asker,
    /// Takes the block, or the reason why it cannot be had. Dropped when the shard ends.
    pub reply: Box<dyn FnOnce(Result<LentBlock>) + Send>,
}

/// The server's end of a shard's queues of requests.
pub struct PeerOutbox {
    /// Requests for what is held, …
    held: Sender<PeerRequest>,
    /// … and those that may wait for the bucket or for another rank.
    others: Sender<PeerRequest>,
    shared: Arc<Shared>,
}

impl PeerOutbox {
    /// Sends a request and wakes the shard.
    ///
    /// # Errors
    /// Gives it back when its queue is full, or the shard has ended.
    pub fn send(&mut self, request: PeerRequest) -> Result<(), PeerRequest> {
        let queue = if request.asker == Asker::RankIfHeld { &mut self.held } else { &mut self.others };
        queue.send(request)
    }

    /// Counts a request that was refused before anything was looked for.
    pub fn count_refused(&self) {
        self.shared.refused.fetch_add(1, Relaxed);
    }
}

/// The shard's end.
pub struct PeerInbox {
    held: Receiver<PeerRequest>,
    others: Receiver<PeerRequest>,
    shared: Arc<Shared>,
}

/// Requests that wait at a shard, of each kind.
const REQUESTS_MAX: usize = 1024;

/// The queues of requests to one shard, of which each lends at most `slots` slots.
pub fn peer_queue(slots: usize) -> (PeerOutbox, PeerInbox) {
    let ((to_held, held), (to_others, others)) = (channel(REQUESTS_MAX), channel(REQUESTS_MAX));
    let slots = ArrayQueue::new(slots.max(1));
    let shared = Arc::new(Shared { slots, waker: OnceLock::new(), refused: AtomicU64::new(0) });
    let outbox = PeerOutbox { held: to_held, others: to_others, shared: Arc::clone(&shared) };
    (outbox, PeerInbox { held, others, shared })
}

/// What the server's thread leaves for the shard.
struct Shared {
    /// On their way back.
    slots: ArrayQueue<Slot>,
    waker: OnceLock<Waker>,
    /// Requests that the server refused.
    refused: AtomicU64,
}

/// A block in memory that is lent until this is dropped.
pub struct LentBlock {
    slot: Option<Slot>,
    range: Range<usize>,
    /// It was fetched from the bucket for this request alone, and is not kept.
    pub passed: bool,
    /// The entity tag of the object that it is a part of, where the bucket sent one.
    pub tag: Option<Etag>,
    home: Arc<Shared>,
}

impl AsRef<[u8]> for LentBlock {
    fn as_ref(&self) -> &[u8] {
        self.slot.as_ref().map_or(&[], |slot| &slot[self.range.clone()])
    }
}

impl Drop for LentBlock {
    fn drop(&mut self) {
        if let Some(slot) = self.slot.take() {
            // There is a place for each.
            let _ = self.home.slots.push(slot);
        }
        if let Some(waker) = self.home.waker.get() {
            waker.wake();
        }
    }
}

struct Open {
    filling: Filling,
    begin: usize,
    asker: Asker,
    passed: bool,
    reply: Box<dyn FnOnce(Result<LentBlock>) + Send>,
}

/// Serves other ranks from one shard.
pub(crate) struct PeerStage {
    inbox: PeerInbox,
    objects: Arc<Objects>,
    spare: Vec<Slot>,
    open: Slab<Open>,
    /// Blocks and payload bytes handed to the server.
    pub served: (u64, u64),
}

impl PeerStage {
    pub(crate) fn new(objects: Arc<Objects>, inbox: PeerInbox, slots: Vec<Slot>, waker: &Waker) -> PeerStage {
        inbox.held.set_waker(waker.clone());
        inbox.others.set_waker(waker.clone());
        // Set once: a stage is made once of an inbox.
        let _ = inbox.shared.waker.set(waker.clone());
        let open = Slab::with_capacity(slots.len());
        PeerStage { inbox, objects, spare: slots, open, served: (0, 0) }
    }

    /// The next block to find for another rank, if a slot is free. The last one that is free is for blocks that are held: others may wait for
    /// the very rank that asks for those, whose own answers wait for them in turn.
    pub(crate) fn next(&mut self, shard: ShardId) -> Option<BlockRequest> {
        while let Some(slot) = self.inbox.shared.slots.pop() {
            self.spare.push(slot);
        }
        // The disk may still be writing from one.
        let mut all_free = (0..self.spare.len()).filter(|at| !self.spare[*at].is_read_pinned());
        let (free, has_another) = (all_free.next()?, all_free.next().is_some());
        let PeerRequest { block, at, asker, reply } = match self.inbox.held.recv() {
            None if has_another => self.inbox.others.recv()?,
            held => held?,
        };
        let catalog = self.objects.catalog();
        let mut filling = self.spare.swap_remove(free).fill();
        let (unit, bytes) = (catalog.batch_slack().max(1) as usize, catalog.block_len(block) as usize);
        assert!(filling.align(unit), "a slot has room for the longest block");
        let begin = filling.at();
        let window = filling.carve_padded(bytes, bytes.next_multiple_of(unit));
        let window = window.expect("a slot has room for the longest block");
        let place = self.open.insert(Open { filling, begin, asker, passed: false, reply });
        let span = SpanId { batch: OF_PEERS, sample: place as u32, index: 0 };
        Some(BlockRequest { assembler: shard, span, block, at, window, fresh: false })
    }

    pub(crate) fn asker(&self, place: usize) -> Asker {
        self.open[place].asker
    }

    /// What is asked for in this place comes from the bucket for it alone, and is not kept.
    pub(crate) fn passes(&mut self, place: usize) {
        self.open[place].passed = true;
    }

    /// A block is there, or cannot be had.
    pub(crate) fn landed(&mut self, place: usize, window: Window, result: Result<(Proof, Source)>) {
        let Open { filling, begin, passed, reply, .. } = self.open.remove(place);
        let bytes = window.len();
        drop(window);
        let slot = filling.seal().unwrap_or_else(|_| unreachable!("its only window is back"));
        let home = Arc::clone(&self.inbox.shared);
        let tag = result.as_ref().ok().and_then(|(proof, _)| proof.etag);
        let lent = LentBlock { slot: Some(slot), range: begin..begin + bytes, passed, tag, home };
        if result.is_ok() {
            self.served = (self.served.0 + 1, self.served.1 + bytes as u64);
        }
        reply(result.map(|_| lent));
    }

    /// Requests that the server has refused.
    pub(crate) fn refused(&self) -> u64 {
        self.inbox.shared.refused.load(Relaxed)
    }

    /// One line for the watchdog.
    pub(crate) fn describe(&self) -> String {
        let (open, free) = (self.open.len(), self.spare.len());
        let waiting = self.inbox.held.len() + self.inbox.others.len();
        format!("peers: {open} blocks on their way for other ranks, {waiting} waiting for one of {free} free slots")
    }
}
