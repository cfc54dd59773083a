//! The side of the process that reads: owns the loader, and every batch until all jobs that were given it have released it.
//!
//! Decides who gets which batch, how far the fastest job may be ahead of the slowest, and when a slow one is left behind. One thread, which
//! sleeps in `poll`.

use super::protocol::{
    BATCH_SAMPLES_MAX, Connection, Heard, Terms, ToJob, ToReader, VERSION, batch_message, difference, message,
    socket_name, terms,
};
use crate::batch::Batch;
use crate::config::Config;
use crate::loader::{Loader, Parts, Taken};
use crate::prepared::Prepared;
use crate::stats::Stats;
use crate::system::own_directory;
use fuelrail_base::{BatchSeq, ByteSize, Duration, Error, Kind, Result};
use fuelrail_io::{LocalListener, wait_for};
use fuelrail_plan::run::{Cursor, Run};
use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::Instant;

/// How jobs share a read.
#[derive(Clone, Debug)]
pub struct SharingOptions {
    /// Jobs that must be there before it begins, where the first of them stands.
    pub jobs: usize,
    /// How long a slow job may keep others waiting, all its delays together since it last was as far as they; then it is left behind.
    pub wait: Duration,
}

impl Default for SharingOptions {
    /// One job, and 10 s.
    fn default() -> SharingOptions {
        SharingOptions { jobs: 1, wait: Duration::from_secs(10) }
    }
}

/// Batches decoded ahead at least, where the process that reads decodes: they are what jobs can be apart.
pub(crate) const DECODED_AHEAD: usize = 16;
/// Most batches that jobs can be apart.
const APART_MAX: u64 = 64;
/// Batches that a job may hold at least: one that it works on while it asks for the next.
const AHEAD_MIN: u64 = 2;
/// The longest sleep, and the longest while a slow job keeps others waiting.
const LOOK_AGAIN: Duration = Duration::from_millis(100);

/// Listens for jobs in `share_dir`.
///
/// # Errors
/// `Usage` without one, or when another process serves this URI there; `File` when it cannot be used.
pub(crate) fn listen(config: &Config, notices: &mut Vec<String>) -> Result<LocalListener> {
    if config.order.importance.is_some() || config.batch_size > BATCH_SAMPLES_MAX {
        let cause = format!("a shared read with importance, or batches of more than {BATCH_SAMPLES_MAX} samples");
        return Err(Error::new(Kind::Usage, cause).with_hint("let each job read alone"));
    }
    let Some(dir) = &config.network.share_dir else {
        let cause = "share_dir is not set, where the jobs find this process";
        return Err(Error::new(Kind::Usage, cause).with_hint("name a local directory, and the same for the jobs"));
    };
    LocalListener::bind(own_directory("share_dir", dir, notices)?, &socket_name(&config.uri))
}

/// A read that is shared: made by [`LoaderBuilder::share`](crate::LoaderBuilder::share).
pub struct Sharing {
    listener: LocalListener,
    options: SharingOptions,
    terms: Terms,
    decodes: bool,
    run: Run,
    prepared: Option<Prepared>,
    // Dropped before the batches: nothing writes to their memory when they are.
    loader: Option<Loader>,
    jobs: Vec<Job>,
    /// By number.
    held: BTreeMap<u64, Held>,
    /// The next batch to be taken from the loader.
    end: u64,
    over: bool,
    /// No further file can be open: those that connect wait until the next look.
    out_of_files: bool,
    /// Whether a slow job has kept others waiting since the last look, and when that was.
    delayed: bool,
    looked: Instant,
}

struct Held {
    _batch: Batch,
    message: Arc<[u8]>,
}

/// A process that takes batches.
struct Job {
    connection: Connection,
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

impl Job {
    /// The oldest batch that it keeps.
    fn oldest(&self) -> u64 {
        self.holds.first().map_or(self.at, |held| self.at.min(*held))
    }

    fn is_served(&self) -> bool {
        self.stage == Stage::Served
    }

