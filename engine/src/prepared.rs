//! A loader before its shards: the bucket is listed and the order is known. From here it is started.

use crate::audit::Audit;
use crate::batch::Labels;
use crate::config::Config;
use crate::decode::{Decode, DecodeStage, Supply};
use crate::importance::Reporter;
use crate::layout::{Layout, seat};
use crate::listing::Saved;
use crate::loader::{Loader, Parts};
use crate::memory::{MemoryStats, batch_room_max, map_memory, share_out};
use crate::metrics::Metrics;
use crate::peers::{PeerServer, Peers};
use crate::records::Records;
use crate::sharing::RelayThread;
use crate::spill::{Directory, SegmentManager, disk_unit, start_segment_manager};
use crate::starting::{Plan, Starting, ledger, shortages, spill_config};
use crate::state::state_at;
use crate::unpack::{Packed, Unpacker};
use crate::watch::{Counts, Report, Watched, snapshots};
use fuelrail_base::limits::{DECODE_THREADS_MAX, OPEN_BATCHES_MAX};
use fuelrail_base::{ByteSize, Result, ShardId};
use fuelrail_flow::{
    ChannelEnds, Consumer, Finished, Objects, Outlet, PeerRoom, SpillSetup, channels, keep_for_others,
};
use fuelrail_io::{Arena, Backend, Receiver, Region, Topology, channel};
use fuelrail_plan::catalog::Catalog;
use fuelrail_plan::importance::Horizons;
use fuelrail_plan::run::Run;
use std::sync::Arc;

/// What a loader is started from.
pub(crate) struct Prepared {
    pub config: Config,
    /// The interface to the kernel, and what is to be said about it.
    pub ring: (Backend, Option<String>),
    pub objects: Arc<Objects>,
    pub directories: Vec<Directory>,
    /// Where records have to be unpacked.
    pub packed: Option<Arc<Packed>>,
    pub run: Run,
    /// How epochs are drawn, where they are.
    pub horizons: Option<Horizons>,
    pub labels: Arc<Labels>,
    pub records: Option<Arc<Records>>,
    pub fingerprint: String,
    pub saved: Saved,
    pub notices: Vec<String>,
    pub report: Arc<Report>,
    /// Its memory is lent to other processes.
    pub lent: bool,
}

/// What raw batches come from, and what that stands on.
pub(crate) struct Delivery {
    pub outlet: Outlet,
    pub consumer: Arc<Consumer>,
    pub arena: Arena,
    /// Memory for decoded batches, and what they are decoded to, where that is done here.
    pub decoding: Option<(Decode, Region)>,
    pub memory: MemoryStats,
    /// Batches of the greatest size that fit into it.
    pub room: u64,
    pub shards: Vec<Watched>,
    /// Ends the threads of the shards where the rest fails.
    pub starting: Starting,
    pub segment_manager: Option<SegmentManager>,
    pub peer_server: Option<PeerServer>,
    pub relay: Option<RelayThread>,
    pub unpacker: Option<Unpacker>,
}

impl Delivery {
    /// Batches from `outlet`, without shards or anything else beside it.
    pub(crate) fn of(outlet: Outlet, consumer: Arc<Consumer>, arena: Arena, memory: MemoryStats) -> Delivery {
        Delivery {
            outlet,
            consumer,
            arena,
            memory,
            decoding: None,
            room: 0,
            shards: Vec::new(),
            starting: Starting::default(),
            segment_manager: None,
            peer_server: None,
            relay: None,
            unpacker: None,
        }
    }
}

/// Batches of the greatest size that fit into the memory of a layout.
fn room_of(layout: &Layout, config: &Config, catalog: &Catalog) -> u64 {
    let fit = || u64::from(layout.shards) * (layout.batch_bytes / batch_room_max(config, catalog).max(1));
    if layout.decoded_batches > 0 { layout.decoded_batches } else { fit() }
}

