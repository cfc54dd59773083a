//! A shard's snapshot: counters and the state of every stage.

use super::Shard;
use crate::cache::CacheStage;
use crate::gate::Gate;
use crate::spill::SpillStage;
use crate::status::Snapshot;
use fuelrail_io::{Ring, ThreadMeter};

impl<R: Ring> Shard<R> {
    /// Counters and the state of every stage.
    pub fn snapshot(&mut self) -> Snapshot {
        let fetch = self.fetch.stats();
        let (disk_blocks, index_bytes) = self.planner.spill().map_or((0, 0), |tier| tier.index());
        let cache = self.cache.as_ref();
        let text = [
            format!("shard {}: {}", self.id.0, self.planner),
            self.fetch.describe(self.ring.now()),
            self.hedges.describe(),
            cache.map_or_else(|| "cache: none".to_string(), CacheStage::describe),
            self.spill.as_ref().map_or_else(|| "spill: none".to_string(), SpillStage::describe),
            self.assemble.describe(),
            self.deliver.describe(),
            self.channels.describe(),
            format!("{}; {}", self.requests, self.filling),
            format!("ring: {} ops in flight", self.ring.in_flight()),
            format!("arena: {} of {} bytes free", self.region.free_bytes(), self.region.capacity()),
        ]
        .join("\n  ");
        Snapshot {
            serial: self.status.wanted(),
            planner: self.planner.stats(),
            fetch,
            copied_bytes: fetch.copied_bytes
                + cache.map_or(0, |c| c.copied_bytes)
                + self.spill.as_ref().map_or(0, |s| s.stats.copied_bytes)
                + self.hedges.copied_bytes
                + self.shared_copied_bytes,
            wasted_bytes: self.hedges.wasted_bytes,
            disk_blocks,
            index_bytes: index_bytes + self.spill.as_ref().map_or(0, |spill| spill.proofs().1),
            disk: self.spill.as_ref().map(|s| s.stats.clone()).unwrap_or_default(),
            unproved: self.assemble.unproved,
            get_latency: self.fetch.get_latency.clone(),
            ring: Some(self.ring.facts()),
            operations: self.ring.in_flight(),
            thread: self.meter.as_ref().map(ThreadMeter::read),
            gates: [&self.requests, &self.filling, &self.deliver.gate].map(Gate::facts).to_vec(),
            waits_for_leases: self.planner.is_blocked()
                && self.assemble.is_empty()
                && self.deliver.gate.occupancy() == 0,
            text,
        }
    }

    pub(super) fn publish(&mut self) {
        let snapshot = self.snapshot();
        self.published = snapshot.serial;
        self.status.publish(snapshot);
    }
}
