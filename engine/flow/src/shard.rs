//! A shard: one thread, one ring, one planner, its share of the arena. The only place that knows all stages.
//!
//! An iteration takes completions, messages and the consumer's state in, tells the planner, carries out its commands until there
//! are none, and submits what is due; then the shard sleeps in the ring. Bytes never pass through here, only windows.

use crate::assemble::{AssembleStage, BadSamples};
use crate::cache::CacheStage;
use crate::channels::{BlockRequest, ChannelEnds, SpanId};
use crate::chunks::ChunkStage;
use crate::conn::{Asked, AskedRank, Proof};
use crate::deliver::{Consumer, DeliverStage};
use crate::failure::given_up;
use crate::fetch::FetchStage;
use crate::gate::Gate;
use crate::hedge::{Hedges, Race};
use crate::objects::Objects;
use crate::peers::{PeerSetup, PeerStage};
use crate::setup::{ShardConfig, ShardEnds, memory, peer_memory};
use crate::spill::SpillStage;
use crate::status::ShardStatus;
use clock::Clock;
use fuelrail_base::canary::{self, Stage};
use fuelrail_base::limits::{OPEN_BATCHES_MAX, PIPELINE_DEPTH_MAX};
use fuelrail_base::{BlockId, Duration, Error, Instant, Kind, Result, ShardId};
use fuelrail_io::{Op, Region, Ring, ThreadMeter, Waker, Window};
use fuelrail_plan::planner::{Command, Fact, FetchId, Keep, Origin, Planner, PlannerConfig, Role, Source, Waiters};
use fuelrail_plan::run::Run;
use std::collections::HashMap;
use std::sync::Arc;

mod clock;
mod outcomes;
mod requests;

/// A request that waits for a block of this shard, from this shard or another. The planner keeps it with the block.
struct Waiter {
    assembler: ShardId,
    span: SpanId,
    /// `None` only while a connection or the disk fills it.
    window: Option<Window>,
    proof: Proof,
    /// What earlier attempts said about the bytes landed so far: a part fetched to complete them says less.
    seen: Proof,
    error: Option<Error>,
    /// The race of a fetch that was sent more than once.
    race: Option<Box<Race>>,
}

/// One shard.
pub struct Shard<R: Ring> {
    id: ShardId,
    shards: u16,
    ring: R,
    region: Region,
    waker: Waker,
    objects: Arc<Objects>,
    planner: Planner<Waiter>,
    fetch: FetchStage,
    hedges: Hedges,
    cache: Option<CacheStage>,
    chunks: Option<ChunkStage>,
    spill: Option<SpillStage>,
    peers: Option<PeerStage>,
    assemble: AssembleStage,
    deliver: DeliverStage,
    channels: ChannelEnds,
    /// Blocks from the planner's command to their outcome.
    requests: Gate,
    /// Batches from their slot to their last sample.
    filling: Gate,
    consumer: Arc<Consumer>,
    /// Version of the drawn epochs that this shard has taken in.
    heard: u64,
    status: Arc<ShardStatus>,
    /// Under `Quarantine`, the blocks given up, with the reason: they are not fetched again for any shard.
    quarantine: Option<HashMap<BlockId, Error>>,
    outgoing: Vec<BlockRequest>,
    free_bytes_seen: u64,
    shared_copied_bytes: u64,
    published: u64,
    /// A block has come, from wherever, since the last iteration.
    progressed: bool,
    meter: Option<ThreadMeter>,
    clock: Clock,
}

/// Few passes take so long: what has come meanwhile is taken in before anything is judged to be late.
const LONG_PASS: Duration = Duration::from_millis(1);

