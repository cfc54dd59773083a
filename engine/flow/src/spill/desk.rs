//! Where a shard and the keeper of the disk meet: segments come down, wishes go up, both bounded, neither waits.
//!
//! The keeper lives on a thread of its own, where making a file may take its time. Owns the two queues. Never opens a file.

#[cfg(not(loom))]
use crossbeam_queue::ArrayQueue;
#[cfg(loom)]
use fuelrail_base::sync::ArrayQueue;
use fuelrail_base::{BlockId, Error};
use fuelrail_io::{OwnDirectory, Waker, WakerCell};
use fuelrail_plan::spill::Mount;
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};
use std::thread::Thread;

/// Wishes and supplies that may wait at a time: a shard asks for one segment after the other, and trims rarely.
const QUEUE_ENTRIES: usize = 256;

/// A segment's file, as the keeper hands it to a shard.
#[derive(Clone, Debug)]
pub struct SegmentFile {
    /// The keeper's name for it.
    pub key: u64,
    /// What its records carry ([`SegmentHeader::mark`](fuelrail_wire::block::SegmentHeader::mark)).
    pub mark: u64,
    /// Where it is.
    pub path: PathBuf,
    /// The directory it is opened in, by its name alone; `None` where the path says everything, in a simulated world.
    pub directory: Option<Arc<OwnDirectory>>,
    /// Its length, bytes.
    pub len: u64,
    /// Its file system offers direct access.
    pub direct: bool,
    /// What may be done with it.
    pub mount: Mount,
}

/// A block that a segment's journal tells of.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Known {
    /// The block, by this run's catalog.
    pub block: BlockId,
    /// Its first byte in the segment.
    pub place: u64,
    /// CRC-32C of its bytes.
    pub crc32c: u32,
    /// CRC-32C of the whole object, if the server promised one and the object has several blocks.
    pub promised: Option<u32>,
}

/// What a shard tells the keeper.
#[derive(Clone, Debug)]
pub enum Wish {
    /// An empty segment will be needed.
    Another,
    /// Nothing in this one is wanted any more: unlink it.
    Trimmed(u64),
    /// A write to it failed, or it could not be opened or read.
    Failed(u64, Error),
}

/// What the keeper gives a shard.
#[derive(Clone, Debug)]
pub enum Supply {
    /// A segment, empty or with room left.
    Segment(SegmentFile),
    /// None is to be had before one is trimmed.
    NoMore,
}

/// The two queues between one shard and the keeper.
#[derive(Debug)]
pub struct SpillDesk {
    wishes: ArrayQueue<Wish>,
    supplies: ArrayQueue<Supply>,
    shard: WakerCell,
    keeper: OnceLock<Thread>,
}

impl Default for SpillDesk {
    fn default() -> SpillDesk {
        SpillDesk {
            wishes: ArrayQueue::new(QUEUE_ENTRIES),
            supplies: ArrayQueue::new(QUEUE_ENTRIES),
            shard: WakerCell::default(),
            keeper: OnceLock::new(),
        }
    }
}

impl SpillDesk {
    /// Whom a wish wakes.
    pub fn set_keeper(&self, keeper: Thread) {
        // A desk has one keeper for life: a second one would be the same.
        drop(self.keeper.set(keeper));
    }

    /// The next wish.
    pub fn next_wish(&self) -> Option<Wish> {
        self.wishes.pop()
    }

    /// Gives the shard something. False when it does not take what it has: it is gone.
    pub fn supply(&self, supply: Supply) -> bool {
        let taken = self.supplies.push(supply).is_ok();
        self.shard.wake();
        taken
    }

    pub(crate) fn set_shard(&self, waker: Waker) {
        self.shard.set(waker);
    }

    /// Tells the keeper. False when the wish found no room and is forgotten: ask again for a segment; one that was not unlinked
    /// is found at the next start.
    pub(crate) fn wish(&self, wish: Wish) -> bool {
        let taken = self.wishes.push(wish).is_ok();
        if let Some(keeper) = self.keeper.get() {
            keeper.unpark();
        }
        taken
    }

    pub(crate) fn next_supply(&self) -> Option<Supply> {
        self.supplies.pop()
    }
}
