//! One rank's loader: arena, channels, shards and outlet, wired as the engine wires them, and driven by hand.

use crate::canary::Canary;
use crate::check::{Checked, Checker, Violation};
use crate::counters::Counters;
use crate::dataset::{DEAD_ADDRESS, DataSet, LIVE_ADDRESS, URI};
use crate::machine::SegmentManager;
use crate::ring_probe::ProbedRing;
use crate::scenario::{DiskShape, Scenario};
use fuelrail_base::limits::SCRATCH_BYTES;
use fuelrail_base::prng::Prng;
use fuelrail_base::{Duration, Instant, Result, ShardId};
use fuelrail_flow::{
    BadSamples, Consumer, Objects, Outlet, PeerRoom, Shard, ShardConfig, ShardEnds, ShardStatus, Spares, channels,
    keep_for_others, spill_memory_bytes,
};
use fuelrail_io::{Arena, ArenaConfig, HugePages, Region, Ring as _, SimRing, SimWorld, Waker, channel};
use fuelrail_plan::hedge::HedgeConfig;
use fuelrail_plan::pace::Ledger;
use fuelrail_plan::planner::PlannerConfig;
use fuelrail_plan::prefetch::{Strategy, Watermarks};
use fuelrail_plan::retry::RetryConfig;
use fuelrail_plan::run::Run;
use fuelrail_plan::spill::SpillConfig;
use fuelrail_plan::window::WindowConfig;
use std::sync::Arc;

const PAGE_BYTES: u64 = 4096;

/// A loader of one rank in a simulated world.
pub(crate) struct Rank {
    arena: Arena,
    /// Slots the shards took at their start and keep: caches and scratch memory.
    kept_slots: usize,
    shards: Vec<Option<Stepped>>,
    statuses: Vec<Arc<ShardStatus>>,
    pub(crate) outlet: Outlet,
    /// Counters of shards that have ended.
    ended: Counters,
    wakers: Vec<Waker>,
    manager: Option<SegmentManager>,
    /// When a shard died, if one did.
    pub(crate) failed_at: Option<Instant>,
}

/// A shard and where it is in its loop.
struct Stepped {
    shard: Shard<ProbedRing>,
    phase: Phase,
    /// When it last went to sleep, and what had moved by then; how often it did so without anything moving.
    slept: (Instant, u64),
    spins: u32,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Phase {
    /// Its next act is an iteration.
    Awake,
    /// Its next act is going to sleep.
    Iterated,
    /// In the ring, until something wakes it.
    Asleep,
    /// It was told to end, and writes what is on its way to the disk, until then at the latest.
    Saving(Instant),
}

/// How often a shard may go to sleep and be awake again while time stands still and none of its operations begins or ends: more
/// often than messages from other shards and the consumer explain.
const SPINS_MAX: u32 = 1_000;
/// How long a shard that ends waits for its disk, as in the engine.
const SAVE_PATIENCE: Duration = Duration::from_secs(5);

/// Everything one rank is made from.
pub(crate) struct Make<'a> {
    pub(crate) scenario: &'a Scenario,
    pub(crate) objects: &'a DataSet,
    pub(crate) world: &'a SimWorld,
    pub(crate) run: Run,
    /// Which rank of how many.
    pub(crate) rank: (u64, u64),
    pub(crate) seed: u64,
    pub(crate) canary: Option<Canary>,
}

