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
        });
    }
}
