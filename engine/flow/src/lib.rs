//! The stages in order, the queue gauges (gates) between them, and the shard that drives them.
//!
//! `fetch` → (`cache`) → `assemble` → `deliver`, each driven by the planner's commands. Knows no clock but the ring's, no
//! file, no thread: the same flow runs on io_uring and in virtual time.
#![forbid(unsafe_code)]

mod addresses;
mod assemble;
mod cache;
mod channels;
mod chunks;
mod conn;
mod credential;
mod deliver;
mod failure;
mod fetch;
mod gate;
mod hedge;
mod listing;
#[cfg(all(test, loom))]
mod models;
mod objects;
mod peers;
mod setup;
mod shard;
mod spans;
mod spill;
mod status;
#[cfg(test)]
mod tests;

pub use addresses::{AddressBook, Closed};
pub use assemble::{Assembled, BadSamples, Finished};
pub use cache::cached_block_bytes;
pub use channels::{ChannelEnds, channels};
pub use conn::Proof;
pub use credential::{Authority, Signatory, judged};
pub use deliver::{Consumer, Outlet};
pub use failure::Failure;
pub use fetch::FetchStats;
pub use gate::{Gate, GateFacts};
pub use hedge::Spares;
pub use listing::{Listed, Listing};
pub use objects::{ByteRange, Objects, Server};
pub use peers::{LentBlock, PeerInbox, PeerLink, PeerOutbox, PeerRequest, PeerRoom, PeerRoute, PeerSetup, peer_queue};
pub use setup::{ShardConfig, ShardEnds, keep_for_others, scratch_bytes};
pub use shard::Shard;
pub use spans::{FreeLists, SampleSpan, SampleSpans};
pub use spill::{
    Contents, DiskStats, Known, ManagerLink, SegmentFile, SegmentGrant, SegmentRequest, ShardLink, SpillSetup, resume,
    segment_queues, spill_memory_bytes,
};
pub use status::{ShardStatus, Snapshot};
