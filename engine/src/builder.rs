//! Building a loader: read the configuration, list the bucket, share the memory out, start the shards.

use crate::audit::Audit;
use crate::batch::Labels;
use crate::chunks::chunk_shape;
use crate::config::{Config, Decoding, Order, setters};
use crate::credentials::{CredentialProvider, SharedProvider};
use crate::decode::{Decode, DecodeFunction, DecodeStage, Dtype, Fit, PerChannel, PixelLayout, Supply};
use crate::environment::Environment;
use crate::importance::{Reporter, drawn};
use crate::layout::{Layout, seat};
use crate::listing::{KeptListing, Saved, given_or_listed};
use crate::loader::{Loader, Parts};
use crate::memory::{MemoryStats, map_memory, share_out};
use crate::metrics::Metrics;
use crate::mixture::{Mixture, mixed};
use crate::names::addresses_of;
use crate::packed::PackedShards;
use crate::peers::{PeerServer, Peers};
use crate::records::{Format, Records};
use crate::scanning::records;
use crate::spill::{Directory, disk_unit, open_directories, settle_for, start_segment_manager};
use crate::starting::{Plan, ShardThread, Starting, ledger, shortages, spill_config};
use crate::state::{State, fingerprint, state_at};
use crate::unpack::{Packed, Shares, Unpacker};
use crate::watch::Watched;
use fuelrail_base::limits::{DECODE_THREADS_MAX, OPEN_BATCHES_MAX};
use fuelrail_base::{ByteSize, Duration, Result, SampleId, ShardId};
use fuelrail_flow::{
    BadSamples, ByteRange, ChannelEnds, Consumer, Finished, Listed, Listing, Objects, Outlet, SpillSetup, channels,
    keep_for_others,
};
use fuelrail_io::{Backend, Receiver, Region, RingChoice, Topology, Waker, channel};
use fuelrail_plan::importance::{Horizons, Mode};
use fuelrail_plan::order::{self, MixtureEpoch, OrderName};
use fuelrail_plan::policy::PolicyName;
use fuelrail_plan::prefetch::Prefetch;
use fuelrail_plan::run::{Cursor, Run, RunConfig};
use fuelrail_plan::spill::SpillPolicy;
use fuelrail_wire::Addressing;
use std::path::PathBuf;
use std::sync::Arc;

/// Collects settings, then builds a [`Loader`]. There is a setter for each setting of [`Config`].
#[derive(Clone, Debug, Default)]
pub struct LoaderBuilder {
    config: Config,
    pub(crate) listing: Option<Listing>,
    ranges: Option<Vec<ByteRange>>,
    state: Option<State>,
    scores: Option<Vec<u8>>,
    report: Option<WatchReporter>,
}

type ReportFn = dyn Fn(&str) + Send + Sync;

#[derive(Clone)]
struct WatchReporter(Arc<ReportFn>);

impl Default for WatchReporter {
    fn default() -> WatchReporter {
        WatchReporter(Arc::new(|text| tracing::warn!("{text}")))
    }
}

impl std::fmt::Debug for WatchReporter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("WatchReporter")
    }
}

impl Loader {
    /// Settings for a loader over a URI, such as `s3://BUCKET/PREFIX` or `http://HOST:PORT/BUCKET/PREFIX`.
    #[must_use]
    pub fn builder(uri: impl Into<String>) -> LoaderBuilder {
        LoaderBuilder::default().uri(uri)
    }
}

impl LoaderBuilder {
    /// A builder with this configuration.
    #[must_use]
    pub fn new(config: Config) -> LoaderBuilder {
        LoaderBuilder { config, ..LoaderBuilder::default() }
    }

    setters!();

    /// Where the variables of the clouds' tools are read.
    #[must_use]
    pub fn environment(mut self, environment: Environment) -> LoaderBuilder {
        self.config.trust.environment = environment;
        self
    }

    /// What hands out credentials in the place of what the clouds' tools would use: a [`Credential`](crate::Credential), or a closure.
    #[must_use]
    pub fn credentials(mut self, credentials: impl CredentialProvider + 'static) -> LoaderBuilder {
        self.config.trust.credentials = Some(SharedProvider::new(credentials));
        self
    }

