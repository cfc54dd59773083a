//! The ranks, what happens to them, and when.

use super::shape::{Cluster, Played, Recording, SEED, Told, Waiter};
use fuelrail_base::prng::mix64;
use fuelrail_base::{BatchSeq, BlockId, Duration, Error, Instant, Kind, Result};
use fuelrail_plan::homes::Homes;
use fuelrail_plan::planner::{Asker, Command, Fact, FetchId, Keep, Origin, Planner, Role, Source, Want};
use fuelrail_plan::run::{Cursor, Run};
use fuelrail_plan::schedule::UseTime;
use fuelrail_plan::spill::{SegmentId, Spot};
use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::sync::Arc;

/// Until a block is on disk, besides the time for its bytes; and until a read of one begins.
const DISK: Duration = Duration::from_micros(100);
/// Between two looks at ranks that are down.
const CHECK: Duration = Duration::from_secs(1);
/// No two looks at a planner's deadline come sooner.
const TICK: Duration = Duration::from_micros(20);

#[derive(Clone, Copy, Debug)]
enum Event {
    Tell(Fact),
    /// A block was read from disk, in so long.
    Read(FetchId, Duration),
    Written(BlockId),
    /// Another rank's request arrives, …
    Ask(u16, FetchId, Want),
    /// … and its block, so long in transit and only passed on or not, or that it is not held.
    Answer(FetchId, Option<(Duration, bool)>),
    Deadline,
    Check,
    /// All trainers have made a step.
    Step,
}

struct Batch {
    left: u32,
    epoch: u64,
    samples: u64,
    /// Of hashes of its samples.
    sum: u64,
}

struct Rank {
    planner: Planner<Waiter>,
    run: Run,
    homes: Homes,
    batches: BTreeMap<u64, Batch>,
    taken: u64,
    waits: bool,
    /// Requests to other ranks.
    asked: HashSet<FetchId>,
    serving: usize,
    disk: BTreeMap<BlockId, Spot>,
    places: HashMap<BlockId, (SegmentId, u64)>,
    /// When its lines are free: from the bucket, the disk, to others.
    free: [Instant; 3],
    deadline: Option<Instant>,
}

pub(super) struct Job {
    cluster: Cluster,
    now: Instant,
    /// `None`: lost.
    ranks: Vec<Option<Rank>>,
    events: BTreeMap<(Instant, u64), (u16, Event)>,
    serial: u64,
    /// Steps made, and trainers that have the batch of the next one.
    steps: u64,
    took: usize,
    step_at: Instant,
    /// Samples of each epoch that were taken, and the sum of their hashes.
    epochs: BTreeMap<u64, (u64, u64)>,
    played: Played,
    /// Requests before the job began anew.
    requests_anew: Option<u64>,
    recording: Recording,
}

impl Job {
    pub(super) fn new(cluster: &Cluster, names: &[u64]) -> Result<Job> {
        let run = cluster.run(names.len(), 0, Cursor::default())?;
        let homes = Homes::new(0, names, run.order());
        let recording = Recording { homes: homes.clone(), run, cluster: *cluster, told: Vec::new(), samples: 0 };
        let mut job = Job {
            cluster: *cluster,
            now: Instant::ZERO,
            ranks: Vec::new(),
            events: BTreeMap::new(),
            serial: 0,
            steps: 0,
            took: 0,
            step_at: Instant::ZERO,
            epochs: BTreeMap::new(),
            played: Played::default(),
            requests_anew: None,
            recording,
        };
        job.begin(&homes, Cursor::default(), &vec![BTreeMap::new(); names.len()])?;
        Ok(job)
    }

    /// All ranks open their loaders, with what is on their disks.
    fn begin(&mut self, homes: &Homes, start: Cursor, disks: &[BTreeMap<BlockId, Spot>]) -> Result<()> {
        self.events.clear();
        self.ranks.clear();
        self.took = 0;
        for (rank, disk) in (0..).zip(disks) {
            let homes = homes.seen_by(rank);
            let run = self.cluster.run(disks.len(), rank, start)?;
            self.ranks.push(Some(Rank {
                planner: self.cluster.planner(&homes, &run, disk)?,
                run,
                homes,
                batches: BTreeMap::new(),
                taken: 0,
                waits: false,
                asked: HashSet::new(),
                serving: 0,
                disk: disk.clone(),
                places: HashMap::new(),
                free: [self.now; 3],
                deadline: None,
            }));
            self.at(CHECK, rank, Event::Check);
        }
        self.at(Duration::ZERO, 0, Event::Step);
        Ok(())
    }