impl Rank {
    pub(crate) fn new(make: &Make<'_>) -> Result<Rank> {
        let l = &make.scenario.loader;
        let (arena, regions) = Arena::new(&ArenaConfig {
            bytes: u64::from(l.shards) * region_bytes(make.scenario),
            regions: l.shards,
            huge_pages: HugePages::Off,
            slots_per_region: 2048,
            ..ArenaConfig::default()
        })?;
        let objects = Arc::new(listed(make.scenario, make.objects)?);
        let disk = make.scenario.disk.as_ref().map(|disk| {
            SegmentManager::new(make.world, disk, &objects, make.rank, l.shards, Prng::new(make.seed ^ 0xD15C))
        });
        let (manager, setups) = disk.unzip();
        let mut setups = setups.into_iter().flatten();
        let (consumer, ledger) = (Arc::new(Consumer::default()), Ledger::default());
        let statuses: Vec<Arc<ShardStatus>> = (0..l.shards).map(|_| Arc::new(ShardStatus::default())).collect();
        let (mut shards, mut lanes, mut wakers) = (Vec::new(), Vec::new(), Vec::new());
        let owners = keep_for_others(l.cache_bytes, false, manager.is_some(), bad_samples(l.bad_samples));
        for ((id, region), channels) in (0..l.shards).zip(regions).zip(channels(l.shards, owners)) {
            let (deliver, lane) = channel(l.deliver_entries);
            lanes.push(lane);
            let (consumer, status) = (Arc::clone(&consumer), Arc::clone(&statuses[usize::from(id)]));
            let ends = ShardEnds { channels, deliver, consumer, status, spill: setups.next(), peers: None };
            let (shard, waker) = new_shard(make, id, region, &objects, ends, &ledger)?;
            shards.push(Some(Stepped { shard, phase: Phase::Awake, slept: (Instant::ZERO, 0), spins: 0 }));
            wakers.push(waker);
        }
        let outlet = Outlet::new(lanes, wakers.clone(), consumer, make.run.batches());
        let kept_slots = arena.outstanding();
        let (ended, failed_at) = (Counters::default(), None);
        Ok(Rank { arena, kept_slots, shards, statuses, outlet, ended, wakers, manager, failed_at })
    }

    /// Shards that have something to do at this instant, by number.
    pub(crate) fn runnable(&mut self) -> Vec<usize> {
        let mut out = Vec::new();
        for (at, place) in self.shards.iter_mut().enumerate() {
            let Some(Stepped { shard, phase, .. }) = place else { continue };
            let sleeps = matches!(phase, Phase::Asleep | Phase::Saving(_));
            if sleeps && !shard.ring().wakes() {
                continue;
            }
            if *phase == Phase::Asleep {
                *phase = Phase::Awake;
            }
            out.push(at);
        }
        out
    }

    /// Lets one shard do its next half of a round: its iteration, or going to sleep. Between the two, others may act.
    pub(crate) fn step(&mut self, at: usize) -> Checked<()> {
        let Some(stepped) = &mut self.shards[at] else { return Ok(()) };
        // As the engine guards a shard's thread.
        let (failure, thread) = (&self.outlet.consumer().failure, format_args!("shard {at}"));
        let goes_on = match stepped.phase {
            Phase::Saving(until) => Some(stepped.save(until)?),
            Phase::Iterated => match failure.guard(thread, || stepped.shard.sleep()) {
                Some(()) => {
                    stepped.slept()?;
                    Some(true)
                }
                None => None,
            },
            Phase::Awake | Phase::Asleep => match failure.guard(thread, || Ok(stepped.shard.iterate())) {
                Some(true) => {
                    stepped.phase = Phase::Iterated;
                    Some(true)
                }
                Some(false) => {
                    let until = stepped.shard.ring().now().after(SAVE_PATIENCE);
                    Some(stepped.save(until)?)
                }
                None => None,
            },
        };
        if goes_on.is_none() {
            self.failed_at = Some(stepped.shard.ring().now());
        }
        if goes_on != Some(true) {
            self.ended.add_snapshot(&stepped.shard.snapshot());
            self.shards[at] = None;
        }
        Ok(())
    }

    /// Lets the segment manager work. True when there was anything to do.
    pub(crate) fn keep(&mut self) -> bool {
        self.manager.as_mut().is_some_and(SegmentManager::work)
    }