impl Prepared {
    /// Starts the shards, or what unpacks in their place.
    pub(crate) fn start(mut self) -> Result<Loader> {
        self.settle();
        if let Some(packed) = self.packed.take() {
            return self.start_unpacking(&packed);
        }
        let Prepared { config, objects, run, notices, directories, fingerprint, lent, ring, report, .. } = &mut self;
        let directories = core::mem::take(directories);
        let topology = config.topology();
        let peers = Peers::of(config, (objects, run, fingerprint), notices)?;
        let room = peers.as_ref().map(|peers| peers.room).unwrap_or_default();
        let layout = share_out(config, objects, &topology, (!directories.is_empty(), room))?;
        config.shards = Some(layout.shards);
        let seating = seat(config, &topology, notices);
        notices.extend(shortages(config, objects, &layout));
        let (arena, regions, extra) = map_memory(&layout, seating.as_ref(), *lent, notices)?;
        let decoding = settle_decoding(config, &layout, &topology, notices).zip(extra);
        let channels = channels(layout.shards, keepers(config, &layout, &directories));
        let memory = MemoryStats::new(config, objects, &layout, &arena, &channels);
        let consumer = Arc::new(Consumer::default());
        let unit = disk_unit(&directories);
        let spill = unit.map(|unit| spill_config(config, objects.catalog(), &layout, unit)).transpose()?;
        let plan = Plan {
            backend: ring.0,
            objects: Arc::clone(objects),
            run: run.clone(),
            layout,
            arena: arena.clone(),
            seating,
            spill,
            consumer: Arc::clone(&consumer),
            pace: ledger(config, objects.endpoint(), notices),
            peers: peers.as_ref().map(|peers| (peers.homes.clone(), room)),
        };
        let said = (&mut *notices, Arc::clone(report));
        let (segment_manager, disks) = start_segment_manager(config, &layout, directories, objects, said)?;
        let memories = regions.into_iter().zip(channels).zip(disks);
        let (starting, lanes, shards, peer_server) = start_each(config, &plan, memories, peers, notices)?;
        let wakers = shards.iter().map(|s| s.waker.clone()).collect();
        let outlet = Outlet::new(lanes, wakers, Arc::clone(&consumer), run.batches());
        let room = room_of(&layout, config, objects.catalog());
        let delivery = Delivery::of(outlet, consumer, arena, memory);
        self.deliver(Delivery { decoding, room, shards, starting, segment_manager, peer_server, ..delivery })
    }

    fn start_unpacking(mut self, packed: &Arc<Packed>) -> Result<Loader> {
        let Prepared { config, objects, run, notices, lent, .. } = &mut self;
        let topology = config.topology();
        let shares = packed.shares(config, run, &topology)?;
        let layout = share_out(&shares.own, objects, &topology, (false, PeerRoom::default()))?;
        config.shards = Some(layout.shards);
        let (arena, mut regions, extra) = map_memory(&layout, None, *lent, notices)?;
        let decoding = settle_decoding(config, &layout, &topology, notices).zip(extra);
        let mut memory = MemoryStats::new(&shares.own, objects, &layout, &arena, &[]);
        memory.rest_bytes += shares.unpacked_bytes;
        let consumer = Arc::new(Consumer::default());
        let region = regions.pop().expect("its own settings have one shard");
        let (unpacker, lane) = packed.start(config, &shares, (objects, run), region, &consumer)?;
        let wakers = vec![unpacker.waker().clone()];
        let outlet = Outlet::new(vec![lane], wakers, Arc::clone(&consumer), run.batches());
        let room = room_of(&layout, config, objects.catalog());
        let delivery = Delivery::of(outlet, consumer, arena, memory);
        self.deliver(Delivery { decoding, room, unpacker: Some(unpacker), ..delivery })
    }

    /// Makes the choices that need neither the memory nor the machine's cores, and says so.
    pub(crate) fn settle(&mut self) {
        self.config.ring = self.ring.0.into();
        let chosen = choose_budget(&mut self.config);
        self.notices.extend(self.ring.1.take().into_iter().chain(chosen));
    }

