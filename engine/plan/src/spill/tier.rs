//! The disk tier of one shard: admission, placing, trimming.
//!
//! **What is worth keeping.** When every sample is used once an epoch, a block held over an epoch's edge brings one hit in
//! the next epoch, whichever block it is: exchanging one for another brings nothing and wears the disk out. So next uses
//! are told apart by epoch only: a block used again in `d` epochs is worth `1/d` uses per epoch, and a newcomer finds room
//! in a free segment, or in place of a segment whose blocks are worth less than the newcomers that were refused. What this run does
//! not use again goes, in its last epoch, where room is free ([`LEFTOVER`]): a later run may want it.

use super::cost::{Costs, Lanes};
use super::index::{Index, SegmentId, Spot};
use super::ledger::{Ledger, Segment, State};
use super::{Mount, SpillConfig, SpillPolicy, SpillStats};
use crate::policy::BlockMap;
use crate::schedule::UseTime;
use core::fmt;
use fuelrail_base::limits::{DIRECT_BYTES_MIN, GATHER_BYTES};
use fuelrail_base::{BlockId, Duration, Instant};
use std::collections::VecDeque;

/// Entries of the index looked at in one go while sweeping or valuing.
const SWEEP_STEP: usize = 128;
/// The same while valuing, where every entry is searched for in up to a horizon of epochs.
const VALUE_STEP: usize = 16;
/// Blocks that do not fit into the last segment before it counts as full.
const MISFITS_MAX: u32 = 64;
/// Empty segments kept ready.
const SPARES: usize = 2;
/// A newcomer must be worth so much more than what is trimmed for it: trimming costs writes.
const RELUCTANCE: f64 = 1.0 / 8.0;
/// A disk that costs so many times what the bucket costs is not used: less than that may be chance, and a bucket costs money.
const DEARER: f64 = 4.0;
/// Such a disk is read for one block in so many, to measure again.
const PROBE_EVERY: u64 = 64;

/// Worth of a block that only a later run can use. It is kept where there is room, and nothing is trimmed or reclaimed for it.
pub const LEFTOVER: f64 = f64::MIN_POSITIVE;

/// A block on its way to the disk.
struct Writing {
    segment: SegmentId,
    place: u64,
}

/// The disk tier of one shard.
pub struct Spill {
    config: SpillConfig,
    index: Index,
    ledger: Ledger,
    lanes: Lanes,
    costs: Costs,
    /// Where long and short blocks are appended.
    open: [Option<SegmentId>; 2],
    /// The segment that long blocks were appended to before: those that fit are appended at its end.
    tail: Option<SegmentId>,
    /// Blocks in a row that did not fit where there was no other segment.
    misfits: u32,
    spares: VecDeque<SegmentId>,
    /// No further segment is available until one is trimmed, or the next epoch begins: others may have made room by then.
    at_limit: bool,
    limit_met_in: u64,
    /// The block that was offered last is a [`LEFTOVER`], or none was: no segment of an ended process is to go for a further one, …
    is_frugal: bool,
    /// … and without that there was none.
    frugal_limit: bool,
    /// Blocks on their way to the disk, and where to; `None`: no longer needed.
    writing: BlockMap<Option<Writing>>,
    pending_bytes: u64,
    /// Where the sweep over the index stands; `None` while none is needed.
    sweep: Option<usize>,
    /// A block was taken out of the index since the sweep began: what moved up for it may have been passed over.
    moved: bool,
    /// The sweep sums up the value of every segment.
    valuing: bool,
    /// In which epoch segments were valued last.
    valued_in: Option<u64>,
    /// Newcomers refused since a segment was trimmed last: bytes, and bytes times worth.
    refused: (f64, f64),
    /// While there is no room, only newcomers worth more than this are a reason to make some.
    floor: f64,
    /// So many bytes must be refused before trimming is considered, and never fewer than a segment has.
    patience_bytes: f64,
    segment_bytes: u64,
    asked: u64,
    stats: SpillStats,
}