impl<R: Ring> Shard<R> {
    /// Builds a shard around its ring and region. The cache's memory is taken from the region here, once.
    ///
    /// # Errors
    /// `Budget` when the region has no room for what is set aside.
    pub fn new(
        ring: R,
        mut region: Region,
        objects: Arc<Objects>,
        run: &Run,
        config: &ShardConfig,
        ends: ShardEnds,
    ) -> Result<Shard<R>> {
        let PlannerConfig { shard, shards, cache_bytes, .. } = config.planner;
        let scratch = (config.connections_max, config.scratch_bytes);
        let chunks = (config.chunks, objects.catalog().chunk_room());
        let [mut cache, scratch, spares, chunks] = memory(&mut region, cache_bytes, scratch, config.spares, chunks)?;
        let chunks = (!chunks.is_empty()).then(|| ChunkStage::new(Arc::clone(&objects), run, chunks));
        let waker = ring.waker();
        ends.channels.set_waker(&waker);
        ends.consumer.failure.wakes(&waker);
        region.set_waker(waker.clone());
        let mut fetch = FetchStage::new(Arc::clone(&objects), config.stall_after, scratch);
        let peers = match ends.peers {
            None => None,
            Some(PeerSetup { links, inbox }) => {
                let [scratch, slots] = peer_memory(&mut region, config.peers)?;
                // Only ranks with disks are asked whether they still hold what they once kept.
                fetch = fetch.with_peers(links, config.stall_after, (scratch, ends.spill.is_some()));
                Some(PeerStage::new(Arc::clone(&objects), inbox, slots, &waker))
            }
        };
        let mut planner = Planner::new(&config.planner, run.clone(), Arc::clone(objects.catalog()))?;
        let spill = match (ends.spill, planner.spill()) {
            (Some(setup), Some(tier)) => {
                Some(SpillStage::new(&mut region, Arc::clone(&objects), setup, waker.clone(), tier)?)
            }
            _ => None,
        };
        let free_bytes_seen = region.free_bytes();
        Ok(Shard {
            id: shard,
            shards,
            planner,
            spill,
            fetch,
            peers,
            hedges: Hedges::new(spares),
            cache: cache.pop().map(CacheStage::new),
            chunks,
            assemble: AssembleStage::new(shard, Arc::clone(&objects), run.clone(), config.bad_samples),
            deliver: DeliverStage::new(ends.deliver, shard.0, shards, OPEN_BATCHES_MAX),
            channels: ends.channels,
            requests: Gate::new("fetch", config.connections_max * PIPELINE_DEPTH_MAX),
            filling: Gate::new("assemble", OPEN_BATCHES_MAX),
            consumer: ends.consumer,
            heard: 0,
            status: ends.status,
            quarantine: (config.bad_samples == BadSamples::Quarantine).then(HashMap::new),
            outgoing: Vec::with_capacity(1024),
            ring,
            region,
            waker,
            objects,
            free_bytes_seen,
            shared_copied_bytes: 0,
            published: 0,
            progressed: false,
            meter: None,
            clock: Clock::new(),
        })
    }

    /// The same shard, with the cost of the calling thread, which must be the one that drives it, in its snapshots.
    #[must_use]
    pub fn metered(mut self, meter: ThreadMeter) -> Shard<R> {
        self.meter = Some(meter);
        self
    }

    /// Runs until told to stop, until the consumer is gone, or until the run has failed elsewhere.
    ///
    /// # Errors
    /// What the ring reports when it cannot go on.
    pub fn run(&mut self) -> Result<()> {
        while self.iterate() {
            self.sleep()?;
        }
        Ok(())
    }

    /// Shuts down in order: saves what is on its way to the disk, and closes every connection.
    pub fn end(mut self) {
        self.wind_down();
        self.publish();
    }

    /// Closes every connection and reaps the ring's operations, so that the last snapshot shows none. What does not return in time
    /// the ring waits for when it is dropped.
    fn wind_down(&mut self) {
        let deadline = self.ring.now().after(END_PATIENCE);
        self.save_disk(deadline);
        self.fetch.close(&mut self.ring);
        while self.ring.in_flight() > 0 && self.ring.now() < deadline {
            if self.ring.wait(Some(deadline)).is_err() {
                return;
            }
            while self.ring.pop().is_some() {}
        }
    }

    /// Runs one iteration: everything that can be done now without waiting. False when the shard has to end.
    pub fn iterate(&mut self) -> bool {
        canary::pass(self.id.0, Stage::Start);
        self.read_clock();
        loop {
            let mut again = self.take_completions();
            again |= self.take_replies();
            again |= self.tend_disk();
            again |= self.obey();
            // The disk may be done with a slot.
            self.begin_chunks();
            again |= self.serve_peers();
            if !again {
                break;
            }
            self.read_clock();
        }
        self.watch_memory();
        if let Some(known) = self.consumer.news(&mut self.heard) {
            self.assemble.learn(&known);
            self.planner.learn(&known);
        }
        let taken = self.consumer.taken_of(u64::from(self.id.0), u64::from(self.shards));
        self.tell(Fact::Consumer { taken, waits: self.consumer.waits() });
        self.planner.recall(self.clock.waited_at);
        self.obey();
        let connected = self.deliver.flush(self.clock.now, taken);
        self.pump();
        // Requests that fail move nothing, however often.
        if core::mem::take(&mut self.progressed) | self.fetch.progressed() {
            self.status.beat();
        }
        if self.status.wanted() != self.published {
            self.publish();
        }
        connected && !self.status.is_stopped() && self.consumer.failure.cause().is_none()
    }

