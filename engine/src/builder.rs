//! Building a loader: read the configuration, list the bucket, share the memory out, start the shards.

use crate::batch::Labels;
use crate::chunks::chunk_shape;
use crate::config::{Config, Decoding, Order, setters};
use crate::credentials::{CredentialProvider, SharedProvider};
use crate::decode::{Decode, DecodeFunction, Dtype, Fit, PerChannel, PixelLayout};
use crate::environment::Environment;
use crate::importance::drawn;
use crate::listing::{KeptListing, given_or_listed};
use crate::loader::{Loader, Parts};
use crate::mixture::{Mixture, mixed};
use crate::names::addresses_of;
use crate::outage::outlast;
use crate::packed::PackedShards;
use crate::prepared::Prepared;
use crate::records::Format;
use crate::scanning::records;
use crate::sharing::{DECODED_AHEAD, Sharing, SharingOptions, join, listen};
use crate::spill::{disk_unit, open_directories, settle_for};
use crate::state::{State, fingerprint, state_at};
use crate::unpack::Packed;
use crate::watch::{Report, Shards};
use fuelrail_base::{ByteSize, Duration, Result, SampleId};
use fuelrail_flow::{BadSamples, ByteRange, Listed, Listing, Objects};
use fuelrail_io::RingChoice;
use fuelrail_plan::importance::Mode;
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
    pub(crate) listing: Option<KeptListing>,
    ranges: Option<Vec<ByteRange>>,
    state: Option<State>,
    scores: Option<Vec<u8>>,
    held: u64,
    is_inner: bool,
    report: Option<WatchReporter>,
}

#[derive(Clone)]
struct WatchReporter(Arc<Report>);

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
    pub fn listing(self, mut objects: Vec<Listed>) -> LoaderBuilder {
        objects.sort_unstable_by(|a, b| a.key.cmp(&b.key));
        self.kept_listing(KeptListing::plain(objects.iter().collect()))
    }

    /// A listing at hand, as [`list_as`] and [`list_kept`](crate::list_kept) give it.
    #[must_use]
    pub fn kept_listing(mut self, listing: KeptListing) -> LoaderBuilder {
        self.listing = Some(listing);
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

    /// Batches that the program still holds when it asks for the next one, which the least memory counts: in Python a `for` loop has one.
    #[doc(hidden)]
    #[must_use]
    pub fn batches_held(mut self, held: u64) -> LoaderBuilder {
        self.held = held;
        self
    }

    /// Whoever asks for batches tells of samples that are left out.
    #[doc(hidden)]
    #[must_use]
    pub fn inner(mut self) -> LoaderBuilder {
        self.is_inner = true;
        self
    }

    /// Called with the report when nothing moves, and with notices of disks and other ranks while the run goes on, instead of a `tracing` warning.
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

    /// Lists the bucket and starts the shards. A bucket that cannot be reached, or serves nothing, is waited for as long as `outage_limit` says.
    ///
    /// # Errors
    /// `Usage` for settings, `Budget` for a memory limit below one batch per shard (with the bytes needed),
    /// `Environment` when the ring asked for or a thread is refused, `Network`, `NotFound`, `Denied` … from the listing.
    pub fn build(self) -> Result<Loader> {
        let prepared = self.prepare()?;
        if prepared.parts.config.network.shared_read { join(prepared) } else { prepared.start() }
    }

    /// Lists the bucket, and hands the batches of a loader over it, or of several, to the jobs of this machine that connect in `share_dir`:
    /// those that set `shared_read`. Nothing is read before [`Sharing::serve`](crate::Sharing::serve).
    ///
    /// # Errors
    /// As [`build`](LoaderBuilder::build); `Usage` when another process serves this URI in that directory.
    pub fn share(self, options: SharingOptions) -> Result<Sharing> {
        self.share_after(options, None)
    }

    /// The same behind a read that has ended, `before`, of the same URI and directory: jobs that connect meanwhile wait.
    ///
    /// # Errors
    /// As [`share`](LoaderBuilder::share).
    pub fn share_after(mut self, options: SharingOptions, before: Option<Sharing>) -> Result<Sharing> {
        self.config.network.shared_read = false;
        self.config.decode.depth = self.config.decode.depth.max(DECODED_AHEAD);
        if options.passes_max > 1 {
            let (limit, _) = self.config.memory_limit();
            self.config.memory.limit.get_or_insert(ByteSize(limit.0 / options.passes_max as u64));
        }
        self.config.validate()?;
        // Before the listing, which takes time: jobs that come meanwhile wait.
        let mut notices = Vec::new();
        let waiting = match before {
            Some(before) => before.waiting(),
            None => (listen(&self.config, &mut notices)?, Vec::new()),
        };
        let mut prepared = self.prepare()?;
        prepared.parts.notices.append(&mut notices);
        prepared.parts.lent = true;
        Sharing::new(waiting, prepared, options)
    }

    fn prepare(self) -> Result<Prepared> {
        let LoaderBuilder { mut config, listing, ranges, state, scores, held, is_inner, report } = self;
        config.validate()?;
        let ring = config.ring.settle()?;
        let (access, source) = config.source()?;
        let prefixes = source.prefixes.clone();
        let (given, dir) = ((listing, config.manifest.as_deref()), config.listing_dir());
        let (kept, route) = given_or_listed(given, dir, (&access, &config.uri), source, config.network.outage_limit)?;
        let KeptListing { listing, mut notices, mut saved, .. } = kept;
        let find = || addresses_of(&route.endpoint, route.proxy.as_deref());
        let addresses = outlast(&route.endpoint, route.wait, find)?;
        notices.extend(route.proxy.as_ref().map(|proxy| format!("requests go through the proxy {proxy}")));
        settle_for(&route.endpoint, &mut config, &mut notices);
        let id = route.source_id(&prefixes);
        let mut read = |ranges, take: &mut dyn FnMut(_, &[u8]) -> _| read_ranges(&config, &listing, ranges, take);
        let mut found = || -> Result<_> {
            let packed = PackedShards::find(config.format, &listing, &config.fields, &mut read)?;
            let records = records(&config, (&listing, id), packed.as_ref(), &mut notices, &mut read)?;
            Ok((packed, records.map(Arc::new)))
        };
        let (packed, records) = found().map_err(|error| saved.judged(error))?;
        let mut ranges = records.as_ref().map(|records| records.ranges()).or(ranges);
        let fingerprint = fingerprint(&listing, ranges.as_deref());
        let packed = packed.zip(ranges.as_mut());
        let packed = packed.map(|(packed, ranges)| Packed::new(packed, listing.clone(), ranges, open_ranges));
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
        let mut run = run_from(&config, &objects, mixture.as_ref())?.chunked(chunks.unwrap_or_default());
        if let Some(state) = &state {
            state.check(&state_at(&run, &fingerprint, config.order.importance, Cursor::default()))?;
            run = run.starting_at(Cursor { epoch: state.epoch, position: state.position })?;
        }
        let (run, horizons) = drawn(&config, objects.catalog(), run, state.as_ref(), scores.as_deref())?;
        let report = report.map_or_else(|| Arc::new(|text: &str| tracing::warn!("{text}")) as Arc<Report>, |to| to.0);
        let (labels, packed, lent, shards) = (Arc::new(labels), packed.map(Arc::new), false, Shards::default());
        let parts = Parts {
            config,
            objects,
            run,
            labels,
            records,
            fingerprint,
            saved,
            notices,
            told: Default::default(),
            lent,
            held,
            is_inner,
            shards,
        };
        Ok(Prepared { parts, ring, directories, packed, horizons, report })
    }
}