    /// Decodes PNG and JPEG objects: batches come dense, with a [`shape`](crate::Batch::shape).
    #[must_use]
    pub fn decode(mut self, decode: Decode) -> LoaderBuilder {
        let (Decode { fit, flip, dtype, layout, mean, std, .. }, shape) = (decode, Some(decode.shape()));
        self.config.decode = Decoding { shape, fit, flip, dtype, layout, mean, std, ..self.config.decode };
        self
    }

    /// Decodes by a function of the program's own, on the decoding threads: it gets the bytes of a sample, or of all samples of a batch, and
    /// the memory of what they become, each as long as `decode` says, all of which it fills. An error, of kind `Undecodable` say, and a panic
    /// follow `bad_samples`. What `decode` says beyond size, type and layout is for the function to follow.
    #[must_use]
    pub fn decode_with(mut self, decode: Decode, function: DecodeFunction) -> LoaderBuilder {
        self.config.decode.function = Some(function);
        self.decode(decode)
    }

    /// A listing at hand instead of asking the bucket. Sorted by key here.
    #[must_use]
    pub fn listing(mut self, mut objects: Vec<Listed>) -> LoaderBuilder {
        objects.sort_unstable_by(|a, b| a.key.cmp(&b.key));
        self.listing = Some(objects.iter().collect());
        self
    }

    /// Samples that are ranges of objects, in this order, in the place of one sample an object. Each names its object by its place
    /// in the listing, sorted by key.
    #[must_use]
    pub fn ranges(mut self, ranges: Vec<ByteRange>) -> LoaderBuilder {
        self.ranges = Some(ranges);
        self
    }

    /// Goes on where a run stood. The world size may differ from the one that saved the state.
    #[must_use]
    pub fn resume(mut self, state: State) -> LoaderBuilder {
        self.state = Some(state);
        self
    }

    /// The scores saved with that state, where epochs are drawn by importance.
    #[must_use]
    pub fn scores(mut self, scores: Vec<u8>) -> LoaderBuilder {
        self.scores = Some(scores);
        self
    }

    /// Called with the report when nothing moves, instead of a `tracing` warning.
    #[must_use]
    pub fn on_stall(mut self, report: impl Fn(&str) + Send + Sync + 'static) -> LoaderBuilder {
        self.report = Some(WatchReporter(Arc::new(report)));
        self
    }

    /// The settings so far.
    #[must_use]
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// This loader becomes part `part` of `parts` that share what is set: each is a rank of its own, and gets an equal part of
    /// memory, cache, shards and decoding threads; an audit log gets the part's number behind its name.
    ///
    /// # Panics
    /// When there is no such part.
    #[must_use]
    pub fn part(mut self, part: u16, parts: u16) -> LoaderBuilder {
        assert!(part < parts, "part {part} of {parts}");
        let config = &mut self.config;
        let (limit, topology) = (config.memory_limit().0.0, config.topology());
        let shards = config.shards.unwrap_or_else(|| u16::try_from(topology.shards()).unwrap_or(u16::MAX));
        if config.decode.shape.is_some() {
            let left = topology.shards().saturating_sub(usize::from(shards));
            let threads = config.decode.threads.unwrap_or(left);
            config.decode.threads = Some((threads / usize::from(parts)).max(1));
        }
        (config.rank, config.world) =
            (config.rank * u32::from(parts) + u32::from(part), config.world * u32::from(parts));
        config.memory.limit = Some(ByteSize(limit / u64::from(parts)));
        config.memory.cache_limit.0 /= u64::from(parts);
        config.shards = Some((shards / parts).max(1));
        if let Some(path) = config.audit.as_mut().filter(|_| parts > 1) {
            let mut name = path.clone().into_os_string();
            name.push(format!(".{part}"));
            *path = name.into();
        }
        self
    }

