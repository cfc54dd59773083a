//! The owner role: what is served from the cache, fetched, tried again, kept and dropped, and when everything is given up.

use super::admission::Admission;
use super::peers::Peers;
use super::table::{Block, BlockTable, State};
use super::types::{
    Asker, Attempt, Command, FetchId, GivenUp, Keep, Origin, PlannerConfig, PlannerStats, Role, Source, Want,
};
use crate::catalog::Catalog;
use crate::hedge::Hedge;
use crate::policy::{self, Policy};
use crate::retry::{Retry, Tries, Verdict};
use crate::run::Run;
use crate::schedule::{Schedule, UseTime};
use crate::spill::{self, Spill};
use crate::window::Window;
use core::fmt;
use fuelrail_base::{BlockId, Duration, Instant, Kind, Result};
use std::collections::VecDeque;
use std::sync::Arc;

/// Second requests one fetch can have, over all its attempts.
const HEDGES_MAX: u32 = 2;

pub(super) struct Owner<W> {
    catalog: Arc<Catalog>,
    pub(super) schedule: Schedule,
    policy: Policy,
    /// Bytes a cached block counts at least.
    cached_block_bytes_min: u64,
    pub(super) spill: Option<Spill>,
    peers: Option<Peers>,
    /// Blocks up to this length belong in RAM first, longer ones on disk.
    ram_first_max: u64,
    /// The latest use requested so far.
    now_at: UseTime,
    retry: Retry,
    pub(super) window: Window,
    admission: Admission,
    /// How long a fetch may fail; zero without a limit.
    request_limit: Duration,
    hedge: Hedge,
    pub(super) table: BlockTable<W>,
    evicted: Vec<BlockId>,
    idle_again: Option<Instant>,
    stats: PlannerStats,
}

impl<W> Owner<W> {
    pub(super) fn new(config: &PlannerConfig, run: &Run, catalog: Arc<Catalog>) -> Result<Owner<W>> {
        Ok(Owner {
            schedule: match config.homes {
                Some(_) => Schedule::new(run, config.horizon_epochs).of_all_ranks(),
                None => Schedule::new(run, config.horizon_epochs),
            },
            policy: policy::build(config.policy, config.cache_bytes),
            cached_block_bytes_min: config.cached_block_bytes_min,
            ram_first_max: match config.spill {
                Some(_) => spill::ram_first_max(&catalog, config.cache_bytes * u64::from(config.shards)),
                None => 0,
            },
            spill: config.spill.map(Spill::new),
            peers: config.homes.clone().map(Peers::new),
            now_at: UseTime(0),
            retry: Retry::new(config.retry, config.seed)?,
            window: Window::new(config.window)?,
            admission: Admission::new(config),
            request_limit: Duration::from_micros(config.retry.request_limit_us),
            hedge: Hedge::new(config.hedge)?,
            table: BlockTable::new(),
            evicted: Vec::with_capacity(64),
            idle_again: None,
            stats: PlannerStats::default(),
            catalog,
        })
    }

    pub(super) fn asked(
        &mut self,
        now: Instant,
        waiter: W,
        Want { block, at, fresh, asker }: Want,
        out: &mut VecDeque<Command<W>>,
    ) {
        let bytes = self.catalog.block_len(block);
        if asker == Asker::RankIfHeld && !self.holds(block) {
            return out.push_back(Command::NotHeld(waiter));
        }
        match (asker, &mut self.peers) {
            // It is no use of this rank's or another's.
            (Asker::Leaving(rank), Some(peers)) => peers.leaves(rank),
            _ => {
                self.stats.peer_asks += u64::from(asker != Asker::Own);
                self.stats.asks += 1;
                self.stats.asked_bytes += bytes;
                self.now_at = self.now_at.max(at);
            }
        }
        let Err(waiter) = self.table.join(block, waiter, at, fresh) else {
            self.stats.shared += 1;
            return;
        };
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
        let spot = if fresh { None } else { self.spill.as_mut().and_then(|spill| spill.hit(now, block, bytes, at)) };
        let has_disk = self.spill.is_some();
        let peers = self.peers.as_mut().filter(|_| spot.is_none() && !fresh);
        let wanted = peers.and_then(|peers| {
            let (rank, role) = match (asker, peers.is_home(block)) {
                (Asker::Leaving(rank), _) => (rank, Role::Leaving),
                (_, true) if has_disk => (peers.former(block)?, Role::Former),
                (Asker::Own, false) => (peers.home_to_ask(block, self.schedule.cursor(at).epoch)?, Role::Home),
                _ => return None,
            };
            Some((peers.may_be_asked(rank), Origin::Peer { rank, since: now, at, role }))
        });
        let peer = wanted.and_then(|(may_be_asked, from)| may_be_asked.then_some(from));
        let Some(from) = spot.map(Origin::Disk).or(peer) else {
            if let Asker::Leaving(_) = asker {
                return out.push_back(Command::NotHeld(waiter));
            }
            self.stats.peer_misses += u64::from(wanted.is_some());
            self.table.insert((block, bytes), waiter, at, State::Queued);
            return;
        };
        let fetch = self.table.insert((block, bytes), waiter, at, State::Sent(from));
        if let (Some(peers), Origin::Peer { rank, .. }) = (&mut self.peers, from) {
            peers.asked(now, rank, fetch, self.window.round_trip());
        }
        out.push_back(Command::Start { fetch, block, from });
    }