    fn leave(&mut self, to: Stage, tell: &mut dyn FnMut(&str)) {
        if self.is_served() {
            tell(&format!("job {} has left after {} batches", self.pid, self.given));
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
    fn leave_alone(&mut self, why: &str, tell: &mut dyn FnMut(&str)) {
        tell(&format!("job {} reads alone: {why}", self.pid));
        self.part(why);
    }
}

impl Sharing {
    pub(crate) fn new(listener: LocalListener, prepared: Prepared, options: SharingOptions) -> Result<Sharing> {
        let Parts { config, run, .. } = &prepared.parts;
        Ok(Sharing {
            listener,
            options,
            terms: terms(&prepared.parts),
            decodes: config.decode.shape.is_some(),
            run: run.clone(),
            prepared: Some(prepared),
            loader: None,
            jobs: Vec::new(),
            held: BTreeMap::new(),
            end: 0,
            over: false,
            out_of_files: false,
            delayed: false,
            looked: Instant::now(),
        })
    }

    /// Reads for the jobs that come until those that came have gone, or `stop` says so. `tell` hears of each that joins, leaves or is left
    /// behind. Returns the counters of the loader, if it was needed; its `slots` are the batches that jobs have still.
    ///
    /// # Errors
    /// Those of the loader; the jobs then read alone.
    pub fn serve(mut self, stop: &dyn Fn() -> bool, tell: &mut dyn FnMut(&str)) -> Result<Option<Stats>> {
        let outcome = self.turns(stop, tell);
        let why = match &outcome {
            Ok(()) => "the process that reads has ended".to_owned(),
            Err(error) => format!("the process that reads has failed: {error}"),
        };
        self.jobs.iter_mut().filter(|job| job.is_served()).for_each(|job| job.part(&why));
        outcome?;
        // Closed before the batches that jobs may still read are dropped.
        Ok(self.loader.take().map(|loader| {
            let stats = loader.stats();
            Stats { slots: loader.close().slots, ..stats }
        }))
    }

    fn turns(&mut self, stop: &dyn Fn() -> bool, tell: &mut dyn FnMut(&str)) -> Result<()> {
        while !stop() {
            self.accept(tell);
            let mut moved = self.hear(tell);
            if self.loader.is_none()
                && self.jobs.iter().filter(|job| job.is_served()).count() >= self.options.jobs.max(1)
            {
                self.begin(tell)?;
            }
            moved |= self.take()?;
            moved |= self.give();
            self.free();
            self.look_for_slow(tell);
            // It ends when no job is served and none holds a batch.
            if self.loader.is_some() && self.jobs.iter().all(|job| !job.is_served() && job.holds.is_empty()) {
                break;
            }
            if !moved {
                self.rest()?;
            }
        }
        Ok(())
    }

    /// Takes in the jobs that have connected.
    fn accept(&mut self, tell: &mut dyn FnMut(&str)) {
        let was_out = core::mem::replace(&mut self.out_of_files, false);
        loop {
            let socket = match self.listener.accept() {
                Ok(Some(socket)) => socket,
                Ok(None) => return,
                Err(error) => {
                    self.out_of_files = true;
                    if !was_out {
                        tell(&format!("a job that has connected waits: {error}"));
                    }
                    return;
                }
            };
            self.jobs.push(Job {
                pid: socket.peer(),
                connection: Connection::over(socket),
                stage: Stage::New,
                start: Cursor::default(),
                at: 0,
                given: 0,
                holds: BTreeSet::new(),
                waits: None,
                delay: Duration::ZERO,
            });
        }
    }

    /// Sleeps until a job says something or takes something, or the loader has something.
    fn rest(&self) -> Result<()> {
        // Readable until the loader is looked at.
        let event = self.loader.as_ref().filter(|_| !self.over && !self.is_full()).map(Loader::event).transpose()?;
        let jobs = self.jobs.iter().map(|job| (job.connection.socket.as_fd(), job.connection.is_stuck()));
        let event = event.iter().map(|event| (event.as_fd(), false));
        // One that cannot be accepted would end every sleep at once.
        let listener = (!self.out_of_files).then(|| (self.listener.as_fd(), false));
        wait_for(jobs.chain(event).chain(listener), LOOK_AGAIN);
        Ok(())
    }

    /// Takes in what the jobs say. Whether any did.
    fn hear(&mut self, tell: &mut dyn FnMut(&str)) -> bool {
        let mut heard = false;
        for at in 0..self.jobs.len() {
            loop {
                let job = &mut self.jobs[at];
                job.connection.flush();
                match job.connection.hear() {
                    Ok(Heard::Nothing) => break,
                    Ok(Heard::Message(ToReader::Hello { version, terms, epoch, position }, ..))
                        if job.stage == Stage::New =>
                    {
                        job.start = Cursor { epoch, position };
                        self.greet(at, version, &terms, tell);
                    }
                    Ok(Heard::Message(ToReader::Waits(taken), ..)) => {
                        if job.waits.replace(taken) == Some(taken) && !job.connection.is_stuck() {
                            job.say(&ToJob::Here);
                        }
                    }
                    Ok(Heard::Message(ToReader::Released(name), ..)) if job.holds.remove(&name) => {}
                    Ok(Heard::Message(ToReader::Leaves, ..)) => job.leave(Stage::Apart, tell),
                    Ok(Heard::Closed) => {
                        job.leave(Stage::Gone, tell);
                        break;
                    }
                    // Not due, or no message: what it holds is not known any more, so it has to go.
                    wrong => {
                        let cause = wrong.err().map_or("it is not due".to_owned(), |error| error.cause().to_owned());
                        tell(&format!("job {} is dropped: {cause}", job.pid));
                        job.stage = Stage::Gone;
                        break;
                    }
                }
                heard = true;
            }
        }
        let before = self.jobs.len();
        self.jobs.retain(|job| job.stage != Stage::Gone);
        heard || self.jobs.len() < before
    }

    /// Answers a job's first message.
    fn greet(&mut self, at: usize, version: u32, terms: &Terms, tell: &mut dyn FnMut(&str)) {
        let found = match version == VERSION {
            true => difference(&self.terms, terms, self.decodes),
            false => Some((
                format!("it speaks version {version} of the protocol, and the process that reads {VERSION}"),
                "use the same version of fuelrail on both sides".to_owned(),
            )),
        };
        let job = &mut self.jobs[at];
        if let Some((cause, hint)) = found {
            tell(&format!("job {} is refused: {cause}", job.pid));
            job.say(&ToJob::Refused { cause, hint });
            job.stage = Stage::Apart;
            return;
        }
        let started = self.run.clone().starting_at(job.start);
        let placed = match (&self.loader, started) {
            (_, Err(error)) => Err(error.cause().to_owned()),
            (None, Ok(_)) => Ok(0),
            (Some(_), Ok(_)) => self.place(at),
        };
        let job = &mut self.jobs[at];
        match placed {
            Err(why) => job.leave_alone(&why, tell),
            Ok(number) => {
                job.stage = Stage::Served;
                job.at = number;
                job.say(&ToJob::Agreed { decodes: self.decodes });
                tell(&format!("job {} has joined", job.pid));
                self.lend(at, tell);
            }
        }
    }

    /// The number of the batch that a job begins with, of those that are held or soon read.
    fn place(&self, at: usize) -> core::result::Result<u64, String> {
        let number = self.run.seq_at(self.jobs[at].start).ok_or("it stands between two steps, or before the others")?.0;
        if let Some(lost) = (number..self.end).find(|number| !self.held.contains_key(number)) {
            let Cursor { epoch, position } = self.run.cursor_after(BatchSeq(self.end - 1));
            let samples = self.run.epoch_samples();
            return Err(format!(
                "the pass is at position {position} of {samples} in epoch {epoch}, and batch {lost}, which this job needs, has \
                 been dropped already (start it before the pass, or set the same spill_dirs at both)"
            ));
        }
        if number > self.end + self.apart() {
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

    /// Starts to read, where the job that is furthest behind stands.
    fn begin(&mut self, tell: &mut dyn FnMut(&str)) -> Result<()> {
        let Some(mut prepared) = self.prepared.take() else { return Ok(()) };
        let first = self.jobs.iter().filter(|job| job.is_served()).map(|job| job.start).min().unwrap_or_default();
        prepared.parts.run = prepared.parts.run.starting_at(first)?;
        let loader = prepared.start()?;
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
        self.run = loader.run().clone();
        self.loader = Some(loader);
        tell(&format!(
            "reading {} batches from epoch {}, position {} on",
            self.run.batches(),
            first.epoch,
            first.position
        ));
        for at in 0..self.jobs.len() {
            if self.jobs[at].is_served() {
                match self.place(at) {
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
        let Sharing { held, jobs, .. } = self;
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

impl std::fmt::Debug for Sharing {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Sharing").field("jobs", &self.jobs.len()).field("end", &self.end).finish_non_exhaustive()
    }
}