impl Spill {
    /// An empty tier. All of its memory is taken now.
    pub fn new(config: SpillConfig) -> Spill {
        Spill {
            config,
            index: Index::new(config.blocks_max),
            ledger: Ledger::default(),
            lanes: Lanes::default(),
            costs: Costs::default(),
            open: [None; 2],
            tail: None,
            misfits: 0,
            spares: VecDeque::with_capacity(16),
            at_limit: false,
            limit_met_in: 0,
            is_frugal: config.policy == SpillPolicy::NextUse,
            frugal_limit: false,
            writing: BlockMap::with_capacity_and_hasher(1024, Default::default()),
            pending_bytes: 0,
            sweep: None,
            moved: false,
            valuing: false,
            valued_in: None,
            refused: (0.0, 0.0),
            floor: 0.0,
            patience_bytes: 0.0,
            segment_bytes: 0,
            asked: 0,
            stats: SpillStats::default(),
        }
    }

    /// Adds a segment of `len` bytes. `None` when there are too many.
    pub fn mount(&mut self, len: u64, mount: Mount) -> Option<SegmentId> {
        let state = match mount {
            Mount::Open { .. } => State::Spare,
            Mount::Sealed => State::Sealed,
            Mount::Foreign => State::Foreign,
        };
        let id = self.ledger.mount(len, state)?;
        self.segment_bytes = self.segment_bytes.max(len);
        if let Mount::Open { end, records } = mount {
            let segment = self.ledger.get_mut(id).expect("mounted just now");
            segment.resume(end.next_multiple_of(self.config.unit), records);
            self.spares.push_back(id);
            self.at_limit = false;
        }
        Some(id)
    }

    /// No further segment is available: the limit is reached, or the disk is full.
    pub fn no_segment(&mut self) {
        self.at_limit = true;
    }

    /// Whether the next segment is to take free room alone.
    pub fn is_frugal(&self) -> bool {
        self.is_frugal
    }

    /// No free room is left for a further segment. One that may replace others is requested as soon as a block is worth it.
    pub fn no_free_segment(&mut self) {
        (self.at_limit, self.frugal_limit) = (self.is_frugal, self.is_frugal);
    }

    /// Whether another empty segment should be made: making one takes long, so one more than is needed next is kept.
    pub fn wants_segment(&self) -> bool {
        self.spares.len() < SPARES && !self.at_limit
    }

    /// A block found in the journal of a mounted segment. False when it is not taken: it is known already, is being written, or there is
    /// no room in the index.
    pub fn adopt(&mut self, block: BlockId, bytes: u64, spot: Spot) -> bool {
        let is_known = self.index.get(block).is_some() || self.writing.contains_key(&block);
        if is_known || !self.index.insert(block, spot) {
            return false;
        }
        if let Some(segment) = self.ledger.get_mut(spot.segment) {
            segment.live_bytes += bytes;
        }
        self.stats.adopted += 1;
        true
    }

    /// The spot of a block that is used at `at`. `None` when it is not on disk, or when the bucket is measured to be cheaper.
    pub fn hit(&mut self, now: Instant, block: BlockId, bytes: u64, at: UseTime) -> Option<Spot> {
        let spot = self.index.get(block)?;
        let is_dear = self.is_dear();
        let segment = self.ledger.get_mut(spot.segment)?;
        self.asked += 1;
        if is_dear && !self.asked.is_multiple_of(PROBE_EVERY) {
            return None;
        }
        segment.used_at = segment.used_at.max(at);
        self.stats.hits += 1;
        self.stats.hit_bytes += bytes;
        self.costs.disk.begin(now);
        Some(spot)
    }

    fn is_dear(&self) -> bool {
        self.costs.gain_ln().is_some_and(|gain| gain < -DEARER.ln())
    }

    /// Whether a block is on disk or on its way there.
    pub fn holds(&self, block: BlockId) -> bool {
        self.writing.contains_key(&block)
            || self.index.get(block).is_some_and(|spot| self.ledger.get(spot.segment).is_some())
    }