    /// Whether a block is in RAM or on disk, and not on its way: that may wait for the very rank that asks.
    fn holds(&self, block: BlockId) -> bool {
        let on_disk = |spill: &Spill| spill.holds(block);
        !self.table.has(block) && (self.policy.contains(&block) || self.spill.as_ref().is_some_and(on_disk))
    }

    /// Gives up requests to other ranks that have taken too long.
    pub(super) fn recall(&mut self, now: Instant, out: &mut VecDeque<Command<W>>) {
        let Some(peers) = &mut self.peers else { return };
        while let Some(fetch) = peers.overdue(now) {
            if let Some(State::Sent(Origin::Peer { rank, .. })) = self.table.find(fetch).map(|block| block.state()) {
                out.push_back(Command::Recall { fetch, rank });
            }
        }
    }

    pub(super) fn falls_behind(&mut self, now: Instant, behind: Duration) {
        self.admission.falls_behind(behind);
        self.peers.iter_mut().for_each(|peers| peers.interrupted(now));
    }

    /// A block is whole. True when the bucket sent it.
    pub(super) fn landed(
        &mut self,
        now: Instant,
        id: FetchId,
        (first_byte, total): (Duration, Duration),
        outran: Option<Duration>,
        out: &mut VecDeque<Command<W>>,
    ) -> bool {
        let record = self.table.get(id);
        let &mut Block { id: block, bytes, last_at, doubted, .. } = record;
        let (source, keep) = match record.state() {
            State::Sent(Origin::Disk(_)) if doubted => {
                // The bytes read are those that were written, and proved damaged.
                if let Some(spill) = &mut self.spill {
                    spill.remove(block, bytes);
                }
                self.table.enter(id, State::Queued);
                return false;
            }
            // It stays there, and there alone: a second copy in RAM would take the place of another block.
            State::Sent(Origin::Disk(_)) => (Source::Disk, None),
            _ => {
                self.stats.hedges_won += u64::from(outran.is_some());
                // The first request would have taken at least this long: estimates from winners alone would sink with every hedge.
                self.hedge.took(bytes, outran.unwrap_or(total));
                self.over(now, id, Some(bytes));
                self.window.landed(now, bytes, first_byte, total);
                self.admission.landed(now, self.window.round_trip());
                self.retry.success();
                (Source::Bucket, self.keep((block, bytes), last_at, out))
            }
        };
        let waiters = self.table.take(id).waiters;
        out.push_back(Command::Deliver { block, waiters, source, keep });
        source == Source::Bucket
    }

    /// Another rank has sent a block, which took so long besides being found there, and has only passed it on or not.
    pub(super) fn sent(
        &mut self,
        now: Instant,
        id: FetchId,
        (transit, passed): (Duration, bool),
        out: &mut VecDeque<Command<W>>,
    ) {
        let record = self.table.get(id);
        let &mut Block { id: block, bytes, last_at, doubted, .. } = record;
        let State::Sent(Origin::Peer { rank, since, role, .. }) = record.state() else {
            unreachable!("{block:?} was asked of another rank")
        };
        let peers = self.peers.as_mut().expect("one was asked");
        if doubted {
            // A copy that somebody found damaged while this was under way may be what was sent.
            peers.unserved(rank, since, true, Duration::ZERO);
            return self.table.enter(id, State::Queued);
        }
        peers.landed(rank, since, (now.since(since), transit), self.window.round_trip());
        match role {
            Role::Home => peers.kept(!passed),
            Role::Former => peers.moved(true),
            Role::Leaving => {}
        }
        (self.stats.peer_hits, self.stats.peer_bytes) = (self.stats.peer_hits + 1, self.stats.peer_bytes + bytes);
        // What a rank that leaves hands over is used when it says, and was not yet.
        let used = if role == Role::Leaving { UseTime(last_at.0.saturating_sub(1)) } else { last_at };
        let keep = self.keep((block, bytes), used, out);
        let waiters = self.table.take(id).waiters;
        out.push_back(Command::Deliver { block, waiters, source: Source::Peer, keep });
    }