    /// Lists the bucket and starts the shards.
    ///
    /// # Errors
    /// `Usage` for settings, `Budget` for a memory limit below one batch per shard (with the bytes needed),
    /// `Environment` when the ring asked for or a thread is refused, `Network`, `NotFound`, `Denied` … from the listing.
    pub fn build(self) -> Result<Loader> {
        let LoaderBuilder { mut config, listing, ranges, state, scores, report } = self;
        config.validate()?;
        let ring = config.ring.settle()?;
        let (access, source) = config.source()?;
        let prefixes = source.prefixes.clone();
        let (given, dir) = ((listing, config.manifest.as_deref()), config.listing_dir());
        let (kept, route) = given_or_listed(given, dir, (&access, &config.uri), source)?;
        let KeptListing { listing, mut notices, saved, .. } = kept;
        let addresses = addresses_of(&route.endpoint, route.proxy.as_deref())?;
        notices.extend(route.proxy.as_ref().map(|proxy| format!("requests go through the proxy {proxy}")));
        settle_for(&route.endpoint, &mut config, &mut notices);
        let id = route.source_id(&prefixes);
        let mut read = |ranges, take: &mut dyn FnMut(_, &[u8]) -> _| read_ranges(&config, &listing, ranges, take);
        let packed = PackedShards::find(config.format, &listing, &config.fields, &mut read)?;
        let records = records(&config, (&listing, id), packed.as_ref(), &mut notices, &mut read)?.map(Arc::new);
        let mut ranges = records.as_ref().map(|records| records.ranges()).or(ranges);
        let fingerprint = fingerprint(&listing, ranges.as_deref());
        let packed = packed.zip(ranges.as_mut()).map(|(packed, ranges)| Packed::new(packed, listing.clone(), ranges));
        let objects = Objects::of(route.endpoint, addresses, listing, config.memory.block_size.0)?.through(route.proxy);
        let objects = objects.over(route.tls).signed_by(route.authority);
        // What reads packed shards has the disks.
        let dirs = if packed.is_some() { &[][..] } else { &config.disk.dirs };
        let directories = open_directories(dirs, &mut notices);
        let (objects, chunks) = match (&packed, ranges) {
            (Some(packed), Some(ranges)) => (objects.unpacked(&ranges)?, packed.settle(&mut config, &mut notices)?),
            (_, ranges) => cut(&config, objects, ranges, disk_unit(&directories))?,
        };
        let samples = (0..objects.catalog().samples()).map(SampleId);
        let labels = match &records {
            None => {
                Labels::new(&objects.endpoint().prefix, &config.classes, samples.map(|sample| objects.key(sample)))?
            }
            // Theirs are in a field, if anywhere.
            Some(_) => Labels::default(),
        };
        let objects = Arc::new(objects);
        let Order { mixture, mixture_epoch, mixture_window, seed, shuffle, .. } = &config.order;
        let mixed = |mixture| mixed(mixture, &objects, (*mixture_epoch, *mixture_window), (*seed, *shuffle));
        let mixture = mixture.as_ref().map(mixed).transpose()?;
        let run = |start| Ok(run_from(&config, &objects, mixture.as_ref(), start)?.chunked(chunks.unwrap_or_default()));
        let run = match &state {
            None => run(Cursor::default())?,
            Some(state) => {
                let start = Cursor::default();
                state.check(&state_at(&run(start)?, &fingerprint, config.order.importance, start))?;
                run(Cursor { epoch: state.epoch, position: state.position })?
            }
        };
        let drawn = drawn(&config, objects.catalog(), run, state.as_ref(), scores.as_deref())?;
        let known = (labels, records, fingerprint, saved);
        start_shards(config, ring, (objects, directories, packed.map(Arc::new)), drawn, known, (notices, report))
    }
}

/// The objects with these ranges of them as samples, where there are any, as the order and the disks want them; and the chunks in which they
/// are read.
fn cut(
    config: &Config,
    mut objects: Objects,
    ranges: Option<Vec<ByteRange>>,
    disk_unit: Option<u64>,
) -> Result<(Objects, Option<order::ChunkShape>)> {
    if let Some(ranges) = ranges {
        objects = objects.cut(&ranges)?;
    }
    let chunks = chunk_shape(config, &objects)?;
    if let Some(shape) = chunks {
        let order = run_from(config, &objects, None, Cursor::default())?.chunked(shape);
        objects = objects.chunked(order.order());
    }
    if let Some(unit) = disk_unit {
        objects = objects.direct(unit)?;
    }
    Ok((objects, chunks))
}

/// This rank's run from a place on.
fn run_from(config: &Config, objects: &Objects, mixture: Option<&Arc<order::Mixture>>, start: Cursor) -> Result<Run> {
    let run = Run::new(RunConfig {
        samples: mixture.map_or_else(|| objects.catalog().samples(), |mixture| mixture.places()),
        seed: config.order.seed,
        order: config.order.name,
        shuffle: config.order.shuffle,
        world: config.world,
        rank: config.rank,
        batch_size: config.batch_size,
        drop_last: config.order.drop_last,
        epochs: config.epochs,
        start,
    })?;
    match mixture {
        None => Ok(run),
        Some(mixture) => run.mixed(Arc::clone(mixture)),
    }
}

