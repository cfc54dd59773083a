//! The loader: the consumer's end of the engine.

mod facts;
mod left_out;
mod own_loop;
mod told;

use crate::audit::Audit;
use crate::batch::{Batch, Labels};
use crate::config::Config;
use crate::decode::{DecodeStage, Shape, Supply};
use crate::importance::Reporter;
use crate::listing::Saved;
use crate::memory::MemoryStats;
use crate::metrics::Metrics;
use crate::peers::PeerServer;
use crate::ranks::HandOver;
use crate::records::Records;
use crate::sharing::RelayThread;
use crate::spill::SegmentManager;
use crate::starting::ShardThreads;
use crate::state::{State, state_at};
use crate::stats::Tally;
use crate::unpack::Unpacker;
use crate::watch::{Report, Shards, Watch, Watchdog};
use fuelrail_base::metrics::Histogram;
use fuelrail_base::{BatchSeq, Duration, Error, Kind, Result, SampleId};
use fuelrail_flow::{Consumer, Finished, Objects};
use fuelrail_io::{Arena, ForkGuard, Waker};
use fuelrail_plan::run::{Cursor, Run};
use left_out::LeftOut;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Instant;
use told::Told;

/// Streams a bucket into batches. An iterator of `Result<Batch>`; after an error it ends, but for the one of batches that are held: it goes on
/// when some are dropped.
pub struct Loader {
    parts: Parts,
    supply: Supply,
    audit: Option<Audit>,
    reporter: Option<Reporter>,
    /// Shows the counters.
    metrics: Option<Metrics>,
    from: Delivery,
    /// Held by every batch that the caller has.
    lease: Arc<()>,
    waiting: Arc<AtomicBool>,
    /// Batches that the caller has taken, for the watchdog.
    taken: Arc<AtomicU64>,
    waker: Waker,
    /// Whether a look that finds nothing leaves the waker armed.
    stays_armed: bool,
    /// Since when there has been nothing, of a program with a loop of its own.
    pending_since: Option<Instant>,
    /// Since when the caller's leases leave no room for the next batch; over calls that end without one, too.
    held_since: Option<Instant>,
    /// The error of this call says so: it loses nothing.
    is_refused: bool,
    /// What was said of samples that are left out.
    left_out: LeftOut,
    /// How much of what it knows of draws the run has learnt.
    learnt: Option<u64>,
    tally: Tally,
    /// How long each call waited.
    waits: Histogram,
    started: Instant,
    cursor: Cursor,
    failed: bool,
    guard: ForkGuard,
    watchdog: Option<Watchdog>,
}

/// What [`Loader::next_batch_within`] found.
#[derive(Debug)]
#[expect(clippy::large_enum_variant, reason = "taken apart at once; a box would be an allocation for every batch")]
pub enum Taken {
    /// The next batch.
    Batch(Batch),
    /// It is not there yet.
    NotYet,
    /// The run is over or has failed.
    Over,
}

/// What is read and how, and what is known of it.
#[derive(Clone)]
pub(crate) struct Parts {
    pub config: Config,
    pub objects: Arc<Objects>,
    pub run: Run,
    pub labels: Arc<Labels>,
    pub records: Option<Arc<Records>>,
    pub fingerprint: String,
    pub saved: Saved,
    pub notices: Vec<String>,
    pub told: Told,
    /// Its batches are lent to other processes, which may keep them for any time.
    pub lent: bool,
    /// Batches that the program still holds when it asks for the next one.
    pub held: u64,
    /// It reads for another loader, which tells what is left out.
    pub is_inner: bool,
    /// What reads it, once that has started.
    pub shards: Shards,
}

/// What raw batches come from, and what that stands on. Fields are dropped in this order, which matters where a start fails: what is lent
/// comes back first, then the shards end, and then the locks on their disks.
pub(crate) struct Delivery {
    /// Serves blocks to other ranks.
    pub peer_server: Option<PeerServer>,
    /// Hands on the batches that another process reads. There are no shards beside it.
    pub relay: Option<RelayThread>,
    /// Makes the batches in the place of shards.
    pub unpacker: Option<Unpacker>,
    pub threads: ShardThreads,
    /// Makes and removes segments of the disk as long as the shards live.
    pub segment_manager: Option<SegmentManager>,
    pub consumer: Arc<Consumer>,
    pub arena: Arena,
    pub memory: MemoryStats,
    /// Batches of the greatest size that fit into the memory.
    pub room: u64,
}

impl Delivery {
    /// Without shards or anything else beside the memory.
    pub(crate) fn of(consumer: Arc<Consumer>, arena: Arena, memory: MemoryStats) -> Delivery {
        let (peer_server, relay, unpacker, segment_manager) = (None, None, None, None);
        let (threads, room) = (ShardThreads::default(), 0);
        Delivery { peer_server, relay, unpacker, threads, segment_manager, consumer, arena, memory, room }
    }
}

