//! Building a loader: read the configuration, list the bucket, share the memory out, start the shards.

use crate::audit::Audit;
use crate::config::Config;
use crate::control::{list_endpoint, read_manifest, resolve};
use crate::labels::Labels;
use crate::layout::{Layout, Seating, Wanted};
use crate::loader::{Loader, Parts};
use crate::near::{take_seats, unavailable};
use crate::posting::{Greeting, Posting};
use crate::state::State;
use crate::watch::Watched;
use fuelrail_base::limits::OPEN_BATCHES_MAX;
use fuelrail_base::{ByteSize, Duration, Error, Kind, Result, ShardId};
use fuelrail_flow::{
    BadSamples, Board, Consumer, Finished, Listed, MeshEnds, Objects, Outlet, ShardConfig, ShardEnds, mesh,
    scratch_bytes,
};
use fuelrail_io::{
    Arena, ArenaConfig, Backend, CardQueue, Huge, HugePages, Region, RingChoice, Sender, Topology, UringConfig, Waker,
    ZERO_COPY_BYTES, default_budget, lane,
};
use fuelrail_plan::brain::BrainConfig;
use fuelrail_plan::prefetch::Strategy;
use fuelrail_plan::retry::RetryConfig;
use fuelrail_plan::run::{Cursor, Run, RunConfig};
use fuelrail_plan::window::WindowConfig;
use fuelrail_wire::Endpoint;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc;
use std::thread::JoinHandle;
use xxhash_rust::xxh3::Xxh3;

/// Epochs the next use of a block is looked for, per rank of the world: a sample comes back to one of `world` ranks
/// every `world` epochs on average.
const HORIZON_EPOCHS: u64 = 4;

/// Collects settings, then builds a [`Loader`]. Every setter overrides the field of [`Config`] of the same name.
#[derive(Clone, Debug, Default)]
pub struct LoaderBuilder {
    pub(crate) config: Config,
    listing: Option<Vec<Listed>>,
    state: Option<State>,
    report: Option<Reporter>,
}

type ReportFn = dyn Fn(&str) + Send + Sync;

#[derive(Clone)]
struct Reporter(Arc<ReportFn>);

impl std::fmt::Debug for Reporter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Reporter")
    }
}