/// Reads ranges of the listed objects, in the order given, and hands over the bytes of each. What `take` refuses ends it.
///
/// # Errors
/// Those of a loader; what `take` returns.
pub(crate) fn read_ranges(
    config: &Config,
    listing: &Listing,
    ranges: Vec<ByteRange>,
    take: &mut dyn FnMut(ByteRange, &[u8]) -> Result<()>,
) -> Result<()> {
    if ranges.is_empty() {
        return Ok(());
    }
    let mut plain = config.clone();
    plain.disk.dirs.clear();
    for batch in ranges_builder(plain, listing, ranges.clone()).build()? {
        batch?.samples().try_for_each(|piece| take(ranges[piece.id.0 as usize], piece.bytes))?;
    }
    Ok(())
}

/// What reads ranges of the listed objects, one a batch, in the order given, and otherwise as a loader's settings say.
pub(crate) fn ranges_builder(config: Config, listing: &Listing, ranges: Vec<ByteRange>) -> LoaderBuilder {
    let mut plain = Config { format: None, batch_size: 1, epochs: 1, rank: 0, world: 1, audit: None, ..config };
    (plain.bad_samples, plain.memory.cache_limit) = (BadSamples::Raise, ByteSize(0));
    plain.decode.shape = None;
    (plain.fields, plain.classes, plain.peers.addresses) = (Vec::new(), Vec::new(), Vec::new());
    plain.metrics_listen = None;
    plain.order = Order { shuffle: false, ..Order::default() };
    let mut builder = LoaderBuilder::new(plain).ranges(ranges);
    builder.listing = Some(listing.clone());
    builder
}

fn start_shards(
    mut config: Config,
    (backend, notice): (Backend, Option<String>),
    (objects, directories, packed): (Arc<Objects>, Vec<Directory>, Option<Arc<Packed>>),
    (run, horizons): (Run, Option<Horizons>),
    (labels, records, fingerprint, saved): (Labels, Option<Arc<Records>>, String, Saved),
    (mut notices, report): (Vec<String>, Option<WatchReporter>),
) -> Result<Loader> {
    let report = report.unwrap_or_default().0;
    config.ring = backend.into();
    notices.extend(notice.into_iter().chain(choose_budget(&mut config)));
    let topology = config.topology();
    let peers = Peers::of(&config, (&objects, &run, &fingerprint), &mut notices)?;
    let room = peers.as_ref().map(|peers| peers.room).unwrap_or_default();
    let shares = packed.as_ref().map(|packed| packed.shares(&config, &run, &topology)).transpose()?;
    let own = shares.as_ref().map_or_else(|| config.clone(), |shares| shares.own.clone());
    let layout = share_out(&own, &objects, &topology, (!directories.is_empty(), room))?;
    config.shards = Some(layout.shards);
    let seating = seat(&config, &topology, &mut notices);
    notices.extend(shortages(&own, &objects, &layout));
    let (arena, regions, extra) = map_memory(&layout, seating.as_ref(), &mut notices)?;
    let decoding = settle_decoding(&mut config, &layout, &topology, &mut notices);
    let channels = channels(layout.shards, keepers(&config, &layout, &directories));
    let mut memory = MemoryStats::new(&own, &objects, &layout, &arena, &channels);
    memory.tables_bytes += records.as_ref().map_or(0, |records| records.memory_bytes());
    memory.rest_bytes += shares.as_ref().map_or(0, |shares| shares.unpacked_bytes);
    let consumer = Arc::new(Consumer::default());
    let spill =
        disk_unit(&directories).map(|unit| spill_config(&config, objects.catalog(), &layout, unit)).transpose()?;
    let plan = Plan {
        backend,
        objects: Arc::clone(&objects),
        run: run.clone(),
        layout,
        arena: arena.clone(),
        seating,
        spill,
        consumer: Arc::clone(&consumer),
        pace: ledger(&config, objects.endpoint(), &mut notices),
        peers: peers.as_ref().map(|peers| (peers.homes.clone(), room)),
    };
    let said = (&mut notices, Arc::clone(&report));
    let (segment_manager, disks) = start_segment_manager(&config, &layout, directories, &objects, said)?;
    let memories = regions.into_iter().zip(channels).zip(disks);
    let started = match packed.zip(shares) {
        Some((packed, shares)) => start_unpacking(&config, (&packed, &shares), &plan, memories)?,
        None => start_each(&config, &plan, memories, peers, &mut notices)?,
    };
    let Started { starting, lanes, wakers, shards, peer_server, unpacker, mut threads } = started;
    let audit = audit(&config, &run, &fingerprint, objects.catalog().samples())?;
    let reporter = horizons.map(|horizons| Reporter::new(horizons, &run, &fingerprint, &consumer, &shards));
    let outlet = Outlet::new(lanes, wakers, Arc::clone(&consumer), run.batches());
    let supply = supply(&config, outlet, (&objects, records.as_ref()), decoding.zip(extra), run.batches())?;
    threads.extend(starting.hand_over());
    let metrics = Metrics::start(&config, &shards, supply.stage().map(|stage| stage.facts()), memory)?;
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
        shards,
        threads,
        consumer,
        notices,
        audit,
        segment_manager,
        reporter,
        metrics,
        peer_server,
        unpacker,
    };
    Loader::new(parts, Box::new(move |text| report(text)))
}

