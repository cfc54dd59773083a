//! Shards on their way up: what each is built from, and its thread's life from opening the ring, whose back-end is chosen here, to the
//! last operation.
//!
//! Dropping [`ShardThreads`] stops and joins the threads.

use crate::chunks::short_of_chunks;
use crate::config::Config;
use crate::layout::{Layout, Seating, connections_max};
use crate::system::{own_directory, random_number, spawn};
use crate::watch::Watched;
use fuelrail_base::{ByteSize, Duration, Error, Kind, Result, SampleId, ShardId, canary, prng::mix64};
use fuelrail_flow::{
    ChannelEnds, Consumer, Finished, Objects, PeerRoom, PeerSetup, Shard, ShardConfig, ShardEnds, ShardStatus,
    SpillSetup,
};
#[cfg(feature = "glommio")]
use fuelrail_io::GlommioRing;
#[cfg(feature = "tokio-uring")]
use fuelrail_io::TokioUringRing;
use fuelrail_io::{
    Arena, Backend, Division, PollRing, Region, Ring, Sender, SharedWords, ThreadMeter, UringConfig, UringRing, Waker,
    open_files_max, pin_current_thread,
};
use fuelrail_plan::catalog::Catalog;
use fuelrail_plan::hedge::first_requests;
use fuelrail_plan::homes::Homes;
use fuelrail_plan::pace::{LEDGER_WORDS, Ledger, SLOT_WORDS, SLOTS_FROM};
use fuelrail_plan::planner::PlannerConfig;
use fuelrail_plan::prefetch::Strategy;
use fuelrail_plan::retry::RetryConfig;
use fuelrail_plan::run::Run;
use fuelrail_plan::schedule::horizon_epochs;
use fuelrail_plan::spill::SpillConfig;
use fuelrail_plan::window::WindowConfig;
use fuelrail_wire::{Endpoint, Scheme};
use std::path::Path;
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;
use xxhash_rust::xxh3::xxh3_64;

/// What all shards are built from.
pub(crate) struct Plan {
    pub backend: Backend,
    pub objects: Arc<Objects>,
    pub run: Run,
    pub layout: Layout,
    pub arena: Arena,
    pub seating: Option<Seating>,
    /// What each shard's disk is configured as, where there is one.
    pub spill: Option<SpillConfig>,
    pub consumer: Arc<Consumer>,
    /// The rate of requests that a server asks for, shared by all shards.
    pub pace: Ledger,
    /// Which rank keeps which block, and the memory of each shard for other ranks, where they keep blocks for each other.
    pub peers: Option<(Homes, PeerRoom)>,
}

/// Shards, up or on their way up. Dropping it stops them, and waits until they have ended.
#[derive(Default)]
pub(crate) struct ShardThreads {
    statuses: Vec<Arc<ShardStatus>>,
    greetings: Vec<mpsc::Receiver<Greeting>>,
    threads: Vec<JoinHandle<()>>,
    wakers: Vec<Waker>,
}

impl ShardThreads {
    pub(crate) fn start(
        &mut self,
        config: &Config,
        plan: &Plan,
        id: ShardId,
        region: Region,
        (channels, deliver, spill, peers): (ChannelEnds, Sender<Finished>, Option<SpillSetup>, Option<PeerSetup>),
    ) -> Result<()> {
        let status = Arc::new(ShardStatus::default());
        let shard = shard_config(config, plan, id)?;
        let ends = ShardEnds {
            channels,
            deliver,
            consumer: Arc::clone(&plan.consumer),
            status: Arc::clone(&status),
            spill,
            peers,
        };
        let (tell, greeting) = mpsc::channel();
        let connections = connections_max(config.network.connections_max, plan.layout.shards) + shard.peers.connections;
        let register = config.register.then(|| plan.arena.clone());
        let ring = UringConfig { register, ..ring_config(connections, plan.spill.is_some()) };
        let (objects, run) = (Arc::clone(&plan.objects), plan.run.clone());
        let core = plan.seating.as_ref().and_then(|seating| seating.core(id.0));
        let backend = plan.backend;
        let work = canary::inherited(move || {
            let bootstrap = ThreadBootstrap { region, objects, run, shard, ends, core, tell };
            match backend {
                Backend::Uring => bootstrap.serve(|| UringRing::new(&ring)),
                Backend::Poll => bootstrap.serve(|| PollRing::new(&ring)),
                #[cfg(feature = "tokio-uring")]
                Backend::TokioUring => bootstrap.serve(|| TokioUringRing::new(&ring)),
                #[cfg(feature = "glommio")]
                Backend::Glommio => bootstrap.serve(|| GlommioRing::new(&ring)),
            }
        });
        let thread = spawn(&format!("fuelrail-{}", id.0), work)?;
        self.statuses.push(status);
        self.greetings.push(greeting);
        self.threads.push(thread);
        Ok(())
    }

