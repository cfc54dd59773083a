//! The spill stage: landed blocks to disk, and blocks from disk into their windows.
//!
//! Long blocks are written from the memory they landed in, under a read pin, and read straight into the batch that needs
//! them; short ones go through a buffer each way, counted. What is read is verified by its checksum, or it is lost. Owns
//! the segments' files and three small pieces of memory. Never decides what goes where, and never waits.

mod flight;
mod manager;
mod segments;
mod transfer;

pub(crate) use flight::SpillOutcome;
pub use manager::{
    Contents, Known, ManagerLink, SegmentFile, SegmentGrant, SegmentRequest, ShardLink, resume, segment_queues,
};

use crate::conn::Proof;
use crate::objects::Objects;
use flight::{Block, Flights, Gather, Read, Short, Write};
use fuelrail_base::canary::{self, Mistake};
use fuelrail_base::limits::{DIRECT_BYTES_MIN, GATHER_BYTES};
use fuelrail_base::metrics::Histogram;
use fuelrail_base::{BlockId, Duration, Error, Instant, Kind, Result};
use fuelrail_io::{Region, Ring, Waker, Window};
use fuelrail_plan::planner::FetchId;
use fuelrail_plan::spill::{PAGE_BYTES, SegmentId, Spill, Spot};
use segments::Segments;
use std::collections::VecDeque;
use std::sync::Arc;

/// What a shard's spill stage starts from.
pub struct SpillSetup {
    /// To the segment manager.
    pub channel: ManagerLink,
    /// What direct transfers are multiples of, bytes: the largest of all directories'.
    pub unit: u64,
    /// Files of segments that the shard keeps open at a time, but for those in use.
    pub files_max: usize,
    /// Segments that were there, with the blocks of this shard in them.
    pub found: Vec<(SegmentFile, Vec<Known>)>,
}

/// Counters of the stage since its start.
#[derive(Clone, Debug, Default)]
pub struct DiskStats {
    /// Bytes asked of the disk in reads, units and all.
    pub read_bytes: u64,
    /// Bytes given to the disk in writes, padding and journal included.
    pub written_bytes: u64,
    /// Bytes the CPU copied, of short blocks.
    pub copied_bytes: u64,
    /// Time of reads that met no write.
    pub read_alone: Histogram,
    /// Time of reads that met writes.
    pub read_beside: Histogram,
    /// Operations that failed.
    pub failures: u64,
}

/// Reads of short blocks that may be under way at a time.
const BOUNCES: usize = 32;
/// Reads of long blocks that may be under way at a time: what a drive can work on at once.
const READS_MAX: usize = 128;
/// Journal pages that may be under way at a time.
const JOURNAL_PAGES: usize = 8;
/// A record or a short block waits at most this long to be written with others.
const COMPANY_PATIENCE: Duration = Duration::from_millis(50);
/// Memory addresses direct transfers begin at: the largest unit there is.
const ADDRESS_UNIT: usize = 4096;

/// Bytes of its region the stage takes.
pub fn spill_memory_bytes() -> u64 {
    let pages = JOURNAL_PAGES * (PAGE_BYTES as usize + ADDRESS_UNIT);
    GATHER_BYTES + (ADDRESS_UNIT + BOUNCES * bounce_bytes() + ADDRESS_UNIT + pages) as u64
}

/// A short block, wherever it begins in its units.
fn bounce_bytes() -> usize {
    DIRECT_BYTES_MIN as usize + 2 * ADDRESS_UNIT
}

/// The spill stage of one shard.
pub(crate) struct SpillStage {
    objects: Arc<Objects>,
    channel: ManagerLink,
    unit: u64,
    segments: Segments,
    flights: Flights,
    /// When it looks next for operations that take very long.
    looks_at: Instant,
    reads: VecDeque<Read>,
    writes: VecDeque<Write>,
    gather: Gather,
    gathered: Vec<Block>,
    bounces: Vec<Window>,
    pages: Vec<Window>,
    reading: usize,
    writing: usize,
    /// Since when the oldest record or short block that the last pump could have written has waited for others.
    oldest: Option<Instant>,
    /// A segment was requested and not granted yet: whether it may replace others.
    asked: Option<bool>,
    outcomes: VecDeque<SpillOutcome>,
    pub(crate) stats: DiskStats,
}

