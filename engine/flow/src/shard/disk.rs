//! What a shard does about its disk: commands to the spill stage, its outcomes to the planner, segments from the segment manager.

use super::Shard;
use crate::conn::Proof;
use crate::spill::{SpillOutcome, SpillStage};
use fuelrail_base::canary::{self, Stage};
use fuelrail_base::{BlockId, Duration, Instant};
use fuelrail_io::{Ring, Window};
use fuelrail_plan::planner::Fact;
use fuelrail_plan::spill::SegmentId;

/// How soon a sample that waits for the disk to release its memory is checked again: there is no event for it.
const LENT_PATIENCE: Duration = Duration::from_millis(1);

const TIER: &str = "where there is a disk, the planner has its tier";

impl<R: Ring> Shard<R> {
    pub(super) fn spill_block(&mut self, block: BlockId, window: &mut Window, proof: Proof, to: (SegmentId, u64)) {
        canary::pass(self.id.0, Stage::Spill);
        let spill = self.spill.as_mut().expect("the planner spills only where there is a disk");
        spill.spill(self.now, block, window, proof, to);
    }

    pub(super) fn trim_segment(&mut self, segment: SegmentId) {
        if let Some(spill) = &mut self.spill {
            spill.trim(&mut self.ring, segment);
        }
        self.planner.spill().expect(TIER).trimmed(segment);
    }

    /// Takes in the disk's outcomes and granted segments. True when there were any outcomes.
    pub(super) fn tend_disk(&mut self) -> bool {
        if self.assemble.has_postponed() {
            self.assemble.resume(&mut self.outgoing);
            self.send_requests();
        }
        let mut any = false;
        while let Some(outcome) = self.spill.as_mut().and_then(SpillStage::next_outcome) {
            any = true;
            self.take_disk_outcome(outcome);
        }
        if let (Some(spill), Some(tier)) = (&mut self.spill, self.planner.spill()) {
            spill.restock(tier);
        }
        any
    }

    fn take_disk_outcome(&mut self, outcome: SpillOutcome) {
        match outcome {
            SpillOutcome::Restored { fetch, window, proof, total, writes } => {
                let tier = self.planner.spill().expect(TIER);
                tier.restored(self.now, window.len() as u64, total, writes);
                self.land(fetch, window, proof);
                self.tell(Fact::Landed { fetch, first_byte: total, total, outran: None });
            }
            SpillOutcome::Lost { fetch, window } => {
                self.waiter(fetch).window = Some(window);
                self.tell(Fact::Unserved { fetch, displaced: false });
            }
            SpillOutcome::Spilled { block, crc32c } => {
                let bytes = self.objects.catalog().block_len(block);
                let tier = self.planner.spill().expect(TIER);
                match crc32c {
                    Some(crc32c) => tier.written(block, bytes, crc32c),
                    None => tier.write_failed(block, bytes),
                }
            }
            SpillOutcome::Broken(segment) => self.planner.spill().expect(TIER).broken(segment),
        }
    }

    pub(super) fn pump_disk(&mut self, all: bool) {
        let (Some(spill), Some(tier)) = (&mut self.spill, self.planner.spill()) else { return };
        let writes_max = tier.writes_max(spill.reading());
        spill.pump(&mut self.ring, writes_max, all);
    }

    /// When the disk, or a sample that waits for it, has to be checked next.
    pub(super) fn disk_deadline(&self) -> Option<Instant> {
        let postponed = self.assemble.has_postponed().then(|| self.now.after(LENT_PATIENCE));
        let company = self.spill.as_ref().and_then(SpillStage::deadline);
        [postponed, company].into_iter().flatten().min()
    }

    /// Ends the writes under way and writes what is gathered, so that the next run finds it; no longer than until `deadline`.
    pub(super) fn save_disk(&mut self, deadline: Instant) {
        if let Some(spill) = &mut self.spill {
            spill.drop_waiting();
        }
        while !self.save_step() && self.ring.now() < deadline {
            if self.ring.wait(Some(deadline)).is_err() {
                return;
            }
        }
    }

    /// One step of an orderly shutdown, for a caller that drives the shard by hand: true when nothing is on its way to the disk.
    pub fn save_step(&mut self) -> bool {
        self.hand_back();
        self.pump_disk(true);
        self.spill.as_ref().is_none_or(SpillStage::is_clean)
    }
}