    /// Offers a block that has just landed and is worth so many uses per epoch. Returns where it is to be written.
    pub fn offer(&mut self, block: BlockId, bytes: u64, worth: f64) -> Option<(SegmentId, u64)> {
        let by_worth = self.config.policy == SpillPolicy::NextUse;
        if bytes == 0 || self.holds(block) || (by_worth && worth <= 0.0) {
            return None;
        }
        if self.is_dear() {
            return None;
        }
        let is_leftover = by_worth && worth <= LEFTOVER;
        self.is_frugal = is_leftover;
        if !is_leftover && core::mem::take(&mut self.frugal_limit) {
            self.at_limit = false;
        }
        if self.pending_bytes + bytes > self.config.pending_bytes_max.max(bytes) {
            self.stats.skipped += 1;
            return None;
        }
        let room = if self.index.is_full() { None } else { self.append(bytes) };
        let Some((segment, place)) = room else {
            if is_leftover || by_worth && self.at_limit && worth <= self.floor {
                return None;
            }
            self.stats.refused += 1;
            self.refused.0 += bytes as f64;
            self.refused.1 += bytes as f64 * worth;
            return None;
        };
        self.pending_bytes += bytes;
        if let Some(target) = self.ledger.get_mut(segment) {
            // Its value until segments are valued next.
            target.writing += 1;
            target.value += worth * bytes as f64 / target.len as f64;
        }
        self.writing.insert(block, Some(Writing { segment, place }));
        Some((segment, place))
    }

    fn append(&mut self, bytes: u64) -> Option<(SegmentId, u64)> {
        let (lane, step, within) = match bytes >= DIRECT_BYTES_MIN {
            true => (0, self.config.unit, u64::MAX),
            false => (1, super::PLACE_STEP_BYTES, GATHER_BYTES),
        };
        loop {
            let open = [self.tail.filter(|_| lane == 0), self.open[lane]];
            for id in open.into_iter().flatten() {
                if let Some(place) = self.ledger.append(id, bytes, step, within) {
                    self.misfits = 0;
                    return Some((id, place));
                }
            }
            let Some(id) = self.spares.pop_front().or_else(|| self.room_of_short(lane)) else {
                self.misfits += 1;
                // A shorter one may still fit, but only sealed segments can be trimmed.
                if self.misfits >= MISFITS_MAX {
                    let full = [self.open[lane].take(), self.tail.take_if(|_| lane == 0)];
                    full.into_iter().flatten().for_each(|id| self.seal(id));
                    self.misfits = 0;
                }
                return None;
            };
            let before = self.open[lane].replace(id);
            let full = if lane == 0 { core::mem::replace(&mut self.tail, before) } else { before };
            full.into_iter().for_each(|id| self.seal(id));
            self.ledger.get_mut(id)?.state = State::Open;
        }
    }

    /// Without another segment, long blocks take what is left of the one for short ones.
    fn room_of_short(&mut self, lane: usize) -> Option<SegmentId> {
        let id = if lane == 0 { self.open[1].take()? } else { return None };
        // Short blocks are written a stretch at a time: no long one may lie where the last stretch ends.
        self.ledger.get_mut(id)?.skip_to(GATHER_BYTES);
        Some(id)
    }

    fn seal(&mut self, id: SegmentId) {
        if let Some(segment) = self.ledger.get_mut(id) {
            segment.seal();
        }
    }

    /// A block was written, and its record will be.
    pub fn written(&mut self, block: BlockId, bytes: u64, crc32c: u32) {
        self.pending_bytes -= bytes;
        self.stats.written += 1;
        self.stats.written_bytes += bytes;
        let Some(Some(Writing { segment, place })) = self.writing.remove(&block) else { return };
        let Some(target) = self.ledger.get_mut(segment) else { return };
        target.writing -= 1;
        if self.index.insert(block, Spot { segment, place, crc32c }) {
            target.live_bytes += bytes;
        }
    }

