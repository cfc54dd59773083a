//! A pass of the process that reads: owns its loader, and every batch until all jobs that were given it have released it.
//!
//! Decides which of its jobs gets which batch, how far the fastest may be ahead of the slowest, and when a slow one is left behind.

use super::protocol::{Connection, Heard, Terms, ToJob, ToReader, batch_message, message};
use crate::batch::Batch;
use crate::loader::{Loader, Taken};
use crate::prepared::Prepared;
use crate::stats::Stats;
use crate::system::spawn;
use fuelrail_base::{BatchSeq, ByteSize, Duration, Error, Kind, Result};
use fuelrail_io::LocalSocket;
use fuelrail_plan::run::{Cursor, Run};
use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Instant;

/// How jobs share a read.
#[derive(Clone, Debug)]
pub struct SharingOptions {
    /// Jobs that must be there before it begins, where the first of them stands.
    pub jobs: usize,
    /// How long a slow job may keep others waiting, all its delays together since it last was as far as they; then it is left behind. A pass
    /// that is made beside another waits no longer than that for `jobs` jobs.
    pub wait: Duration,
    /// Passes at once, at most, and at least one: who comes too late for those that are under way takes part in a further one. Each has
    /// `memory_limit`; without that setting all share the default. Only the first has `audit`, `metrics_listen` and `peers`.
    pub passes_max: usize,
    /// Another read follows this one ([`LoaderBuilder::share_after`](crate::LoaderBuilder::share_after)): it ends also when a job has listed other
    /// objects and no pass is under way. A job that is set otherwise reads alone, and is not refused.
    pub stays: bool,
}

impl Default for SharingOptions {
    /// One job, 10 s, one pass, and no read behind it.
    fn default() -> SharingOptions {
        SharingOptions { jobs: 1, wait: Duration::from_secs(10), passes_max: 1, stays: false }
    }
}

/// Most batches that jobs can be apart.
const APART_MAX: u64 = 64;
/// Batches that a job may hold at least: one that it works on while it asks for the next.
const AHEAD_MIN: u64 = 2;
/// The longest sleep, and the longest while a slow job keeps others waiting.
pub(super) const LOOK_AGAIN: Duration = Duration::from_millis(100);

/// A pass over the data set, and the jobs that take part in it.
pub(super) struct Pass {
    options: SharingOptions,
    decodes: bool,
    run: Run,
    /// Until it begins.
    prepared: Option<Prepared>,
    /// When it begins with fewer jobs than it waits for.
    due: Option<Instant>,
    /// Makes the memory and looks through the disks, which takes long: other passes go on meanwhile.
    starting: Option<JoinHandle<Result<Loader>>>,
    // Dropped before the batches: nothing writes to their memory when they are.
    loader: Option<Loader>,
    pub jobs: Vec<Job>,
    /// By number.
    held: BTreeMap<u64, Held>,
    /// The next batch to be taken from the loader.
    end: u64,
    over: bool,
    /// Whether a slow job has kept others waiting since the last look, and when that was.
    delayed: bool,
    looked: Instant,
}

struct Held {
    _batch: Batch,
    message: Arc<[u8]>,
}

/// A process that takes batches.
pub(crate) struct Job {
    pub(super) connection: Connection,
    pid: i32,
    stage: Stage,
    start: Cursor,
    /// The next batch that it is given.
    at: u64,
    /// Batches that it was given so far, and those of them that it has not released.
    given: u64,
    holds: BTreeSet<u64>,
    /// It has taken so many and waits.
    waits: Option<u64>,
    /// How long it has kept others waiting.
    delay: Duration,
    /// What it said first, while the data set is listed again for it.
    pub(super) hello: Option<Hello>,
    pub(super) is_listed_again: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Stage {
    /// Has not said what it wants.
    New,
    /// Is given batches.
    Served,
    /// Is not given any more, and may hold some.
    Apart,
    /// Its connection has ended.
    Gone,
}

/// What a job says first: the version that it speaks, what decides its batches, and where it stands.
pub(super) type Hello = (u32, Terms, Cursor);

impl Job {
    pub(super) fn new(socket: LocalSocket) -> Job {
        Job {
            pid: socket.peer(),
            connection: Connection::over(socket),
            stage: Stage::New,
            start: Cursor::default(),
            at: 0,
            given: 0,
            holds: BTreeSet::new(),
            waits: None,
            delay: Duration::ZERO,
            hello: None,
            is_listed_again: false,
        }
    }