/// The log of what is delivered, where one is wanted.
fn audit(parts: &Parts) -> Result<Option<Audit>> {
    let Parts { config, objects, run, fingerprint, .. } = parts;
    let Some(path) = &config.audit else { return Ok(None) };
    let start = state_at(run, fingerprint, config.order.importance, run.config().start);
    let samples = run.mixture().map(|_| objects.catalog().samples());
    Audit::create(path, (config.rank, config.world), start, samples).map(Some)
}

/// The longest sleep of a waiting consumer before it looks whether a shard died or leases hold all memory.
const LOOK_AGAIN: Duration = Duration::from_millis(100);
/// How long all memory must have been held by leases before that is called an error.
const LEASE_PATIENCE: Duration = Duration::from_secs(1);

impl Loader {
    pub(crate) fn new(
        parts: Parts,
        from: Delivery,
        supply: Supply,
        (reporter, metrics): (Option<Reporter>, Option<Metrics>),
        report: Box<Report>,
    ) -> Result<Loader> {
        let (waiting, waker) = (Arc::new(AtomicBool::new(false)), Waker::sleeper());
        let taken = Arc::new(AtomicU64::new(0));
        supply.set_waker(&waker);
        from.consumer.failure.wakes(&waker);
        let watchdog = Watchdog::start(Watch {
            shards: parts.shards.clone(),
            decode: supply.stage().map(|stage| Arc::clone(stage.facts())),
            relay: from.relay.as_ref().map(RelayThread::progress),
            taken: Arc::clone(&taken),
            waiting: Arc::clone(&waiting),
            // What reads packed shards is watched by itself.
            after: parts.config.watchdog_after.filter(|_| from.unpacker.is_none()).unwrap_or_default(),
            on_signal: parts.config.report_on_sigusr1,
            report,
        });
        let mut loader = Loader {
            cursor: parts.run.config().start,
            parts,
            supply,
            audit: None,
            reporter,
            metrics,
            from,
            lease: Arc::default(),
            waiting,
            taken,
            waker,
            stays_armed: false,
            pending_since: None,
            held_since: None,
            is_refused: false,
            left_out: LeftOut::default(),
            learnt: None,
            tally: Tally::default(),
            waits: Histogram::new(),
            started: Instant::now(),
            failed: false,
            guard: ForkGuard::new(),
            watchdog: None,
        };
        // From here on a failure stops and joins what stands.
        loader.watchdog = Some(watchdog?);
        // Last: a log that is there is not overwritten, so a start that fails must leave none.
        loader.audit = audit(&loader.parts)?;
        Ok(loader)
    }

    /// The next batch, in order; blocks until it is there. `None` when the run is over or has failed.
    ///
    /// # Errors
    /// The error of a sample under `raise`; `Budget` when all memory is held by batches the caller keeps, after which the run goes on;
    /// `Environment` when a shard could not go on or the process was forked; `File` when the audit log cannot be written.
    pub fn next_batch(&mut self) -> Option<Result<Batch>> {
        match self.guarded(None) {
            Ok(Taken::Over) => None,
            Ok(Taken::Batch(batch)) => Some(Ok(batch)),
            Ok(Taken::NotYet) => unreachable!("without a bound on patience a wait ends with a batch or an error"),
            Err(error) => Some(Err(error)),
        }
    }

    /// As [`next_batch`](Loader::next_batch), for at most `patience`: for a caller that has other things to look after, such
    /// as copies that end meanwhile. Zero only looks.
    ///
    /// # Errors
    /// As [`next_batch`](Loader::next_batch); afterwards the run is [`Taken::Over`], but for `Budget` where batches are held.
    pub fn next_batch_within(&mut self, patience: Duration) -> Result<Taken> {
        self.guarded(Some(patience))
    }

    /// An error is the last that is returned, unless the caller can mend it.
    fn guarded(&mut self, patience: Option<Duration>) -> Result<Taken> {
        if self.failed {
            if self.guard.holds() {
                self.waker.announce();
            }
            return Ok(Taken::Over);
        }
        let outcome = self.guard.check().and_then(|()| self.take(patience));
        self.failed |= outcome.is_err() && !std::mem::take(&mut self.is_refused);
        // Another thread may have looked, found nothing, and now sleep on the eventfd: what it was armed for was taken here, or forgotten.
        if self.guard.holds() && (!self.stays_armed || !matches!(outcome, Ok(Taken::NotYet))) {
            self.waker.announce();
        }
        outcome
    }