    /// So many ranks are lost at once; the others make some steps without them, and begin anew, with new ones.
    pub(super) fn begin_anew(&mut self, names: &[u64], new: &[u64]) -> Result<()> {
        let first = self.ranks[0].as_ref().expect("rank 0 is not lost");
        let start = first.taken.checked_sub(1).map_or(Cursor::default(), |seq| first.run.cursor_after(BatchSeq(seq)));
        let (epochs, before) = (self.epochs.clone(), self.played.requests);
        let lost = 1..=usize::from(self.cluster.lost_ranks);
        let disk_of = |rank: &Option<Rank>| rank.iter().flat_map(|rank| rank.disk.keys().copied()).collect::<Vec<_>>();
        let gone: HashSet<_> = self.ranks[lost.clone()].iter().flat_map(disk_of).collect();
        for rank in lost.clone() {
            self.played.add(&self.ranks[rank].take().expect("it is there"));
        }
        let left: HashSet<_> = self.ranks.iter().flat_map(disk_of).collect();
        self.played.lost_blocks = gone.difference(&left).count() as u64;
        let waits = self.played.waits_s.len();
        self.go_on(self.cluster.lost_at_step + self.cluster.steps_without)?;
        let longest = self.played.waits_s[waits..].iter().fold(0.0_f64, |longest, wait| longest.max(*wait));
        (self.played.requests_without, self.played.wait_without_s) = (self.played.requests - before, longest);
        let left = self.ranks.iter_mut().flatten().map(|rank| core::mem::take(&mut rank.disk));
        let disks: Vec<_> = left.chain(new.iter().map(|_| BTreeMap::new())).collect();
        let left = (0..).zip(names).filter(|(rank, _)| !lost.contains(rank)).map(|(_, name)| *name);
        let present: Vec<_> = left.chain(new.iter().copied()).collect();
        for rank in self.ranks.iter().flatten() {
            self.played.add(rank);
        }
        self.cluster.ranks = present.len() as u16;
        (self.epochs, self.steps) = (epochs, self.cluster.lost_at_step);
        self.requests_anew = Some(self.played.requests);
        let run = self.cluster.run(present.len(), 0, start)?;
        let homes = Homes::new(0, &present, run.order());
        homes.remember(&[(SEED, names.to_vec())]);
        self.begin(&homes, start, &disks)
    }

    pub(super) fn end(mut self) -> Result<(Played, Recording)> {
        for rank in self.ranks.iter().flatten() {
            self.played.add(rank);
        }
        self.played.anew = self.requests_anew.map_or(0, |before| self.played.requests - before);
        self.played.seconds = self.now.since(Instant::ZERO).as_secs_f64();
        let samples = self.cluster.samples;
        let begun = self.epochs.last_key_value().map(|(epoch, _)| *epoch);
        for (&epoch, &(count, sum)) in &self.epochs {
            self.played.samples += count;
            if count < samples && Some(epoch) == begun {
                continue;
            }
            let whole = (0..samples).fold(0u64, |sum, sample| sum.wrapping_add(mix64(sample)));
            if (count, sum) != (samples, whole) {
                return Err(bug(format!(
                    "epoch {epoch} had {count} samples of {samples}, some twice or others instead"
                )));
            }
            self.played.whole_epochs += 1;
        }
        Ok((self.played, self.recording))
    }

    fn at(&mut self, later: Duration, rank: u16, event: Event) {
        self.serial += 1;
        self.events.insert((self.now.after(later), self.serial), (rank, event));
    }

    fn rank(&mut self, rank: u16) -> &mut Rank {
        self.ranks[usize::from(rank)].as_mut().expect("a rank that is lost has no events")
    }