impl SpillStage {
    /// Takes its memory from the region, and registers the segments that were found with the planner.
    ///
    /// # Errors
    /// `Budget` when the region has no room.
    pub(crate) fn new(
        region: &mut Region,
        objects: Arc<Objects>,
        setup: SpillSetup,
        waker: Waker,
        planner: &mut Spill,
    ) -> Result<SpillStage> {
        let mut buffer = piece(region, 1, GATHER_BYTES as usize)?;
        let buffer = buffer.pop().expect("one was allocated");
        let pages: Result<Vec<Vec<Window>>> =
            (0..JOURNAL_PAGES).map(|_| piece(region, 1, PAGE_BYTES as usize)).collect();
        setup.channel.from.set_waker(waker);
        let mut stage = SpillStage {
            objects,
            channel: setup.channel,
            unit: setup.unit,
            segments: Segments::new(setup.files_max),
            flights: Flights::new(),
            looks_at: Instant::ZERO,
            reads: VecDeque::with_capacity(256),
            writes: VecDeque::with_capacity(256),
            gather: Gather::new(buffer, setup.unit as usize),
            gathered: Vec::with_capacity(1024),
            bounces: piece(region, BOUNCES, bounce_bytes())?,
            pages: pages?.into_iter().flatten().collect(),
            reading: 0,
            writing: 0,
            oldest: None,
            asked: None,
            outcomes: VecDeque::with_capacity(256),
            stats: DiskStats::default(),
        };
        for (file, known) in setup.found {
            stage.take_over(file, &known, planner);
        }
        Ok(stage)
    }

    /// Mounts a segment of an earlier run or another process, unless it is mounted, with the blocks in it.
    fn take_over(&mut self, file: SegmentFile, known: &[Known], planner: &mut Spill) {
        let mounted = self.segments.mounted_as(file.key);
        let Some(segment) = mounted.or_else(|| self.mount(file, planner)) else { return };
        for &Known { block, place, crc32c, promised } in known {
            let bytes = self.objects.catalog().block_len(block);
            if planner.adopt(block, bytes, Spot { segment, place, crc32c })
                && promised.is_some()
                && let Some(key) = self.segments.key(segment)
            {
                let proof = Proof { etag: self.objects.etag(block.sample), crc32c: promised };
                self.segments.get(key).proofs.insert(block, proof);
            }
        }
    }

    /// Mounts a segment. `None` when the planner has as many as it can.
    pub(crate) fn mount(&mut self, file: SegmentFile, planner: &mut Spill) -> Option<SegmentId> {
        let id = planner.mount(file.len, file.mount)?;
        self.segments.mount(id, file);
        Some(id)
    }

    /// Mounts granted segments, and requests another when one will be needed.
    pub(crate) fn restock(&mut self, planner: &mut Spill) {
        while let Some(grant) = self.channel.from.recv() {
            match grant {
                SegmentGrant::Listed(file, known) => self.take_over(file, &known, planner),
                SegmentGrant::NoMore => match self.asked.take() {
                    Some(false) => planner.no_free_segment(),
                    _ => planner.no_segment(),
                },
                SegmentGrant::Removed(key) => {
                    if let Some(id) = self.segments.mounted_as(key) {
                        planner.removed(id);
                        self.segments.key(id).into_iter().for_each(|key| self.segments.give_up(key));
                    }
                }
                SegmentGrant::Segment(file) => {
                    self.asked = None;
                    self.mount(file, planner);
                }
            }
        }
        if self.asked.is_none() && planner.wants_segment() {
            let reclaim = !planner.is_frugal();
            self.asked = self.request(SegmentRequest::Another { reclaim }).then_some(reclaim);
        }
    }

    /// Sends the manager a request. False when the queue is full, and the request is dropped: a segment is requested again, and one that was
    /// not unlinked is found at the next start.
    fn request(&mut self, request: SegmentRequest) -> bool {
        self.channel.to.send(request).is_ok()
    }

    /// Writes a landed block. What is not written at once holds its batch's memory.
    pub(crate) fn spill(
        &mut self,
        now: Instant,
        id: BlockId,
        window: &mut Window,
        proof: Proof,
        (segment, place): (SegmentId, u64),
    ) {
        let crc32c = crc32c::crc32c(window.bytes());
        let whole = self.objects.catalog().blocks(id.sample) == 1;
        let (Some(key), true) = (self.segments.key(segment), proof.crc32c.is_none_or(|sum| !whole || sum == crc32c))
        else {
            // A damaged block: the assembling shard finds out and requests it again.
            return self.outcomes.push_back(SpillOutcome::Spilled { block: id, crc32c: None });
        };
        self.remember(key, id, proof, whole);
        let promised = if whole { None } else { proof.crc32c };
        let len = window.len() as u32;
        let block = Block { id, segment: key, place, len, crc32c, promised };
        self.segments.get(key).busy += 1;
        if u64::from(len) < DIRECT_BYTES_MIN {
            self.stats.copied_bytes += self.gather.push(now, Short { block, pin: window.read_pin() });
            return;
        }
        let pin = window.read_pin_padded(self.unit as usize).expect("long blocks are padded in their batch");
        self.writes.push_back(Write { block, pin, start: 0 });
    }