    /// A block could not be written. Its room stays empty.
    pub fn write_failed(&mut self, block: BlockId, bytes: u64) {
        self.pending_bytes -= bytes;
        self.stats.write_failures += 1;
        let on_its_way = self.writing.remove(&block).flatten();
        if let Some(target) = on_its_way.and_then(|writing| self.ledger.get_mut(writing.segment)) {
            target.writing -= 1;
        }
    }

    /// A block was read from disk in `total`, with `writes` writes under way.
    pub fn restored(&mut self, now: Instant, bytes: u64, total: Duration, writes: usize) {
        self.lanes.read(bytes, total, writes);
        self.costs.disk.end(now, Some(bytes));
    }

    /// A block is requested from the bucket.
    pub fn fetching(&mut self, now: Instant) {
        self.costs.bucket.begin(now);
    }

    /// That request ended, with so many bytes, or without the block.
    pub fn fetched(&mut self, now: Instant, bytes: Option<u64>) {
        self.costs.bucket.end(now, bytes);
    }

    /// A block could not be read from disk, or is damaged.
    pub fn lost(&mut self, now: Instant, block: BlockId, bytes: u64) {
        self.costs.disk.end(now, None);
        self.stats.lost += 1;
        self.remove(block, bytes);
    }

    /// Forgets a block.
    pub fn remove(&mut self, block: BlockId, bytes: u64) {
        let on_its_way = self.writing.get_mut(&block).and_then(Option::take);
        if let Some(target) = on_its_way.and_then(|writing| self.ledger.get_mut(writing.segment)) {
            target.writing -= 1;
        }
        let Some(spot) = self.index.remove(block) else { return };
        self.moved = true;
        if let Some(segment) = self.ledger.get_mut(spot.segment) {
            segment.live_bytes = segment.live_bytes.saturating_sub(bytes);
        }
    }

    /// A segment cannot be used any more: its disk is gone or fails.
    pub fn broken(&mut self, id: SegmentId) {
        if self.ledger.get(id).is_some() {
            self.stats.broken += 1;
            self.drop_segment(id, false);
        }
    }

    /// A segment was removed by somebody else: what is in it is not on disk any more.
    pub fn removed(&mut self, id: SegmentId) {
        self.drop_segment(id, false);
        (self.at_limit, self.frugal_limit) = (false, false);
    }

    /// Flow no longer uses a trimmed segment: its number may be given to another.
    pub fn trimmed(&mut self, id: SegmentId) {
        self.ledger.let_go(id);
        if self.sweep.is_none() {
            self.begin_sweep(false);
        }
    }

    fn drop_segment(&mut self, id: SegmentId, held: bool) {
        let Some(segment) = self.ledger.get_mut(id) else { return };
        (segment.state, segment.held) = (State::Retired, held);
        self.spares.retain(|&spare| spare != id);
        for open in self.open.iter_mut().chain([&mut self.tail]) {
            open.take_if(|open| *open == id);
        }
        for on_its_way in self.writing.values_mut() {
            on_its_way.take_if(|writing| writing.segment == id);
        }
        // A sweep under way may have passed its entries: a whole one follows.
        self.begin_sweep(false);
    }

    fn begin_sweep(&mut self, valuing: bool) {
        (self.sweep, self.moved, self.valuing) = (Some(0), false, valuing);
        for segment in self.ledger.iter_mut() {
            segment.summing = 0.0;
        }
    }

    /// Does a step of housekeeping: sweeps entries of dropped segments, values segments, and chooses one to trim when there is
    /// reason to. Returns that one. `value` is the length of a block times the uses per epoch expected of it.
    pub fn tidy(&mut self, epoch: u64, value: impl Fn(BlockId) -> f64) -> Option<SegmentId> {
        if let Some(from) = self.sweep {
            self.sweep_on(from, epoch, value);
            return None;
        }
        if !self.at_limit || !self.spares.is_empty() {
            return None;
        }
        if core::mem::replace(&mut self.limit_met_in, epoch) != epoch {
            self.at_limit = false;
            return None;
        }
        let victim = match self.config.policy {
            SpillPolicy::Fifo => self.first(|s| (UseTime(0), s.serial)),
            SpillPolicy::Lru => self.first(|s| (s.used_at, s.serial)),
            SpillPolicy::NextUse => self.least_worth(epoch),
        }?;
        self.stats.trims += 1;
        self.refused = (0.0, 0.0);
        self.drop_segment(victim, true);
        self.at_limit = false;
        Some(victim)
    }

