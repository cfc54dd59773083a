//! The segment channel: two bounded queues between a shard and the segment manager, requests up and grants down. Neither side blocks.
//!
//! The segment manager has a thread of its own, because making a file may take long. Owns the two queues. Never opens a file.

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

/// Requests and grants that may wait at a time: a shard requests one segment after the other, and trims rarely.
const QUEUE_ENTRIES: usize = 256;

/// A segment's file, as the segment manager grants it to a shard.
#[derive(Clone, Debug)]
pub struct SegmentFile {
    /// The manager's name for it.
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

/// A block that a segment's journal lists.
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

/// A message of a shard to the segment manager.
#[derive(Clone, Debug)]
pub enum SegmentRequest {
    /// An empty segment will be needed.
    Another,
    /// Nothing in this segment is needed any more: unlink it.
    Trimmed(u64),
    /// A write to this segment failed, or it could not be opened or read.
    Failed(u64, Error),
}

/// The segment manager's reply to [`SegmentRequest::Another`].
#[derive(Clone, Debug)]
pub enum SegmentGrant {
    /// A segment, empty or with room left.
    Segment(SegmentFile),
    /// None is available until one is trimmed.
    NoMore,
}

/// The two queues between one shard and the segment manager.
#[derive(Debug)]
pub struct SegmentChannel {
    requests: ArrayQueue<SegmentRequest>,
    grants: ArrayQueue<SegmentGrant>,
    shard: WakerCell,
    manager: OnceLock<Thread>,
}

impl Default for SegmentChannel {
    fn default() -> SegmentChannel {
        SegmentChannel {
            requests: ArrayQueue::new(QUEUE_ENTRIES),
            grants: ArrayQueue::new(QUEUE_ENTRIES),
            shard: WakerCell::default(),
            manager: OnceLock::new(),
        }
    }
}

impl SegmentChannel {
    /// Sets the manager's thread, which every request unparks.
    pub fn set_manager(&self, manager: Thread) {
        // A channel has one manager for life: a second call sets the same thread.
        drop(self.manager.set(manager));
    }

    /// The next request of the shard.
    pub fn next_request(&self) -> Option<SegmentRequest> {
        self.requests.pop()
    }

    /// Sends the shard a grant. False when the queue is full, as the shard has ended.
    pub fn grant(&self, grant: SegmentGrant) -> bool {
        let taken = self.grants.push(grant).is_ok();
        self.shard.wake();
        taken
    }

    pub(crate) fn set_shard(&self, waker: Waker) {
        self.shard.set(waker);
    }

    /// Sends a request to the manager. False when the queue is full and the request is dropped: request a segment again; one that was not
    /// unlinked is found at the next start.
    pub(crate) fn request(&self, request: SegmentRequest) -> bool {
        let taken = self.requests.push(request).is_ok();
        if let Some(manager) = self.manager.get() {
            manager.unpark();
        }
        taken
    }

    pub(crate) fn next_grant(&self) -> Option<SegmentGrant> {
        self.grants.pop()
    }
}
