//! The checks: what must be true of every batch, of every life and of the run as a whole.
//!
//! A check that fails makes a [`Violation`] with what was expected and what was found. Changes nothing.

use fuelrail_base::limits::SAMPLE_ALIGN;
use fuelrail_base::{Error, Instant, SampleId};
use fuelrail_flow::{Assembled, Finished};
use fuelrail_plan::run::{Cursor, Run};
use serde::Serialize;
use xxhash_rust::xxh3::{Xxh3, xxh3_128};

use crate::bucket::Bookkeeping;
use crate::counters::Counters;
use crate::dataset::DataSet;
use crate::scenario::{DiskShape, Scenario};

/// Which check failed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
pub enum Checker {
    /// Samples, epochs or steps are not those of the model.
    Order,
    /// Bytes are not the object's, or changed while the consumer held them.
    Content,
    /// A sample was delivered twice or not at all over the joined lives.
    ExactlyOnce,
    /// Memory was not given back, or more was used than allowed.
    Memory,
    /// Nothing moves, or never ends.
    Liveness,
    /// A batch was waited for longer than the faults explain.
    Starvation,
    /// The engine's counters contradict what the bucket did.
    Counters,
    /// A request no sound client sends.
    Requests,
    /// A run failed without reason, or with the wrong one.
    Errors,
    /// The disk holds what it should not, or lost what nothing damaged.
    Disk,
    /// The engine panicked, or the ring of a shard failed.
    Panic,
}

/// A failed check.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Violation {
    /// Which.
    pub checker: Checker,
    /// What was expected and what was found.
    pub text: String,
}

impl Violation {
    pub(crate) fn new(checker: Checker, text: impl Into<String>) -> Violation {
        Violation { checker, text: text.into() }
    }
}

pub(crate) type Checked<T> = Result<T, Violation>;

/// Checks batches against the model.
pub(crate) struct Inspector<'a> {
    pub(crate) scenario: &'a Scenario,
    pub(crate) objects: &'a DataSet,
}

