//! The bucket's bookkeeping: what it saw and did, against which the engine's counters are checked.
//!
//! Shared between the world's host and the checks. Counts only what the client must have noticed.

use fuelrail_base::{Instant, SampleId};
use std::collections::BTreeMap;

/// Counted by the bucket in one life.
#[derive(Clone, Debug, Default)]
pub(crate) struct Bookkeeping {
    /// Requests understood.
    pub(crate) requests: u64,
    /// Requests for each sample.
    pub(crate) requests_of: BTreeMap<SampleId, u64>,
    /// Connections accepted.
    pub(crate) connections: u64,
    /// Connections open now.
    pub(crate) open: u64,
    /// Faults by name, injected or scheduled.
    pub(crate) faults: BTreeMap<&'static str, u64>,
    /// Faults per sample.
    pub(crate) faults_of: BTreeMap<(SampleId, &'static str), u32>,
    /// Connections the client cannot have kept after a fault on them, and has closed.
    pub(crate) broken_seen: u64,
    /// Refusals on connections that live on, by when they have arrived whole, per open connection.
    pub(crate) refusals_due: BTreeMap<u64, Vec<Instant>>,
    /// Refusals that arrived on connections closed since.
    pub(crate) refusals_seen: u64,
    /// Refused connections, by when the client is told.
    pub(crate) refused_due: Vec<Instant>,
    /// Requests no sound client sends.
    pub(crate) unsound: Vec<String>,
}

impl Bookkeeping {
    pub(crate) fn fault(&mut self, sample: Option<SampleId>, name: &'static str) {
        *self.faults.entry(name).or_default() += 1;
        if let Some(sample) = sample {
            *self.faults_of.entry((sample, name)).or_default() += 1;
        }
    }

    pub(crate) fn faults_total(&self) -> u64 {
        self.faults.values().sum()
    }

    /// Faults injected on one sample, of one name or of all.
    pub(crate) fn faults_on(&self, sample: SampleId, name: Option<&str>) -> u32 {
        let all = self.faults_of.range((sample, "")..(SampleId(sample.0.saturating_add(1)), ""));
        all.filter(|((_, fault), _)| name.is_none_or(|name| name == *fault)).map(|(_, count)| *count).sum()
    }

    /// Failed attempts the client must have noticed by `now`.
    pub(crate) fn failures_seen(&self, now: Instant) -> u64 {
        let arrived = self.refusals_due.values().flatten().chain(&self.refused_due).filter(|due| **due <= now).count();
        self.broken_seen + self.refusals_seen + arrived as u64
    }
}
