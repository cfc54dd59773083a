//! Outcomes of requests and of the disk: what a shard tells its planner, second requests for slow ones, commands to the spill stage, and
//! segments from the segment manager. And what it tells those who watch it: counters and the state of every stage.

use super::Shard;
use crate::cache::CacheStage;
use crate::chunks::ChunkStage;
use crate::conn::{Asked, End, Fault, Outcome, Proof};
use crate::fetch::Second;
use crate::gate::Gate;
use crate::hedge::Verdict;
use crate::peers::PeerStage;
use crate::spill::{SpillOutcome, SpillStage};
use crate::status::Snapshot;
use fuelrail_base::canary::{self, Stage};
use fuelrail_base::{BlockId, Duration, Instant, Kind};
use fuelrail_io::{Ring, ThreadMeter, Window};
use fuelrail_plan::planner::{Attempt, Fact, FetchId};
use fuelrail_plan::spill::SegmentId;

/// An attempt that brought fewer new bytes counts as a failed one. Those that bring more end with the time that one block may fail.
const PROGRESS_BYTES_MIN: usize = 1024;

/// How soon a sample that waits for the disk to release its memory is checked again: there is no event for it.
const LENT_PATIENCE: Duration = Duration::from_millis(1);

const TIER: &str = "where there is a disk, the planner has its tier";

impl<R: Ring> Shard<R> {
    pub(super) fn take_outcome(&mut self, outcome: Outcome) {
        let (now, fetch) = (self.clock.now, outcome.asked.fetch);
        let Some(waiter) = self.planner.first(fetch) else {
            // A second request of a fetch that is over.
            self.hedges.waste(outcome);
            return;
        };
        let raced = waiter.race.is_some();
        let verdict = self.hedges.judge(&mut waiter.race, outcome, now);
        if let Verdict::Over(_) | Verdict::Outrun { .. } = verdict {
            self.requests.passed(now);
            if raced {
                self.fetch.cancel_seconds(&mut self.ring, now, fetch);
            }
        }
        match verdict {
            Verdict::Over(outcome) => self.end_fetch(outcome),
            Verdict::Outrun { window, proof, first_byte, total, waited } => {
                self.fetch.landed(window.len() as u64, waited);
                self.land(fetch, window, proof);
                self.tell(Fact::Landed { fetch, first_byte, total, outran: Some(waited) });
            }
            Verdict::GiveUp => self.fetch.cancel(&mut self.ring, now, fetch),
            Verdict::Halved { kind, second } => self.tell(Fact::Halved { fetch, kind, second }),
            Verdict::Nothing => {}
        }
    }

    fn end_fetch(&mut self, outcome: Outcome) {
        let Outcome { asked: Asked { fetch, .. }, window, end, .. } = outcome;
        match end {
            End::Landed { proof, first_byte, total } => {
                self.fetch.landed(window.len() as u64, total);
                let seen = self.waiter(fetch).seen;
                self.land(fetch, window, seen.with(proof));
                self.tell(Fact::Landed { fetch, first_byte, total, outran: None });
            }
            End::Failed { proof, new_bytes, fault } => {
                let Fault { error, retry_after, server_time, idled_out } = fault;
                let error = self.fetch.judged(error, server_time);
                let kind = error.kind();
                let first = self.waiter(fetch);
                first.seen = if window.filled() == 0 { Proof::default() } else { first.seen.with(proof) };
                first.window = Some(window);
                if kind == Kind::Cancelled {
                    // We closed the connection ourselves, so that the rest is requested elsewhere.
                    return self.tell(Fact::Unserved { fetch, displaced: false });
                }
                first.error = Some(error.clone());
                if !idled_out {
                    self.fetch.failed(&error, self.clock.now);
                }
                let attempt = match new_bytes >= PROGRESS_BYTES_MIN {
                    _ if idled_out => Attempt::Excused,
                    true => Attempt::Progress,
                    false => Attempt::Barren,
                };
                self.tell(Fact::Failed { fetch, kind, retry_after, attempt });
            }
            End::Unserved { displaced } => {
                self.waiter(fetch).window = Some(window);
                self.tell(Fact::Unserved { fetch, displaced });
            }
        }
    }

    /// Another rank sent a block, or did not: then nothing of it is kept, and the bucket is asked.
    pub(super) fn take_peer_outcome(&mut self, outcome: Outcome) {
        let Outcome { asked: Asked { fetch, .. }, mut window, found, end, .. } = outcome;
        let displaced = match end {
            End::Landed { total, .. } => {
                self.land(fetch, window, Proof { etag: found.tag, crc32c: None });
                let transit = total.saturating_sub(Duration::from_micros(found.took_us.into()));
                return self.tell(Fact::Sent { fetch, transit, passed: found.passed });
            }
            // A connection that was idle for too long is no fault of the rank's, nor is waiting behind another request, nor that it
            // does not have the block or, for a fault of the bucket or the object, cannot get it.
            End::Failed { fault, .. } => fault.idled_out || fault.error.kind() == Kind::Server,
            End::Unserved { displaced } => displaced,
        };
        window.rewind(0);
        self.waiter(fetch).window = Some(window);
        self.tell(Fact::Unserved { fetch, displaced });
    }