impl Inspector<'_> {
    fn is_hopeless(&self, sample: SampleId) -> bool {
        self.scenario.hopeless.iter().any(|(hopeless, _)| *hopeless == sample.0)
    }

    /// Checks a batch as the consumer gets it; `Ok(None)` is a failure that has to be.
    pub(crate) fn batch(
        &self,
        seq: u64,
        epoch: u64,
        expected: &[SampleId],
        finished: &Finished,
    ) -> Checked<Option<Vec<Entry>>> {
        if finished.seq.0 != seq {
            let text = format!("batch {} was delivered in place of {seq}", finished.seq.0);
            return Err(Violation::new(Checker::Order, text));
        }
        match &finished.result {
            Err(error) => self.failure(seq, expected, error).map(|()| None),
            Ok(assembled) => self.assembled(seq, epoch, expected, assembled).map(Some),
        }
    }

    /// Only a hopeless sample may fail a batch, and only under `raise`; the error names it.
    fn failure(&self, seq: u64, expected: &[SampleId], error: &Error) -> Checked<()> {
        let keys: Vec<&str> = expected.iter().filter(|s| self.is_hopeless(**s)).map(|s| self.objects.key(*s)).collect();
        let named = error.object().is_some_and(|key| keys.contains(&key));
        if self.scenario.loader.bad_samples == "raise" && named {
            return Ok(());
        }
        let text = format!("batch {seq} failed: {error} (kind {}); hopeless in it: {keys:?}", error.kind().word());
        Err(Violation::new(Checker::Errors, text))
    }

    fn assembled(&self, seq: u64, epoch: u64, expected: &[SampleId], batch: &Assembled) -> Checked<Vec<Entry>> {
        if batch.spec.epoch != epoch || batch.spec.samples() != expected.len() as u64 {
            let text = format!("batch {seq} is {:?}, the model says epoch {epoch}: {expected:?}", batch.spec);
            return Err(Violation::new(Checker::Order, text));
        }
        let mut entries = Vec::with_capacity(expected.len());
        let mut placed = batch.samples.iter();
        let mut end = 0;
        for &sample in expected {
            if batch.left_out.iter().any(|(id, _)| *id == sample) {
                if !self.is_hopeless(sample) || self.scenario.loader.bad_samples == "raise" {
                    let why = batch.left_out.iter().find(|(id, _)| *id == sample).map(|(_, error)| error.to_string());
                    return Err(Violation::new(Checker::Errors, format!("batch {seq} lacks {sample:?}: {why:?}")));
                }
                entries.push(Entry::LeftOut(sample));
                continue;
            }
            let Some(place) = placed.next().filter(|place| place.id == sample) else {
                let got: Vec<SampleId> = batch.samples.iter().map(|place| place.id).collect();
                let text = format!("batch {seq} holds {got:?}, the model says {expected:?}");
                return Err(Violation::new(Checker::Order, text));
            };
            if place.offset < end || !place.offset.is_multiple_of(SAMPLE_ALIGN) {
                return Err(Violation::new(Checker::Content, format!("batch {seq}: {place:?} overlaps or is askew")));
            }
            end = place.offset + place.len;
            let (bytes, wanted) = (batch.slot.get(place.offset..end).unwrap_or_default(), self.objects.bytes(sample));
            if bytes != wanted {
                return Err(Violation::new(Checker::Content, differs(seq, sample, bytes, wanted)));
            }
            entries.push(Entry::of(sample, bytes));
        }
        match placed.next() {
            None => Ok(entries),
            Some(extra) => Err(Violation::new(Checker::Order, format!("batch {seq} also holds {extra:?}"))),
        }
    }

    /// A batch that is given back must still hold what it held.
    pub(crate) fn unchanged(&self, seq: u64, batch: &Assembled) -> Checked<()> {
        for place in batch.samples.iter() {
            if batch.slot[place.offset..place.offset + place.len] != *self.objects.bytes(place.id) {
                let text = format!("batch {seq}: {:?} changed while the consumer held it", place.id);
                return Err(Violation::new(Checker::Content, text));
            }
        }
        Ok(())
    }

    /// The joined lives of a run that came to its end.
    pub(crate) fn joined(&self, journal: &Journal, ended: bool) -> Checked<()> {
        for epoch in 0..self.scenario.epochs {
            let uses = journal.uses(epoch, self.scenario.samples);
            if let Some(twice) = uses.iter().position(|count| *count > 1) {
                let text = format!("epoch {epoch}: sample {twice} was delivered {} times", uses[twice]);
                return Err(Violation::new(Checker::ExactlyOnce, text));
            }
            let missing = uses.iter().filter(|count| **count == 0).count() as u64;
            let world_max = self.scenario.lives.iter().map(|life| u64::from(life.world)).max().unwrap_or(1);
            let step = world_max * u64::from(self.scenario.batch_size);
            let excused = if self.scenario.drop_last { step - 1 } else { 0 };
            if ended && missing > excused {
                let text = format!("epoch {epoch}: {missing} samples were never delivered, {excused} may be dropped");
                return Err(Violation::new(Checker::ExactlyOnce, text));
            }
        }
        Ok(())
    }

    /// The engine's counters of one life beside the bucket's bookkeeping, as of `now`: at its end, or when it is killed.
    pub(crate) fn counters(
        &self,
        counters: &Counters,
        bookkeeping: &Bookkeeping,
        now: Instant,
        killed: bool,
    ) -> Checked<()> {
        if let Some(request) = bookkeeping.unsound.first() {
            return Err(Violation::new(Checker::Requests, request.clone()));
        }
        let refuse = |text: String| Err(Violation::new(Checker::Counters, text));
        if self.scenario.is_calm() && counters.retries + counters.given_up + counters.connections_failed > 0 {
            return refuse(format!("nothing failed, and yet: {counters:?}"));
        }
        let seen = bookkeeping.failures_seen(now);
        // Faults of the rings may keep the client from seeing the bucket's; so may, for a while, a ring that is full.
        let blind = !self.scenario.rings_are_quiet() || (killed && self.scenario.loader.ring_entries < 512);
        // Of a fetch that was hedged all requests but one may fail, and nothing is tried again.
        let Counters { retries, given_up, hedges, .. } = counters;
        if !blind && retries + given_up + hedges < seen {
            let text =
                format!("{seen} attempts must have failed; {retries} retries, {given_up} given up, {hedges} hedges");
            return refuse(text);
        }
        let requests = counters.requests.max(bookkeeping.requests);
        if hedges * 100 > requests * u64::from(self.scenario.loader.hedge_percent) {
            return refuse(format!("{hedges} hedges of {requests} requests are beyond the budget"));
        }
        if self.scenario.loader.cache_bytes == 0 && counters.hits + counters.evictions > 0 {
            return refuse(format!("hits without a cache: {counters:?}"));
        }
        let alone = self.scenario.lives.iter().all(|life| life.world == 1);
        let is_sound = self.scenario.disk.as_ref().is_some_and(DiskShape::is_sound);
        if alone && is_sound && self.scenario.rings_keep_files() && counters.disk_lost > 0 {
            let text = format!("nothing damaged the disk, and yet {} blocks were lost on it", counters.disk_lost);
            return Err(Violation::new(Checker::Disk, text));
        }
        if counters.requests < bookkeeping.requests {
            return refuse(format!("{} requests counted, {} arrived", counters.requests, bookkeeping.requests));
        }
        Ok(())
    }
}

