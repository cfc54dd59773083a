//! Blocks on their way to the disk and from it, and how that ended. Plain values; owns windows and read pins only.

use crate::conn::Proof;
use fuelrail_base::{BlockId, Duration, Instant, SampleId};
use fuelrail_io::{ReadPin, Window};
use fuelrail_plan::planner::FetchId;
use fuelrail_plan::spill::{SegmentId, Spot};

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
    pub(super) sample: SampleId,
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

impl Flight {
    /// Bytes that a read has to bring into the window it reads into: less than there is room for when a whole unit of the disk
    /// is read and the file ends behind the block.
    pub(super) fn bytes_due(&self, into: &Window) -> usize {
        match self {
            Flight::Bounce { read, skip, .. } => skip + read.window.as_ref().map_or(0, Window::len),
            _ => into.len(),
        }
    }
}