/// Lists what a loader with these settings reads: the objects of its manifest, of a listing that is kept, or of the bucket.
///
/// # Errors
/// As [`list_kept`](crate::list_kept) and [`read_manifest`](crate::read_manifest); `Usage` where there is no object.
pub fn list_as(config: &Config) -> Result<KeptListing> {
    let (access, source) = config.source()?;
    let manifest = (None, config.manifest.as_deref());
    let wait = config.network.outage_limit;
    given_or_listed(manifest, config.listing_dir(), (&access, &config.uri), source, wait).map(|(kept, _)| kept)
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
        let order = run_from(config, &objects, None)?.chunked(shape);
        objects = objects.chunked(order.order());
    }
    if let Some(unit) = disk_unit {
        objects = objects.direct(unit)?;
    }
    Ok((objects, chunks))
}

/// This rank's run, from its begin.
fn run_from(config: &Config, objects: &Objects, mixture: Option<&Arc<order::Mixture>>) -> Result<Run> {
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
        start: Cursor::default(),
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
    let mut plain = Config { bad_samples: BadSamples::Raise, ..config.clone() };
    plain.disk.dirs.clear();
    for batch in open_ranges(plain, listing, ranges.clone())? {
        batch?.samples().try_for_each(|piece| take(ranges[piece.id.0 as usize], piece.bytes))?;
    }
    Ok(())
}

/// Reads ranges of the listed objects, one a batch, in the order given, and otherwise as a loader's settings say.
fn open_ranges(config: Config, listing: &Listing, ranges: Vec<ByteRange>) -> Result<Loader> {
    let config = config.without_format();
    let mut plain = Config { batch_size: 1, epochs: 1, rank: 0, world: 1, audit: None, ..config };
    // All ranks of a node would sit on the same cores.
    (plain.pin, plain.near) = (false, None);
    plain.peers.addresses = Vec::new();
    plain.memory.cache_limit = ByteSize(0);
    plain.decode.shape = None;
    plain.metrics_listen = None;
    plain.network.shared_read = false;
    plain.order = Order { shuffle: false, ..Order::default() };
    let mut builder = LoaderBuilder::new(plain).ranges(ranges);
    (builder.listing, builder.is_inner) = (Some(KeptListing::plain(listing.clone())), true);
    builder.build()
}