    /// Waits until all shards have started.
    pub(crate) fn wait(&mut self, notices: &mut Vec<String>) -> Result<Vec<Watched>> {
        while !self.greetings.is_empty() {
            let greeting = self.greetings.remove(0).recv().unwrap_or_else(|_| {
                Err(Error::new(Kind::Environment, "a shard's thread ended before its ring was open"))
            });
            let (waker, said) = greeting?;
            self.wakers.push(waker);
            for line in said {
                if !notices.contains(&line) {
                    notices.push(line);
                }
            }
        }
        let shards = self.statuses.iter().cloned().zip(self.wakers.iter().cloned());
        Ok(shards.map(|(status, waker)| Watched { status, waker }).collect())
    }
}

impl Drop for ShardThreads {
    fn drop(&mut self) {
        self.statuses.iter().for_each(|status| status.stop());
        for greeting in self.greetings.drain(..) {
            if let Ok(Ok((waker, _))) = greeting.recv() {
                self.wakers.push(waker);
            }
        }
        self.wakers.iter().for_each(Waker::wake);
        for thread in self.threads.drain(..) {
            // A panic of it has been printed; the run's failure, or the error that ended the start, has the cause.
            let _ = thread.join();
        }
    }
}

/// What a shard's thread reports once its ring is open.
type Greeting = Result<(Waker, Vec<String>)>;

/// Everything a shard's thread starts with.
struct ThreadBootstrap {
    region: Region,
    objects: Arc<Objects>,
    run: Run,
    shard: ShardConfig,
    ends: ShardEnds,
    /// The core to bind to.
    core: Option<usize>,
    tell: mpsc::Sender<Greeting>,
}

impl ThreadBootstrap {
    /// Runs the shard on this ring, to its end: below this everything is compiled for one ring. Errors before it runs go into the
    /// greeting; what ends it without its being told to is the run's failure.
    fn serve<R: Ring>(self, open: impl FnOnce() -> Result<R>) {
        let ThreadBootstrap { region, objects, run, shard, ends, core, tell } = self;
        let (id, consumer) = (shard.planner.shard.0, Arc::clone(&ends.consumer));
        let pinned = core.map_or(Ok(()), pin_current_thread);
        let built = open().and_then(|ring| {
            let mut notices = ring.facts().refusals;
            notices.extend(pinned.err().map(|e| format!("pinning: {e}")));
            let waker = ring.waker();
            Shard::new(ring, region, objects, &run, &shard, ends)
                .map(|shard| (shard.metered(ThreadMeter::plain()), waker, notices))
        });
        match built {
            Ok((mut shard, waker, notices)) => {
                // The builder may have given up on another shard; then the status says to stop.
                let _ = tell.send(Ok((waker, notices)));
                // One that panicked is only dropped: what it would save may be half done.
                if consumer.failure.guard(format_args!("shard {id}"), || shard.run()).is_some() {
                    shard.end();
                }
            }
            Err(error) => drop(tell.send(Err(error))),
        }
    }
}