    /// The oldest batch that it keeps.
    fn oldest(&self) -> u64 {
        self.holds.first().map_or(self.at, |held| self.at.min(*held))
    }

    fn is_served(&self) -> bool {
        self.stage == Stage::Served
    }

    pub(super) fn has_gone(&self) -> bool {
        self.stage == Stage::Gone
    }

    fn leave(&mut self, to: Stage, how: &str, tell: &mut dyn FnMut(&str)) {
        if self.is_served() {
            tell(&format!("job {} {how} after {} batches", self.pid, self.given));
        }
        self.stage = to;
    }

    fn say(&mut self, what: &ToJob) {
        self.connection.say(message(what, &[]), None);
    }

    fn part(&mut self, why: &str) {
        self.say(&ToJob::Alone { why: why.to_owned() });
        self.stage = Stage::Apart;
    }

    /// Says so besides.
    pub(super) fn leave_alone(&mut self, why: &str, tell: &mut dyn FnMut(&str)) {
        tell(&format!("job {} reads alone: {why}", self.pid));
        self.part(why);
    }

    pub(super) fn refuse(&mut self, (cause, hint): (String, String), tell: &mut dyn FnMut(&str)) {
        tell(&format!("job {} is refused: {cause}", self.pid));
        self.say(&ToJob::Refused { cause, hint });
        self.stage = Stage::Apart;
    }

    /// Takes in what it says, up to what it says first, which is returned. Besides, whether it said anything.
    pub(super) fn hear(&mut self, tell: &mut dyn FnMut(&str)) -> (bool, Option<Hello>) {
        if let Some(hello) = self.hello.take() {
            return (true, Some(hello));
        }
        let mut heard = false;
        while !self.has_gone() {
            self.connection.flush();
            match self.connection.hear() {
                Ok(Heard::Nothing) => break,
                Ok(Heard::Message(ToReader::Hello { version, terms, epoch, position }, ..))
                    if self.stage == Stage::New =>
                {
                    return (true, Some((version, terms, Cursor { epoch, position })));
                }
                Ok(Heard::Message(ToReader::Waits(taken), ..)) => {
                    if self.waits.replace(taken) == Some(taken) && !self.connection.is_stuck() {
                        self.say(&ToJob::Here);
                    }
                }
                Ok(Heard::Message(ToReader::Released(name), ..)) if self.holds.remove(&name) => {}
                Ok(Heard::Message(ToReader::Leaves, ..)) => self.leave(Stage::Apart, "has left", tell),
                Ok(Heard::Closed) => self.leave(Stage::Gone, "was lost", tell),
                // Not due, or no message: what it holds is not known any more, so it has to go.
                wrong => {
                    let cause = wrong.err().map_or("it is not due".to_owned(), |error| error.cause().to_owned());
                    tell(&format!("job {} is dropped: {cause}", self.pid));
                    self.stage = Stage::Gone;
                }
            }
            heard = true;
        }
        (heard, None)
    }
}

impl Pass {
    /// One that begins when as many jobs are there as it waits for, or when it is due.
    pub(super) fn new(prepared: Prepared, options: SharingOptions, due: Option<Instant>) -> Pass {
        Pass {
            options,
            decodes: prepared.parts.config.decode.shape.is_some(),
            run: prepared.parts.run.clone(),
            prepared: Some(prepared),
            due,
            starting: None,
            loader: None,
            jobs: Vec::new(),
            held: BTreeMap::new(),
            end: 0,
            over: false,
            delayed: false,
            looked: Instant::now(),
        }
    }

    /// Looks after its jobs and its loader. Whether anything moved.
    ///
    /// # Errors
    /// Those of the loader.
    pub(super) fn turn(&mut self, tell: &mut dyn FnMut(&str)) -> Result<bool> {
        let mut moved = false;
        self.jobs.iter_mut().for_each(|job| moved |= job.hear(tell).0);
        self.jobs.retain(|job| !job.has_gone());
        let served = self.jobs.iter().filter(|job| job.is_served()).count();
        let is_due = served > 0 && self.due.is_some_and(|due| Instant::now() >= due);
        if is_due || served >= self.options.jobs.max(1) {
            self.begin()?;
        }
        self.open(tell)?;
        moved |= self.take()?;
        moved |= self.give();
        self.free();
        self.look_for_slow(tell);
        Ok(moved)
    }

    /// No job is served and none holds a batch.
    pub(super) fn is_over(&self) -> bool {
        self.starting.is_none() && self.jobs.iter().all(|job| !job.is_served() && job.holds.is_empty())
    }

