//! What a run says about itself.

use core::fmt;
use std::collections::BTreeMap;

use fuelrail_flow::Snapshot;
use serde::Serialize;

use crate::check::Violation;
use crate::run::Canary;
use crate::scenario::Scenario;

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
    /// `sound` or `unsound`.
    pub verdict: &'static str,
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
            "  {} requests, {} retries, {} hedges, {} given up, {} hits, {} shared, {} connections of which {} failed",
            c.requests, c.retries, c.hedges, c.given_up, c.hits, c.shared, c.connections, c.connections_failed
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

/// The counters of a report, each with the number of a shard's snapshot that it sums up.
macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident: $($from:ident).+,)+) => {
        /// The engine's counters, summed over shards, ranks and lives.
        #[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize)]
        pub struct Counters {
            $($(#[$doc])* pub $name: u64,)+
        }

        impl Counters {
            pub(crate) fn add(&mut self, other: &Counters) {
                $(self.$name += other.$name;)+
            }

            pub(crate) fn add_snapshot(&mut self, snapshot: &Snapshot) {
                $(self.$name += snapshot.$($from).+;)+
            }
        }
    };
}

counters! {
    /// Blocks requested.
    asks: planner.asks,
    /// Served from the cache.
    hits: planner.hits,
    /// Served by a fetch already under way.
    shared: planner.shared,
    /// Attempts after the first.
    retries: planner.retries,
    /// Requests sent a second time.
    hedges: planner.hedges,
    /// Fetches given up.
    given_up: planner.given_up,
    /// Blocks dropped from the cache.
    evictions: planner.evictions,
    /// Requests written.
    requests: fetch.requests,
    /// Connections opened.
    connections: fetch.connections,
    /// Connections closed because of an error.
    connections_failed: fetch.connections_failed,
    /// Payload bytes landed.
    landed_bytes: fetch.landed_bytes,
    /// Payload bytes our own code copied.
    copied_bytes: copied_bytes,
    /// Samples fetched anew because their proof failed.
    unproved: unproved,
    /// Response heads whose length was guessed right.
    heads_predicted: fetch.heads_predicted,
    /// … and wrong.
    heads_mispredicted: fetch.heads_mispredicted,
    /// Blocks written to disk.
    spilled: planner.spill.written,
    /// Blocks asked of the disk.
    disk_hits: planner.spill.hits,
    /// Those that could not be had from it.
    disk_lost: planner.spill.lost,
    /// Blocks found on disk at the start.
    adopted: planner.spill.adopted,
    /// Segments given up to make room.
    trims: planner.spill.trims,
}
