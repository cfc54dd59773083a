//! The process that reads, as a whole: where it listens, what its jobs must have set alike, and in which pass a job takes part.
//!
//! One thread, which sleeps in `poll`.

use super::protocol::{BATCH_SAMPLES_MAX, LISTED, Terms, VERSION, difference, socket_name, terms};
use super::reader::{Hello, Job, LOOK_AGAIN, Pass, SharingOptions};
use crate::config::Config;
use crate::prepared::Prepared;
use crate::stats::Stats;
use crate::system::own_directory;
use fuelrail_base::{Error, Kind, Result};
use fuelrail_io::{LocalListener, wait_for};
use fuelrail_plan::run::Cursor;
use std::os::fd::AsFd;
use std::path::Path;
use std::time::Instant;

/// Batches decoded ahead at least, where the process that reads decodes: they are what jobs can be apart.
pub(crate) const DECODED_AHEAD: usize = 16;

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

/// A name beside that one, for as long as jobs are answered at once: a probe looks whether it is listened at, and nobody connects.
fn announce(config: &Config) -> Result<LocalListener> {
    let dir = config.network.share_dir.as_deref().unwrap_or(Path::new(""));
    let name = format!("{}.ready", socket_name(&config.uri));
    LocalListener::bind(own_directory("share_dir", dir, &mut Vec::new())?, &name)
}

/// Where jobs connect, and those that have.
pub(crate) type Waiting = (LocalListener, Vec<Job>);

/// A read that is shared: made by [`LoaderBuilder::share`](crate::LoaderBuilder::share).
pub struct Sharing {
    listener: LocalListener,
    /// While this is there, jobs are answered.
    _ready: LocalListener,
    options: SharingOptions,
    terms: Terms,
    /// What passes are started from.
    prepared: Prepared,
    /// Under way, or waiting for jobs: the oldest first.
    passes: Vec<Pass>,
    /// One has ended.
    has_read: bool,
    /// Who takes part in none: has not said what it wants, or was told to read alone.
    others: Vec<Job>,
    /// No further file can be open: those that connect wait until the next look.
    out_of_files: bool,
}

impl Sharing {
    pub(crate) fn new((listener, others): Waiting, prepared: Prepared, options: SharingOptions) -> Result<Sharing> {
        let (_ready, terms, passes) = (announce(&prepared.parts.config)?, terms(&prepared.parts), Vec::new());
        Ok(Sharing { listener, _ready, options, terms, prepared, passes, has_read: false, others, out_of_files: false })
    }

    pub(crate) fn waiting(self) -> Waiting {
        (self.listener, self.others)
    }

    /// Reads for the jobs that come until those of a pass have gone, or `stop` says so. `tell` hears of each that joins, leaves or is left
    /// behind. Returns the counters of that pass, whose `slots` are the batches that jobs have still; call it again for the passes that are
    /// left. `None` when none is.
    ///
    /// # Errors
    /// Those of a loader, unless another pass goes on; the jobs then read alone.
    pub fn serve(&mut self, stop: &dyn Fn() -> bool, tell: &mut dyn FnMut(&str)) -> Result<Option<Stats>> {
        loop {
            let stopped = stop();
            if let Some(at) = self.passes.iter().position(|pass| stopped || pass.is_over()) {
                let ended = self.passes.remove(at).end("the process that reads has ended");
                if ended.is_some() {
                    self.has_read = true;
                    return Ok(ended);
                }
                // Its jobs have gone before it began.
                continue;
            }
            if stopped || self.has_read && self.passes.is_empty() {
                return Ok(None);
            }
            self.accept(tell);
            let mut moved = false;
            for at in (0..self.passes.len()).rev() {
                match self.passes[at].turn(tell) {
                    Ok(turned) => moved |= turned,
                    Err(error) => {
                        self.passes.remove(at).end(&format!("the process that reads has failed: {error}"));
                        if self.passes.is_empty() {
                            return Err(error);
                        }
                        tell(&format!("a pass has failed, and its jobs read alone: {error}"));
                    }
                }
            }
            // What has ended makes room for those that came after.
            if self.passes.iter().any(Pass::is_over) {
                continue;
            }
            moved |= self.hear(tell);
            if !moved {
                self.rest()?;
            }
        }
    }

