//! One rank's loader: arena, mesh, shards and outlet, wired as the engine wires them, and turned by hand.

use crate::canary::Canary;
use crate::check::{Checked, Checker, Violation};
use crate::counters::Counters;
use crate::dataset::{DEAD_ADDRESS, DataSet, LIVE_ADDRESS, URI};
use crate::scenario::{LookAhead, Scenario};
use crate::tap::TapRing;
use fuelrail_base::limits::SCRATCH_BYTES;
use fuelrail_base::{Duration, Result, ShardId};
use fuelrail_flow::{BadSamples, Board, Consumer, Objects, Outlet, Shard, ShardConfig, ShardEnds, Spares, mesh};
use fuelrail_io::{Arena, ArenaConfig, HugePages, Region, SimRing, SimWorld, Waker, lane};
use fuelrail_plan::brain::BrainConfig;
use fuelrail_plan::hedge::HedgeConfig;
use fuelrail_plan::pace::Ledger;
use fuelrail_plan::prefetch::{Strategy, Watermarks};
use fuelrail_plan::retry::RetryConfig;
use fuelrail_plan::run::Run;
use fuelrail_plan::window::WindowConfig;
use std::sync::Arc;

const PAGE_BYTES: u64 = 4096;

/// A loader of one rank in a simulated world.
pub(crate) struct Rank {
    arena: Arena,
    /// Slots the shards took at their start and keep: caches and scratch memory.
    kept_slots: usize,
    shards: Vec<Option<Stepped>>,
    boards: Vec<Arc<Board>>,
    pub(crate) outlet: Outlet,
    /// Counters of shards that have ended.
    ended: Counters,
    wakers: Vec<Waker>,
}

/// A shard and where it is in its loop.
struct Stepped {
    shard: Shard<TapRing>,
    phase: Phase,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Phase {
    /// Its next act is a turn.
    Awake,
    /// Its next act is going to sleep.
    Turned,
    /// In the ring, until something wakes it.
    Asleep,
}

/// Everything one rank is made from.
pub(crate) struct Make<'a> {
    pub(crate) scenario: &'a Scenario,
    pub(crate) objects: &'a DataSet,
    pub(crate) world: &'a SimWorld,
    pub(crate) run: Run,
    pub(crate) seed: u64,
    pub(crate) canary: Option<Canary>,
}

impl Rank {
    pub(crate) fn new(make: &Make<'_>) -> Result<Rank> {
        let l = &make.scenario.loader;
        let (arena, regions) = Arena::new(&ArenaConfig {
            bytes: u64::from(l.shards) * region_bytes(make.scenario),
            regions: l.shards,
            aside_bytes: 0,
            huge_pages: HugePages::Off,
            slots_per_region: 2048,
        })?;
        let objects = Arc::new(listed(make)?);
        let (consumer, ledger) = (Arc::new(Consumer::default()), Ledger::default());
        let boards: Vec<Arc<Board>> = (0..l.shards).map(|_| Arc::new(Board::default())).collect();
        let (mut shards, mut lanes, mut wakers) = (Vec::new(), Vec::new(), Vec::new());
        for ((id, region), mesh) in (0..l.shards).zip(regions).zip(mesh(l.shards)) {
            let (deliver, lane) = lane(l.deliver_entries);
            lanes.push(lane);
            let (consumer, board) = (Arc::clone(&consumer), Arc::clone(&boards[usize::from(id)]));
            let ends = ShardEnds { mesh, deliver, consumer, board, spill: None };
            let (shard, waker) = new_shard(make, id, region, &objects, ends, &ledger)?;
            shards.push(Some(Stepped { shard, phase: Phase::Awake }));
            wakers.push(waker);
        }
        let outlet = Outlet::new(lanes, wakers.clone(), consumer, make.run.batches());
        let kept_slots = arena.outstanding();
        Ok(Rank { arena, kept_slots, shards, boards, outlet, ended: Counters::default(), wakers })
    }

    /// Shards that have something to do at this instant, by number.
    pub(crate) fn runnable(&mut self, out: &mut Vec<usize>) {
        out.clear();
        for (at, place) in self.shards.iter_mut().enumerate() {
            let Some(Stepped { shard, phase }) = place else { continue };
            if *phase == Phase::Asleep && shard.ring().wakes() {
                *phase = Phase::Awake;
            }
            if *phase != Phase::Asleep {
                out.push(at);
            }
        }
    }