    /// Sleeps in the ring until something may have happened.
    ///
    /// # Errors
    /// What the ring reports when it cannot go on.
    pub fn sleep(&mut self) -> Result<()> {
        let before = self.clock.now;
        self.read_clock();
        let queued = self.planner.queued() + self.fetch.waiting() > 0;
        let mut came = false;
        if queued || self.clock.now.since(before) > LONG_PASS {
            self.wait(Some(self.clock.now))?;
            // Time may have passed in the kernel.
            self.read_clock();
            came = self.take_completions();
            // Only a core that finds nothing to reap is idle; then the window may open.
            if came && queued {
                self.fetch.sweep(&mut self.ring, self.clock.now);
                return Ok(());
            }
        }
        self.tell(Fact::Idle);
        self.obey();
        self.pump();
        // What was just sent has a timer, too.
        let until = self.fetch.sweep(&mut self.ring, self.clock.now);
        if came || self.fetch.has_outcomes() || self.spill.as_ref().is_some_and(SpillStage::has_outcomes) {
            // A request that could not be sent has an outcome and no completion.
            return self.wait(Some(self.clock.now));
        }
        let until = [until, self.planner.deadline(), self.disk_deadline()].into_iter().flatten().min();
        // A message, a batch taken and a slot returned each wake this shard: nothing else has to be polled.
        let until = if self.waker.arm() { until } else { Some(self.clock.now) };
        let result = self.wait(until);
        self.waker.disarm();
        result
    }

    fn wait(&mut self, until: Option<Instant>) -> Result<()> {
        let until = self.clock.waits(until);
        match canary::refusal(self.id.0) {
            None => self.ring.wait(until),
            Some(errno) => Err(Error::from_errno(Kind::Environment, "entering the ring (planted)", errno)),
        }
    }

    fn read_clock(&mut self) {
        if self.clock.read(self.ring.now()) {
            self.planner.falls_behind(self.clock.now, self.clock.behind);
        }
    }

    /// The ring, for a caller that drives the shard by hand.
    pub fn ring(&mut self) -> &mut R {
        &mut self.ring
    }

    fn tell(&mut self, fact: Fact) {
        self.planner.tell(self.clock.now, fact);
    }

    fn pump(&mut self) {
        self.channels.flush();
        let planner = &self.planner;
        self.fetch.pump(&mut self.ring, self.clock.now, planner.connections(), |bytes| planner.depth(bytes));
        self.pump_disk(false);
    }

    /// Passes every completion to the stage that submitted its operation. True when there was any.
    fn hand_back(&mut self) -> bool {
        let mut any = false;
        while let Some(done) = self.ring.pop() {
            if matches!(done.op, Op::Recv { .. }) {
                canary::pass(self.id.0, Stage::Receive);
            }
            match (done.op.file(), &mut self.spill) {
                (Some(_), Some(spill)) => spill.done(&mut self.ring, self.clock.now, done),
                _ => self.fetch.done(&mut self.ring, self.clock.now, done),
            }
            any = true;
        }
        any
    }

    fn take_completions(&mut self) -> bool {
        let mut any = self.hand_back();
        let mut outcomes = self.fetch.outcomes();
        for outcome in outcomes.drain(..) {
            any = true;
            self.take_outcome(outcome);
        }
        self.fetch.recycle(outcomes);
        while let Some(outcome) = self.fetch.next_peer_outcome() {
            any = true;
            self.take_peer_outcome(outcome);
        }
        any
    }

    fn take_replies(&mut self) -> bool {
        let mut any = false;
        while let Some(reply) = self.channels.next_reply() {
            any = true;
            self.receive_reply(reply);
        }
        any
    }

    /// Tells the planner when slots have returned to the region, from this thread or another.
    fn watch_memory(&mut self) {
        self.region.collect();
        let free = self.region.free_bytes();
        if free > self.free_bytes_seen {
            self.tell(Fact::Room);
        }
        self.free_bytes_seen = free;
    }

    /// Carries out the planner's commands, tells it of new requests, and lets it look ahead, until nothing is left. It is told of a
    /// request only when it has no command left: until then a block may be given up and not yet be in quarantine. True when there were any.
    fn obey(&mut self) -> bool {
        let mut any = false;
        loop {
            if let Some(command) = self.planner.pop() {
                self.carry_out(command);
            } else if let Some(request) = self.channels.next_request() {
                self.own(request);
            } else if self.chunks.as_ref().is_some_and(ChunkStage::holds_back)
                || !self.planner.look_ahead(self.clock.now)
            {
                return any;
            }
            any = true;
        }
    }

