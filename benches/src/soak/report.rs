//! The shape of a soak's result: its moments, its totals, its verdict. Owns the shape; never measures.

use std::collections::BTreeMap;

use fuelrail::{Config, Stats};
use serde::{Deserialize, Serialize};

use super::gauge::Gauge;
use super::judge::{Criterion, Flatness, Slope};
use fuelrail_cli::machine::Machine;

/// Version of the result's shape.
pub(super) const SCHEMA: u32 = 1;

/// One moment of a soak.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Moment {
    /// Since the start, s.
    pub at_s: f64,
    /// Whether the loader has been open long enough for its memory to be touched.
    pub settled: bool,
    /// What the process holds.
    pub gauge: Gauge,
    /// Slots not at home: cache and scratch memory of connections included.
    pub slots: u64,
    /// Operations under way.
    pub operations: u64,
    /// Batches the consumer holds.
    pub leases: u64,
    /// Samples delivered so far.
    pub samples: u64,
    /// Payload delivered so far, GB.
    pub gb: f64,
    /// Attempts after the first so far.
    pub retries: u64,
    /// Times the loader was opened anew so far.
    pub reopened: u64,
    /// What the bucket does.
    pub phase: String,
    /// Faults so far, by kind.
    pub faults: BTreeMap<String, u64>,
}

/// What all loaders of a soak came to.
#[derive(Clone, PartialEq, Default, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Totals {
    /// Samples that the consumer booked, and those that the last loader's state says were taken.
    pub samples: u64,
    /// See `samples`.
    pub expected: u64,
    /// Payload delivered, bytes.
    pub bytes: u64,
    /// Whole epochs.
    pub epochs: u64,
    /// What came wrong: out of order, twice, never, or with other bytes.
    pub wrong: u64,
    /// Times the loader was closed in the middle and opened anew from its state.
    pub reopened: u64,
    /// Requests the loaders sent.
    pub requests: u64,
    /// Attempts after the first.
    pub retries: u64,
    /// Connections the loaders opened, and those that ended by an error.
    pub connections: u64,
    /// See `connections`.
    pub connections_failed: u64,
    /// Blocks asked for, and those served from the cache.
    pub asks: u64,
    /// See `asks`.
    pub hits: u64,
    /// Requests the bucket saw.
    pub served_requests: u64,
    /// Times nobody listened for a while.
    pub absences: u64,
    /// Faults injected, by kind.
    pub faults: BTreeMap<String, u64>,
    /// Operations not given back, over all closings.
    pub operations_left: u64,
    /// Slots not home, over all closings, beyond those of batches held on purpose.
    pub slots_left: u64,
    /// Times the watchdog saw nothing move.
    pub stalls: u64,
}

impl Totals {
    pub(super) fn add(&mut self, stats: &Stats) {
        self.requests += stats.requests;
        self.retries += stats.retries;
        self.connections += stats.connections;
        self.connections_failed += stats.connections_failed;
        self.asks += stats.asks;
        self.hits += stats.hits;
    }
}

/// The whole result.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SoakReport {
    /// Version of the shape.
    pub schema: u32,
    /// `soak`.
    pub question: String,
    /// What had to be true.
    pub criteria: Vec<Criterion>,
    /// How memory went, when there was enough of it to judge.
    pub memory: Option<Flatness>,
    /// How memory outside the arena grew, with its interval.
    #[serde(default)]
    pub slope: Option<Slope>,
    /// What it came to.
    pub totals: Totals,
    /// Before the first loader, after the last.
    pub before: Gauge,
    /// See `before`.
    pub after: Gauge,
    /// Every moment.
    pub moments: Vec<Moment>,
    /// Objects read, and their bytes.
    pub objects: u64,
    /// See `objects`.
    pub object_bytes: u64,
    /// Seed of order, faults and whims.
    pub seed: u64,
    /// Time asked for, and time it took, s.
    pub asked_s: f64,
    /// See `asked_s`.
    pub wall_s: f64,
    /// What the reader must know.
    pub notices: Vec<String>,
    /// The last loader's effective configuration.
    pub config: Config,
    /// Its ring and the kernel abilities it used.
    pub ring: String,
    /// Where it ran.
    pub machine: Machine,
}

impl SoakReport {
    /// Whether everything judged was true.
    #[must_use]
    pub fn holds(&self) -> bool {
        self.criteria.iter().all(|criterion| criterion.holds != Some(false))
    }

    /// A criterion by name.
    #[must_use]
    pub fn criterion(&self, name: &str) -> Option<&Criterion> {
        self.criteria.iter().find(|criterion| criterion.name == name)
    }
}
