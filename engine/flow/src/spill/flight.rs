//! Blocks on their way to the disk and from it, how that ended, and the short ones: copied side by side into one buffer, which is written
//! in whole units.

use crate::conn::Proof;
use fuelrail_base::limits::GATHER_BYTES;
use fuelrail_base::{BlockId, Duration, Instant};
use fuelrail_io::{ReadPin, Window};
use fuelrail_plan::planner::FetchId;
use fuelrail_plan::spill::{SegmentId, Spot};
use slab::Slab;
use std::collections::VecDeque;

/// A short block that waits to be copied.
pub(super) struct Short {
    pub(super) block: Block,
    pub(super) pin: ReadPin,
}

/// The buffer and the blocks before it.
///
/// The buffer stands for one stretch of a segment, [`GATHER_BYTES`] long. While it is being written it is not changed: blocks that come
/// meanwhile wait under read pins of their batches.
pub(super) struct Gather {
    buffer: Window,
    unit: usize,
    /// Which segment's stretch it is, and the stretch's first byte.
    at: Option<(usize, u64)>,
    /// Bytes of the buffer that are on disk, or failed to get there.
    written: usize,
    /// Blocks in the buffer that are not on disk.
    inside: Vec<Block>,
    since: Option<Instant>,
    busy: bool,
    waiting: VecDeque<Short>,
    /// The block that waits first belongs elsewhere: what is inside must go first.
    full: bool,
}

impl Gather {
    /// Around a buffer of [`GATHER_BYTES`].
    pub(super) fn new(buffer: Window, unit: usize) -> Gather {
        Gather {
            buffer,
            unit,
            at: None,
            written: 0,
            inside: Vec::with_capacity(1024),
            since: None,
            busy: false,
            waiting: VecDeque::with_capacity(1024),
            full: false,
        }
    }

    /// Takes a block in.
    pub(super) fn push(&mut self, now: Instant, short: Short) -> u64 {
        self.waiting.push_back(short);
        self.fill(now)
    }

    /// Copies what waits into the buffer, as far as it goes; bytes copied.
    pub(super) fn fill(&mut self, now: Instant) -> u64 {
        let mut copied = 0;
        while !self.busy
            && let Some(short) = self.waiting.front()
        {
            let Block { segment, place, .. } = short.block;
            let stretch = place / GATHER_BYTES * GATHER_BYTES;
            if self.at != Some((segment, stretch)) {
                if !self.inside.is_empty() {
                    self.full = true;
                    return copied;
                }
                self.buffer.rewind(0);
                self.at = Some((segment, stretch));
                // What lies before the first block was written before, or is the segment's head: it stays as it is.
                self.written = (place - stretch) as usize / self.unit * self.unit;
            }
            let from = (place - stretch) as usize;
            self.zeroes(from);
            let Short { block, pin } = self.waiting.pop_front().expect("seen above");
            copied += self.buffer.put(pin.bytes()) as u64;
            self.since.get_or_insert(now);
            self.inside.push(block);
        }
        copied
    }

    /// Fills up with zeroes to `end`.
    fn zeroes(&mut self, end: usize) {
        const ZEROES: [u8; 4096] = [0; 4096];
        while self.buffer.filled() < end {
            let n = (end - self.buffer.filled()).min(ZEROES.len());
            self.buffer.put(&ZEROES[..n]);
        }
    }

    /// What to write now, if the buffer is full or has waited since `before`: the segment, where in it, the bytes and how
    /// many of them to leave out.
    pub(super) fn due(&mut self, before: Instant) -> Option<(usize, u64, ReadPin, usize)> {
        let is_due = self.full || self.buffer.room() == 0 || self.since.is_some_and(|since| since <= before);
        if self.busy || self.inside.is_empty() || !is_due {
            return None;
        }
        let (segment, stretch) = self.at?;
        let filled = self.buffer.filled();
        self.zeroes(filled.next_multiple_of(self.unit));
        let pin = self.buffer.read_pin();
        (self.busy, self.full, self.since) = (true, false, None);
        let start = self.written;
        self.written = filled / self.unit * self.unit;
        Some((segment, stretch, pin, start))
    }