    /// The whole block is in the window of its first waiter.
    pub(super) fn land(&mut self, fetch: FetchId, window: Window, proof: Proof) {
        let first = self.waiter(fetch);
        (first.window, first.proof) = (Some(window), proof);
        self.progressed = true;
    }

    /// Sends the request of a fetch under way a second time, or a third. Where there is no memory or no connection for a second,
    /// gives the first up: the rest is requested anew.
    pub(super) fn hedge(&mut self, fetch: FetchId, block: BlockId) {
        let asked = Asked { second: true, ..self.asked(fetch, block, 0) };
        let depth = self.planner.depth(asked.len);
        let race = &mut self.planner.first(fetch).expect("it is under way").race;
        let (raced, hedges) = (race.is_some(), &mut self.hedges);
        let has_room = hedges.has_room(asked.len);
        let begin = has_room.then_some(|since| hedges.begin(race, since, asked.len));
        match self.fetch.second(&mut self.ring, self.clock.now, asked, depth, begin) {
            Second::Sent => {}
            Second::NoRoom if !raced => self.fetch.cancel(&mut self.ring, self.clock.now, fetch),
            Second::NoRoom | Second::Early => self.tell(Fact::Unhedged(fetch)),
        }
    }

    pub(super) fn spill_block(&mut self, block: BlockId, window: &mut Window, proof: Proof, to: (SegmentId, u64)) {
        canary::pass(self.id.0, Stage::Spill);
        let spill = self.spill.as_mut().expect("the planner spills only where there is a disk");
        spill.spill(self.clock.now, block, window, proof, to);
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
                tier.restored(self.clock.now, window.len() as u64, total, writes);
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
        spill.pump(&mut self.ring, self.clock.now, writes_max, all);
    }

    /// When the disk, or a sample that waits for it, has to be checked next.
    pub(super) fn disk_deadline(&self) -> Option<Instant> {
        let postponed = self.assemble.has_postponed().then(|| self.clock.now.after(LENT_PATIENCE));
        let company = self.spill.as_ref().and_then(SpillStage::deadline);
        [postponed, company].into_iter().flatten().min()
    }

    /// Ends the writes under way and writes what is gathered, so that the next run finds it; no longer than until `deadline`.
    pub(super) fn save_disk(&mut self, deadline: Instant) {
        while !self.save_step() && self.ring.now() < deadline {
            if self.ring.wait(Some(deadline)).is_err() {
                return;
            }
        }
    }

    /// One step of an orderly shutdown, for a caller that drives the shard by hand: true when nothing is on its way to the disk. A run
    /// that is over writes what waits for the disk as well; one that is closed before does not.
    pub fn save_step(&mut self) -> bool {
        self.hand_back();
        if let Some(spill) = &mut self.spill
            && !self.planner.all_opened()
        {
            spill.drop_waiting();
        }
        self.pump_disk(true);
        self.spill.as_ref().is_none_or(SpillStage::is_clean)
    }

    /// Counters and the state of every stage.
    pub fn snapshot(&mut self) -> Snapshot {
        let fetch = self.fetch.stats();
        let (disk_blocks, index_bytes) = self.planner.spill().map_or((0, 0), |tier| tier.index());
        let (cache, now) = (self.cache.as_ref(), self.clock.at(self.ring.now()));
        let text = [
            format!("shard {}: {}", self.id.0, self.planner),
            self.fetch.describe(now),
            self.hedges.describe(),
            cache.map_or_else(|| "cache: none".to_string(), CacheStage::describe),
            self.chunks.as_ref().map_or_else(|| "chunks: none".to_string(), ChunkStage::describe),
            self.spill.as_ref().map_or_else(|| "spill: none".to_string(), |spill| spill.describe(now)),
            self.peers.as_ref().map_or_else(|| "peers: none".to_string(), PeerStage::describe),
            self.assemble.describe(),
            self.deliver.describe(),
            self.channels.describe(),
            format!("{}; {}", self.requests, self.filling),
            format!(
                "ring: {} ops in flight; clock {:.1} s behind",
                self.ring.in_flight(),
                self.clock.behind.as_secs_f64()
            ),
            format!("arena: {} of {} bytes free", self.region.free_bytes(), self.region.capacity()),
        ]
        .join("\n  ");
        Snapshot {
            serial: self.status.wanted(),
            planner: self.planner.stats(),
            fetch,
            copied_bytes: fetch.copied_bytes
                + cache.map_or(0, |c| c.copied_bytes)
                + self.chunks.as_ref().map_or(0, |chunks| chunks.copied_bytes)
                + self.spill.as_ref().map_or(0, |s| s.stats.copied_bytes)
                + self.hedges.copied_bytes
                + self.shared_copied_bytes,
            wasted_bytes: self.hedges.wasted_bytes,
            served: self.peers.as_ref().map_or((0, 0), |peers| peers.served),
            refused: self.peers.as_ref().map_or(0, PeerStage::refused),
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
