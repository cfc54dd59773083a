//! What a run says about itself.

use crate::canary::Canary;
use crate::check::Violation;
use crate::counters::Counters;
use crate::scenario::Scenario;
use core::fmt;
use serde::Serialize;
use std::collections::BTreeMap;

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
    /// Seconds of each epoch in the last life, mean over the ranks.
    pub epoch_s: Vec<f64>,
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
    pub fn is_sound(&self) -> bool {
        self.violations.is_empty()
    }

    /// The command that plays this run again.
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
