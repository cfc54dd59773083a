//! What a run says about itself.

use crate::canary::Canary;
use crate::check::Violation;
use crate::scenario::Scenario;
use core::fmt;
use fuelrail_flow::Snapshot;
use serde::Serialize;
use std::collections::BTreeMap;

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
        let &Counters { asks, hits, shared, retries, given_up, evictions, requests, .. } = other;
        let &Counters { connections, connections_failed, landed_bytes, copied_bytes, unproved, .. } = other;
        self.asks += asks;
        self.hits += hits;
        self.shared += shared;
        self.retries += retries;
        self.given_up += given_up;
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

/// One run.
#[derive(Clone, Debug, Serialize)]
pub struct SimReport {
    /// Layout of this document.
    pub schema: u32,
    /// The seed.
    pub seed: u64,
    /// The planted bug, if any.
    pub canary: Option<Canary>,
    /// What was drawn.
    pub scenario: Scenario,
    /// Virtual time over all lives, seconds.
    pub virtual_s: f64,
    /// Jumps of virtual time.
    pub events: u64,
    /// Lives begun.
    pub lives: u64,
    /// Samples in the joined journal.
    pub samples: u64,
    /// Longest wait for one batch, virtual seconds.
    pub batch_wait_s_max: f64,
    /// The engine's counters.
    pub counters: Counters,
    /// Faults injected by the bucket and the rings, by name.
    pub faults: BTreeMap<String, u64>,
    /// XXH3-128 over the hashes of all delivered samples in order, hexadecimal.
    pub content_hash: String,
    /// How the run ended when a hopeless sample ended it under `raise`.
    pub raised: Option<String>,
    /// The checks that failed; none is success.
    pub violations: Vec<Violation>,
}

impl SimReport {
    /// Whether every check passed.
    #[must_use]
    pub fn is_sound(&self) -> bool {
        self.violations.is_empty()
    }

    /// The command that plays this run again.
    #[must_use]
    pub fn replay_command(&self) -> String {
        let canary = self.canary.map_or(String::new(), |canary| format!(" --canary {canary}"));
        format!("cargo x sim -- --seed {}{canary}", self.seed)
    }
}

impl fmt::Display for SimReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (s, c) = (&self.scenario, &self.counters);
        let worlds: Vec<String> = s.lives.iter().map(|life| life.world.to_string()).collect();
        writeln!(
            f,
            "seed {}: {} samples of {} bytes in all, {} epochs, batches of {}, world {}, {} shards, cache {} bytes ({})",
            self.seed,
            s.samples,
            s.total_bytes,
            s.epochs,
            s.batch_size,
            worlds.join(" then "),
            s.loader.shards,
            s.loader.cache_bytes,
            s.loader.policy,
        )?;
        writeln!(
            f,
            "  {:.3} virtual s, {} events, {} samples delivered, longest batch wait {:.3} s, hash {}",
            self.virtual_s, self.events, self.samples, self.batch_wait_s_max, self.content_hash
        )?;
        writeln!(
            f,
            "  {} requests, {} retries, {} given up, {} hits, {} shared, {} connections of which {} failed",
            c.requests, c.retries, c.given_up, c.hits, c.shared, c.connections, c.connections_failed
        )?;
        let faults: Vec<String> = self.faults.iter().map(|(name, count)| format!("{name} {count}")).collect();
        writeln!(f, "  injected: {}", if faults.is_empty() { "nothing".into() } else { faults.join(", ") })?;
        if let Some(error) = &self.raised {
            writeln!(f, "  ended as it should: {error}")?;
        }
        for violation in &self.violations {
            writeln!(f, "  VIOLATION of {:?}: {}", violation.checker, violation.text)?;
        }
        write!(f, "  {}", if self.is_sound() { "sound" } else { "UNSOUND" })
    }
}
