//! The planner against a model of flow that does whatever flow may do, in any order: every ask gets exactly one answer,
//! commands name only what exists, and the capacities hold.

mod disk;
mod ends;

use disk::Disk;
use fuelrail_base::prng::Prng;
use fuelrail_base::{BatchSeq, BlockId, Duration, Instant, ShardId};
use fuelrail_plan::catalog::Catalog;
use fuelrail_plan::hedge::HedgeConfig;
use fuelrail_plan::homes::Homes;
use fuelrail_plan::order::OrderName;
use fuelrail_plan::pace::Ledger;
use fuelrail_plan::planner::{
    Asker, Command, Fact, FetchId, Keep, Origin, Planner, PlannerConfig, Source, Waiters, Want,
};
use fuelrail_plan::policy::PolicyName;
use fuelrail_plan::prefetch::Strategy;
use fuelrail_plan::retry::RetryConfig;
use fuelrail_plan::run::{Cursor, Run, RunConfig};
use fuelrail_plan::schedule::{Schedule, UseTime};
use fuelrail_plan::spill::Spill;
use fuelrail_plan::window::WindowConfig;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

/// Names an ask of the model: what the planner keeps for it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
struct AskId(u32);

struct Ask {
    block: BlockId,
    /// The batch that waits for it; none for what the model asks on its own.
    batch: Option<u64>,
    at: UseTime,
    full: bool,
    /// Filled from disk, or by another rank.
    restored: bool,
    /// Another rank asks.
    asker: Asker,
    /// The fetch that writes to its window.
    fetch: Option<FetchId>,
}

struct Model {
    prng: Prng,
    planner: Planner<AskId>,
    run: Run,
    catalog: Arc<Catalog>,
    schedule: Schedule,
    config: PlannerConfig,
    now: Instant,
    next_ask: u32,
    asks: BTreeMap<AskId, Ask>,
    in_flight: BTreeMap<FetchId, AskId>,
    /// Fetches that other ranks were asked for.
    at_peers: BTreeMap<FetchId, AskId>,
    /// Those of them that have a second request under way.
    hedged: BTreeSet<FetchId>,
    cached: BTreeMap<BlockId, u64>,
    disk: Disk,
    /// Blocks each opened batch lacks.
    unready: BTreeMap<u64, usize>,
    /// Room of opened batches that were not taken, oldest first.
    open: VecDeque<u64>,
    next_batch: u64,
    ready: BTreeSet<u64>,
    taken: u64,
    blocked: bool,
    /// Chance that an outcome is a failure.
    trouble: f64,
    counted: Counted,
}

#[derive(Default, Debug, PartialEq, Eq)]
struct Counted {
    asks: u64,
    hits: u64,
    shared: u64,
    evictions: u64,
    failures: u64,
    given_up: u64,
    hedges: u64,
    outrun: u64,
    requests: u64,
    displaced: u64,
    sent: u64,
    recalled: u64,
    not_held: u64,
    moved: u64,
}

/// Those of three ranks, which were four in an earlier run of the same seed.
fn homes(rank: u16, run: &Run) -> Homes {
    let homes = Homes::new(rank, &[1, 2, 3], run.order());
    homes.remember(&[(run.config().seed, vec![3, 1, 2, 4])]);
    homes
}

