//! What ranks do for each other, in numbers.

use fuelrail_flow::Snapshot;
use serde::{Deserialize, Serialize};

/// What ranks did for each other since the loader was built.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct PeerFacts {
    /// Blocks that other ranks sent.
    pub hits: u64,
    /// … their payload bytes.
    pub hit_bytes: u64,
    /// Blocks that another rank keeps, or may have kept before, and the bucket sent, because that rank failed, took too long, or is down.
    pub misses: u64,
    /// Blocks that other ranks asked for.
    pub asks: u64,
    /// Blocks sent to them.
    pub served: u64,
    /// … their payload bytes.
    pub served_bytes: u64,
    /// Requests and connections that were refused, whoever's they were: another secret, or no certificate of the job's authority.
    #[serde(default)]
    pub refused: u64,
}

impl PeerFacts {
    pub(crate) fn add(&mut self, shard: &Snapshot) {
        let (planner, (served, served_bytes)) = (&shard.planner, shard.served);
        self.hits += planner.peer_hits;
        self.hit_bytes += planner.peer_bytes;
        self.misses += planner.peer_misses;
        self.asks += planner.peer_asks;
        self.served += served;
        self.served_bytes += served_bytes;
        self.refused += shard.refused;
    }
}

/// What came of handing blocks over to other ranks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct HandOver {
    /// Blocks that others have fetched from this rank.
    pub blocks: u64,
    /// … their payload bytes.
    pub bytes: u64,
    /// Blocks that they could not fetch: a rank is gone, or failed.
    pub failed: u64,
    /// Everything this rank keeps of an epoch was offered in time.
    pub complete: bool,
}