    /// The next batch, or that there is none, or after `patience` that there is none yet.
    fn take(&mut self, patience: Option<Duration>) -> Result<Taken> {
        self.parts.told.hear(&mut self.parts.notices);
        if self.supply.is_finished() {
            return Ok(Taken::Over);
        }
        if let Some(known) = self.reporter.as_ref().and_then(|reporter| reporter.asked(self.cursor, &mut self.learnt)) {
            self.parts.run.learn(&known);
        }
        let (pending_since, begun) = (self.pending_since.take(), Instant::now());
        if pending_since.is_some() {
            self.set_waiting(false);
        }
        let at_once = self.supply.try_take();
        let ready = at_once.is_some() && self.tally.waiting.is_zero() && pending_since.is_none();
        if let Some(since) = pending_since {
            // What the program did after the batch had come is no wait.
            let came = self.waker.woken().filter(|&woken| at_once.is_some() && woken >= since);
            self.tally.waiting += came.unwrap_or(begun) - since;
        }
        let taken = match at_once {
            Some(finished) => Some(Ok(finished)),
            None => self.wait(begun, patience).transpose(),
        };
        let made = taken.map(|taken| taken.and_then(|finished| self.made(finished)));
        self.tally.waiting += self.pending_since.unwrap_or_else(Instant::now) - begun;
        let Some(made) = made else { return Ok(Taken::NotYet) };
        self.waits.record(self.tally.end_call(ready));
        let (batch, seq) = made?;
        if !self.parts.is_inner {
            self.left_out.look_at(&batch, self.parts.config.bad_samples);
        }
        self.count(&batch, seq)?;
        Ok(Taken::Batch(batch))
    }

    /// The batch that the caller gets: its records are checked, and its labels found, on the caller's thread.
    fn made(&mut self, Finished { seq, result }: Finished) -> Result<(Batch, BatchSeq)> {
        let mut assembled = result.map_err(|error| self.parts.saved.judged(error))?;
        // Decoding has looked at its own, and so has the process that read what is handed on, which may have named another label.
        let has_label = self.parts.config.label_field.is_some() && self.parts.config.decode.shape.is_none();
        let is_checked = self.supply.stage().is_some() || self.from.relay.is_some() && !has_label;
        if let Some(records) = self.parts.records.as_ref().filter(|_| !is_checked) {
            records.leave_out_flawed(&mut assembled, &self.parts.objects, self.parts.config.bad_samples)?;
        }
        self.parts.saved.look_at(&assembled.left_out);
        let shape = self.parts.config.decoded().map(|decode| Shape::new(assembled.samples.len(), &decode));
        let draw = self.parts.run.draw(assembled.spec.epoch);
        let named = (&*self.parts.labels, Arc::clone(&self.parts.objects), self.parts.records.clone());
        Ok((Batch::new(assembled, named, shape, draw, Arc::clone(&self.lease)), seq))
    }

    fn count(&mut self, batch: &Batch, seq: BatchSeq) -> Result<()> {
        self.taken.fetch_add(1, Ordering::Relaxed);
        if self.tally.batches == 0 {
            self.tally.first_batch = self.started.elapsed();
        }
        self.tally.batches += 1;
        self.tally.samples += batch.len() as u64;
        self.tally.bytes += batch.payload_bytes();
        self.tally.left_out += batch.left_out().len() as u64;
        self.tally.begin(
            batch.epoch(),
            self.parts.run.config().samples,
            self.parts.run.draw(batch.epoch()).map(|draw| draw.distinct()),
        );
        if let Some(metrics) = &self.metrics {
            metrics.take(self.tally);
        }
        let next = self.parts.run.cursor_after(seq);
        if let Some(audit) = &mut self.audit {
            audit.observe(batch, next, &self.parts.run)?;
        }
        self.cursor = next;
        Ok(())
    }