    fn sweep_on(&mut self, from: usize, epoch: u64, value: impl Fn(BlockId) -> f64) {
        let (ledger, valuing) = (&mut self.ledger, self.valuing);
        let step = if valuing { VALUE_STEP } else { SWEEP_STEP };
        let next = self.index.sweep(from, step, |block, spot| {
            let Some(segment) = ledger.get_mut(spot.segment) else { return false };
            if valuing {
                segment.summing += value(block);
            }
            true
        });
        if next > 0 {
            self.sweep = Some(next);
            return;
        }
        self.sweep = None;
        if self.valuing {
            self.valued_in = Some(epoch);
            for segment in self.ledger.iter_mut() {
                segment.value = segment.summing / segment.room_bytes as f64;
            }
        } else if self.moved {
            self.begin_sweep(false);
        } else {
            self.ledger.reap();
        }
    }

    /// The sealed segment of the least value, if refused newcomers are worth more. Values are of this epoch, or a valuation is begun
    /// first.
    fn least_worth(&mut self, epoch: u64) -> Option<SegmentId> {
        let (bytes, worth) = self.refused;
        let segment_bytes = self.segment_bytes as f64;
        if bytes < self.patience_bytes.max(segment_bytes) {
            return None;
        }
        if self.valued_in != Some(epoch) {
            self.begin_sweep(true);
            return None;
        }
        self.refused = (0.0, 0.0);
        let sealed = self.ledger.iter().filter(|(_, s)| s.is_settled());
        let (victim, segment) = sealed.min_by(|(_, a), (_, b)| a.value.total_cmp(&b.value))?;
        self.floor = segment.value * (1.0 + RELUCTANCE);
        if worth / bytes * (1.0 - RELUCTANCE) > segment.value {
            self.patience_bytes = 0.0;
            return Some(victim);
        }
        // Nothing is gained now: check again after twice as much was refused.
        self.patience_bytes = (bytes * 2.0).min(segment_bytes * 65_536.0);
        None
    }

    /// The first sealed segment, when an open one is nearly full, or none is open.
    fn first(&self, by: impl Fn(&Segment) -> (UseTime, u64)) -> Option<SegmentId> {
        let mut open = self.open.iter().flatten().filter_map(|id| self.ledger.get(*id)).peekable();
        let is_due = open.peek().is_none() || open.any(|segment| segment.fullness() > 0.8);
        if self.refused.0 == 0.0 && !is_due {
            return None;
        }
        let sealed = self.ledger.iter().filter(|(_, s)| s.is_settled());
        sealed.min_by_key(|(_, s)| by(s)).map(|(id, _)| id)
    }

    /// Writes that may be under way while so many reads are.
    pub fn writes_max(&self, reads_under_way: usize) -> usize {
        self.lanes.writes_max(reads_under_way)
    }

    /// Counters since the start.
    pub fn stats(&self) -> SpillStats {
        self.stats
    }

    /// Blocks on disk, and bytes of memory of their index.
    pub fn index(&self) -> (u64, u64) {
        (self.index.len as u64, self.index.memory_bytes())
    }
}

impl fmt::Display for Spill {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let live: u64 = self.ledger.iter().map(|(_, s)| s.live_bytes).sum();
        let len: u64 = self.ledger.iter().map(|(_, s)| s.len).sum();
        write!(
            f,
            "spill: {} blocks of {live} bytes in {} segments of {len} ({}), {} being written{}",
            self.index.len,
            self.ledger.iter().count(),
            self.config.policy,
            self.writing.len(),
            if self.at_limit { ", at its limit" } else { "" },
        )
    }
}
