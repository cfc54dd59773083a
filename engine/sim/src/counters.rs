//! The engine's own counters, added up.

use fuelrail_flow::Snapshot;
use serde::Serialize;

/// The engine's counters, summed over shards, ranks and lives.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize)]
pub struct Counters {
    /// Blocks asked for.
    pub asks: u64,
    /// Served from the cache.
    pub hits: u64,
    /// Served by a fetch already under way.
    pub shared: u64,
    /// Attempts after the first.
    pub retries: u64,
    /// Requests sent a second time.
    pub hedges: u64,
    /// Fetches given up.
    pub given_up: u64,
    /// Blocks dropped from the cache.
    pub evictions: u64,
    /// Requests written.
    pub requests: u64,
    /// Connections opened.
    pub connections: u64,
    /// Connections closed because of an error.
    pub connections_failed: u64,
    /// Payload bytes landed.
    pub landed_bytes: u64,
    /// Payload bytes our own code copied.
    pub copied_bytes: u64,
    /// Samples fetched anew because their proof failed.
    pub unproved: u64,
    /// Response heads whose length was guessed right.
    pub heads_predicted: u64,
    /// … and wrong.
    pub heads_mispredicted: u64,
    /// Blocks written to disk.
    pub spilled: u64,
    /// Blocks asked of the disk.
    pub disk_hits: u64,
    /// Those that could not be had from it.
    pub disk_lost: u64,
    /// Blocks found on disk at the start.
    pub adopted: u64,
    /// Segments given up to make room.
    pub trims: u64,
}

impl Counters {
    pub(crate) fn add(&mut self, other: &Counters) {
        let &Counters { asks, hits, shared, retries, hedges, given_up, evictions, requests, .. } = other;
        let &Counters { connections, connections_failed, landed_bytes, copied_bytes, unproved, .. } = other;
        self.asks += asks;
        self.hits += hits;
        self.shared += shared;
        self.retries += retries;
        self.given_up += given_up;
        self.hedges += hedges;
        self.evictions += evictions;
        self.requests += requests;
        self.connections += connections;
        self.connections_failed += connections_failed;
        self.landed_bytes += landed_bytes;
        self.copied_bytes += copied_bytes;
        self.unproved += unproved;
        self.heads_predicted += other.heads_predicted;
        self.heads_mispredicted += other.heads_mispredicted;
        self.spilled += other.spilled;
        self.disk_hits += other.disk_hits;
        self.disk_lost += other.disk_lost;
        self.adopted += other.adopted;
        self.trims += other.trims;
    }

    pub(crate) fn add_snapshot(&mut self, snapshot: &Snapshot) {
        let (brain, fetch) = (snapshot.brain, snapshot.fetch);
        self.add(&Counters {
            asks: brain.asks,
            hits: brain.hits,
            shared: brain.shared,
            retries: brain.retries,
            given_up: brain.given_up,
            hedges: brain.hedges,
            evictions: brain.evictions,
            requests: fetch.requests,
            connections: fetch.connections,
            connections_failed: fetch.connections_failed,
            landed_bytes: fetch.landed_bytes,
            copied_bytes: snapshot.copied_bytes,
            unproved: snapshot.unproved,
            heads_predicted: fetch.heads_predicted,
            heads_mispredicted: fetch.heads_mispredicted,
            spilled: brain.spill.written,
            disk_hits: brain.spill.hits,
            disk_lost: brain.spill.lost,
            adopted: brain.spill.adopted,
            trims: brain.spill.trims,
        });
    }
}