    /// Sleeps until the next batch comes or patience ends, looking up now and then for what would make that impossible.
    fn wait(&mut self, begun: Instant, patience: Option<Duration>) -> Result<Option<Finished>> {
        let waker = self.waker.clone();
        self.set_waiting(true);
        let outcome = loop {
            let looked = Instant::now();
            let sleep = waker.arm();
            // Looked at first: what was delivered before the run failed is there then.
            let failed = self.from.consumer.failure.cause();
            let found = self.supply.try_take().map(|finished| Ok(Some(finished)));
            if let Some(outcome) = found.or_else(|| failed.map(|cause| Err(cause.clone()))) {
                // An eventfd that is made now is readable, since this waker waits for nothing.
                waker.disarm();
                break outcome;
            }
            let left = patience.map(|patience| patience.saturating_sub(begun.elapsed()));
            if left.is_some_and(|left| left.is_zero()) {
                if !self.stays_armed {
                    waker.disarm();
                    break Ok(None);
                }
                if sleep {
                    // Armed before it was looked: what comes from here on wakes.
                    self.pending_since = Some(looked);
                    return Ok(None);
                }
            }
            if sleep {
                waker.sleep(left.map_or(LOOK_AGAIN, |left| left.min(LOOK_AGAIN)));
            }
            waker.disarm();
            let waited = self.tally.waiting + begun.elapsed();
            if self.leases() == 0 || self.parts.lent || waited < LEASE_PATIENCE || !self.is_held_up_by_leases() {
                self.held_since = None;
            } else if self.held_since.get_or_insert_with(Instant::now).elapsed() >= LEASE_PATIENCE {
                // The next call waits as long before the same error.
                (self.held_since, self.is_refused) = (None, true);
                break Err(self.lease_error());
            }
        };
        self.set_waiting(false);
        outcome
    }

    fn set_waiting(&mut self, waits: bool) {
        self.supply.set_waiting(waits);
        self.waiting.store(waits, Ordering::Release);
    }

    /// Batches that the caller holds.
    fn leases(&self) -> usize {
        Arc::strong_count(&self.lease) - 1
    }

    fn is_held_up_by_leases(&self) -> bool {
        let shards = || match &self.from.unpacker {
            Some(unpacker) => unpacker.is_starved(),
            None => self.parts.shards.snapshots(LOOK_AGAIN).iter().any(|s| s.waits_for_leases),
        };
        self.supply.stage().map_or_else(shards, DecodeStage::is_starved)
    }

    /// Where the run stands after the last batch taken.
    #[must_use]
    pub fn state(&self) -> State {
        state_at(&self.parts.run, &self.parts.fingerprint, self.parts.config.order.importance, self.cursor)
    }

    /// Hands over what this rank keeps for the others ([`peers`](crate::LoaderBuilder::peers)), when its machine is about to be taken away: what is
    /// used first goes first, for at most so long. The others keep it, on disk where they have one, and find it when they go on without this rank.
    /// Afterwards they no longer ask this one for what it kept; save a checkpoint first, and end the loader soon.
    ///
    /// # Errors
    /// `Usage` without `peers`, and under the order `sticky` where a node has several ranks; `Environment` when no thread can be started.
    pub fn hand_over(&self, within: Duration) -> Result<HandOver> {
        self.handing_over()?(within)
    }

    /// [`Loader::hand_over`] from where the run stands now, for a thread that does not have the loader.
    #[doc(hidden)]
    pub fn handing_over(&self) -> Result<impl FnOnce(Duration) -> Result<HandOver> + Send + use<>> {
        match &self.from.peer_server {
            Some(server) => Ok(server.handing_over(self.cursor)),
            None => Err(Error::new(Kind::Usage, "no other rank keeps blocks for this one")
                .with_hint("set peers to hand over what this rank keeps")),
        }
    }

    /// Where losses are reported to, where epochs are drawn by importance.
    #[must_use]
    pub fn reporter(&self) -> Option<Reporter> {
        self.reporter.clone()
    }

    /// Takes the losses of one global step: see [`Reporter::report`]. Where epochs are not drawn nothing is done.
    ///
    /// # Errors
    /// As [`Reporter::report`].
    pub fn report(&self, seq: u64, ids: &[SampleId], losses: &[f32]) -> Result<()> {
        self.reporter.as_ref().map_or(Ok(()), |reporter| reporter.report(seq, ids, losses))
    }
}

impl Iterator for Loader {
    type Item = Result<Batch>;

    fn next(&mut self) -> Option<Result<Batch>> {
        self.next_batch()
    }
}

impl Drop for Loader {
    fn drop(&mut self) {
        if !self.guard.holds() {
            // In a forked child its threads do not exist: there is nothing to stop or join, and no lock to trust.
            core::mem::forget(self.watchdog.take());
            core::mem::forget(core::mem::take(&mut self.from.threads));
            self.supply.forget();
            core::mem::forget(self.from.segment_manager.take());
            core::mem::forget((self.from.peer_server.take(), self.metrics.take(), self.from.relay.take()));
            core::mem::forget(self.from.unpacker.take());
            return;
        }
        self.watchdog = None;
        // What is lent comes back before the shards end.
        (self.from.peer_server, self.metrics, self.from.relay) = (None, None, None);
        self.from.unpacker = None;
        self.from.threads = ShardThreads::default();
    }
}

impl std::fmt::Debug for Loader {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Loader")
            .field("config", &self.parts.config)
            .field("cursor", &self.cursor)
            .finish_non_exhaustive()
    }
}
