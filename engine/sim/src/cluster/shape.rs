//! A job's shape, what its planners are told, and what comes of it.

use fuelrail_base::{BlockId, Duration, Instant, Result, ShardId};
use fuelrail_plan::catalog::Catalog;
use fuelrail_plan::homes::Homes;
use fuelrail_plan::order::OrderName;
use fuelrail_plan::pace::Ledger;
use fuelrail_plan::planner::{Command, Fact, FetchId, Planner, PlannerConfig, Want};
use fuelrail_plan::policy::PolicyName;
use fuelrail_plan::prefetch::Strategy;
use fuelrail_plan::run::{Cursor, Run, RunConfig};
use fuelrail_plan::schedule::horizon_epochs;
use fuelrail_plan::spill::{Mount, SegmentId, SpillConfig, SpillPolicy, Spot};
use fuelrail_plan::{hedge::HedgeConfig, retry::RetryConfig, window::WindowConfig};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::sync::Arc;

/// What is played.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
pub struct Cluster {
    /// Ranks, one a node.
    pub ranks: u16,
    /// Samples of the data set.
    pub samples: u64,
    /// Bytes a sample, each a block.
    pub sample_bytes: u64,
    /// Samples per batch and rank.
    pub batch_size: u32,
    /// Whether samples stay on the same rank across epochs (the sticky order).
    pub sticky: bool,
    /// Epochs of the run.
    pub epochs: u64,
    /// Steps that are played at most.
    pub steps_max: u64,
    /// Blocks that a rank's disk has room for.
    pub disk_blocks: u64,
    /// The trainer's step, seconds.
    pub step_s: f64,
    /// From request to first byte of the bucket, seconds.
    pub bucket_s: f64,
    /// From one rank to another, one way, seconds.
    pub hop_s: f64,
    /// Bytes a second of a rank: from the bucket, from its disk, to other ranks.
    pub bytes_per_s: f64,
    /// Ranks in another region, the last ones: …
    pub far_ranks: u16,
    /// … how long the bucket takes to answer them, seconds, …
    pub far_bucket_s: f64,
    /// … and one way between them and the other ranks.
    pub far_hop_s: f64,
    /// Ranks lost at once, from rank 1 on; none for 0. Nothing is heard of them again.
    pub lost_ranks: u16,
    /// Before this step.
    pub lost_at_step: u64,
    /// Steps that the others make before the job begins anew without them, at the step before which they were lost, with what is on its disks.
    pub steps_without: u64,
    /// Ranks that it then has besides, with empty disks, behind the others.
    pub new_ranks: u16,
}

/// What came of it.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Played {
    /// Samples that trainers took.
    pub samples: u64,
    /// Epochs played to their end: every sample came once in each.
    pub whole_epochs: u64,
    /// Requests to the bucket.
    pub requests: u64,
    /// Blocks sent by one rank to another.
    pub peer_blocks: u64,
    /// Requests to other ranks that failed, or were not made because the rank is down.
    pub peer_misses: u64,
    /// How long trainers waited for the last batch of every step, seconds.
    #[serde(skip)]
    pub waits_s: Vec<f64>,
    /// Most blocks that one planner had queued for the bucket.
    pub queued_max: usize,
    /// Most requests of others that one rank had not answered.
    pub serving_max: usize,
    /// Virtual seconds.
    pub seconds: f64,
    /// Blocks on the disks of the ranks that were lost, and on no other.
    pub lost_blocks: u64,
    /// Requests to the bucket while the others made steps without them, …
    pub requests_without: u64,
    /// … and the longest wait then, seconds.
    pub wait_without_s: f64,
    /// Requests to the bucket from when the job began anew.
    pub anew: u64,
}

/// Segments of a disk.
const SEGMENTS: u64 = 32;
pub(super) const SEED: u64 = 1;

/// Who waits for a block.
#[derive(Clone, Copy, Debug)]
pub(super) enum Waiter {
    /// A batch of this rank.
    Batch(u64),
    /// Another rank.
    Rank(u16, FetchId),
}

/// What a planner is told or asked.
#[derive(Clone, Copy, Debug)]
pub(super) enum Told {
    Fact(Fact),
    Ask(Waiter, Want),
    Read(Duration),
    Written(BlockId),
    /// A health check of this rank has succeeded.
    Recovered(u16),
    LookAhead,
}

/// All that one planner was told, and what it was made of.
pub struct Recording {
    pub(super) homes: Homes,
    pub(super) run: Run,
    pub(super) cluster: Cluster,
    pub(super) told: Vec<(Instant, Told)>,
    /// Samples of the batches that it opened.
    pub samples: u64,
}