impl Model {
    fn new(seed: u64) -> Model {
        let mut prng = Prng::new(seed);
        let samples = 1 + prng.below(20);
        let catalog = Arc::new(Catalog::new((0..samples).map(|_| prng.below(60)).collect(), 16).unwrap());
        let batch_size = 1 + prng.below(6) as u32;
        let run = Run::new(RunConfig {
            samples,
            seed,
            order: OrderName::ALL[seed as usize % 3],
            shuffle: prng.chance(0.5),
            world: 1,
            rank: 0,
            batch_size,
            drop_last: false,
            epochs: 3,
            start: Cursor { epoch: 0, position: 0 },
        });
        let run = run.unwrap();
        let connections_max = 1 + prng.below(4) as usize;
        let strategy = ["lookahead", "full-fetch", "50/50"][prng.below(3) as usize];
        let largest = catalog.batch_room_max(u64::from(batch_size));
        let (disk, spill) = Disk::draw(&mut prng);
        let prng_rank = prng.below(3) as u16;
        let config = PlannerConfig {
            shard: ShardId(0),
            shards: 1,
            prefetch: Strategy::named(strategy.parse().unwrap(), 2 + prng.below(samples)).unwrap(),
            policy: PolicyName::ALL[prng.below(PolicyName::ALL.len() as u64) as usize],
            cache_bytes: prng.below(catalog.total_bytes() + 2),
            cached_block_bytes_min: prng.below(200),
            homes: prng.chance(0.15).then(|| homes(prng_rank, &run)),
            batch_room_bytes: largest.max(64) * (1 + prng.below(4)),
            horizon_epochs: 1,
            spill,
            retry: RetryConfig { attempts_max: 1 + prng.below(4) as u32, ..RetryConfig::default() },
            pace: Ledger::default(),
            window: WindowConfig {
                connections_start: 1 + prng.below(connections_max as u64) as usize,
                connections_max,
                depth_max: 1 + prng.below(4) as usize,
                ..WindowConfig::default()
            },
            hedge: HedgeConfig { percent: [0, 2, 20][prng.below(3) as usize], delay_us_min: 1_000, landings_min: 16 },
            seed,
        };
        Model {
            planner: Planner::new(&config, run.clone(), Arc::clone(&catalog)).unwrap(),
            schedule: Schedule::new(&run, 1),
            trouble: [0.0, 0.2, 0.7][prng.below(3) as usize],
            prng,
            run,
            catalog,
            config,
            now: Instant(0),
            next_ask: 0,
            asks: BTreeMap::new(),
            in_flight: BTreeMap::new(),
            at_peers: BTreeMap::new(),
            hedged: BTreeSet::new(),
            cached: BTreeMap::new(),
            disk,
            unready: BTreeMap::new(),
            open: VecDeque::new(),
            next_batch: 0,
            ready: BTreeSet::new(),
            taken: 0,
            blocked: false,
            counted: Counted::default(),
        }
    }

    fn tell(&mut self, fact: Fact) {
        self.planner.tell(self.now, fact);
        self.planner.recall(self.now);
    }

    /// Obeys some of the commands, or all.
    fn obey(&mut self, all: bool) {
        while all || self.prng.chance(0.8) {
            let Some(command) = self.planner.pop() else {
                if self.planner.look_ahead(self.now) {
                    continue;
                }
                return;
            };
            self.carry_out(&command);
            assert!(self.cached.values().sum::<u64>() <= self.config.cache_bytes, "{command:?} overfills the cache");
            let least = self.cached.len() as u64 * self.config.cached_block_bytes_min;
            assert!(least <= self.config.cache_bytes, "{command:?} caches more blocks than there is memory to know of");
        }
    }