    /// Ends the write, whose read pin is gone; the blocks that were inside.
    pub(super) fn wrote(&mut self, into: &mut Vec<Block>) {
        self.busy = false;
        into.append(&mut self.inside);
        // The last unit goes on where the blocks ended; the zeroes after them make room for the next.
        let end = into.last().map_or(0, |last| {
            let stretch = last.place / GATHER_BYTES * GATHER_BYTES;
            (last.place - stretch) as usize + last.len as usize
        });
        self.buffer.rewind(end.min(self.buffer.filled()));
    }

    /// Since when the oldest block inside waits to be written.
    pub(super) fn since(&self) -> Option<Instant> {
        if self.busy { None } else { self.since }
    }

    /// Nothing waits, is inside or on its way.
    pub(super) fn is_idle(&self) -> bool {
        !self.busy && self.inside.is_empty() && self.waiting.is_empty()
    }

    /// Blocks that wait or are inside.
    pub(super) fn len(&self) -> usize {
        self.inside.len() + self.waiting.len()
    }
}

/// A block on its way to the disk.
#[derive(Clone, Copy, Debug)]
pub(super) struct Block {
    pub(super) id: BlockId,
    /// The stage's key of the segment.
    pub(super) segment: usize,
    pub(super) place: u64,
    pub(super) len: u32,
    pub(super) crc32c: u32,
    pub(super) promised: Option<u32>,
}

/// How something ended.
pub(crate) enum SpillOutcome {
    /// The window is full, and its bytes are verified.
    Restored { fetch: FetchId, window: Window, proof: Proof, total: Duration, writes: usize },
    /// The window is empty.
    Lost { fetch: FetchId, window: Window },
    /// A write ended. With the checksum of its bytes, the block is on disk; without, it is not.
    Spilled { block: BlockId, crc32c: Option<u32> },
    /// The segment has failed too often.
    Broken(SegmentId),
}

/// A block being read.
pub(super) struct Read {
    pub(super) fetch: FetchId,
    pub(super) block: BlockId,
    pub(super) segment: usize,
    pub(super) spot: Spot,
    /// Where it belongs; `None` while the ring fills it.
    pub(super) window: Option<Window>,
    /// When it was requested, and writes that were under way then.
    pub(super) began: Instant,
    pub(super) writes: usize,
}

/// A long block being written.
pub(super) struct Write {
    pub(super) block: Block,
    pub(super) pin: ReadPin,
    /// Bytes of it that are written.
    pub(super) start: usize,
}

/// What an operation under way is for.
pub(super) enum Flight {
    /// Straight into the window.
    Read(Read),
    /// By way of a bounce buffer, whose unused rest is kept here; the block begins `skip` bytes into what is read.
    Bounce {
        read: Read,
        rest: Window,
        skip: usize,
    },
    Block(Block),
    Gather(usize),
    Page {
        segment: usize,
        number: u64,
        window: Window,
    },
}

/// The operations under way, each with when it was begun, by their tokens.
pub(super) struct Flights {
    all: Slab<(Instant, Flight)>,
    /// When those that are added are begun.
    pub(super) now: Instant,
}

impl Flights {
    /// None yet.
    pub(super) fn new() -> Flights {
        Flights { all: Slab::with_capacity(256), now: Instant::ZERO }
    }

    pub(super) fn insert(&mut self, flight: Flight) -> usize {
        self.all.insert((self.now, flight))
    }

    pub(super) fn remove(&mut self, token: usize) -> Flight {
        self.all.remove(token).1
    }

    pub(super) fn get(&self, token: usize) -> &Flight {
        &self.all[token].1
    }

    pub(super) fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// When the oldest was begun, and its segment.
    pub(super) fn oldest(&self) -> Option<(Instant, usize)> {
        self.all.iter().map(|(_, (begun, flight))| (*begun, flight.segment())).min()
    }
}

impl Flight {
    /// The stage's key of its segment.
    fn segment(&self) -> usize {
        match self {
            Flight::Read(read) | Flight::Bounce { read, .. } => read.segment,
            Flight::Block(block) => block.segment,
            Flight::Gather(segment) | Flight::Page { segment, .. } => *segment,
        }
    }

    /// Bytes that a read has to bring into the window it reads into: less than there is room for when a whole unit of the disk
    /// is read and the file ends after the block.
    pub(super) fn bytes_due(&self, into: &Window) -> usize {
        match self {
            Flight::Bounce { read, skip, .. } => skip + read.window.as_ref().map_or(0, Window::len),
            _ => into.len(),
        }
    }
}