    /// What shards gave up is gone from the disk, and nothing else.
    pub(crate) fn disk_agrees(&mut self) -> Checked<()> {
        let trims = self.counters().trims;
        let Some(manager) = &self.manager else { return Ok(()) };
        if manager.trimmed == trims {
            return Ok(());
        }
        let text = format!("{trims} segments were trimmed, and the segment manager was told of {}", manager.trimmed);
        Err(Violation::new(Checker::Disk, text))
    }

    /// With every batch taken and given back, only what was taken at the start may be out.
    pub(crate) fn all_returned(&self) -> Checked<()> {
        let (out, kept) = (self.arena.outstanding(), self.kept_slots);
        if out == kept {
            return Ok(());
        }
        Err(Violation::new(Checker::Memory, format!("{out} slots are out at rest, {kept} were taken at the start")))
    }

    /// Operations in flight over all shards.
    pub(crate) fn in_flight(&mut self) -> usize {
        self.shards.iter_mut().flatten().map(|s| s.shard.ring().in_flight()).sum()
    }

    /// Tells all shards to end, unless one has died.
    pub(crate) fn stop(&self) {
        if self.failed_at.is_some() {
            return;
        }
        self.statuses.iter().for_each(|status| status.stop());
        self.wakers.iter().for_each(Waker::wake);
    }

    pub(crate) fn is_over(&self) -> bool {
        self.shards.iter().all(Option::is_none)
    }

    /// The state of every stage of every shard.
    pub(crate) fn describe(&mut self) -> String {
        let texts: Vec<String> = self.shards.iter_mut().flatten().map(|s| s.shard.snapshot().text).collect();
        texts.join("\n")
    }

    pub(crate) fn counters(&mut self) -> Counters {
        let mut counters = self.ended;
        self.shards.iter_mut().flatten().for_each(|s| counters.add_snapshot(&s.shard.snapshot()));
        counters
    }

    /// Drops shards and outlet as they are; then all memory must be returned.
    pub(crate) fn tear_down(self) -> Checked<()> {
        let Rank { arena, shards, outlet, .. } = self;
        drop(shards);
        drop(outlet);
        match arena.outstanding() {
            0 => Ok(()),
            slots => Err(Violation::new(Checker::Memory, format!("{slots} slots are still out when all is torn down"))),
        }
    }
}

impl Stepped {
    fn slept(&mut self) -> Checked<()> {
        self.phase = Phase::Asleep;
        let ring = self.shard.ring();
        let slept = (ring.now(), ring.moves());
        self.spins = if core::mem::replace(&mut self.slept, slept) == slept { self.spins + 1 } else { 0 };
        if self.spins < SPINS_MAX {
            return Ok(());
        }
        let text = format!("a shard spins: it slept {SPINS_MAX} times at one instant, and nothing moved");
        Err(Violation::new(Checker::Liveness, format!("{text}\n{}", self.shard.snapshot().text)))
    }

    /// False when it is done, or its time is up.
    fn save(&mut self, until: Instant) -> Checked<bool> {
        self.phase = Phase::Saving(until);
        if self.shard.save_step() || self.shard.ring().now() >= until {
            return Ok(false);
        }
        let waited = self.shard.ring().wait(Some(until));
        waited.map_err(|error| Violation::new(Checker::Errors, format!("the ring failed: {error}")))?;
        Ok(true)
    }
}

/// A shard's memory: its cache, its room for batches, the scratch memory of its connections, to the next page.
fn region_bytes(scenario: &Scenario) -> u64 {
    let l = &scenario.loader;
    let cache = (l.cache_bytes / u64::from(l.shards)).next_multiple_of(64);
    let scratch = (l.connections_max * SCRATCH_BYTES) as u64;
    let spares = Spares { slots: l.spare_slots, slot_bytes: l.spare_bytes }.bytes();
    let disk = scenario.disk.as_ref().map_or(0, |_| spill_memory_bytes());
    (disk + cache + l.room_bytes.next_multiple_of(64) + scratch + spares).next_multiple_of(PAGE_BYTES)
}