fn differs(seq: u64, sample: SampleId, bytes: &[u8], wanted: &[u8]) -> String {
    let at = bytes.iter().zip(wanted).position(|(a, b)| a != b);
    format!(
        "batch {seq}: {sample:?} differs at byte {} of {} (got {} bytes)",
        at.unwrap_or(bytes.len().min(wanted.len())),
        wanted.len(),
        bytes.len()
    )
}

/// One sample of a delivered batch.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Entry {
    /// Delivered, with the hash of its bytes.
    Delivered(SampleId, u128),
    /// Left out, as the policy for bad samples says.
    LeftOut(SampleId),
}

impl Entry {
    pub(crate) fn of(sample: SampleId, bytes: &[u8]) -> Entry {
        Entry::Delivered(sample, xxh3_128(bytes))
    }

    pub(crate) fn sample(self) -> SampleId {
        match self {
            Entry::Delivered(sample, _) | Entry::LeftOut(sample) => sample,
        }
    }
}

/// Every sample of the run so far, in order of epoch and position, whatever the worlds' sizes were.
#[derive(Default)]
pub(crate) struct Journal {
    /// (epoch, entry).
    entries: Vec<(u64, Entry)>,
}

impl Journal {
    /// Adds what all ranks took at one global step, in order of rank.
    pub(crate) fn step(&mut self, epoch: u64, entries: impl IntoIterator<Item = Entry>) {
        self.entries.extend(entries.into_iter().map(|entry| (epoch, entry)));
    }

    pub(crate) fn len(&self) -> u64 {
        self.entries.len() as u64
    }

    /// How often each of `samples` samples comes in `epoch`.
    pub(crate) fn uses(&self, epoch: u64, samples: u64) -> Vec<u32> {
        let mut uses = vec![0; samples as usize];
        for (_, entry) in self.entries.iter().filter(|(of, _)| *of == epoch) {
            uses[entry.sample().0 as usize] += 1;
        }
        uses
    }

    /// XXH3-128 over the hashes of all delivered samples in order: the same for any world sizes, shards and faults.
    pub(crate) fn hash(&self) -> u128 {
        let mut hash = Xxh3::new();
        for (_, entry) in &self.entries {
            if let Entry::Delivered(_, digest) = entry {
                hash.update(&digest.to_le_bytes());
            }
        }
        hash.digest128()
    }
}

/// One global step.
pub(crate) struct Step {
    pub(crate) epoch: u64,
    /// Samples by rank.
    pub(crate) shares: Vec<Vec<SampleId>>,
    /// Where to go on when it is done.
    pub(crate) next: Cursor,
}

/// All steps of a world from `start`, where `run` starts as well, to the end of the last epoch.
pub(crate) fn steps(scenario: &Scenario, run: &Run, world: u32, start: Cursor) -> Vec<Step> {
    let mut steps = Vec::new();
    let world = world as usize;
    let full = world * scenario.batch_size as usize;
    for epoch in start.epoch..scenario.epochs {
        let from = if epoch == start.epoch { start.position } else { 0 };
        let samples: Vec<SampleId> = (from..scenario.samples).map(|at| run.sample_at(epoch, at)).collect();
        let kept = if scenario.drop_last { samples.len() / full * full } else { samples.len() };
        let mut position = from;
        let mut rest = &samples[..kept];
        while !rest.is_empty() {
            let (now, later) = rest.split_at(full.min(rest.len()));
            position += now.len() as u64;
            let next =
                if later.is_empty() { Cursor { epoch: epoch + 1, position: 0 } } else { Cursor { epoch, position } };
            steps.push(Step { epoch, shares: divide(now, world), next });
            rest = later;
        }
    }
    steps
}

/// Deals out places one by one: the first ranks get one more when it does not come out even.
fn divide(samples: &[SampleId], world: usize) -> Vec<Vec<SampleId>> {
    let mut counts = vec![0; world];
    (0..samples.len()).for_each(|at| counts[at % world] += 1);
    let mut rest = samples.iter().copied();
    counts.into_iter().map(|count| rest.by_ref().take(count).collect()).collect()
}
