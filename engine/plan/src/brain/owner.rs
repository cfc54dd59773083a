//! The owner role: what is served from the cache, fetched, tried again, kept and dropped.

use super::restraint::Restraint;
use super::words::{BrainConfig, BrainStats, Command, FetchId, Keep, Source, Waiters};
use crate::catalog::Catalog;
use crate::hedge::Hedge;
use crate::importance::Known;
use crate::policy::{self, BlockMap, Policy};
use crate::retry::{Retry, Tries};
use crate::run::Run;
use crate::schedule::{Schedule, UseTime};
use crate::spill::{self, Spill, Weigh};
use crate::window::Window;
use core::cmp::Reverse;
use core::fmt;
use fuelrail_base::canary::{self, Mistake};
use fuelrail_base::{BlockId, Duration, Instant, Kind, Result};
use slab::Slab;
use std::collections::{BinaryHeap, VecDeque};
use std::sync::Arc;

mod failing;

/// Lists of those that share a block under way, made at the start: few do.
const LISTS_AT_START: usize = 64;
/// Second requests one fetch can have, over all its attempts.
const HEDGES_MAX: u32 = 2;

/// One block on its way, over all attempts.
struct Fetch<W> {
    serial: u32,
    block: BlockId,
    waiters: Waiters<W>,
    /// When the first waiter's sample is due: the urgency.
    at: UseTime,
    /// When the last one's is due: the next use lies behind it.
    last_at: UseTime,
    tries: Tries,
    /// When it failed first, outages aside.
    failing_since: Option<Instant>,
    /// It was under way when an outage had lasted too long, and has no further attempt: nothing had been served for so long.
    doomed: Option<Duration>,
    /// How often it was hedged: a block that always takes long is left in peace.
    hedges: u32,
    /// Of a block that is being read from disk, a copy has proved wrong meanwhile.
    doubted: bool,
}

/// What blocks on disk are worth, by the order.
struct Worth<'a> {
    catalog: &'a Catalog,
    schedule: &'a Schedule,
}

impl Weigh for Worth<'_> {
    fn bytes(&self, block: BlockId) -> u64 {
        self.catalog.block_len(block)
    }

    fn worth(&self, block: BlockId, now: UseTime) -> f64 {
        self.of_next(self.schedule.next_use(block.sample, now), now)
    }

    fn epoch(&self, now: UseTime) -> u64 {
        self.schedule.cursor(now).epoch
    }
}

impl Worth<'_> {
    /// What a block is worth whose next use this is.
    fn of_next(&self, next: Option<UseTime>, now: UseTime) -> f64 {
        let Some(next) = next else { return 0.0 };
        1.0 / (self.epoch(next) - self.epoch(now)).max(1) as f64
    }
}

pub(super) struct Owner<W> {
    catalog: Arc<Catalog>,
    schedule: Schedule,
    policy: Box<dyn Policy>,
    /// What a block counts at least.
    cached_block_bytes_min: u64,
    spill: Option<Spill>,
    /// Blocks up to this length belong in RAM first, longer ones on disk.
    ram_first_max: u64,
    /// The latest use asked for.
    now_at: UseTime,
    retry: Retry,
    window: Window,
    restraint: Restraint,
    /// How long a fetch may fail; zero without a limit.
    request_limit: Duration,
    hedge: Hedge,
    fetches: Slab<Fetch<W>>,
    /// Fetches begun.
    serial: u32,
    /// Emptied lists of waiters: a warm shard allocates none.
    spare: Vec<Vec<W>>,
    by_block: BlockMap<FetchId>,
    /// Fetches waiting for a place, most urgent first; the second field keeps equal ones in order of arrival.
    queue: BinaryHeap<Reverse<(UseTime, u64, FetchId)>>,
    arrivals: u64,
    /// Fetches that were asked for in vain since the server is down: the others come first.
    tried: Vec<FetchId>,
    /// Fetches waiting for their next attempt.
    delayed: BinaryHeap<Reverse<(Instant, FetchId)>>,
    in_flight: usize,
    evicted: Vec<BlockId>,
    idle_again: Option<Instant>,
    stats: BrainStats,
}