/// A connection has at most one send and one receive in flight, a disk its reads and writes; those beyond what a ring has wait for others.
fn ring_config(connections_max: usize, disk: bool) -> UringConfig {
    let operations = connections_max * 2 + 16 + if disk { DISK_OPERATIONS_MAX } else { 0 };
    UringConfig {
        entries: (operations as u32).next_power_of_two().clamp(64, UringConfig::ENTRIES_MAX),
        sockets: (connections_max as u32 * 2).next_power_of_two().min(UringConfig::SOCKETS_MAX),
        register: None,
    }
}

/// Reads, writes and journal pages of one shard that are under way at once.
const DISK_OPERATIONS_MAX: usize = 176;
/// Share of a shard's room for batches that blocks waiting for the disk may hold.
const PENDING_SHARE: u64 = 4;

/// What each shard's disk is configured as; `unit` is what direct transfers to it are multiples of.
pub(crate) fn spill_config(config: &Config, catalog: &Catalog, layout: &Layout, unit: u64) -> Result<SpillConfig> {
    let shards = u64::from(layout.shards);
    let all: u64 = (0..catalog.samples()).map(|sample| u64::from(catalog.blocks(SampleId(sample)))).sum();
    let blocks = match config.disk.limit {
        None => all,
        // Half as many again as fit on average: the shortest may be the ones that are kept.
        Some(ByteSize(limit)) => all.min(limit / (catalog.total_bytes() / all.max(1)).max(1) * 3 / 2 + 1024),
    };
    // Blocks are dealt to shards by hash: an eighth more than the mean is far beyond what chance gives one of them.
    let share = if shards == 1 { blocks } else { blocks / shards * 9 / 8 + 1024 };
    Ok(SpillConfig {
        policy: config.disk.policy,
        unit,
        blocks_max: usize::try_from(share.min(all)).unwrap_or(usize::MAX),
        pending_bytes_max: layout.batch_bytes / PENDING_SHARE,
    })
}

/// Longest wait of a block that was refused for the rate's sake: some rounds of the pace.
const THROTTLED_CAP_US: u64 = 500_000;

/// A limit as the plan has it, where 0 is none.
fn micros(limit: Option<Duration>) -> u64 {
    limit.map_or(0, |limit| u64::try_from(limit.as_micros()).unwrap_or(u64::MAX).max(1))
}

/// The seed of a shard's retry jitter: shards, ranks and jobs that are refused together do not come back together. `drawn` alone is not
/// enough, because processes forked from one may draw the same.
fn jitter_seed(drawn: u64, rank: u32, shard: ShardId) -> u64 {
    mix64(mix64(drawn ^ u64::from(rank)) ^ u64::from(shard.0))
}