    /// Takes in the jobs that have connected.
    fn accept(&mut self, tell: &mut dyn FnMut(&str)) {
        let was_out = core::mem::replace(&mut self.out_of_files, false);
        loop {
            match self.listener.accept() {
                Ok(Some(socket)) => self.others.push(Job::new(socket)),
                Ok(None) => return,
                Err(error) => {
                    self.out_of_files = true;
                    if !was_out {
                        tell(&format!("a job that has connected waits: {error}"));
                    }
                    return;
                }
            }
        }
    }

    /// Sleeps until a job says something or takes something, or a loader has something.
    fn rest(&self) -> Result<()> {
        let events = self.passes.iter().filter_map(|pass| pass.event().transpose()).collect::<Result<Vec<_>>>()?;
        let jobs = self.passes.iter().flat_map(|pass| &pass.jobs).chain(&self.others);
        let jobs = jobs.map(|job| (job.connection.socket.as_fd(), job.connection.is_stuck()));
        let events = events.iter().map(|event| (event.as_fd(), false));
        // One that cannot be accepted would end every sleep at once.
        let listener = (!self.out_of_files).then(|| (self.listener.as_fd(), false));
        wait_for(jobs.chain(events).chain(listener), LOOK_AGAIN);
        Ok(())
    }

    /// Takes in what those say that take part in no pass. Whether any did.
    fn hear(&mut self, tell: &mut dyn FnMut(&str)) -> bool {
        let mut heard = false;
        for mut job in core::mem::take(&mut self.others) {
            let (said, hello) = job.hear(tell);
            heard |= said;
            match hello {
                Some(hello) => self.greet(job, hello, tell),
                None if job.has_gone() => {}
                None => self.others.push(job),
            }
        }
        heard
    }

    /// Answers a job's first message.
    fn greet(&mut self, mut job: Job, (version, terms, start): Hello, tell: &mut dyn FnMut(&str)) {
        let found = match version == VERSION {
            true => difference(&self.terms, &terms, self.prepared.parts.config.decode.shape.is_some()),
            false => Some((
                format!("it speaks version {version} of the protocol, and the process that reads {VERSION}"),
                "use the same version of fuelrail on both sides".to_owned(),
            )),
        };
        let started = self.prepared.parts.run.clone().starting_at(start);
        if let Some((cause, _)) = found.as_ref().filter(|_| self.options.stays && version == VERSION) {
            let is_listed = LISTED.iter().all(|name| terms.get(*name) == self.terms.get(*name));
            if is_listed || !self.passes.is_empty() || job.is_listed_again {
                job.leave_alone(cause, tell);
            } else {
                // The data set is listed anew for it, once.
                (job.is_listed_again, job.hello, self.has_read) = (true, Some((version, terms, start)), true);
            }
            return self.others.push(job);
        }
        match (found, started.map_err(|error| error.cause().to_owned())) {
            (Some(wrong), _) => job.refuse(wrong, tell),
            (None, Err(why)) => job.leave_alone(&why, tell),
            (None, Ok(_)) => match self.place(start, tell) {
                Ok((pass, number)) => return self.passes[pass].join(job, (start, number), tell),
                Err(why) => job.leave_alone(&why, tell),
            },
        }
        self.others.push(job);
    }

    /// The pass for a job that stands there, and the number of its first batch: the oldest that has its batches, or a further one. Where there
    /// may be no more, why the oldest is none.
    fn place(&mut self, start: Cursor, tell: &mut dyn FnMut(&str)) -> core::result::Result<(usize, u64), String> {
        let mut why = None;
        for (at, pass) in self.passes.iter().enumerate() {
            match pass.place(start) {
                Ok(number) => return Ok((at, number)),
                Err(other) => _ = why.get_or_insert(other),
            }
        }
        let (is_further, mut due) = (why.is_some(), None);
        if let Some(why) = why.filter(|_| self.passes.len() >= self.options.passes_max) {
            return Err(why);
        }
        let mut prepared = self.prepared.another();
        if is_further {
            let Cursor { epoch, position } = start;
            let of_first = "audit, metrics_listen and peers are the first one's";
            tell(&format!("a further pass for a job at position {position} of epoch {epoch}; {of_first}"));
            due = Instant::now().checked_add(self.options.wait);
            // One loader alone can have those.
            let config = &mut prepared.parts.config;
            (config.audit, config.metrics_listen) = (None, None);
            config.peers.addresses.clear();
        }
        self.passes.push(Pass::new(prepared, self.options.clone(), due));
        Ok((self.passes.len() - 1, 0))
    }
}

impl std::fmt::Debug for Sharing {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Sharing").field("passes", &self.passes.len()).finish_non_exhaustive()
    }
}