    /// A loader whose batches come from there.
    pub(crate) fn deliver(self, from: Delivery) -> Result<Loader> {
        let Prepared { config, objects, run, horizons, labels, records, fingerprint, saved, notices, report, .. } =
            self;
        let Delivery { outlet, consumer, arena, decoding, mut memory, room, shards, starting, .. } = from;
        let Delivery { segment_manager, peer_server, relay, unpacker, .. } = from;
        memory.tables_bytes += records.as_ref().map_or(0, |records| records.memory_bytes());
        let audit = audit(&config, &run, &fingerprint, objects.catalog().samples())?;
        let reporter = horizons.map(|horizons| Reporter::new(horizons, &run, &fingerprint, &consumer, &shards));
        let supply = match decoding {
            None => Supply::Raw(outlet),
            Some(decoding) => {
                let source = (Arc::clone(&objects), records.clone());
                Supply::Decoded(DecodeStage::start(&config, decoding, source, outlet, run.batches())?)
            }
        };
        let counts: Counts = match (&unpacker, &relay) {
            (Some(unpacker), _) => unpacker.counts(),
            (_, Some(relay)) => relay.counts(),
            _ => {
                let shards = shards.clone();
                Box::new(move |patience| snapshots(&shards, patience))
            }
        };
        let metrics = Metrics::start(&config, counts, supply.stage().map(|stage| stage.facts()), memory)?;
        let lent = self.lent;
        let parts = Parts {
            config,
            objects,
            run,
            labels,
            records,
            fingerprint,
            saved,
            supply,
            arena,
            memory,
            room,
            lent,
            shards,
            threads: starting.hand_over(),
            consumer,
            notices,
            audit,
            segment_manager,
            reporter,
            metrics,
            peer_server,
            relay,
            unpacker,
        };
        Loader::new(parts, Box::new(move |text| report(text)))
    }
}

/// Shards that have started: themselves, the lanes that their batches come by, how they are watched, and the server that serves other
/// ranks from them.
type Started = (Starting, Vec<Receiver<Finished>>, Vec<Watched>, Option<PeerServer>);

fn start_each(
    config: &Config,
    plan: &Plan,
    memories: impl Iterator<Item = ((Region, ChannelEnds), Option<SpillSetup>)>,
    peers: Option<Peers>,
    notices: &mut Vec<String>,
) -> Result<Started> {
    let peers = peers.map(|peers| peers.share_out(plan.layout.shards, &plan.objects, &plan.run));
    let (setups, start_server) = peers.unzip();
    let mut setups = setups.into_iter().flatten();
    let (mut starting, mut lanes) = (Starting::default(), Vec::new());
    for (id, ((region, channels), disk)) in (0u16..).zip(memories) {
        let (deliver, from) = channel(OPEN_BATCHES_MAX);
        lanes.push(from);
        starting.start(config, plan, ShardId(id), region, (channels, deliver, disk, setups.next()))?;
    }
    let shards = starting.wait(notices)?;
    let server = start_server.map(|start| start()).transpose()?;
    Ok((starting, lanes, shards, server))
}

/// Whether shards keep blocks for each other.
fn keepers(config: &Config, layout: &Layout, directories: &[Directory]) -> bool {
    keep_for_others(config.memory.cache_limit.0, layout.chunks > 0, !directories.is_empty(), config.bad_samples)
}

/// The log of what is delivered, where one is wanted.
fn audit(config: &Config, run: &Run, fingerprint: &str, samples: u64) -> Result<Option<Audit>> {
    let Some(path) = &config.audit else { return Ok(None) };
    let start = state_at(run, fingerprint, config.order.importance, run.config().start);
    Audit::create(path, (config.rank, config.world), start, run.mixture().map(|_| samples)).map(Some)
}

/// Takes the default where no budget was given, and says so.
fn choose_budget(config: &mut Config) -> Option<String> {
    let (limit, from) = config.memory_limit();
    config.memory.limit = Some(limit);
    from.map(|from| format!("memory_limit: {limit} ({from})"))
}

/// What is decoded, with the choices that were left open made, and written into the configuration.
pub(crate) fn settle_decoding(
    config: &mut Config,
    layout: &Layout,
    topology: &Topology,
    notices: &mut Vec<String>,
) -> Option<Decode> {
    let decode = config.decoded()?;
    let left = || topology.shards().saturating_sub(usize::from(layout.shards)).clamp(1, DECODE_THREADS_MAX);
    config.decode.threads.get_or_insert_with(left);
    let asked = config.decode.depth as u64;
    if layout.decoded_batches < asked {
        config.decode.depth = layout.decoded_batches as usize;
        notices.push(format!(
            "decode_depth: {} of {asked} decoded batches of {} fit beside the shards; raise memory_limit for more",
            layout.decoded_batches,
            ByteSize(layout.extra_bytes / layout.decoded_batches)
        ));
    }
    Some(decode)
}