    fn carry_out(&mut self, command: &Command<AskId>) {
        match *command {
            Command::Open { seq, bytes } => self.open(seq, bytes),
            Command::Serve { waiter, block } => {
                assert!(self.cached.contains_key(&block), "{command:?}: not cached");
                self.counted.hits += 1;
                self.fill(waiter, block);
                self.answered(waiter, Source::Cache);
            }
            Command::Start { fetch, block, from } => {
                let ask = *self.planner.first(fetch).expect("it is under way");
                match from {
                    Origin::Bucket => self.fetch(fetch, ask, block),
                    Origin::Disk(spot) => {
                        let asked = self.asks.get_mut(&ask).expect("a read is for an open ask");
                        assert!(asked.block == block && !asked.full && asked.fetch.is_none(), "{command:?}");
                        asked.fetch = Some(fetch);
                        self.disk.read(fetch, ask, block, spot);
                    }
                    Origin::Peer { rank, since, at, role } => {
                        self.ask_rank(fetch, ask, block, (rank, since, at, role));
                    }
                }
            }
            Command::NotHeld(waiter) => self.not_held(waiter),
            Command::Hedge { fetch, block } => self.hedge(fetch, block),
            Command::Recall { fetch, .. } => {
                if self.at_peers.contains_key(&fetch) {
                    self.counted.recalled += 1;
                    self.end_at_peer(fetch, Some(true));
                }
            }
            Command::Trim(segment) => {
                self.disk.trim(segment);
                self.planner.spill().expect("it has a disk").trimmed(segment);
            }
            Command::Evict(block) => {
                self.counted.evictions += 1;
                assert!(self.cached.remove(&block).is_some(), "{command:?}: not cached");
            }
            Command::Deliver { block, waiters: Waiters { first, ref others }, source, keep } => {
                assert!(self.asks[&first].full && self.asks[&first].block == block, "{command:?}: nothing to share");
                assert!(keep.is_none() || !self.cached.contains_key(&block), "{command:?}: kept twice");
                let is_home = self.config.homes.as_ref().is_none_or(|homes| homes.of(block) == homes.rank());
                assert!(keep.is_none() || is_home, "{command:?}: another rank keeps it");
                let bytes = self.catalog.block_len(block);
                match keep {
                    Some(Keep::Ram) => drop(self.cached.insert(block, bytes)),
                    Some(Keep::Disk { segment, place }) => self.disk.write(block, bytes, segment, place),
                    None => {}
                }
                self.answered(first, source);
                for &other in others {
                    self.counted.shared += 1;
                    self.fill(other, block);
                    self.answered(other, Source::Shared);
                }
            }
            Command::Refuse { waiters: Waiters { first, ref others }, attempts, .. } => {
                assert!((1..=self.config.retry.attempts_max).contains(&attempts), "{command:?}");
                self.counted.given_up += 1;
                for ask in others.iter().chain([&first]) {
                    let refused = self.asks.remove(ask).expect("an ask is answered once");
                    let is_returned = (!refused.full || refused.restored) && refused.fetch.is_none();
                    assert!(is_returned, "{command:?}: its window is not returned");
                    self.arrived(refused.batch);
                }
            }
        }
    }

    /// Another rank asked for what is not here: a batch asks again, as itself.
    fn not_held(&mut self, waiter: AskId) {
        let Ask { block, batch, at, asker, full, .. } = self.asks.remove(&waiter).expect("an ask is answered once");
        assert!(matches!(asker, Asker::RankIfHeld | Asker::Leaving(_)) && !full, "{waiter:?} of {asker:?}");
        let is_under_way = self.asks.values().any(|ask| ask.block == block && ask.fetch.is_some());
        assert!(!self.cached.contains_key(&block) || is_under_way, "{block:?} is cached");
        self.counted.asks -= u64::from(asker == Asker::RankIfHeld);
        self.counted.not_held += 1;
        self.ask(block, batch, at, false);
    }

    /// An ask has its block.
    fn answered(&mut self, ask: AskId, source: Source) {
        let Ask { block, batch, full, at, .. } = self.asks.remove(&ask).expect("an ask is answered once");
        assert!(full, "{ask:?}: its window is not full");
        if matches!(source, Source::Cache | Source::Disk | Source::Peer) && self.prng.chance(0.1) {
            // The assembling shard finds that the cached copy is damaged.
            self.ask(block, batch, at, true);
        } else {
            self.arrived(batch);
        }
    }

    fn fetch(&mut self, fetch: FetchId, ask: AskId, block: BlockId) {
        assert!(self.in_flight.insert(fetch, ask).is_none(), "{fetch:?} is in flight already");
        let most = self.config.window.connections_max * self.config.window.depth_max;
        assert!(self.in_flight.len() <= most, "{} in flight", self.in_flight.len());
        let ask = self.asks.get_mut(&ask).expect("a fetch is for an open ask");
        // What came from disk is not believed once a copy of it proved wrong.
        ask.full &= !core::mem::take(&mut ask.restored);
        assert!(ask.block == block && !ask.full && ask.fetch.is_none(), "{fetch:?} of {block:?}");
        ask.fetch = Some(fetch);
        self.counted.requests += 1;
    }

    /// A second request is sent, or cannot be, or takes the place of the first. One that has ended meanwhile is not hedged: flow
    /// carries commands out before it hears of anything else.
    fn hedge(&mut self, fetch: FetchId, block: BlockId) {
        let Some(&ask) = self.in_flight.get(&fetch).filter(|ask| self.asks[*ask].block == block) else { return };
        match self.prng.below(3) {
            0 => self.tell(Fact::Unhedged(fetch)),
            1 => {
                self.counted.hedges += 1;
                self.in_flight.remove(&fetch);
                self.asks.get_mut(&ask).expect("it is open").fetch = None;
                self.tell(Fact::Unserved { fetch, displaced: false });
            }
            _ => {
                self.counted.hedges += 1;
                self.hedged.insert(fetch);
            }
        }
    }