    /// Keeps what the disk does not.
    fn remember(&mut self, segment: usize, id: BlockId, proof: Proof, whole: bool) {
        let listed = self.objects.etag(id.sample).is_some();
        if (!listed && proof.etag.is_some()) || (!whole && proof.crc32c.is_some()) {
            self.segments.get(segment).proofs.insert(id, proof);
        }
    }

    /// What the server said of the object when it sent this block, which was written to this segment.
    fn proof(&mut self, segment: usize, block: BlockId) -> Proof {
        let listed = Proof { etag: self.objects.etag(block.sample), crc32c: None };
        self.segments.get(segment).proofs.get(&block).copied().unwrap_or(listed)
    }

    /// Reads a block from disk.
    pub(crate) fn restore(&mut self, now: Instant, fetch: FetchId, block: BlockId, spot: Spot, window: Window) {
        match self.segments.key(spot.segment) {
            Some(segment) => {
                self.segments.get(segment).busy += 1;
                let read = Read { fetch, block, segment, spot, window: Some(window), began: now, writes: self.writing };
                self.reads.push_back(read);
            }
            None => self.outcomes.push_back(SpillOutcome::Lost { fetch, window }),
        }
    }

    /// Gives a segment up, and requests that it be unlinked.
    pub(crate) fn trim<R: Ring>(&mut self, ring: &mut R, segment: SegmentId) {
        let Some(key) = self.segments.key(segment) else { return };
        if !canary::on(Mistake::TrimForgets) {
            let trimmed = SegmentRequest::Trimmed(self.segments.get(key).file.key);
            self.request(trimmed);
        }
        self.segments.give_up(key);
        self.segments.reap(ring);
    }

    /// Blocks on disk that prove less than the server did, and bytes of memory for what it said.
    pub(crate) fn proofs(&self) -> (usize, u64) {
        self.segments.proofs()
    }

    pub(crate) fn next_outcome(&mut self) -> Option<SpillOutcome> {
        self.outcomes.pop_front()
    }

    /// There are outcomes not taken yet.
    pub(crate) fn has_outcomes(&self) -> bool {
        !self.outcomes.is_empty()
    }

    /// How many reads wait or are under way.
    pub(crate) fn reading(&self) -> usize {
        self.reads.len() + self.reading
    }

    /// When the oldest record or short block has waited long enough for others, or it is to be seen whether the disk answers. What waits for an
    /// operation is not counted: its end wakes the shard.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        let look = (!self.flights.is_empty()).then_some(self.looks_at);
        self.oldest.map(|oldest| oldest.after(COMPANY_PATIENCE)).into_iter().chain(look).min()
    }

    /// Forgets long blocks whose write was not begun: a loader that is closed before its end does not wait for them.
    pub(crate) fn drop_waiting(&mut self) {
        for write in self.writes.drain(..) {
            self.segments.get(write.block.segment).busy -= 1;
        }
    }

    /// Nothing of it is on its way to the disk any more.
    pub(crate) fn is_clean(&self) -> bool {
        let written = self.gather.is_idle() && self.writes.is_empty() && self.flights.is_empty();
        written && self.segments.is_recorded()
    }

    /// One line for the watchdog.
    pub(crate) fn describe(&self, now: Instant) -> String {
        let oldest = self.flights.oldest().map(|(begun, segment)| {
            let waited = now.since(begun).as_secs_f64();
            format!(", the oldest of them for {waited:.1} s in {}", self.segments.path(segment).display())
        });
        format!(
            "spill: {} segments, {} reads waiting and {} under way, {} long and {} short blocks to write, {} writes under way{}, {} proofs",
            self.segments.len(),
            self.reads.len(),
            self.reading,
            self.writes.len(),
            self.gather.len(),
            self.writing,
            oldest.unwrap_or_default(),
            self.proofs().0
        )
    }
}

/// A piece of the region for so many windows, at an address that direct transfers may begin at. What is pinned has a piece of its
/// own: nothing of a piece is written while some of it is pinned.
fn piece(region: &mut Region, windows: usize, len: usize) -> Result<Vec<Window>> {
    let slot = region.alloc(windows * len + ADDRESS_UNIT).ok_or_else(|| {
        let bytes = spill_memory_bytes();
        Error::new(Kind::Budget, format!("no room for the disk's buffers of {bytes} bytes in the arena"))
            .with_hint("raise memory_limit, or keep nothing on disk")
    })?;
    let mut filling = slot.fill();
    assert!(filling.align(ADDRESS_UNIT), "the piece has room for it");
    Ok((0..windows).map(|_| filling.carve(len).expect("the piece was measured for all")).collect())
}