    /// Plays until so many steps were made, or the run is over.
    pub(super) fn go_on(&mut self, steps: u64) -> Result<()> {
        let batches = self.ranks[0].as_ref().map_or(0, |rank| rank.run.batches());
        while self.steps < steps && self.ranks[0].as_ref().is_some_and(|rank| rank.taken < batches || self.took > 0) {
            let Some(((now, _), (rank, event))) = self.events.pop_first() else {
                return Err(bug(format!("nothing goes on after {} steps", self.steps)));
            };
            self.now = now;
            if now.since(self.step_at) > Duration::from_secs(100) {
                let waits = self.ranks.iter().flatten().find(|rank| rank.waits);
                let planner = waits.map(|rank| rank.planner.to_string()).unwrap_or_default();
                return Err(bug(format!("step {} takes 100 s: {planner}", self.steps)));
            }
            if self.ranks[usize::from(rank)].is_some() {
                self.happens(rank, event)?;
            }
        }
        Ok(())
    }

    fn happens(&mut self, rank: u16, event: Event) -> Result<()> {
        match event {
            Event::Tell(fact) => self.tell(rank, [Told::Fact(fact)]),
            Event::Read(fetch, took) => {
                let landed = Fact::Landed { fetch, first_byte: DISK, total: took, outran: None };
                self.tell(rank, [Told::Read(took), Told::Fact(landed)])
            }
            Event::Written(block) => {
                let of = self.rank(rank);
                if let Some((segment, place)) = of.places.remove(&block) {
                    of.disk.insert(block, Spot { segment, place, crc32c: 0 });
                }
                self.tell(rank, [Told::Written(block)])
            }
            Event::Ask(from, fetch, want) => {
                self.rank(rank).serving += 1;
                self.played.serving_max = self.played.serving_max.max(self.rank(rank).serving);
                self.tell(rank, [Told::Ask(Waiter::Rank(from, fetch), want)])
            }
            Event::Answer(fetch, sent) => {
                // One that was given up is late.
                if !self.rank(rank).asked.remove(&fetch) {
                    return Ok(());
                }
                let fact = match sent {
                    Some((transit, passed)) => Fact::Sent { fetch, transit, passed },
                    None => Fact::Unserved { fetch, displaced: true },
                };
                self.tell(rank, [Told::Fact(fact)])
            }
            Event::Deadline => {
                let now = self.now;
                if self.rank(rank).deadline.take_if(|deadline| *deadline <= now).is_none() {
                    return Ok(());
                }
                self.tell(rank, [])
            }
            Event::Check => self.check(rank),
            Event::Step => {
                (self.step_at, self.took) = (self.now, 0);
                let live: Vec<u16> = (0..).zip(&self.ranks).filter(|(_, of)| of.is_some()).map(|(at, _)| at).collect();
                for rank in live {
                    let of = self.rank(rank);
                    of.waits = true;
                    let fact = Fact::Consumer { taken: of.taken, waits: true };
                    self.tell(rank, [Told::Fact(fact)])?;
                }
                Ok(())
            }
        }
    }

    /// Health checks of what is down.
    fn check(&mut self, rank: u16) -> Result<()> {
        let health = Arc::clone(self.rank(rank).homes.health());
        for down in health.down() {
            if self.ranks[usize::from(down.rank)].is_some() && self.hop(rank, down.rank) * 2 <= down.limit {
                self.tell_one(rank, Told::Recovered(down.rank), &mut VecDeque::new())?;
            }
        }
        self.at(CHECK, rank, Event::Check);
        Ok(())
    }

    fn is_far(&self, rank: u16) -> bool {
        usize::from(rank) + usize::from(self.cluster.far_ranks) >= self.ranks.len()
    }

    /// One way between two ranks.
    fn hop(&self, a: u16, b: u16) -> Duration {
        let Cluster { hop_s, far_hop_s, .. } = self.cluster;
        Duration::from_secs_f64(if self.is_far(a) == self.is_far(b) { hop_s } else { far_hop_s })
    }

