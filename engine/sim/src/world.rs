//! One life: a world in virtual time with all ranks in it, played until they are done, killed or stuck.

use crate::bucket::Bookkeeping;
use crate::bucket::Bucket;
use crate::canary::Canary;
use crate::check::Entry;
use crate::check::Step;
use crate::check::{Checked, Checker, Inspector, Violation};
use crate::consumer::Trainer;
use crate::counters::Counters;
use crate::dataset::DataSet;
use crate::machine;
use crate::rank::{Make, Rank, listed};
use crate::scenario::{LifeShape, Scenario};
use fuelrail_base::prng::Prng;
use fuelrail_base::{Duration, Instant};
use fuelrail_io::{Ring as _, SimCounts, SimRing, SimWorld};
use fuelrail_plan::run::Run;
use std::cell::RefCell;
use std::rc::Rc;

/// Acts of all shards at one instant after which they are said to spin.
const STEPS_MAX: u32 = 1_000_000;
/// How soon a waiting trainer must learn that a shard has died.
const TOLD_WITHIN: Duration = Duration::from_secs(1);
/// Jumps of virtual time in one life.
const EVENTS_MAX: u64 = 3_000_000;

/// How a life ended.
#[derive(Debug)]
pub(crate) enum Ending {
    /// All ranks took all their batches.
    Finished,
    /// Killed, after so many steps of the slowest rank.
    Killed(usize),
    /// A hopeless sample ended it.
    Raised(String),
    /// A shard died, and the trainer was told why.
    Failed(String),
}

/// What a life adds to the run's account, however it ended.
pub(crate) struct Account {
    pub(crate) counters: Counters,
    pub(crate) bookkeeping: Bookkeeping,
    pub(crate) ring: SimCounts,
    pub(crate) virtual_time: Duration,
    pub(crate) events: u64,
    pub(crate) longest_wait: Duration,
    pub(crate) epoch_s: Vec<f64>,
    pub(crate) power_cuts: u64,
    pub(crate) flipped_bits: u64,
}

/// A life being played.
pub(crate) struct Life<'a> {
    scenario: &'a Scenario,
    shape: LifeShape,
    inspector: Inspector<'a>,
    steps: &'a [Step],
    world: SimWorld,
    bookkeeping: Rc<RefCell<Bookkeeping>>,
    ranks: Vec<Rank>,
    trainers: Vec<Trainer>,
    events: u64,
    prng: Prng,
    /// Counters as of the last look; kept when the ranks are gone.
    counted: Counters,
    power_cuts: u64,
    /// Bits of its disk that flipped before it.
    flipped_bits: u64,
    canary: Option<Canary>,
}