/// The batches as they are delivered: decoded, where there is something to decode them to.
fn supply(
    config: &Config,
    outlet: Outlet,
    (objects, records): (&Arc<Objects>, Option<&Arc<Records>>),
    decoded: Option<(Decode, Region)>,
    batches: u64,
) -> Result<Supply> {
    let source = (Arc::clone(objects), records.cloned());
    Ok(match decoded {
        None => Supply::Raw(outlet),
        Some(to) => Supply::Decoded(DecodeStage::start(config, to, source, outlet, batches)?),
    })
}

/// What has started: shards, or what unpacks in their place.
#[derive(Default)]
struct Started {
    starting: Starting,
    /// What the batches come by, and who is woken when one has been taken.
    lanes: Vec<Receiver<Finished>>,
    wakers: Vec<Waker>,
    /// How shards are watched, and the server that serves other ranks from them.
    shards: Vec<Watched>,
    peer_server: Option<PeerServer>,
    unpacker: Option<Unpacker>,
    threads: Vec<ShardThread>,
}

fn start_unpacking(
    config: &Config,
    (packed, shares): (&Arc<Packed>, &Shares),
    plan: &Plan,
    mut memories: impl Iterator<Item = ((Region, ChannelEnds), Option<SpillSetup>)>,
) -> Result<Started> {
    let ((region, _), _) = memories.next().expect("its own settings have one shard");
    let (unpacker, lane, threads) = packed.start(config, shares, (&plan.objects, &plan.run), region, &plan.consumer)?;
    let wakers = vec![unpacker.waker().clone()];
    Ok(Started { lanes: vec![lane], wakers, unpacker: Some(unpacker), threads, ..Started::default() })
}

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
    let peer_server = start_server.map(|start| start()).transpose()?;
    let wakers = shards.iter().map(|s| s.waker.clone()).collect();
    Ok(Started { starting, lanes, wakers, shards, peer_server, ..Started::default() })
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
fn settle_decoding(
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_ranks_that_share_what_is_set() {
        let whole = LoaderBuilder::default().memory_limit(ByteSize(1 << 20)).cache_limit(ByteSize(1 << 10));
        let whole = whole.shards(5).audit("log").rank(1).world(3);
        let part = whole.clone().part(1, 2);
        let config = part.config();
        assert_eq!((config.rank, config.world, config.shards), (3, 6, Some(2)));
        assert_eq!(config.memory.limit, Some(ByteSize(1 << 19)));
        assert_eq!(config.memory.cache_limit, ByteSize(1 << 9));
        assert_eq!(config.audit.as_deref(), Some("log.1".as_ref()));
        assert_eq!(whole.clone().part(0, 1).config(), whole.config(), "one part is the whole");
        let chosen = LoaderBuilder::new(Config::default()).part(0, 2);
        assert!(
            chosen.config().memory.limit.is_some() && chosen.config().shards >= Some(1),
            "what is chosen is shared too"
        );
        assert_eq!(whole.part(0, 64).config().shards, Some(1));
    }
}