impl<W> Owner<W> {
    pub(super) fn new(config: &BrainConfig, run: &Run, catalog: Arc<Catalog>) -> Result<Owner<W>> {
        Ok(Owner {
            schedule: Schedule::new(run, config.horizon_epochs),
            policy: policy::build(config.policy, config.cache_bytes),
            cached_block_bytes_min: config.cached_block_bytes_min,
            ram_first_max: match config.spill {
                Some(_) => spill::ram_first_max(&catalog, config.cache_bytes * u64::from(config.shards)),
                None => 0,
            },
            spill: config.spill.map(Spill::new),
            now_at: UseTime(0),
            retry: Retry::new(config.retry, config.seed)?,
            window: Window::new(config.window)?,
            restraint: Restraint::new(config),
            request_limit: Duration::from_micros(config.retry.request_limit_us),
            hedge: Hedge::new(config.hedge)?,
            fetches: Slab::with_capacity(1024),
            serial: 0,
            spare: (0..LISTS_AT_START).map(|_| Vec::with_capacity(2)).collect(),
            by_block: BlockMap::with_capacity_and_hasher(1024, Default::default()),
            queue: BinaryHeap::with_capacity(1024),
            arrivals: 0,
            tried: Vec::with_capacity(64),
            delayed: BinaryHeap::with_capacity(64),
            in_flight: 0,
            evicted: Vec::with_capacity(64),
            idle_again: None,
            stats: BrainStats::default(),
            catalog,
        })
    }

    pub(super) fn learn(&mut self, known: &Known) {
        self.schedule.learn(known);
    }

    pub(super) fn asked(
        &mut self,
        now: Instant,
        waiter: W,
        (block, at, fresh): (BlockId, UseTime, bool),
        out: &mut VecDeque<Command<W>>,
    ) {
        let bytes = self.catalog.block_len(block);
        self.stats.asks += 1;
        self.stats.asked_bytes += bytes;
        self.now_at = self.now_at.max(at);
        if let Some(&fetch) = self.by_block.get(&block) {
            self.stats.shared += 1;
            let shared = &mut self.fetches[fetch.place as usize];
            let others = &mut shared.waiters.others;
            if others.is_empty() {
                *others = self.spare.pop().unwrap_or_default();
            }
            others.push(waiter);
            shared.last_at = shared.last_at.max(at);
            shared.doubted |= fresh;
            return;
        }
        if fresh {
            if self.policy.remove(block) {
                self.evicted.push(block);
                self.evict(out);
            }
            if let Some(spill) = &mut self.spill {
                spill.remove(block, bytes);
            }
        } else if self.policy.contains(&block) {
            self.stats.hits += 1;
            self.stats.hit_bytes += bytes;
            out.push_back(Command::Serve { waiter, block });
            let next = self.schedule.next_use(block.sample, at);
            self.policy.weigh(block, u32::from(self.schedule.rate(block.sample)));
            self.policy.hit(block, next, &mut self.evicted);
            self.evict(out);
            return;
        }
        self.serial = self.serial.wrapping_add(1);
        let key = self.fetches.insert(Fetch {
            serial: self.serial,
            block,
            waiters: Waiters { first: waiter, others: Vec::new() },
            at,
            last_at: at,
            tries: Tries::default(),
            failing_since: None,
            doomed: None,
            hedges: 0,
            doubted: false,
        });
        let place = u32::try_from(key).expect("asks are bounded by the batches' samples, below 2^32");
        let fetch = FetchId { place, serial: self.serial };
        self.by_block.insert(block, fetch);
        let spot = if fresh { None } else { self.spill.as_mut().and_then(|spill| spill.hit(now, block, bytes, at)) };
        match spot {
            Some(spot) => out.push_back(Command::Restore { fetch, block, spot }),
            None => self.enqueue(fetch),
        }
    }

    /// A block came from disk. It stays there, and there alone: a second copy in RAM would take the place of another block.
    pub(super) fn restored(
        &mut self,
        now: Instant,
        id: FetchId,
        (total, writes): (Duration, usize),
        out: &mut VecDeque<Command<W>>,
    ) {
        let &mut Fetch { block, doubted, .. } = self.fetch(id);
        let bytes = self.catalog.block_len(block);
        if let Some(spill) = &mut self.spill {
            spill.restored(now, bytes, total, writes);
            if doubted {
                // It is what proved wrong, although it is what was written.
                spill.remove(block, bytes);
            }
        }
        if doubted {
            return self.enqueue(id);
        }
        let waiters = self.take(id).waiters;
        out.push_back(Command::Deliver { block, waiters, source: Source::Disk, keep: None });
    }

    /// A block is not on disk after all: it is fetched like any other.
    pub(super) fn lost(&mut self, now: Instant, id: FetchId) {
        let block = self.fetch(id).block;
        if let Some(spill) = &mut self.spill {
            spill.lost(now, block, self.catalog.block_len(block));
        }
        self.enqueue(id);
    }

