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
pub struct Moment {
    /// Since the start, s.
    pub at_s: f64,
    /// Whether the loader has been open long enough for its memory to be touched.
    pub settled: bool,
    pub gauge: Gauge,
    /// Slots not at home: cache and scratch memory of connections included.
    pub slots: u64,
    pub operations: u64,
    pub leases: u64,
    pub samples: u64,
    pub gb: f64,
    pub retries: u64,
    pub reopened: u64,
    pub phase: String,
    pub faults: BTreeMap<String, u64>,
}

/// What all loaders of a soak came to.
#[derive(Clone, PartialEq, Default, Debug, Serialize, Deserialize)]
pub struct Totals {
    /// Samples that the consumer booked, and those that the last loader's state says were taken.
    pub samples: u64,
    pub expected: u64,
    pub bytes: u64,
    pub epochs: u64,
    /// What came wrong: out of order, twice, never, or with other bytes.
    pub wrong: u64,
    /// Times the loader was closed in the middle and opened anew from its state.
    pub reopened: u64,
    pub requests: u64,
    pub retries: u64,
    /// Connections the loaders opened, and those that ended by an error.
    pub connections: u64,
    pub connections_failed: u64,
    /// Blocks asked for, and those served from the cache.
    pub asks: u64,
    pub hits: u64,
    pub served_requests: u64,
    pub absences: u64,
    pub faults: BTreeMap<String, u64>,
    /// Operations not given back, over all closings.
    pub operations_left: u64,
    /// Slots not home, over all closings, beyond those of batches held on purpose.
    pub slots_left: u64,
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

#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct SoakReport {
    pub schema: u32,
    pub question: String,
    pub criteria: Vec<Criterion>,
    /// How memory went, when there was enough of it to judge.
    pub memory: Option<Flatness>,
    /// How memory outside the arena grew, with its interval.
    #[serde(default)]
    pub slope: Option<Slope>,
    pub totals: Totals,
    /// Before the first loader, after the last.
    pub before: Gauge,
    pub after: Gauge,
    pub moments: Vec<Moment>,
    /// Objects read, and their bytes.
    pub objects: u64,
    pub object_bytes: u64,
    pub seed: u64,
    /// Time asked for, and time it took, s.
    pub asked_s: f64,
    pub wall_s: f64,
    pub notices: Vec<String>,
    pub config: Config,
    /// Its ring and the kernel abilities it used.
    pub ring: String,
    pub machine: Machine,
}

impl SoakReport {
    pub fn holds(&self) -> bool {
        self.criteria.iter().all(|criterion| criterion.holds != Some(false))
    }

    pub fn criterion(&self, name: &str) -> Option<&Criterion> {
        self.criteria.iter().find(|criterion| criterion.name == name)
    }
}