    /// Finds a landed block its place, by its next use after the last one that waited for it: in RAM while there is
    /// room, if it is short enough to belong there; else on disk; else in RAM if it is worth more than what is there.
    fn keep(&mut self, (block, bytes): (BlockId, u64), at: UseTime, out: &mut VecDeque<Command<W>>) -> Option<Keep> {
        if self.policy.capacity_bytes() == 0 && self.spill.is_none() {
            // The order is searched only for what can be kept.
            return None;
        }
        if self.peers.as_ref().is_some_and(|peers| !peers.is_home(block)) {
            return None;
        }
        let next = self.schedule.next_use(block.sample, at);
        let counted = bytes.max(self.cached_block_bytes_min);
        let fits = counted <= self.policy.capacity_bytes() - self.policy.used_bytes();
        // RAM is of no use to a later run.
        let is_leftover = next.is_none() && self.schedule.is_last(at);
        let to_disk = is_leftover || !(fits && bytes <= self.ram_first_max);
        if let Some(spill) = self.spill.as_mut().filter(|_| to_disk) {
            let worth = if is_leftover { spill::LEFTOVER } else { self.schedule.worth(next, at) };
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

    /// A request has ended; `landed` is its bytes if it brought the block.
    fn over(&mut self, now: Instant, id: FetchId, landed: Option<u64>) {
        self.hedge.over(id.place, self.table.get(id).bytes);
        if let Some(spill) = &mut self.spill {
            spill.fetched(now, landed);
        }
    }

    /// Housekeeping of the disk, a little at a time.
    pub(super) fn tidy(&mut self, out: &mut VecDeque<Command<W>>) {
        let Some(spill) = &mut self.spill else { return };
        let (catalog, schedule, now) = (&self.catalog, &self.schedule, self.now_at);
        let worth = |block: BlockId| schedule.worth(schedule.next_use(block.sample, now), now);
        let value = |block| worth(block) * catalog.block_len(block) as f64;
        out.extend(spill.tidy(schedule.cursor(now).epoch, value).map(Command::Trim));
    }

    /// The transport did not process a fetch: queues it again as if it had not been sent.
    pub(super) fn unserved(&mut self, now: Instant, id: FetchId, displaced: bool, out: &mut VecDeque<Command<W>>) {
        let block = self.table.get(id);
        let is_alone = block.waiters.others.is_empty();
        if displaced && !matches!(block.state(), State::Sent(Origin::Peer { .. })) {
            self.hedge.displaced();
        }
        match (block.state(), &mut self.spill) {
            (State::Sent(Origin::Disk(_)), Some(spill)) => {
                spill.lost(now, block.id, block.bytes);
            }
            (State::Sent(Origin::Peer { rank, since, role, .. }), _) => {
                let peers = self.peers.as_mut().expect("one was asked");
                peers.unserved(rank, since, displaced, self.window.round_trip());
                if role == Role::Home && displaced {
                    // It is up. When ranks seldom have what they are asked for, fewer blocks are asked of all.
                    peers.kept(false);
                }
                match role {
                    Role::Former if displaced => peers.moved(false),
                    Role::Home | Role::Former => self.stats.peer_misses += 1,
                    // Nobody here waits for it.
                    Role::Leaving if is_alone => {
                        let waiter = self.table.take(id).waiters.first;
                        return out.push_back(Command::NotHeld(waiter));
                    }
                    Role::Leaving => {}
                }
            }
            _ => self.over(now, id, None),
        }
        self.table.enter(id, State::Queued);
    }

    pub(super) fn idle(&mut self, now: Instant, out: &mut VecDeque<Command<W>>) {
        // A queue that waits to be admitted does not wait for connections.
        let waiting = if self.admission.holds_back(now) { 0 } else { self.table.queued() };
        self.idle_again = self.window.idle(now, self.table.requested, waiting);
        self.hedge_due(now, true, out);
    }

    /// Requests that may be in flight at once for blocks of this length.
    fn places(&self, block_bytes: u64) -> usize {
        let depth = self.window.depth(block_bytes);
        self.window.in_flight_max().min(self.window.connections() * depth)
    }

    /// Sends queued fetches while the window has room.
    pub(super) fn issue(&mut self, now: Instant, out: &mut VecDeque<Command<W>>) {
        self.end_outage(now, out);
        self.table.wake(now, self.admission.is_down());
        self.admission.clear();
        while let Some((fetch, &Block { id: block, bytes, hedges, .. })) = self.table.most_urgent() {
            let full = self.table.requested >= self.places(bytes);
            if full || !self.admission.admit(now, self.window.round_trip()) {
                break;
            }
            let from = Origin::Bucket;
            self.table.enter(fetch, State::Sent(from));
            if let Some(spill) = &mut self.spill {
                spill.fetching(now);
            }
            let watched = hedges < HEDGES_MAX;
            self.hedge.sent(now, watched.then_some(fetch.place), bytes);
            out.push_back(Command::Start { fetch, block, from });
        }
    }

    /// Commands a second request for every fetch that is due for one.
    pub(super) fn hedge_due(&mut self, now: Instant, idle: bool, out: &mut VecDeque<Command<W>>) {
        while let Some(place) = self.hedge.due(now, idle) {
            self.stats.hedges += 1;
            let (fetch, record) = self.table.at(place);
            record.hedges += 1;
            if record.hedges < HEDGES_MAX {
                // The second may be slow, too.
                self.hedge.again(now, place, record.bytes);
            }
            out.push_back(Command::Hedge { fetch, block: record.id });
        }
    }

    pub(super) fn unhedged(&mut self, now: Instant, id: FetchId) {
        self.stats.hedges -= 1;
        let block = self.table.get(id);
        block.hedges -= 1;
        self.hedge.postponed(now, id.place, block.bytes);
    }

    pub(super) fn halved(&mut self, now: Instant, id: FetchId, kind: Option<Kind>, second: bool) {
        if let Some(kind) = kind {
            self.troubled(now, kind, self.table.requested);
        }
        let block = self.table.get(id);
        if second && block.hedges < HEDGES_MAX {
            self.hedge.again(now, id.place, block.bytes);
        }
    }

    pub(super) fn deadline(&self) -> Option<Instant> {
        let peers = self.peers.as_ref().and_then(Peers::deadline);
        [self.table.backoff().1, self.idle_again, self.admission.again_at, self.hedge.deadline(), peers]
            .into_iter()
            .flatten()
            .min()
    }

    pub(super) fn stats(&self) -> PlannerStats {
        PlannerStats { spill: self.spill.as_ref().map(Spill::stats).unwrap_or_default(), ..self.stats }
    }
}

impl<W> fmt::Display for Owner<W> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "owner: {} fetches in flight, {} queued, {} waiting to retry{}, cache {} of {} bytes ({})",
            self.table.requested,
            self.table.queued(),
            self.table.backoff().0,
            self.admission,
            self.policy.used_bytes(),
            self.policy.capacity_bytes(),
            self.policy.name(),
        )?;
        self.spill.as_ref().map_or(Ok(()), |spill| write!(f, "; {spill}"))
    }
}

impl<W> Owner<W> {
    pub(super) fn failed(
        &mut self,
        now: Instant,
        id: FetchId,
        kind: Kind,
        retry_after: Option<Duration>,
        attempt: Attempt,
        out: &mut VecDeque<Command<W>>,
    ) {
        self.over(now, id, None);
        self.troubled(now, kind, self.table.requested);
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
    fn end_outage(&mut self, now: Instant, out: &mut VecDeque<Command<W>>) {
        let Some(unserved_for) = self.admission.take_end(now) else { return };
        for id in self.table.end_waiting(unserved_for) {
            self.give_up(id, GivenUp::Unserved(unserved_for), out);
        }
    }

    /// Tells window and hedging that a request failed with `in_flight` under way.
    fn troubled(&mut self, now: Instant, kind: Kind, in_flight: usize) {
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