fn shard_config(config: &Config, plan: &Plan, shard: ShardId) -> Result<ShardConfig> {
    let shards = u64::from(plan.layout.shards);
    let catalog = plan.objects.catalog();
    let most = connections_max(config.network.connections_max, plan.layout.shards);
    let window = WindowConfig {
        connections_max: first_requests(most, config.network.hedge_percent),
        connections_blind_max: WindowConfig::blind_for(
            (catalog.total_bytes() / catalog.samples()).min(config.memory.block_size.0),
        ),
        ..WindowConfig::default()
    };
    // An unlimited disk may keep everything.
    let disk = match (plan.spill.is_some(), config.disk.limit) {
        (true, None) => catalog.total_bytes(),
        (true, Some(ByteSize(limit))) => limit,
        (false, _) => 0,
    };
    let kept_bytes = plan.layout.cache_bytes * shards + disk;
    let connections_start = window.connections_start.min(window.connections_max);
    Ok(ShardConfig {
        planner: PlannerConfig {
            shard,
            shards: plan.layout.shards,
            prefetch: Strategy::named(config.memory.prefetch, (config.memory.prefetch_samples / shards).max(2))?,
            policy: config.memory.cache_policy,
            cache_bytes: plan.layout.cache_bytes,
            cached_block_bytes_min: plan.layout.cached_block_bytes_min,
            spill: plan.spill,
            batch_room_bytes: plan.layout.batch_bytes,
            homes: plan.peers.as_ref().map(|(homes, _)| homes.clone()),
            // Where ranks keep blocks for each other, each sees the uses of all.
            horizon_epochs: horizon_epochs(
                if plan.peers.is_some() { 1 } else { config.world },
                kept_bytes as f64 / catalog.total_bytes() as f64,
            ),
            retry: RetryConfig {
                attempts_max: config.network.attempts_max,
                throttled_cap_us: THROTTLED_CAP_US,
                request_limit_us: micros(config.network.request_limit),
                outage_limit_us: micros(config.network.outage_limit),
                ..RetryConfig::default()
            },
            pace: plan.pace.clone(),
            window: WindowConfig { connections_start, ..window },
            hedge: config.hedge(),
            seed: jitter_seed(random_number(), config.rank, shard),
        },
        bad_samples: config.bad_samples,
        stall_after: config.network.stall_after,
        connections_max: config.network.connections_max,
        scratch_bytes: plan.layout.scratch_bytes,
        spares: plan.layout.spares,
        chunks: plan.layout.chunks,
        peers: plan.peers.as_ref().map(|(_, room)| *room).unwrap_or_default(),
    })
}

/// What is said where a limit of the system or the memory holds less than is wanted.
pub(crate) fn shortages(config: &Config, objects: &Objects, layout: &Layout) -> Vec<String> {
    let wanted = config.network.connections_max;
    let found = connections_max(wanted, layout.shards);
    let few = (found < wanted && objects.endpoint().scheme != Scheme::File).then(|| {
        format!(
            "connections_max: {found} per shard instead of {wanted}, half of the {} files that this process may open: raise that (ulimit -n)",
            open_files_max().unwrap_or_default()
        )
    });
    few.into_iter().chain(short_of_chunks(config, objects, layout)).collect()
}

/// The ledger of this loader's shards, shared with other loaders where the configuration says so.
pub(crate) fn ledger(config: &Config, endpoint: &Endpoint, notices: &mut Vec<String>) -> Ledger {
    let Some(dir) = config.network.share_dir.as_ref().filter(|_| endpoint.scheme != Scheme::File) else {
        return Ledger::default();
    };
    shared(dir, endpoint, notices).unwrap_or_else(|error| {
        notices.push(format!("share_dir: {error}; this loader finds the server's rate limit by itself"));
        Ledger::default()
    })
}

/// A file that cannot be used costs one line, and the loader keeps to a rate of its own.
fn shared(dir: &Path, endpoint: &Endpoint, notices: &mut Vec<String>) -> Result<Ledger> {
    let name = format!("fuelrail-pace-{:016x}", xxh3_64(endpoint.authority().as_bytes()));
    let words = SharedWords::open(
        &own_directory("share_dir", dir, notices)?,
        &name,
        Division { words: LEDGER_WORDS, from: SLOTS_FROM, slot: SLOT_WORDS },
    )?;
    let slot = words.slot();
    Ok(Ledger::new(Arc::new(words), slot))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn every_shard_of_every_rank_has_jitter_of_its_own() {
        let seeds = (0..1_000).flat_map(|rank| (0..8).map(move |id| jitter_seed(7, rank, ShardId(id))));
        assert_eq!(seeds.collect::<HashSet<_>>().len(), 8_000);
    }

    #[test]
    fn a_ring_is_made_for_any_number_of_ranks() {
        for connections in [1, 256, 1_000, 7_900, 256 + 32_766, 256 + 2 * 32_766] {
            let ring = ring_config(connections, true);
            ring.validate().unwrap();
            let least = connections.min(UringConfig::SOCKETS_MAX as usize);
            assert!(ring.sockets as usize >= least && ring.entries >= 64, "{connections} connections: {ring:?}");
        }
    }
}
