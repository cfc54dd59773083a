//! What shards send each other over the mesh: asks from a batch's home to a block's owner, and the answers.
//!
//! The window travels with the letter, so exactly one shard can write to it at any time and no byte is copied from core
//! to core.

use crate::conn::Proof;
use fuelrail_base::{BlockId, Error, ShardId};
use fuelrail_io::Window;
use fuelrail_plan::planner::Source;
use fuelrail_plan::schedule::UseTime;

/// Where a block belongs, in its home: all that an answer must say to find its place.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct SpanId {
    /// The open batch.
    pub batch: u32,
    /// The sample of it, by its place in the batch.
    pub sample: u32,
    /// The block of that, counted from 0.
    pub index: u32,
}

/// A home wants a block.
pub(crate) struct Ask {
    /// Who asks.
    pub home: ShardId,
    pub span: SpanId,
    pub block: BlockId,
    pub at: UseTime,
    /// Empty, as long as the block.
    pub window: Window,
    /// The cached copy proved wrong.
    pub fresh: bool,
}

/// The owner's reply.
pub(crate) struct Answer {
    pub span: SpanId,
    /// Full when `result` is `Ok`.
    pub window: Window,
    pub result: Result<(Proof, Source), Error>,
}