    /// A fetch that is not over.
    fn fetch(&mut self, id: FetchId) -> &mut Fetch<W> {
        let fetch = &mut self.fetches[id.place as usize];
        debug_assert_eq!(fetch.serial, id.serial, "a fetch is told of while it is under way");
        fetch
    }

    pub(super) fn first(&mut self, id: FetchId) -> Option<&mut W> {
        let fetch = self.fetches.get_mut(id.place as usize).filter(|fetch| fetch.serial == id.serial)?;
        Some(&mut fetch.waiters.first)
    }

    pub(super) fn recycle(&mut self, others: Vec<W>) {
        if others.capacity() > 0 {
            self.spare.push(others);
        }
    }

    /// Takes a fetch that has ended out of the table.
    fn take(&mut self, id: FetchId) -> Fetch<W> {
        let fetch = self.fetches.remove(id.place as usize);
        self.by_block.remove(&fetch.block);
        fetch
    }

    pub(super) fn landed(
        &mut self,
        now: Instant,
        id: FetchId,
        (first_byte, total): (Duration, Duration),
        outran: Option<Duration>,
        out: &mut VecDeque<Command<W>>,
    ) {
        let bytes = self.bytes_of(id);
        self.stats.hedges_won += u64::from(outran.is_some());
        // What the first would have taken is at least this: estimates made from winners alone would sink with every hedge.
        self.hedge.took(bytes, outran.unwrap_or(total));
        self.over(id);
        self.window.landed(now, bytes, first_byte, total);
        self.restraint.landed(now, self.window.round_trip());
        self.retry.success();
        let Fetch { block, waiters, last_at, .. } = self.take(id);
        if let Some(spill) = &mut self.spill {
            spill.fetched(now, Some(bytes));
        }
        let keep = self.keep(block, last_at, out);
        out.push_back(Command::Deliver { block, waiters, source: Source::Bucket, keep });
    }

    /// Finds a landed block its place, by its next use after the last one that waited for it: in RAM while there is
    /// room, if it is short enough to belong there; else on disk; else in RAM if it is worth more than what is there.
    fn keep(&mut self, block: BlockId, at: UseTime, out: &mut VecDeque<Command<W>>) -> Option<Keep> {
        if self.policy.capacity_bytes() == 0 && self.spill.is_none() {
            // The order is searched only for what can be kept.
            return None;
        }
        let next = self.schedule.next_use(block.sample, at);
        let bytes = self.catalog.block_len(block);
        let counted = bytes.max(self.cached_block_bytes_min);
        let fits = counted <= self.policy.capacity_bytes() - self.policy.used_bytes();
        if let Some(spill) = self.spill.as_mut().filter(|_| !(fits && bytes <= self.ram_first_max)) {
            let worth = Worth { catalog: &self.catalog, schedule: &self.schedule };
            let worth = worth.of_next(next, at);
            if let Some((segment, place)) = spill.offer(block, bytes, worth) {
                return Some(Keep::Disk { segment, place });
            }
            if spill.holds(block) {
                return None;
            }
        }
        self.policy.weigh(block, u32::from(self.schedule.rate(block.sample)));
        let is_kept = self.policy.offer(block, counted, next, &mut self.evicted);
        self.evict(out);
        is_kept.then_some(Keep::Ram)
    }

    fn evict(&mut self, out: &mut VecDeque<Command<W>>) {
        self.stats.evictions += self.evicted.len() as u64;
        out.extend(self.evicted.drain(..).map(Command::Evict));
    }

    /// A fetch is no longer in flight.
    fn over(&mut self, id: FetchId) {
        self.in_flight -= usize::from(!canary::on(Mistake::WindowLeaks));
        self.hedge.over(id.place, self.bytes_of(id));
    }

    fn bytes_of(&self, id: FetchId) -> u64 {
        self.catalog.block_len(self.fetches[id.place as usize].block)
    }

    /// Housekeeping of the disk, a little at a time.
    pub(super) fn tidy(&mut self, out: &mut VecDeque<Command<W>>) {
        let Some(spill) = &mut self.spill else { return };
        let worth = Worth { catalog: &self.catalog, schedule: &self.schedule };
        out.extend(spill.tidy(self.now_at, &worth).map(Command::Trim));
    }

    pub(super) fn spill(&mut self) -> Option<&mut Spill> {
        self.spill.as_mut()
    }

    pub(super) fn unserved(&mut self, now: Instant, id: FetchId, displaced: bool) {
        if displaced {
            self.hedge.displaced();
        }
        self.over(id);
        if let Some(spill) = &mut self.spill {
            spill.fetched(now, None);
        }
        self.enqueue(id);
    }