    /// Tells a planner this, and what follows from its commands; then that its shard is about to sleep.
    fn tell(&mut self, rank: u16, told: impl IntoIterator<Item = Told>) -> Result<()> {
        let mut todo = VecDeque::from_iter(told);
        let mut slept = false;
        loop {
            let next = todo.pop_front();
            let wants = self.tell_one(rank, next.unwrap_or(Told::LookAhead), &mut todo)?;
            if next.is_some() || wants || !todo.is_empty() {
                continue;
            }
            if core::mem::replace(&mut slept, true) {
                break;
            }
            todo.push_back(Told::Fact(Fact::Idle));
        }
        let now = self.now;
        let queued = self.rank(rank).planner.queued();
        self.played.queued_max = self.played.queued_max.max(queued);
        let of = self.rank(rank);
        if let Some(deadline) = of.planner.deadline().map(|deadline| deadline.max(now.after(TICK)))
            && of.deadline.is_none_or(|known| deadline < known)
        {
            of.deadline = Some(deadline);
            self.at(deadline.since(now), rank, Event::Deadline);
        }
        Ok(())
    }

    /// Whether what this rank's planner is told is recorded: its first planner's, of rank 0.
    fn records(&self, rank: u16) -> bool {
        rank == 0 && self.requests_anew.is_none()
    }

    fn tell_one(&mut self, rank: u16, told: Told, todo: &mut VecDeque<Told>) -> Result<bool> {
        let (cluster, now) = (self.cluster, self.now);
        if self.records(rank) {
            self.recording.told.push((now, told));
        }
        let of = self.rank(rank);
        let wants = cluster.tell((&mut of.planner, &of.homes), now, told);
        while let Some(command) = self.rank(rank).planner.pop() {
            self.carry_out(rank, command, todo)?;
        }
        self.take(rank, todo);
        Ok(wants)
    }

    /// The trainer takes its batch, if it waits for it and that is ready. After the last one's, all make a step.
    fn take(&mut self, rank: u16, todo: &mut VecDeque<Told>) {
        let of = self.rank(rank);
        if !of.waits || of.batches.get(&of.taken).is_none_or(|batch| batch.left > 0) {
            return;
        }
        let batch = of.batches.remove(&of.taken).expect("just seen");
        (of.waits, of.taken) = (false, of.taken + 1);
        todo.push_back(Told::Fact(Fact::Consumer { taken: of.taken, waits: false }));
        let epoch = self.epochs.entry(batch.epoch).or_default();
        *epoch = (epoch.0 + batch.samples, epoch.1.wrapping_add(batch.sum));
        self.took += 1;
        if self.took == self.ranks.iter().flatten().count() {
            self.steps += 1;
            self.played.waits_s.push(self.now.since(self.step_at).as_secs_f64());
            self.at(Duration::from_secs_f64(self.cluster.step_s), 0, Event::Step);
        }
    }

