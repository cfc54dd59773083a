//! A loader before its shards: the bucket is listed and the order is known. From here it is started.

use crate::config::Config;
use crate::decode::{Decode, DecodeStage, Supply};
use crate::importance::Reporter;
use crate::layout::{Layout, seat};
use crate::loader::{Delivery, Loader, Parts};
use crate::memory::{MemoryStats, batch_room_max, beyond_the_limit, map_memory, shard_bytes, share_out, wanted};
use crate::metrics::Metrics;
use crate::peers::{PeerServer, Peers};
use crate::spill::{Directory, disk_unit, start_segment_manager};
use crate::starting::{Plan, ShardThreads, ledger, shortages, spill_config};
use crate::unpack::Packed;
use crate::watch::{Report, Shards, Watched};
use fuelrail_base::limits::{DECODE_THREADS_MAX, OPEN_BATCHES_MAX};
use fuelrail_base::{ByteSize, Result, ShardId};
use fuelrail_flow::{ChannelEnds, Consumer, Finished, Outlet, PeerRoom, SpillSetup, channels, keep_for_others};
use fuelrail_io::{Backend, Receiver, Region, Topology, channel, default_budget};
use fuelrail_plan::catalog::Catalog;
use fuelrail_plan::importance::Horizons;
use std::sync::Arc;

/// What a loader is started from.
pub(crate) struct Prepared {
    pub parts: Parts,
    /// The interface to the kernel, and what is to be said about it.
    pub ring: (Backend, Option<String>),
    pub directories: Vec<Directory>,
    /// Where records have to be unpacked.
    pub packed: Option<Arc<Packed>>,
    /// How epochs are drawn, where they are.
    pub horizons: Option<Horizons>,
    pub report: Arc<Report>,
}

/// Batches of the greatest size that fit into the memory of a layout.
fn room_of(layout: &Layout, config: &Config, catalog: &Catalog) -> u64 {
    let fit = || u64::from(layout.shards) * (layout.batch_bytes / batch_room_max(config, catalog).max(1));
    if layout.decoded_batches > 0 { layout.decoded_batches } else { fit() }
}

impl Prepared {
    /// The same for another loader beside it. Epochs that are drawn have one.
    pub(crate) fn another(&self) -> Prepared {
        let Prepared { parts, ring, directories, packed, report, .. } = self;
        Prepared {
            parts: Parts { shards: Shards::default(), ..parts.clone() },
            ring: ring.clone(),
            directories: directories.clone(),
            packed: packed.clone(),
            horizons: None,
            report: Arc::clone(report),
        }
    }

    /// Starts the shards, or what unpacks in their place.
    pub(crate) fn start(mut self) -> Result<Loader> {
        self.settle();
        if let Some(packed) = self.packed.take() {
            return self.start_unpacking(&packed);
        }
        let report = self.parts.told.through(&self.report);
        let Parts { config, objects, run, notices, fingerprint, lent, shards, records, held, .. } = &mut self.parts;
        let directories = core::mem::take(&mut self.directories);
        let topology = config.topology();
        let disk = directories.iter().find(|directory| directory.refusal.is_none());
        let peers = Peers::of(config, (objects, run, fingerprint), disk, (&mut *notices, &report))?;
        let room = peers.as_ref().map(|peers| peers.room).unwrap_or_default();
        let layout = share_out(config, objects, &topology, records.as_deref(), (!directories.is_empty(), room, *held))?;
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
            backend: self.ring.0,
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
        let said = (&mut *notices, report);
        let (segment_manager, disks) = start_segment_manager(config, &layout, directories, objects, said)?;
        let memories = regions.into_iter().zip(channels).zip(disks);
        let (threads, lanes, watched, peer_server) = start_each(config, &plan, memories, peers, notices)?;
        let wakers = watched.iter().map(|s| s.waker.clone()).collect();
        shards.set(watched, segment_manager.as_ref().map(|manager| manager.facts()));
        let outlet = Outlet::new(lanes, wakers, Arc::clone(&consumer), run.batches());
        let room = room_of(&layout, config, objects.catalog());
        let from = Delivery::of(consumer, arena, memory);
        self.deliver(outlet, decoding, Delivery { room, threads, segment_manager, peer_server, ..from })
    }