impl Recording {
    /// A new planner, to be told it all.
    ///
    /// # Errors
    /// None: one was made before.
    pub fn replay(&self) -> Result<impl FnOnce()> {
        let homes = self.homes.seen_by(self.homes.rank());
        let mut planner = self.cluster.planner(&homes, &self.run, &BTreeMap::new())?;
        Ok(move || {
            for &(now, told) in &self.told {
                self.cluster.tell((&mut planner, &homes), now, told);
                while let Some(command) = planner.pop() {
                    match command {
                        Command::Trim(segment) => self.cluster.trim(&mut planner, segment),
                        Command::Deliver { waiters, .. } => planner.recycle(waiters.others),
                        _ => {}
                    }
                }
            }
        })
    }
}

impl Cluster {
    pub(super) fn run(&self, world: usize, rank: u16, start: Cursor) -> Result<Run> {
        Run::new(RunConfig {
            samples: self.samples,
            seed: SEED,
            order: if self.sticky { OrderName::Sticky } else { OrderName::Global },
            shuffle: true,
            world: world as u32,
            rank: rank.into(),
            batch_size: self.batch_size,
            drop_last: false,
            epochs: self.epochs,
            start,
        })
    }

    /// How long a sample's bytes take.
    pub(super) fn transfer(&self) -> Duration {
        Duration::from_secs_f64(self.sample_bytes as f64 / self.bytes_per_s)
    }

    fn config(&self, homes: Homes) -> PlannerConfig {
        let kept = (self.disk_blocks as f64 * f64::from(self.ranks) / self.samples as f64).min(1.0);
        PlannerConfig {
            shard: ShardId(0),
            shards: 1,
            prefetch: Strategy::default(),
            policy: PolicyName::NextUse,
            cache_bytes: 0,
            cached_block_bytes_min: 0,
            spill: (self.disk_blocks > 0).then_some(SpillConfig {
                policy: SpillPolicy::NextUse,
                unit: 4096,
                blocks_max: self.disk_blocks as usize,
                pending_bytes_max: 64 << 20,
            }),
            homes: (homes.ranks() > 1).then_some(homes),
            batch_room_bytes: 64 * u64::from(self.batch_size) * self.sample_bytes.next_multiple_of(64),
            horizon_epochs: horizon_epochs(self.ranks.into(), kept),
            retry: RetryConfig::default(),
            pace: Ledger::default(),
            window: WindowConfig::default(),
            hedge: HedgeConfig::default(),
            seed: SEED,
        }
    }

    fn segment_bytes(&self) -> u64 {
        // Blocks lie at multiples of the unit, and a segment begins with a page.
        4096 + self.disk_blocks.div_ceil(SEGMENTS) * self.sample_bytes.next_multiple_of(4096)
    }

    pub(super) fn planner(&self, homes: &Homes, run: &Run, disk: &BTreeMap<BlockId, Spot>) -> Result<Planner<Waiter>> {
        let catalog = Arc::new(Catalog::of_same(self.samples, self.sample_bytes));
        let mut planner = Planner::new(&self.config(homes.clone()), run.clone(), catalog)?;
        if let Some(spill) = planner.spill() {
            let full = |segment| disk.values().any(|spot| spot.segment == segment);
            for segment in (0..SEGMENTS as u16).map(SegmentId) {
                let mount = if full(segment) { Mount::Sealed } else { Mount::Open { end: 4096, records: 0 } };
                spill.mount(self.segment_bytes(), mount);
            }
            spill.no_segment();
            for (block, spot) in disk {
                spill.adopt(*block, self.sample_bytes, *spot);
            }
        }
        Ok(planner)
    }

    /// True when the planner wants another batch.
    pub(super) fn tell(&self, (planner, homes): (&mut Planner<Waiter>, &Homes), now: Instant, told: Told) -> bool {
        match told {
            Told::Fact(fact) => planner.tell(now, fact),
            Told::Ask(waiter, want) => planner.ask(now, waiter, want),
            Told::LookAhead => return planner.look_ahead(now),
            Told::Recovered(rank) => homes.health().recovered(rank),
            Told::Read(took) => {
                planner.spill().into_iter().for_each(|spill| spill.restored(now, self.sample_bytes, took, 0));
            }
            Told::Written(block) => {
                planner.spill().into_iter().for_each(|spill| spill.written(block, self.sample_bytes, 0));
            }
        }
        planner.recall(now);
        false
    }

    pub(super) fn trim(&self, planner: &mut Planner<Waiter>, segment: SegmentId) {
        if let Some(spill) = planner.spill() {
            spill.trimmed(segment);
            spill.mount(self.segment_bytes(), Mount::Open { end: 4096, records: 0 });
        }
    }
}