    /// Ends it; jobs that are left read alone. Returns the counters of its loader, if it was needed.
    pub(super) fn end(mut self, why: &str) -> Option<Stats> {
        self.jobs.iter_mut().filter(|job| job.is_served()).for_each(|job| job.part(why));
        let started = self.starting.take().and_then(|starting| starting.join().ok()?.ok());
        // Closed before the batches that jobs may still read are dropped.
        self.loader.take().or(started).map(|loader| {
            let stats = loader.stats();
            Stats { slots: loader.close().slots, ..stats }
        })
    }

    /// Readable when the loader may have something that can be taken.
    pub(super) fn event(&self) -> Result<Option<impl AsFd + use<>>> {
        // Readable until the loader is looked at.
        self.loader.as_ref().filter(|_| !self.over && !self.is_full()).map(Loader::event).transpose()
    }

    /// Takes in a job whose first batch has this number.
    pub(super) fn join(&mut self, mut job: Job, (start, number): (Cursor, u64), tell: &mut dyn FnMut(&str)) {
        (job.stage, job.start, job.at) = (Stage::Served, start, number);
        job.say(&ToJob::Agreed { decodes: self.decodes });
        tell(&format!("job {} has joined", job.pid));
        self.jobs.push(job);
        self.lend(self.jobs.len() - 1, tell);
    }

    /// The number of the batch that a job which stands there begins with, of those that are held or soon read.
    pub(super) fn place(&self, start: Cursor) -> core::result::Result<u64, String> {
        if self.prepared.is_some() {
            // It begins where the one furthest behind will stand.
            return Ok(0);
        }
        let number = self.run.seq_at(start).ok_or("it stands between two steps, or before the others")?.0;
        if let Some(lost) = (number..self.end).find(|number| !self.held.contains_key(number)) {
            let Cursor { epoch, position } = self.run.cursor_after(BatchSeq(self.end - 1));
            let samples = self.run.epoch_samples();
            return Err(format!(
                "the pass is at position {position} of {samples} in epoch {epoch}, and batch {lost}, which this job needs, has \
                 been dropped already (start it before the pass, raise passes_max there, or set the same spill_dirs at both)"
            ));
        }
        if self.loader.is_some() && number > self.end + self.apart() {
            return Err(format!("it begins with batch {number}, far ahead of {}", self.end));
        }
        Ok(number)
    }

    /// Hands over the memory that batches lie in, once it is there.
    fn lend(&mut self, at: usize, tell: &mut dyn FnMut(&str)) {
        let Some(loader) = &self.loader else { return };
        match loader.arena().lend().and_then(|memory| memory.try_clone_to_owned().ok()) {
            Some(memory) => self.jobs[at].connection.say(message(&ToJob::Memory, &[]), Some(memory)),
            None => self.jobs[at].leave_alone("the process that reads has no file descriptor left", tell),
        }
    }

    /// Starts the loader, where the job that is furthest behind stands.
    fn begin(&mut self) -> Result<()> {
        let Some(mut prepared) = self.prepared.take() else { return Ok(()) };
        let first = self.jobs.iter().filter(|job| job.is_served()).map(|job| job.start).min().unwrap_or_default();
        prepared.parts.run = prepared.parts.run.starting_at(first)?;
        self.run = prepared.parts.run.clone();
        self.starting = Some(spawn("fuelrail-pass", move || prepared.start())?);
        Ok(())
    }

    /// Reads on as soon as the loader has started.
    fn open(&mut self, tell: &mut dyn FnMut(&str)) -> Result<()> {
        let Some(starting) = self.starting.take_if(|starting| starting.is_finished()) else { return Ok(()) };
        let loader = starting.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
        if loader.room() < 2 * AHEAD_MIN {
            let (room, bytes) = (loader.room(), ByteSize(2 * AHEAD_MIN * loader.slot_bytes_max()));
            let cause = format!(
                "memory holds {room} batches at their longest, and jobs that share them need {}",
                2 * AHEAD_MIN
            );
            return Err(
                Error::new(Kind::Budget, cause).with_hint(format!("raise memory_limit above {bytes} for each shard"))
            );
        }
        loader.notices().iter().for_each(|notice| tell(notice));
        // Made before the first look that finds nothing.
        loader.event()?;
        self.loader = Some(loader);
        let (batches, Cursor { epoch, position }) = (self.run.batches(), self.run.config().start);
        tell(&format!("reading {batches} batches from epoch {epoch}, position {position} on"));
        for at in 0..self.jobs.len() {
            if self.jobs[at].is_served() {
                match self.place(self.jobs[at].start) {
                    Ok(number) => {
                        self.jobs[at].at = number;
                        self.lend(at, tell);
                    }
                    Err(why) => self.jobs[at].leave_alone(&why, tell),
                }
            }
        }
        Ok(())
    }