impl<'a> Life<'a> {
    /// Builds the world, the bucket and a loader and a trainer per rank. `runs` holds one run per rank.
    pub(crate) fn new(
        scenario: &'a Scenario,
        life: usize,
        objects: &'a Rc<DataSet>,
        runs: &[Run],
        steps: &'a [Step],
        before: Option<&SimWorld>,
        canary: Option<Canary>,
    ) -> fuelrail_base::Result<Life<'a>> {
        let bookkeeping = Rc::new(RefCell::new(Bookkeeping::default()));
        let flips = canary == Some(Canary::FlippedByte);
        let bucket = Bucket::new(scenario, life, Rc::clone(objects), Rc::clone(&bookkeeping), flips);
        let mut prng = scenario.prng(life, "world");
        let world = SimWorld::new(prng.next(), scenario.ring, Box::new(bucket));
        let flipped_bits = start_disk(scenario, life, objects, &world, before)?;
        let (mut ranks, mut trainers) = (Vec::new(), Vec::new());
        for (id, run) in runs.iter().enumerate() {
            let planted = canary.filter(|_| id == 0);
            let (rank, seed) = ((id as u64, runs.len() as u64), prng.next());
            let make = Make { scenario, objects, world: &world, run: run.clone(), rank, seed, canary: planted };
            ranks.push(Rank::new(&make)?);
            let (timer, own) = (SimRing::with_capacity(&world, 1, 1), Prng::new(prng.next()));
            ranks[id].outlet.consumer().failure.wakes(&timer.waker());
            trainers.push(Trainer::new(id, scenario.consumer, scenario.lockstep, own, timer, canary));
        }
        let shape = scenario.lives[life];
        let inspector = Inspector { scenario, objects };
        Ok(Life {
            scenario,
            shape,
            inspector,
            steps,
            world,
            bookkeeping,
            ranks,
            trainers,
            events: 0,
            prng,
            counted: Counters::default(),
            power_cuts: 0,
            flipped_bits,
            canary,
        })
    }

    /// Plays to the end, and sees that everything is given back there.
    pub(crate) fn play(&mut self) -> Checked<Ending> {
        let ending = self.live()?;
        let finished = matches!(ending, Ending::Finished);
        // Of a shard that died, nothing can be said but that all is given back.
        let failed = self.ranks.iter().any(|rank| rank.failed_at.is_some());
        if finished && !failed {
            self.come_to_rest()?;
        }
        let account = self.account();
        if !failed {
            self.inspector.counters(&account.counters, &account.bookkeeping, self.world.now(), !finished)?;
        }
        let disk = self.scenario.disk.as_ref();
        if finished || failed || disk.is_some_and(|disk| disk.in_order) {
            self.stop()?;
        }
        self.trainers.iter_mut().for_each(Trainer::let_go);
        // What is dropped now is what a killed process drops: nothing is waited for.
        for rank in self.ranks.drain(..) {
            rank.tear_down()?;
        }
        if !finished && disk.is_some_and(|disk| disk.power_cuts) {
            self.world.cut_power();
            self.power_cuts += 1;
        }
        match self.bookkeeping.borrow().open {
            0 => Ok(ending),
            open => Err(Violation::new(Checker::Memory, format!("{open} connections outlive their rings"))),
        }
    }

    /// Counters and injected faults so far.
    pub(crate) fn account(&mut self) -> Account {
        if !self.ranks.is_empty() {
            self.counted = Counters::default();
            self.ranks.iter_mut().for_each(|rank| self.counted.add(&rank.counters()));
        }
        let mut counters = self.counted;
        if self.canary == Some(Canary::HiddenRetries) {
            counters.retries /= 2;
        }
        Account {
            counters,
            bookkeeping: self.bookkeeping.borrow().clone(),
            ring: self.world.counts(),
            virtual_time: self.world.now().since(Instant::ZERO),
            events: self.events,
            power_cuts: self.power_cuts,
            flipped_bits: self.flipped_bits,
            epoch_s: self.epochs_s(),
            longest_wait: self.trainers.iter().map(|trainer| trainer.longest_wait).max().unwrap_or_default(),
        }
    }

    /// Seconds of each epoch that any rank has begun, mean over the ranks.
    fn epochs_s(&self) -> Vec<f64> {
        let ends = self.trainers.iter().map(|trainer| &trainer.epoch_ends);
        let epochs = ends.clone().map(Vec::len).max().unwrap_or(0);
        let end_s = |epoch: usize| {
            let of = |ends: &Vec<Instant>| ends.get(epoch).map_or(0.0, |end| end.since(Instant::ZERO).as_secs_f64());
            ends.clone().map(of).sum::<f64>() / self.trainers.len() as f64
        };
        (0..epochs).map(|epoch| end_s(epoch) - epoch.checked_sub(1).map_or(0.0, end_s)).collect()
    }

    /// The machine it was played on, for the next life to find its disk.
    pub(crate) fn into_world(self) -> SimWorld {
        self.world
    }

    /// What the ranks took, by rank and step.
    pub(crate) fn taken(&self) -> impl Iterator<Item = &Vec<Vec<Entry>>> + Clone {
        self.trainers.iter().map(|trainer| &trainer.taken)
    }

    fn live(&mut self) -> Checked<Ending> {
        let mut to_kill = self.shape.kill_after_events;
        loop {
            self.settle()?;
            if let Some(cause) = self.trainers.iter().find_map(|trainer| trainer.failed.as_ref()) {
                return Ok(Ending::Failed(cause.to_string()));
            }
            self.check_deaths()?;
            self.check_waits()?;
            if let Some(error) = self.trainers.iter().find_map(|trainer| trainer.raised.clone()) {
                return Ok(Ending::Raised(error));
            }
            if self.trainers.iter().all(Trainer::is_done) {
                return Ok(Ending::Finished);
            }
            let slowest = self.slowest();
            if self.shape.kill_after_steps.is_some_and(|steps| slowest as u64 >= steps) {
                match to_kill.checked_sub(1) {
                    Some(left) => to_kill = left,
                    None => return Ok(Ending::Killed(slowest)),
                }
            }
            self.advance()?;
        }
    }

    /// Lets all that can happen at this instant happen, shards and trainers interleaved at random.
    fn settle(&mut self) -> Checked<()> {
        for _ in 0..STEPS_MAX {
            let mut ready = Vec::new();
            for (rank, of) in self.ranks.iter_mut().enumerate() {
                ready.extend(of.runnable().into_iter().map(|shard| (rank, shard)));
            }
            let picked = (!ready.is_empty()).then(|| ready[self.prng.below(ready.len() as u64) as usize]);
            let turn_of_trainers = picked.is_none() || self.prng.chance(0.2);
            let mut moved = picked.is_some();
            if let Some((rank, shard)) = picked {
                self.ranks[rank].step(shard)?;
            }
            if turn_of_trainers {
                let slowest = self.slowest();
                for (trainer, rank) in self.trainers.iter_mut().zip(&mut self.ranks) {
                    moved |= trainer.act(&mut rank.outlet, self.steps, slowest, &self.inspector)?;
                    moved |= rank.keep();
                }
            }
            if !moved {
                return Ok(());
            }
        }
        Err(self.stuck("busy without end at one instant"))
    }

    fn slowest(&self) -> usize {
        self.trainers.iter().map(|trainer| trainer.taken.len()).min().unwrap_or(0)
    }

    fn advance(&mut self) -> Checked<()> {
        self.events += 1;
        if self.events > EVENTS_MAX {
            return Err(self.stuck("no end in sight"));
        }
        if let Some(disk) = &self.scenario.disk {
            machine::befall(&self.world, disk, self.events);
        }
        if self.world.advance() { Ok(()) } else { Err(self.stuck("the world stands still")) }
    }

    /// A trainer that waits is told within a second that a shard has died.
    fn check_deaths(&self) -> Checked<()> {
        let now = self.world.now();
        for (trainer, rank) in self.trainers.iter().zip(&self.ranks) {
            let untold = rank.failed_at.map_or(Duration::ZERO, |at| now.since(at).min(trainer.waiting(now)));
            if untold > TOLD_WITHIN {
                let text = format!("a shard has been dead for {untold:?}, and the consumer waits");
                return Err(Violation::new(Checker::Liveness, text));
            }
        }
        Ok(())
    }

    /// How long a batch may be waited for, after the faults so far: each keeps a connection for a while, and the worst
    /// block meets as many in a row as one object gets, with a pause before each further attempt.
    fn patience(&self) -> Duration {
        let count = |n: u64| u32::try_from(n).unwrap_or(u32::MAX);
        let (bookkeeping, ring, s) = (self.bookkeeping.borrow(), self.world.counts(), self.scenario);
        let silent =
            ["stall", "drip", "garbage", "extra_bytes"].iter().filter_map(|name| bookkeeping.faults.get(name)).sum();
        let connects =
            bookkeeping.faults.get("refused").unwrap_or(&0) + bookkeeping.faults.get("dead_address").unwrap_or(&0);
        let broken = ring.transient_errnos + ring.fatal_errnos + ring.no_memory + connects;
        let blocks = s.hopeless.iter().map(|(sample, _)| s.sizes[*sample as usize].div_ceil(s.block_bytes)).sum();
        let hopeless = count(blocks) * s.loader.attempts_max;
        let in_a_row = count(broken) + s.faults.per_key_max.min(count(bookkeeping.faults_total())) + hopeless;
        s.calm_wait(self.shape.world)
            + s.outage_cost()
            + s.stall_cost() * count(silent)
            + s.attempt_cost() * (count(bookkeeping.faults_total() + broken) + hopeless)
            + s.retry_cost() * in_a_row
            + s.ring.delay_max * count(ring.delays)
    }

    fn check_waits(&mut self) -> Checked<()> {
        let now = self.world.now();
        let waits = self.trainers.iter_mut().map(|trainer| trainer.waited(now)).enumerate();
        let Some((rank, waited)) = waits.max_by_key(|(_, waited)| *waited) else { return Ok(()) };
        let patience = self.patience();
        if waited <= patience {
            return Ok(());
        }
        let why = format!(
            "at {:.6} s rank {rank} has waited {waited:?} for one of its first {} batches; faults explain {patience:?}",
            now.since(Instant::ZERO).as_secs_f64(),
            self.trainers[rank].taken.len() + 1,
        );
        Err(Violation::new(Checker::Starvation, format!("{why}\n{}", self.ranks[rank].describe())))
    }

    fn stuck(&mut self, how: &str) -> Violation {
        let now = self.world.now();
        let states: Vec<String> = self.ranks.iter_mut().map(Rank::describe).collect();
        let waits: Vec<String> =
            self.trainers.iter().map(|t| format!("batch {} for {:?}", t.taken.len(), t.waiting(now))).collect();
        let text = format!(
            "{how} at {:.6} s, after {} events; trainers wait: {waits:?}\n{}",
            now.since(Instant::ZERO).as_secs_f64(),
            self.events,
            states.join("\n")
        );
        Violation::new(Checker::Liveness, text)
    }

    /// All batches are taken and given back: nothing may be in flight any more, soon.
    fn come_to_rest(&mut self) -> Checked<()> {
        let until = self.world.now().after(self.patience());
        loop {
            self.settle()?;
            let in_flight: usize = self.ranks.iter_mut().map(Rank::in_flight).sum();
            if in_flight == 0 {
                self.ranks.iter().try_for_each(Rank::all_returned)?;
                return self.ranks.iter_mut().try_for_each(Rank::disk_agrees);
            }
            if self.world.now() > until || !self.world.advance() {
                return Err(self.stuck(&format!("{in_flight} operations are in flight with nothing left to do")));
            }
        }
    }

    /// Tells all shards to end, and sees that they do, with what is on its way to their disk.
    fn stop(&mut self) -> Checked<()> {
        self.ranks.iter().for_each(Rank::stop);
        for _ in 0..STEPS_MAX {
            let mut moved = false;
            for rank in &mut self.ranks {
                for shard in rank.runnable() {
                    rank.step(shard)?;
                    moved = true;
                }
                moved |= rank.keep();
            }
            if self.ranks.iter().all(Rank::is_over) {
                return Ok(());
            }
            if !moved && !self.world.advance() {
                break;
            }
        }
        Err(self.stuck("a shard does not stop"))
    }
}

/// Gives the machine of this life its disk, where the scenario has one; bits that flipped on it.
fn start_disk(
    scenario: &Scenario,
    life: usize,
    set: &DataSet,
    world: &SimWorld,
    before: Option<&SimWorld>,
) -> fuelrail_base::Result<u64> {
    let Some(shape) = &scenario.disk else { return Ok(0) };
    let mut prng = scenario.prng(life, "disk");
    let flipped = machine::start(world, shape, before, &mut prng);
    if before.is_none() && shape.foreign {
        machine::litter(world, shape.unit, &listed(scenario, set)?, set, &mut prng);
    }
    Ok(flipped)
}