    fn fill(&mut self, ask: AskId, block: BlockId) {
        let ask = self.asks.get_mut(&ask).expect("only an open ask has a window");
        assert!(ask.block == block && !ask.full && ask.fetch.is_none(), "{block:?}");
        ask.full = true;
    }

    /// A block of this batch has arrived.
    fn arrived(&mut self, batch: Option<u64>) {
        let Some(seq) = batch else { return };
        let missing = self.unready.get_mut(&seq).unwrap();
        *missing -= 1;
        if *missing == 0 {
            self.unready.remove(&seq);
            self.ready.insert(seq);
            self.tell(Fact::Ready(BatchSeq(seq)));
        }
    }

    fn open(&mut self, seq: BatchSeq, bytes: u64) {
        assert!(!self.blocked, "asked for room again before any may have appeared");
        assert_eq!(seq.0, self.next_batch, "batches are opened in order");
        let spec = self.run.batch(seq).expect("only batches of the run are opened");
        let samples: Vec<_> = self.run.samples(&spec).collect();
        assert_eq!(bytes, samples.iter().map(|s| self.catalog.room(*s)).sum::<u64>());
        let held: u64 = self.open.iter().sum();
        if let Strategy::Lookahead(_) = self.config.prefetch {
            let fits = held + bytes <= self.config.batch_room_bytes;
            assert!(fits || self.open.is_empty(), "batch {} of {bytes} bytes is asked for beyond the budget", seq.0);
        }
        if held + bytes > self.config.batch_room_bytes || self.prng.chance(0.1) {
            self.blocked = true;
            return self.tell(Fact::NoRoom(seq));
        }
        self.next_batch += 1;
        self.open.push_back(bytes);
        let blocks: usize = samples.iter().map(|s| self.catalog.blocks(*s) as usize).sum();
        self.unready.insert(seq.0, blocks + 1);
        self.tell(Fact::Opened(seq));
        for (position, sample) in spec.positions.clone().zip(samples) {
            for index in 0..self.catalog.blocks(sample) {
                let at = self.schedule.time(spec.epoch, position);
                self.ask(BlockId { sample, index }, Some(seq.0), at, false);
            }
        }
        // All asks are out: a batch without any is ready now.
        self.arrived(Some(seq.0));
    }

    fn ask(&mut self, block: BlockId, batch: Option<u64>, at: UseTime, fresh: bool) {
        let ask = AskId(self.next_ask);
        self.next_ask += 1;
        let asker = match self.config.homes.is_some() && !fresh && self.prng.chance(0.2) {
            true if self.prng.chance(0.2) => self.leaver(),
            true => [Asker::Rank, Asker::RankIfHeld][self.prng.below(2) as usize],
            false => Asker::Own,
        };
        self.counted.asks += u64::from(!matches!(asker, Asker::Leaving(_)));
        self.asks.insert(ask, Ask { block, batch, at, full: false, restored: false, asker, fetch: None });
        self.planner.ask(self.now, ask, Want { block, at, fresh, asker });
    }

    /// Another rank, which leaves.
    fn leaver(&mut self) -> Asker {
        let homes = self.config.homes.as_mut().expect("one asks");
        let rank = (homes.rank() + 1) % 3;
        homes.leaves(rank);
        Asker::Leaving(rank)
    }

    fn disk_tier(&mut self) -> &mut Spill {
        self.planner.spill().expect("only a disk reads and writes")
    }

    /// The consumer takes the next batch if it is ready.
    fn take(&mut self) -> bool {
        let due = self.ready.remove(&self.taken);
        if due {
            self.taken += 1;
            self.open.pop_front();
            self.blocked = false;
        }
        let waits = self.prng.chance(0.5);
        self.tell(Fact::Consumer { taken: self.taken, waits });
        due
    }

    fn room(&mut self) {
        self.blocked = false;
        self.tell(Fact::Room);
    }