    /// Lets one shard do its next half of a round: its turn, or going to sleep. Between the two, others may act.
    pub(crate) fn step(&mut self, at: usize) -> Checked<()> {
        let Some(Stepped { shard, phase }) = &mut self.shards[at] else { return Ok(()) };
        if *phase == Phase::Turned {
            shard.sleep().map_err(|error| Violation::new(Checker::Errors, format!("the ring failed: {error}")))?;
            *phase = Phase::Asleep;
        } else if shard.turn() {
            *phase = Phase::Turned;
        } else {
            self.ended.add_snapshot(&shard.snapshot());
            self.shards[at] = None;
        }
        Ok(())
    }

    /// With every batch taken and given back, only what was taken at the start may be out.
    pub(crate) fn all_home(&self) -> Checked<()> {
        let (out, kept) = (self.arena.outstanding(), self.kept_slots);
        if out == kept {
            return Ok(());
        }
        Err(Violation::new(Checker::Memory, format!("{out} slots are out at rest, {kept} were taken at the start")))
    }

    /// Operations in flight over all shards.
    pub(crate) fn in_flight(&mut self) -> usize {
        use fuelrail_io::Ring as _;
        self.shards.iter_mut().flatten().map(|s| s.shard.ring().in_flight()).sum()
    }

    /// Tells all shards to end.
    pub(crate) fn stop(&self) {
        self.boards.iter().for_each(|board| board.stop());
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

    /// Drops shards and outlet as they are; then all memory must be home.
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

/// A shard's memory: its cache, its room for batches, the scratch memory of its connections, to the next page.
fn region_bytes(scenario: &Scenario) -> u64 {
    let l = &scenario.loader;
    let cache = (l.cache_bytes / u64::from(l.shards)).next_multiple_of(64);
    let scratch = (l.connections_max * SCRATCH_BYTES) as u64;
    let spares = Spares { slots: l.spare_slots, slot_bytes: l.spare_bytes }.bytes();
    (cache + l.room_bytes.next_multiple_of(64) + scratch + spares).next_multiple_of(PAGE_BYTES)
}

/// Lives are short: requests are hedged when so few have landed.
const HEDGE_LANDINGS_MIN: u64 = 16;

fn listed(make: &Make<'_>) -> Result<Objects> {
    let bucket = &make.scenario.bucket;
    let endpoint = URI.parse()?;
    let addresses = [DEAD_ADDRESS, LIVE_ADDRESS];
    let addresses = addresses[2 - bucket.addresses.min(2)..].iter().flat_map(|address| address.parse()).collect();
    Objects::new(endpoint, addresses, &make.objects.listing(bucket.etags.0), make.scenario.block_bytes)
}

fn new_shard(
    make: &Make<'_>,
    id: u16,
    region: Region,
    objects: &Arc<Objects>,
    ends: ShardEnds,
    ledger: &Ledger,
) -> Result<(Shard<TapRing>, Waker)> {
    use fuelrail_io::Ring as _;
    let l = &make.scenario.loader;
    let pace = ledger.clone();
    let inner = SimRing::with_capacity(make.world, l.ring_entries, l.ring_sockets);
    let waker = inner.waker();
    let planted = make.canary.filter(|_| id == 0);
    let config = ShardConfig {
        brain: BrainConfig {
            shard: ShardId(id),
            shards: l.shards,
            prefetch: strategy(l.look_ahead)?,
            policy: l.policy,
            cache_bytes: l.cache_bytes / u64::from(l.shards),
            batch_room_bytes: l.room_bytes,
            horizon_epochs: l.horizon_epochs,
            spill: None,
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
        bad_samples: match l.bad_samples {
            "skip" => BadSamples::Skip,
            "quarantine" => BadSamples::Quarantine,
            _ => BadSamples::Raise,
        },
        connections_max: l.connections_max,
        stall_after: Duration::from_millis(l.stall_after_ms),
        spares: Spares { slots: l.spare_slots, slot_bytes: l.spare_bytes },
    };
    let shard = Shard::new(TapRing::new(inner, planted), region, Arc::clone(objects), &make.run, &config, ends)?;
    Ok((shard, waker))
}

fn strategy(look_ahead: LookAhead) -> Result<Strategy> {
    match look_ahead {
        LookAhead::Lookahead => Ok(Strategy::default()),
        LookAhead::Watermarks { fetch_size, threshold } => {
            Watermarks::new(fetch_size, threshold).map(Strategy::Watermarks)
        }
    }
}