    fn start_unpacking(mut self, packed: &Arc<Packed>) -> Result<Loader> {
        let Parts { config, objects, run, notices, lent, shards, records, held, .. } = &mut self.parts;
        let topology = config.topology();
        let beside = (false, PeerRoom::default(), *held);
        let batches = |own: &Config| wanted(own, objects, &topology, records.as_deref(), beside).bytes_min(1);
        let shares = packed.shares(config, objects.endpoint().scheme, run, &topology, batches)?;
        if let Some(shards) = config.shards.filter(|shards| *shards > shares.reading_shards) {
            let fit = shares.reading_shards;
            notices.push(format!("shards: {fit} of {shards} read, as memory_limit has room for: raise it"));
        }
        if let Some(node) = config.near {
            notices.push(format!(
                "near: shards that read parts to be unpacked are not bound to cores, so not to node {node}"
            ));
        }
        let layout = share_out(&shares.own, objects, &topology, records.as_deref(), beside)?;
        let (arena, mut regions, extra) = map_memory(&layout, None, *lent, notices)?;
        let decoding = settle_decoding(config, &layout, &topology, notices).zip(extra);
        let mut memory = MemoryStats::new(&shares.own, objects, &layout, &arena, &[]);
        memory.limit_bytes = config.memory.limit.map_or(0, |limit| limit.0);
        memory.rest_bytes += shares.unpacked_bytes + shares.reading_bytes;
        memory.rest_bytes += u64::from(shares.reading_shards) * shard_bytes(config);
        let consumer = Arc::new(Consumer::default());
        let region = regions.pop().expect("its own settings have one shard");
        let (unpacker, lane) = packed.start(config, &shares, (objects, run), region, (&consumer, shards))?;
        let wakers = vec![unpacker.waker().clone()];
        let outlet = Outlet::new(vec![lane], wakers, Arc::clone(&consumer), run.batches());
        let room = room_of(&layout, config, objects.catalog());
        let from = Delivery::of(consumer, arena, memory);
        self.deliver(outlet, decoding, Delivery { room, unpacker: Some(unpacker), ..from })
    }

    /// Makes the choices that need neither the memory nor the machine's cores, and says so.
    pub(crate) fn settle(&mut self) {
        self.parts.config.ring = self.ring.0.into();
        let chosen = choose_budget(&mut self.parts.config);
        self.parts.notices.extend(self.ring.1.take().into_iter().chain(chosen));
    }

    /// A loader of the batches from this outlet, which are decoded here where that is said, and into which memory.
    pub(crate) fn deliver(
        self,
        outlet: Outlet,
        decoding: Option<(Decode, Region)>,
        mut from: Delivery,
    ) -> Result<Loader> {
        let Prepared { mut parts, horizons, report, .. } = self;
        let ranks = u64::from(parts.config.local_world.unwrap_or(1).max(1));
        let Parts { config, objects, run, records, fingerprint, shards, .. } = &parts;
        from.memory.tables_bytes += records.as_ref().map_or(0, |records| records.memory_bytes());
        let beyond = beyond_the_limit(from.memory.total_bytes(), ranks, &default_budget());
        let reporter =
            horizons.map(|horizons| Reporter::new(horizons, run, fingerprint, &from.consumer, &shards.all()));
        let supply = match decoding {
            None => Supply::Raw(outlet),
            Some(decoding) => {
                let source = (Arc::clone(objects), records.clone());
                Supply::Decoded(DecodeStage::start(config, decoding, source, outlet, run.batches())?)
            }
        };
        let decode = supply.stage().map(|stage| stage.facts());
        let metrics = Metrics::start(config, shards.clone(), decode, from.memory)?;
        parts.notices.extend(beyond);
        Loader::new(parts, from, supply, (reporter, metrics), Box::new(move |text| report(text)))
    }
}

/// Shards that have started: themselves, the lanes that their batches come by, how they are watched, and the server that serves other
/// ranks from them.
type Started = (ShardThreads, Vec<Receiver<Finished>>, Vec<Watched>, Option<PeerServer>);

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
    let (mut threads, mut lanes) = (ShardThreads::default(), Vec::new());
    for (id, ((region, channels), disk)) in (0u16..).zip(memories) {
        let (deliver, from) = channel(OPEN_BATCHES_MAX);
        lanes.push(from);
        threads.start(config, plan, ShardId(id), region, (channels, deliver, disk, setups.next()))?;
    }
    let shards = threads.wait(notices)?;
    let server = start_server.map(|start| start()).transpose()?;
    Ok((threads, lanes, shards, server))
}

/// Whether shards keep blocks for each other.
fn keepers(config: &Config, layout: &Layout, directories: &[Directory]) -> bool {
    keep_for_others(config.memory.cache_limit.0, layout.chunks > 0, !directories.is_empty(), config.bad_samples)
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