    fn carry_out(&mut self, rank: u16, command: Command<Waiter>, todo: &mut VecDeque<Told>) -> Result<()> {
        let cluster = self.cluster;
        let took = cluster.transfer();
        match command {
            Command::Open { seq, .. } => self.open(rank, seq, todo),
            Command::Serve { waiter, .. } => self.deliver(rank, waiter, false, todo),
            Command::Start { fetch, block: _, from: Origin::Bucket } => {
                self.played.requests += 1;
                let first = if self.is_far(rank) { cluster.far_bucket_s } else { cluster.bucket_s };
                let first = Duration::from_secs_f64(first);
                let total = self.line(rank, 0, first + took);
                self.at(total, rank, Event::Tell(Fact::Landed { fetch, first_byte: first, total, outran: None }));
            }
            Command::Start { fetch, block: _, from: Origin::Disk(_) } => {
                let total = self.line(rank, 1, DISK + took);
                self.at(total, rank, Event::Read(fetch, total));
            }
            Command::Start { fetch, block, from: Origin::Peer { rank: to, at, role, .. } } => {
                self.rank(rank).asked.insert(fetch);
                let asker = if role == Role::Home { Asker::Rank } else { Asker::RankIfHeld };
                let want = Want { block, at, fresh: false, asker };
                self.at(self.hop(rank, to), to, Event::Ask(rank, fetch, want));
            }
            // Nothing is late here by chance.
            Command::Hedge { fetch, .. } => todo.push_back(Told::Fact(Fact::Unhedged(fetch))),
            Command::Recall { fetch, .. } => {
                self.rank(rank).asked.remove(&fetch);
                todo.push_back(Told::Fact(Fact::Unserved { fetch, displaced: false }));
            }
            Command::Evict(_) => {}
            Command::Trim(segment) => {
                let of = self.rank(rank);
                of.disk.retain(|_, spot| spot.segment != segment);
                cluster.trim(&mut of.planner, segment);
            }
            Command::Deliver { block, mut waiters, source, keep } => {
                let passed = source == Source::Bucket && keep.is_none();
                if let Some(Keep::Disk { segment, place }) = keep {
                    self.rank(rank).places.insert(block, (segment, place));
                    let total = self.line(rank, 1, DISK + took);
                    self.at(total, rank, Event::Written(block));
                }
                for waiter in core::iter::once(waiters.first).chain(waiters.others.drain(..)) {
                    self.deliver(rank, waiter, passed, todo);
                }
                self.rank(rank).planner.recycle(waiters.others);
            }
            Command::NotHeld(Waiter::Rank(asker, fetch)) => {
                self.rank(rank).serving -= 1;
                self.at(self.hop(rank, asker), asker, Event::Answer(fetch, None));
            }
            Command::NotHeld(_) | Command::Refuse { .. } => return Err(bug(format!("rank {rank}: {command:?}"))),
        }
        Ok(())
    }

    fn open(&mut self, rank: u16, seq: BatchSeq, todo: &mut VecDeque<Told>) {
        let samples = self.cluster.samples;
        let of = self.rank(rank);
        let spec = of.run.batch(seq).expect("it is of the run");
        let mut batch = Batch { left: spec.samples() as u32, epoch: spec.epoch, samples: spec.samples(), sum: 0 };
        todo.push_back(Told::Fact(Fact::Opened(seq)));
        for (position, sample) in (spec.positions.start..).zip(of.run.samples(&spec)) {
            batch.sum = batch.sum.wrapping_add(mix64(sample.0));
            let (block, at) = (BlockId { sample, index: 0 }, UseTime(spec.epoch * samples + position));
            let want = Want { block, at, fresh: false, asker: Asker::Own };
            todo.push_back(Told::Ask(Waiter::Batch(seq.0), want));
        }
        if batch.left == 0 {
            todo.push_back(Told::Fact(Fact::Ready(seq)));
        }
        of.batches.insert(seq.0, batch);
        self.recording.samples += if self.records(rank) { spec.samples() } else { 0 };
    }

    fn deliver(&mut self, rank: u16, waiter: Waiter, passed: bool, todo: &mut VecDeque<Told>) {
        match waiter {
            Waiter::Batch(seq) => {
                let batch = self.rank(rank).batches.get_mut(&seq).expect("it waits");
                batch.left -= 1;
                if batch.left == 0 {
                    todo.push_back(Told::Fact(Fact::Ready(BatchSeq(seq))));
                }
            }
            Waiter::Rank(asker, fetch) => {
                self.rank(rank).serving -= 1;
                let hop = self.hop(rank, asker);
                let total = self.line(rank, 2, self.cluster.transfer());
                self.at(total + hop, asker, Event::Answer(fetch, Some((total + hop * 2, passed))));
            }
        }
    }

    /// How long something takes on a line of a rank that takes so long when that is free: its bytes wait for those before.
    fn line(&mut self, rank: u16, line: usize, took: Duration) -> Duration {
        let (now, bytes) = (self.now, self.cluster.transfer());
        let free = &mut self.rank(rank).free[line];
        *free = now.after(took).max(free.after(bytes));
        free.since(now)
    }
}

impl Played {
    fn add(&mut self, rank: &Rank) {
        let stats = rank.planner.stats();
        (self.peer_blocks, self.peer_misses) =
            (self.peer_blocks + stats.peer_hits, self.peer_misses + stats.peer_misses);
    }
}

fn bug(cause: String) -> Error {
    Error::new(Kind::Environment, cause)
}