    fn carry_out(&mut self, command: Command<Waiter>) {
        match command {
            Command::Open { seq, bytes } => match self.region.alloc(bytes as usize) {
                Some(slot) => {
                    self.free_bytes_seen = self.region.free_bytes();
                    self.filling.entered(self.clock.now);
                    self.assemble.open(seq, slot, &mut self.outgoing);
                    self.tell(Fact::Opened(seq));
                    self.send_requests();
                    self.hand_over();
                }
                None => self.tell(Fact::NoRoom(seq)),
            },
            Command::Serve { mut waiter, block } => {
                let window = waiter.window.as_mut().expect("a waiter keeps its window until it is served");
                let proof = self.cache.as_mut().expect("there is a cache to hit").serve(block, window);
                self.reply(waiter, Ok((proof, Source::Cache)));
            }
            Command::Start { fetch, block, from } => self.start(fetch, block, from),
            Command::Hedge { fetch, block } => self.hedge(fetch, block),
            Command::Recall { fetch, rank } => self.fetch.recall(&mut self.ring, self.clock.now, fetch, rank),
            Command::Trim(segment) => self.trim_segment(segment),
            Command::Evict(block) => self.cache.as_mut().expect("only kept blocks are evicted").evict(block),
            Command::Deliver { block, waiters, source, keep } => self.share_out(block, waiters, source, keep),
            Command::NotHeld(waiter) => self.reply(waiter, Err(Error::new(Kind::NotFound, "it is not held here"))),
            Command::Refuse { block, waiters: Waiters { mut first, others }, attempts, why } => {
                let error = given_up(first.error.take(), why).with_attempts(attempts);
                if let Some(quarantine) = &mut self.quarantine {
                    quarantine.insert(block, error.clone());
                }
                others.into_iter().for_each(|other| self.reply(other, Err(error.clone())));
                self.reply(first, Err(error));
            }
        }
    }

    /// Starts to fetch a block, or what is missing of it.
    fn start(&mut self, fetch: FetchId, block: BlockId, from: Origin) {
        let mut window = self.waiter(fetch).window.take().expect("one attempt at a time");
        if let Origin::Disk(spot) = from {
            let spill = self.spill.as_mut().expect("the planner restores only where there is a disk");
            return spill.restore(self.clock.now, fetch, block, spot, window);
        }
        if window.room() == 0 {
            // The copy from disk proved damaged: it is fetched anew.
            window.rewind(0);
        }
        let asked = self.asked(fetch, block, window.filled() as u64);
        if let Origin::Peer { rank, at, role, .. } = from {
            let (catalog, sample) = (self.objects.catalog(), block.sample);
            let (first, object_len) = (catalog.block_first(block), catalog.size(sample));
            let told = Some(AskedRank { at, if_held: role != Role::Home });
            let asked = Asked { first, object_len, whole: false, etag: None, rank: told, ..asked };
            return self.fetch.ask_peer(rank, asked, window, self.clock.now);
        }
        self.requests.entered(self.clock.now);
        self.fetch.request(asked, window, self.clock.now);
    }

    /// Copies a block from the window of its first waiter to the others, keeps it, and hands all windows back.
    fn share_out(&mut self, block: BlockId, waiters: Waiters<Waiter>, source: Source, keep: Option<Keep>) {
        let Waiters { mut first, mut others } = waiters;
        let (window, proof) = (first.window.as_mut().expect("it has landed"), first.proof);
        for other in &mut others {
            self.shared_copied_bytes +=
                other.window.as_mut().expect("only the first waiter's window is in use").put(window.bytes()) as u64;
        }
        match keep {
            Some(Keep::Ram) => {
                let cache = self.cache.as_mut().expect("the planner keeps only within a capacity");
                cache.keep(block, window.bytes(), proof);
            }
            Some(Keep::Disk { segment, place }) => self.spill_block(block, window, proof, (segment, place)),
            None => {}
        }
        if let (Some(place), Some(peers), Source::Bucket, None) = (first.span.peer(), &mut self.peers, source, keep) {
            peers.passes(place);
        }
        self.reply(first, Ok((proof, source)));
        for other in others.drain(..) {
            self.reply(other, Ok((proof, Source::Shared)));
        }
        self.planner.recycle(others);
    }

    /// The first waiter of a fetch under way.
    fn waiter(&mut self, fetch: FetchId) -> &mut Waiter {
        self.planner.first(fetch).expect("the fetch is under way")
    }

    /// The range to request when `landed` bytes of the block have arrived.
    fn asked(&mut self, fetch: FetchId, block: BlockId, landed: u64) -> Asked {
        let seen = self.waiter(fetch).seen.etag;
        let (objects, catalog) = (&self.objects, self.objects.catalog());
        Asked {
            fetch,
            sample: block.sample,
            first: objects.first(block.sample) + catalog.block_first(block) + landed,
            len: catalog.block_len(block) - landed,
            object_len: objects.object_len(block.sample),
            whole: objects.is_whole(block.sample),
            etag: objects.etag(block.sample).or(seen),
            second: false,
            rank: None,
        }
    }
}

impl<R: Ring> Drop for Shard<R> {
    fn drop(&mut self) {
        self.status.leave();
    }
}

/// How long a shard that shuts down waits for its operations.
const END_PATIENCE: Duration = Duration::from_secs(5);
