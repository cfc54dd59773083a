//! What a shard is made from: its configuration, what it is connected to, and the memory it sets aside at start.

use crate::assemble::{BadSamples, Finished};
use crate::channels::ChannelEnds;
use crate::deliver::Consumer;
use crate::hedge::Spares;
use crate::peers::{PeerRoom, PeerSetup};
use crate::spill::SpillSetup;
use crate::status::ShardStatus;
use core::ops::RangeInclusive;
use fuelrail_base::limits::{SCRATCH_BYTES, TLS_SCRATCH_BYTES, TLS_SCRATCH_BYTES_MIN};
use fuelrail_base::{Duration, Error, Kind, Result};
use fuelrail_io::{Region, Sender, Slot};
use fuelrail_plan::planner::PlannerConfig;
use fuelrail_wire::Scheme;
use std::sync::Arc;

/// Plain configuration of one shard.
#[derive(Clone, Debug)]
pub struct ShardConfig {
    /// The planner's part.
    pub planner: PlannerConfig,
    /// What happens when a sample cannot be read.
    pub bad_samples: BadSamples,
    /// Silence on a connection with open requests, after which it is given up; so is one that trickles for as long.
    pub stall_after: Duration,
    /// Most connections; each has its scratch memory set aside at start.
    pub connections_max: usize,
    /// Bytes of that: within what [`scratch_bytes`] says.
    pub scratch_bytes: u64,
    /// Memory that second requests land in, set aside at start.
    pub spares: Spares,
    /// Memory for other ranks, set aside at start.
    pub peers: PeerRoom,
    /// Chunks that are held at a time, where samples are read in chunks: memory for so many of the longest ones is set aside at start.
    pub chunks: usize,
}

/// The ends that connect a shard to the rest of the run.
pub struct ShardEnds {
    /// To the other shards.
    pub channels: ChannelEnds,
    /// To the consumer.
    pub deliver: Sender<Finished>,
    /// What the consumer and the shards share.
    pub consumer: Arc<Consumer>,
    /// Where other threads read its state and stop it.
    pub status: Arc<ShardStatus>,
    /// The disk, where the planner is configured for one.
    pub spill: Option<SpillSetup>,
    /// The other ranks, where blocks are kept for each other.
    pub peers: Option<PeerSetup>,
}

/// Whether shards keep blocks for each other, in RAM, in chunks, on disk or in quarantine: then every block has one owner.
pub fn keep_for_others(cache_bytes: u64, has_chunks: bool, has_disk: bool, bad_samples: BadSamples) -> bool {
    cache_bytes > 0 || has_chunks || has_disk || bad_samples == BadSamples::Quarantine
}

/// Bytes of scratch memory each connection to a server of this scheme has: the least that does, and what it uses well.
pub fn scratch_bytes(scheme: Scheme) -> RangeInclusive<u64> {
    match scheme {
        Scheme::Http => SCRATCH_BYTES as u64..=SCRATCH_BYTES as u64,
        Scheme::Https => TLS_SCRATCH_BYTES_MIN as u64..=TLS_SCRATCH_BYTES as u64,
        Scheme::File => 0..=0,
    }
}

/// What a shard sets aside for other ranks: scratch memory of connections, and slots.
pub(crate) fn peer_memory(region: &mut Region, room: PeerRoom) -> Result<[Vec<Slot>; 2]> {
    let mut take =
        |slots: usize, bytes: usize| -> Option<Vec<Slot>> { (0..slots).map(|_| region.alloc(bytes)).collect() };
    let (scratch, slots) = (take(room.connections, room.scratch_bytes), take(room.slots, room.slot_bytes));
    scratch.zip(slots).map(<[_; 2]>::from).ok_or_else(|| {
        let cause = format!("no room for what other ranks ask for ({} slots of {} bytes)", room.slots, room.slot_bytes);
        Error::new(Kind::Budget, cause).with_hint("raise memory_limit")
    })
}

/// What a shard sets aside of its region, once: memory for a cache, if it has one, for the scratch memory of so many connections with so
/// many bytes each, for second requests, and for so many chunks of so many bytes.
pub(crate) fn memory(
    region: &mut Region,
    cache_bytes: u64,
    (connections, scratch_bytes): (usize, u64),
    spares: Spares,
    (chunks, chunk_bytes): (usize, u64),
) -> Result<[Vec<Slot>; 4]> {
    let mut take = |slots: usize, bytes: u64, what: &str, hint: &str| {
        let taken: Option<Vec<Slot>> = (0..slots).map(|_| region.alloc(bytes as usize)).collect();
        taken.ok_or_else(|| {
            let cause = format!("no room for {what} ({slots} of {bytes} bytes) in {}", region.free_bytes());
            Error::new(Kind::Budget, cause).with_hint(hint)
        })
    };
    let connections = if scratch_bytes == 0 { 0 } else { connections };
    let hedging = "raise memory_limit, or switch hedging off with hedge_percent = 0";
    Ok([
        take(usize::from(cache_bytes > 0), cache_bytes, "the cache", "lower cache_limit or raise memory_limit")?,
        take(connections, scratch_bytes, "scratch memory", "lower connections_max or raise memory_limit")?,
        take(spares.slots, spares.slot_bytes as u64, "spare slots", hedging)?,
        take(chunks, chunk_bytes, "chunks", "raise memory_limit, or lower chunk_size")?,
    ])
}