macro_rules! setters {
    ($($(#[$doc:meta])* $name:ident: $kind:ty => $field:ident = $value:expr;)*) => {
        $($(#[$doc])*
        #[must_use]
        pub fn $name(mut self, $name: $kind) -> LoaderBuilder {
            self.config.$field = $value;
            self
        })*
    };
}

impl Loader {
    /// Settings for a loader over `http://HOST:PORT/BUCKET/PREFIX`.
    #[must_use]
    pub fn builder(uri: &str) -> LoaderBuilder {
        LoaderBuilder::new(Config { uri: uri.into(), ..Config::default() })
    }
}

impl LoaderBuilder {
    /// A builder with this configuration.
    #[must_use]
    pub fn new(config: Config) -> LoaderBuilder {
        LoaderBuilder { config, ..LoaderBuilder::default() }
    }

    setters! {
        /// A manifest instead of a listing.
        manifest: PathBuf => manifest = Some(manifest);
        /// Under https, the authorities to believe instead of the system's, in PEM.
        ca_file: PathBuf => ca_file = Some(ca_file);
        /// Under https, believe any certificate: for trials only, and every use says so.
        tls_insecure: bool => tls_insecure = tls_insecure;
        /// Samples per batch and rank.
        batch_size: u32 => batch_size = batch_size;
        /// Epochs of the whole run.
        epochs: u64 => epochs = epochs;
        /// Seed of the order.
        seed: u64 => seed = seed;
        /// Shuffled epochs, or key order.
        shuffle: bool => shuffle = shuffle;
        /// Drop the last step of an epoch when it is not full.
        drop_last: bool => drop_last = drop_last;
        /// Threads; 0 chooses.
        shards: u16 => shards = shards;
        /// All buffers together.
        memory_limit: ByteSize => memory_limit_bytes = memory_limit.0;
        /// RAM cache inside that.
        cache_limit: ByteSize => cache_limit_bytes = cache_limit.0;
        /// What the cache keeps.
        cache_policy: &str => cache_policy = cache_policy.into();
        /// How far to look ahead.
        prefetch: &str => prefetch = prefetch.into();
        /// Longest span fetched as one.
        block_size: ByteSize => block_bytes = block_size.0;
        /// Silence after which a busy connection is given up, ms.
        stall_after_ms: u64 => stall_after_ms = stall_after_ms;
        /// No progress for this long is reported, ms; 0 never.
        watchdog_after_ms: u64 => watchdog_after_ms = watchdog_after_ms;
        /// Most connections per shard.
        connections_max: usize => connections_max = connections_max;
        /// Most attempts per block without progress.
        attempts_max: u32 => attempts_max = attempts_max;
        /// Bind each shard to a core.
        pin: bool => pin = pin;
        /// Count processor cycles and instructions of every shard.
        cycles: bool => cycles = cycles;
        /// The interface to the kernel: `auto`, `uring`, `poll`, …
        ring: &str => ring = ring.into();
        /// Register the arena with the ring.
        register: bool => register = register;
        /// The queue of a network card, `IFNAME:QUEUE`, to receive from without a copy by the kernel. For one shard.
        zero_copy_receive: &str => zero_copy_receive = Some(zero_copy_receive.into());
        /// Where to log what was delivered.
        audit: PathBuf => audit = Some(audit);
    }

    /// This rank and how many there are.
    #[must_use]
    pub fn rank(mut self, rank: u32, world: u32) -> LoaderBuilder {
        (self.config.rank, self.config.world) = (rank, world);
        self
    }

    /// What happens when a sample cannot be had.
    #[must_use]
    pub fn bad_samples(mut self, policy: BadSamples) -> LoaderBuilder {
        self.config.bad_samples = match policy {
            BadSamples::Raise => "raise",
            BadSamples::Skip => "skip",
            BadSamples::Quarantine => "quarantine",
        }
        .into();
        self
    }

    /// A listing at hand instead of asking the bucket. Sorted by key here.
    #[must_use]
    pub fn listing(mut self, mut objects: Vec<Listed>) -> LoaderBuilder {
        objects.sort_unstable_by(|a, b| a.key.cmp(&b.key));
        self.listing = Some(objects);
        self
    }

    /// Goes on where a run stood. The world size may differ from the one that saved the state.
    #[must_use]
    pub fn resume(mut self, state: State) -> LoaderBuilder {
        self.state = Some(state);
        self
    }

    /// Who is told when nothing moves, instead of standard error.
    #[must_use]
    pub fn on_stall(mut self, report: impl Fn(&str) + Send + Sync + 'static) -> LoaderBuilder {
        self.report = Some(Reporter(Arc::new(report)));
        self
    }

    /// Lists the bucket and starts the shards.
    ///
    /// # Errors
    /// `Usage` for settings, `Budget` for a memory limit below one batch per shard (with the bytes needed),
    /// `Environment` when the ring asked for or a thread is refused, `Network`, `NotFound`, `Denied` … from the listing.
    pub fn build(self) -> Result<Loader> {
        let LoaderBuilder { config, listing, state, report } = self;
        config.validate()?;
        let ring = config.ring.parse::<RingChoice>()?.settle()?;
        let endpoint: Endpoint = config.uri.parse()?;
        let addresses = resolve(&endpoint)?;
        let tls = config.tls().client(&endpoint)?;
        let listing = match (listing, &config.manifest) {
            (Some(listing), _) => listing,
            (None, Some(path)) => read_manifest(path)?,
            (None, None) => list_endpoint(tls.as_ref(), &endpoint, |_| {})?,
        };
        let labels = Labels::new(&endpoint.prefix, listing.iter().map(|o| o.key.as_str()));
        let objects = Arc::new(Objects::new(endpoint, addresses, &listing, config.block_bytes)?.over(tls));
        let fingerprint = fingerprint(&listing);
        drop(listing);
        let samples = objects.catalog().samples();
        let start = match &state {
            None => Cursor::default(),
            Some(state) => {
                state.check(config.seed, config.shuffle, samples, &fingerprint)?;
                Cursor { epoch: state.epoch, position: state.position }
            }
        };
        let run = Run::new(RunConfig {
            samples,
            seed: config.seed,
            shuffle: config.shuffle,
            world: config.world,
            rank: config.rank,
            batch_size: config.batch_size,
            drop_last: config.drop_last,
            epochs: config.epochs,
            start,
        })?;
        start_shards(config, ring, objects, run, labels, fingerprint, report)
    }
}

/// Hash of keys and sizes, in order.
fn fingerprint(listing: &[Listed]) -> String {
    let mut hash = Xxh3::new();
    for object in listing {
        hash.update(&(object.key.len() as u64).to_le_bytes());
        hash.update(object.key.as_bytes());
        hash.update(&object.size.to_le_bytes());
    }
    format!("{:016x}", hash.digest())
}

fn start_shards(
    mut config: Config,
    (backend, notice): (Backend, Option<String>),
    objects: Arc<Objects>,
    run: Run,
    labels: Labels,
    fingerprint: String,
    report: Option<Reporter>,
) -> Result<Loader> {
    let mut notices: Vec<String> = notice.into_iter().collect();
    config.ring = backend.name().into();
    notices.extend(choose_budget(&mut config));
    let card_queue = card_queue(&config, backend, &mut notices)?;
    let topology = Topology::here();
    let layout = share_out(&config, &objects, &topology, card_queue.is_some())?;
    config.shards = layout.shards;
    let (arena, regions) = Arena::new(&ArenaConfig {
        bytes: layout.region_bytes * u64::from(layout.shards),
        regions: layout.shards,
        huge_pages: HugePages::Auto,
        ..ArenaConfig::default()
    })?;
    if let Huge::None(why) = &arena.report().huge {
        notices.push(format!("huge pages: none, {why}"));
    }
    let seating = seat(&config, &topology, &mut notices);
    if let Some(seating) = &seating {
        notices.extend(settle(&regions, seating));
    }
    let (mut starting, kept) = (Starting::default(), arena.clone());
    let consumer = Arc::new(Consumer::default());
    let mut lanes = Vec::new();
    let plan = Plan {
        backend,
        objects: Arc::clone(&objects),
        run,
        layout,
        arena,
        seating,
        card_queue,
        consumer: Arc::clone(&consumer),
    };
    for (id, (region, mesh)) in (0u16..).zip(regions.into_iter().zip(mesh(layout.shards))) {
        let (deliver, from) = lane(OPEN_BATCHES_MAX);
        lanes.push(from);
        starting.start(&config, &plan, ShardId(id), region, mesh, deliver)?;
    }
    let (shards, threads) = starting.wait(&mut notices)?;
    let audit = config.audit.as_ref().map(|path| {
        let start = crate::loader::state_at(&run, &fingerprint, run.config().start);
        Audit::create(path, config.rank, config.world, start)
    });
    let wakers = shards.iter().map(|s| s.waker.clone()).collect();
    let outlet = Outlet::new(lanes, wakers, consumer, run.batches());
    let report = report.map_or_else(to_standard_error, |Reporter(report)| Box::new(move |text: &str| report(text)));
    Loader::new(Parts {
        config,
        objects,
        run,
        labels,
        fingerprint,
        outlet,
        arena: kept,
        shards,
        threads,
        notices,
        audit: audit.transpose()?,
        report,
    })
}

fn to_standard_error() -> Box<ReportFn> {
    Box::new(|text| eprintln!("{text}"))
}

/// Takes the default where no budget was given, and says so.
fn choose_budget(config: &mut Config) -> Option<String> {
    if config.memory_limit_bytes > 0 {
        return None;
    }
    let budget = default_budget();
    config.memory_limit_bytes = budget.bytes;
    Some(format!("memory_limit: {} ({})", ByteSize(budget.bytes), budget.from))
}

/// What the shards get of the budget.
fn share_out(config: &Config, objects: &Objects, topology: &Topology, zero_copy: bool) -> Result<Layout> {
    let batch_samples = u64::from(config.batch_size);
    Wanted {
        memory_bytes: config.memory_limit_bytes,
        cache_bytes: config.cache_limit_bytes,
        batch_bytes_max: objects.catalog().batch_room_max(batch_samples).max(64),
        shards: config.shards,
        cores: u16::try_from(topology.shards()).unwrap_or(u16::MAX),
        connections_max: config.connections_max,
        scratch_bytes: scratch_bytes(objects.endpoint().scheme) as u64,
        beside_bytes: if zero_copy { ZERO_COPY_BYTES } else { 0 },
    }
    .share_out()
}

/// The card's queue to receive from without a copy, where the ring has that.
fn card_queue(config: &Config, backend: Backend, notices: &mut Vec<String>) -> Result<Option<CardQueue>> {
    let queue = config.card_queue()?;
    if let (Some(queue), true) = (&queue, backend != Backend::Uring) {
        notices.push(format!(
            "zero-copy receive on {queue}: the ring {backend} has none; where uring runs, it does. Ordinary receives go on"
        ));
        return Ok(None);
    }
    Ok(queue)
}

/// What all shards are built from.
struct Plan {
    backend: Backend,
    objects: Arc<Objects>,
    run: Run,
    layout: Layout,
    arena: Arena,
    seating: Option<Seating>,
    card_queue: Option<CardQueue>,
    consumer: Arc<Consumer>,
}

type ShardThread = JoinHandle<Result<()>>;

/// Shards on their way up. Dropping it stops those that stand.
#[derive(Default)]
struct Starting {
    boards: Vec<Arc<Board>>,
    greetings: Vec<mpsc::Receiver<Greeting>>,
    threads: Vec<ShardThread>,
    wakers: Vec<Waker>,
}

/// Seats for all shards, behind those of ranks and loaders before, where they are bound to their cores.
fn seat(config: &Config, topology: &Topology, notices: &mut Vec<String>) -> Option<Seating> {
    notices.extend(unavailable(config, topology));
    let shards = usize::from(config.shards);
    let taken = config.rank as usize * shards + take_seats(config.near, shards);
    config.pin.then(|| Seating::new(topology, config.near, taken))
}

/// Asks for every region's memory from the node its shard sits on, before a page of it is touched. Returns what was refused.
fn settle(regions: &[Region], seating: &Seating) -> Option<String> {
    let mut wanted = (0u16..).zip(regions).filter_map(|(shard, region)| Some((region, seating.node(shard)?)));
    wanted.find_map(|(region, node)| region.prefer_node(node).err()).map(|error| error.to_string())
}

impl Starting {
    fn start(
        &mut self,
        config: &Config,
        plan: &Plan,
        id: ShardId,
        region: Region,
        mesh: MeshEnds,
        deliver: Sender<Finished>,
    ) -> Result<()> {
        let board = Arc::new(Board::default());
        let ends = ShardEnds { mesh, deliver, consumer: Arc::clone(&plan.consumer), board: Arc::clone(&board) };
        let (tell, greeting) = mpsc::channel();
        let posting = Posting {
            ring: UringConfig {
                entries: ring_entries(config.connections_max),
                sockets: (config.connections_max as u32 * 2).next_power_of_two(),
                register: config.register.then(|| plan.arena.clone()),
                zero_copy_receive: plan.card_queue.clone(),
            },
            region,
            objects: Arc::clone(&plan.objects),
            run: plan.run,
            shard: shard_config(config, plan, id)?,
            ends,
            core: plan.seating.as_ref().and_then(|seating| seating.core(id.0)),
            cycles: config.cycles,
            tell,
        };
        let backend = plan.backend;
        let thread =
            std::thread::Builder::new().name(format!("fuelrail-{}", id.0)).spawn(move || posting.serve(backend));
        let thread =
            thread.map_err(|e| Error::new(Kind::Environment, format!("starting the thread of shard {}: {e}", id.0)))?;
        self.boards.push(board);
        self.greetings.push(greeting);
        self.threads.push(thread);
        Ok(())
    }

    /// Waits until all shards stand.
    fn wait(mut self, notices: &mut Vec<String>) -> Result<(Vec<Watched>, Vec<ShardThread>)> {
        while !self.greetings.is_empty() {
            let greeting =
                self.greetings.remove(0).recv().unwrap_or_else(|_| {
                    Err(Error::new(Kind::Environment, "a shard's thread ended before its ring stood"))
                });
            let (waker, said) = greeting?;
            self.wakers.push(waker);
            for line in said {
                if !notices.contains(&line) {
                    notices.push(line);
                }
            }
        }
        let boards = core::mem::take(&mut self.boards);
        let wakers = core::mem::take(&mut self.wakers);
        let shards = boards.into_iter().zip(wakers).map(|(board, waker)| Watched { board, waker }).collect();
        Ok((shards, core::mem::take(&mut self.threads)))
    }
}

impl Drop for Starting {
    fn drop(&mut self) {
        self.boards.iter().for_each(|board| board.stop());
        for greeting in self.greetings.drain(..) {
            if let Ok(Ok((waker, _))) = greeting.recv() {
                self.wakers.push(waker);
            }
        }
        self.wakers.iter().for_each(Waker::wake);
        for thread in self.threads.drain(..) {
            // The error that ended the start is the one to report.
            let _ = thread.join();
        }
    }
}

/// A connection has at most one send and one receive in flight.
fn ring_entries(connections_max: usize) -> u32 {
    ((connections_max * 2 + 16) as u32).next_power_of_two().max(64)
}

fn shard_config(config: &Config, plan: &Plan, shard: ShardId) -> Result<ShardConfig> {
    let shards = u64::from(plan.layout.shards);
    let catalog = plan.objects.catalog();
    let window = WindowConfig {
        connections_max: config.connections_max,
        connections_blind_max: WindowConfig::blind_for(
            (catalog.total_bytes() / catalog.samples()).min(config.block_bytes),
        ),
        ..WindowConfig::default()
    };
    let connections_start = window.connections_start.min(config.connections_max);
    Ok(ShardConfig {
        brain: BrainConfig {
            shard,
            shards: plan.layout.shards,
            prefetch: Strategy::from_name(&config.prefetch, (config.prefetch_samples / shards).max(2))?,
            policy: config.cache_policy.parse()?,
            cache_bytes: plan.layout.cache_bytes,
            batch_room_bytes: plan.layout.batch_bytes,
            horizon_epochs: HORIZON_EPOCHS * u64::from(config.world),
            retry: RetryConfig { attempts_max: config.attempts_max, ..RetryConfig::default() },
            window: WindowConfig { connections_start, ..window },
            seed: config.seed ^ u64::from(shard.0),
        },
        bad_samples: config.bad_samples()?,
        stall_after: Duration::from_millis(config.stall_after_ms),
        connections_max: config.connections_max,
    })
}
