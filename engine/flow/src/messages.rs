//! Messages between shards: requests from the shard that assembles a batch to a block's owner, and the replies.
//!
//! The window travels with the message, so exactly one shard can write to it at any time and no byte is copied from core
//! to core.

use crate::conn::Proof;
use fuelrail_base::{BlockId, Error, ShardId};
use fuelrail_io::Window;
use fuelrail_plan::planner::Source;
use fuelrail_plan::schedule::UseTime;

/// The span of a batch that a block fills. A reply carries it, so that the assembling shard finds the place.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct SpanId {
    /// The open batch.
    pub batch: u32,
    /// The sample of it, by its place in the batch.
    pub sample: u32,
    /// The block of that, counted from 0.
    pub index: u32,
}

/// A request for one block, from the shard that assembles its batch to the shard that owns it.
pub(crate) struct BlockRequest {
    /// The shard that assembles the batch and gets the reply.
    pub assembler: ShardId,
    pub span: SpanId,
    pub block: BlockId,
    pub at: UseTime,
    /// Empty, as long as the block.
    pub window: Window,
    /// The cached copy proved wrong.
    pub fresh: bool,
}

/// The owner's reply to a [`BlockRequest`].
pub(crate) struct BlockReply {
    pub span: SpanId,
    /// Full when `result` is `Ok`.
    pub window: Window,
    pub result: Result<(Proof, Source), Error>,
}