    /// Batches that the fastest job may be ahead of the slowest: half of those that fit, so that the other half is read meanwhile.
    fn apart(&self) -> u64 {
        self.loader.as_ref().map_or(1, |loader| (loader.room() / 2).clamp(1, APART_MAX))
    }

    /// Batches that a job may hold: what it keeps when it is left behind is kept from the others.
    fn ahead(&self) -> usize {
        (self.apart() / 2).max(AHEAD_MIN) as usize
    }

    /// The oldest batch that a job still needs.
    fn oldest(&self) -> Option<u64> {
        self.jobs.iter().filter(|job| job.is_served()).map(Job::oldest).min()
    }

    fn is_full(&self) -> bool {
        self.oldest().is_none_or(|oldest| self.end >= oldest + self.apart())
    }

    /// Takes what the loader has, as far as jobs may be apart. Whether it had anything.
    fn take(&mut self) -> Result<bool> {
        let before = (self.end, self.over);
        while !self.over && !self.is_full() {
            let Some(loader) = &mut self.loader else { break };
            match loader.try_next_batch()? {
                Taken::NotYet => break,
                Taken::Over => self.over = true,
                Taken::Batch(batch) => {
                    let base = loader.arena().span().0 as u64;
                    let offset = batch.bytes().as_ptr() as u64 - base;
                    let message = batch_message(self.end, batch.assembled(), offset);
                    self.held.insert(self.end, Held { _batch: batch, message });
                    self.end += 1;
                }
            }
        }
        Ok((self.end, self.over) != before)
    }

    /// Gives each job what it may have. Whether any got something.
    fn give(&mut self) -> bool {
        let (ahead, mut gave) = (self.ahead(), false);
        for job in self.jobs.iter_mut().filter(|job| job.is_served()) {
            while job.at < self.end && job.holds.len() < ahead && !job.connection.is_stuck() {
                let held = &self.held[&job.at];
                job.connection.say(Arc::clone(&held.message), None);
                job.holds.insert(job.at);
                (job.at, job.given, gave) = (job.at + 1, job.given + 1, true);
            }
        }
        gave
    }

    /// Drops the batches that no job has or will be given.
    fn free(&mut self) {
        let Pass { held, jobs, .. } = self;
        let is_wanted =
            |number: &u64| jobs.iter().any(|job| job.holds.contains(number) || job.is_served() && job.at <= *number);
        held.retain(|number, _| is_wanted(number));
    }

    /// Leaves those behind that have kept others waiting for too long, because nothing can be read for the ones before the others are done;
    /// and those that wait for a batch while they keep all they may hold. Those that want more than is read go on alone at once.
    fn look_for_slow(&mut self, tell: &mut dyn FnMut(&str)) {
        // Of the time in which this process was stopped, little counts.
        let since = if self.delayed { self.looked.elapsed().min(10 * LOOK_AGAIN) } else { Duration::ZERO };
        self.looked = Instant::now();
        let (end, ahead) = (self.end, self.ahead());
        let waits = |job: &Job| job.is_served() && job.waits == Some(job.given);
        let keeps_all_it_may = |job: &Job| waits(job) && job.holds.len() >= ahead;
        let starves = |job: &Job| waits(job) && job.at == end && !keeps_all_it_may(job);
        self.jobs.iter_mut().filter(|job| starves(job)).for_each(|job| job.delay = Duration::ZERO);
        for job in self.jobs.iter_mut().filter(|job| self.over && starves(job)) {
            job.leave_alone("the last epoch is read", tell);
        }
        let delays = !self.over && self.is_full() && self.jobs.iter().any(starves);
        let oldest = self.oldest().filter(|_| delays);
        self.delayed = delays || self.jobs.iter().any(keeps_all_it_may);
        let is_slow = |job: &&mut Job| keeps_all_it_may(job) || job.is_served() && Some(job.oldest()) == oldest;
        for job in self.jobs.iter_mut().filter(is_slow) {
            job.delay += since;
            if job.delay >= self.options.wait {
                let why =
                    if keeps_all_it_may(job) { "it keeps as many as a job may" } else { "others have waited for it" };
                tell(&format!("job {} is left behind at batch {}: {why}", job.pid, job.at));
                job.part(why);
            }
        }
    }
}