    pub(super) fn idle(&mut self, now: Instant, out: &mut VecDeque<Command<W>>) {
        // What waits for leave does not wait for connections.
        let waiting = if self.restraint.holds_back(now) { 0 } else { self.queue.len() };
        self.idle_again = self.window.idle(now, self.in_flight, waiting);
        self.hedge_due(now, true, out);
    }

    /// Requests that may be out at once when blocks are as long as this one.
    fn places(&self, block: BlockId) -> usize {
        let depth = self.window.depth(self.catalog.block_len(block));
        self.window.in_flight_max().min(self.window.connections() * depth)
    }

    /// Hands out fetches while the window has room.
    pub(super) fn issue(&mut self, now: Instant, out: &mut VecDeque<Command<W>>) {
        self.end_outage(now, out);
        while let Some(&Reverse((due, id))) = self.delayed.peek() {
            if due > now {
                break;
            }
            self.delayed.pop();
            self.enqueue(id);
        }
        if self.queue.is_empty() || !self.restraint.is_down() {
            while let Some(id) = self.tried.pop() {
                self.enqueue(id);
            }
        }
        self.restraint.rest();
        while let Some(&Reverse((_, _, id))) = self.queue.peek() {
            let fetch = &self.fetches[id.place as usize];
            if self.in_flight >= self.places(fetch.block) || !self.restraint.leave(now, self.window.round_trip()) {
                break;
            }
            self.queue.pop();
            self.in_flight += 1;
            if let Some(spill) = &mut self.spill {
                spill.fetching(now);
            }
            let watched = fetch.hedges < HEDGES_MAX;
            self.hedge.sent(now, watched.then_some(id.place), self.catalog.block_len(fetch.block));
            out.push_back(Command::Fetch { fetch: id, block: fetch.block });
        }
    }

    fn enqueue(&mut self, id: FetchId) {
        self.arrivals += 1;
        let at = self.fetch(id).at;
        self.queue.push(Reverse((at, self.arrivals, id)));
    }

    /// Asks a second time for what is due.
    pub(super) fn hedge_due(&mut self, now: Instant, idle: bool, out: &mut VecDeque<Command<W>>) {
        while let Some(number) = self.hedge.due(now, idle) {
            self.stats.hedges += 1;
            let fetch = &mut self.fetches[number as usize];
            fetch.hedges += 1;
            if fetch.hedges < HEDGES_MAX {
                // The second may be slow, too.
                self.hedge.again(now, number, self.catalog.block_len(fetch.block));
            }
            out.push_back(Command::Hedge {
                fetch: FetchId { place: number, serial: fetch.serial },
                block: fetch.block,
            });
        }
    }

    pub(super) fn unhedged(&mut self, now: Instant, id: FetchId) {
        self.stats.hedges -= 1;
        self.fetch(id).hedges -= 1;
        self.hedge.postponed(now, id.place, self.bytes_of(id));
    }

    pub(super) fn halved(&mut self, now: Instant, id: FetchId, kind: Option<Kind>, second: bool) {
        if let Some(kind) = kind {
            self.troubled(now, kind, self.in_flight);
        }
        if second && self.fetch(id).hedges < HEDGES_MAX {
            self.hedge.again(now, id.place, self.bytes_of(id));
        }
    }

    pub(super) fn deadline(&self) -> Option<Instant> {
        let retry = self.delayed.peek().map(|Reverse((due, _))| *due);
        [retry, self.idle_again, self.restraint.deadline(), self.hedge.deadline()].into_iter().flatten().min()
    }

    pub(super) fn connections(&self) -> usize {
        self.window.connections()
    }

    pub(super) fn depth(&self, block_bytes: u64) -> usize {
        self.window.depth(block_bytes)
    }

    pub(super) fn queued(&self) -> usize {
        self.queue.len() + self.tried.len()
    }

    pub(super) fn stats(&self) -> BrainStats {
        BrainStats { spill: self.spill.as_ref().map(Spill::stats).unwrap_or_default(), ..self.stats }
    }
}

impl<W> fmt::Display for Owner<W> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "owner: {} fetches in flight, {} queued, {} waiting to retry{}, cache {} of {} bytes ({})",
            self.in_flight,
            self.queued(),
            self.delayed.len(),
            self.restraint,
            self.policy.used_bytes(),
            self.policy.capacity_bytes(),
            self.policy.name(),
        )?;
        self.spill.as_ref().map_or(Ok(()), |spill| write!(f, "; {spill}"))
    }
}