/// Lives are short: requests are hedged when so few have landed.
const HEDGE_LANDINGS_MIN: u64 = 16;

/// The data set as a rank lists it.
pub(crate) fn listed(scenario: &Scenario, set: &DataSet) -> Result<Objects> {
    let bucket = &scenario.bucket;
    let endpoint = URI.parse()?;
    let addresses = [DEAD_ADDRESS, LIVE_ADDRESS];
    let addresses = addresses[2 - bucket.addresses.min(2)..].iter().flat_map(|address| address.parse()).collect();
    let objects = Objects::new(endpoint, addresses, &set.listing(bucket.etags.0), scenario.block_bytes)?;
    match &scenario.disk {
        Some(disk) => objects.direct(disk.unit),
        None => Ok(objects),
    }
}

fn new_shard(
    make: &Make<'_>,
    id: u16,
    region: Region,
    objects: &Arc<Objects>,
    ends: ShardEnds,
    ledger: &Ledger,
) -> Result<(Shard<ProbedRing>, Waker)> {
    let l = &make.scenario.loader;
    let pace = ledger.clone();
    let inner = SimRing::with_capacity(make.world, l.ring_entries, l.ring_sockets);
    let waker = inner.waker();
    let planted = make.canary.filter(|_| id == 0);
    let config = ShardConfig {
        planner: PlannerConfig {
            shard: ShardId(id),
            shards: l.shards,
            prefetch: match l.watermarks {
                None => Strategy::default(),
                Some((fetch_size, threshold)) => Strategy::Watermarks(Watermarks::new(fetch_size, threshold)?),
            },
            policy: l.policy,
            cache_bytes: l.cache_bytes / u64::from(l.shards),
            cached_block_bytes_min: 0,
            batch_room_bytes: l.room_bytes,
            horizon_epochs: l.horizon_epochs,
            homes: None,
            spill: make.scenario.disk.as_ref().map(|disk| spill(make.scenario, disk)),
            pace,
            retry: RetryConfig {
                attempts_max: l.attempts_max,
                base_us: l.retry_base_us,
                throttled_base_us: l.retry_base_us * 2,
                cap_us: l.retry_cap_us,
                throttled_cap_us: l.retry_base_us * 2,
                ..RetryConfig::default()
            },
            window: WindowConfig {
                connections_start: l.connections_start,
                connections_max: l.connections_max,
                depth_max: l.depth_max,
                ..WindowConfig::default()
            },
            hedge: HedgeConfig {
                percent: l.hedge_percent,
                delay_us_min: l.hedge_delay_us_min,
                landings_min: HEDGE_LANDINGS_MIN,
            },
            seed: make.seed ^ u64::from(id),
        },
        bad_samples: bad_samples(l.bad_samples),
        connections_max: l.connections_max,
        scratch_bytes: SCRATCH_BYTES as u64,
        stall_after: Duration::from_millis(l.stall_after_ms),
        peers: PeerRoom::default(),
        spares: Spares { slots: l.spare_slots, slot_bytes: l.spare_bytes },
        chunks: 0,
    };
    let shard = Shard::new(ProbedRing::new(inner, planted), region, Arc::clone(objects), &make.run, &config, ends)?;
    Ok((shard, waker))
}

/// As the engine configures it.
fn spill(scenario: &Scenario, disk: &DiskShape) -> SpillConfig {
    let blocks: u64 = scenario.sizes.iter().map(|size| size.div_ceil(scenario.block_bytes)).sum();
    SpillConfig {
        policy: disk.policy,
        unit: disk.unit,
        blocks_max: blocks as usize,
        pending_bytes_max: scenario.loader.room_bytes / 4,
    }
}

/// A scenario's policy by its name.
fn bad_samples(name: &str) -> BadSamples {
    match name {
        "skip" => BadSamples::Skip,
        "quarantine" => BadSamples::Quarantine,
        _ => BadSamples::Raise,
    }
}