    /// Whoever looks after ranks that are down finds some of them well.
    fn heal(&mut self) {
        if let Some(homes) = self.config.homes.as_ref().filter(|_| self.prng.chance(0.1)) {
            homes.health().down().for_each(|down| homes.health().recovered(down.rank));
        }
    }

    fn step(&mut self) {
        self.heal();
        self.now = self.now.after(Duration::from_micros(self.prng.below(2_000)));
        match self.prng.below(10) {
            0..=2 => self.end_a_fetch(),
            3 => drop(self.take()),
            4 => self.tell(Fact::Idle),
            5 => self.tell(Fact::Consumer { taken: self.taken, waits: false }),
            6 if self.prng.chance(0.2) => self.room(),
            7 | 8 => self.work_the_disk(),
            _ => self.obey(false),
        }
    }

    /// Nothing is left to chance: the run goes on to its end.
    fn settle(&mut self) {
        let mut turns = 0;
        while self.taken < self.run.batches() {
            self.obey(true);
            self.now = self.now.after(Duration::from_micros(self.prng.below(2_000)));
            self.tell(Fact::Idle);
            self.obey(true);
            let busy = !self.in_flight.is_empty() || !self.at_peers.is_empty() || !self.disk.is_idle();
            self.end_a_fetch();
            self.work_the_disk();
            self.obey(true);
            let took = self.take();
            if !busy && !took {
                self.room();
                self.tell(Fact::Idle);
                self.now = self.planner.deadline().unwrap_or(self.now).max(self.now);
                self.tell(Fact::Consumer { taken: self.taken, waits: false });
            }
            turns += 1;
            assert!(turns < 50_000, "no end: {}; {} asks open", self.planner, self.asks.len());
        }
        self.obey(true);
    }
}

#[test]
fn whatever_flow_does_every_ask_is_answered_once() {
    let mut all = Counted::default();
    let (mut restored, mut trims) = (0, 0);
    for seed in 0..3_000 {
        let mut model = Model::new(seed);
        for _ in 0..model.prng.below(400) {
            model.step();
        }
        model.settle();
        assert!(model.asks.is_empty() && model.in_flight.is_empty(), "seed {seed}: {} asks open", model.asks.len());
        assert!(model.planner.all_opened() && model.next_batch == model.run.batches());
        let (stats, counted) = (model.planner.stats(), &model.counted);
        let said = (stats.asks, stats.hits, stats.evictions, stats.given_up, stats.retries + stats.given_up);
        let done = (counted.asks, counted.hits, counted.evictions, counted.given_up, counted.failures);
        assert_eq!(said, done, "seed {seed}: asks, hits, evictions, given up, failures");
        assert_eq!(stats.hedges_won, counted.outrun, "seed {seed}: second requests that won");
        let earned = counted.requests * u64::from(model.config.hedge.percent) / 100;
        assert!(counted.hedges <= earned, "seed {seed}: {} hedges of {} requests", counted.hedges, counted.requests);
        let disk = &model.disk.counted;
        let said = (stats.spill.lost, stats.spill.trims);
        assert_eq!(said, (disk.lost, disk.trims), "seed {seed}: lost, trims");
        (restored, trims) = (restored + disk.restored, trims + disk.trims);
        assert!(stats.shared >= counted.shared, "seed {seed}: sharers of a fetch that failed share its error");
        all.hits += counted.hits;
        all.shared += counted.shared;
        all.evictions += counted.evictions;
        all.given_up += counted.given_up;
        all.outrun += counted.outrun;
        all.hedges += counted.hedges;
        assert!(stats.peer_hits <= counted.sent, "seed {seed}: {} of {} from ranks", stats.peer_hits, counted.sent);
        all.sent += stats.peer_hits;
        all.recalled += counted.recalled;
        all.not_held += counted.not_held;
        all.moved += counted.moved;
    }
    let Counted { hits, shared, evictions, given_up, hedges, outrun, .. } = all;
    assert!(hits > 1_000 && shared > 100 && evictions > 100 && given_up > 100, "{all:?}");
    assert!(hedges > 100 && outrun > 30, "{all:?}");
    assert!(all.sent > 500 && all.recalled > 0 && all.not_held > 100 && all.moved > 50, "{all:?}");
    assert!(restored > 1_000 && trims > 20, "{restored} blocks from disk, {trims} trims");
}
