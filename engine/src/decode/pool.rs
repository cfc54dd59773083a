//! The decoding threads: they take samples of all open batches from one bounded queue, the oldest batch first.
//!
//! A job owns its sample's place in the slot and a reference to its batch; the job that drops the last reference finishes
//! the batch. A panic inside a decoder is an error of that sample only.

use super::cut::DrawKey;
use super::facts::Facts;
use super::function::{DecodeFunction, Undecoded};
use super::picture::SampleDecoder;
use super::{Decode, undecodable};
use crate::records::Records;
use crossbeam_queue::ArrayQueue;
use fuelrail_base::canary::{self, Stage};
use fuelrail_base::{Error, Kind, Result, SampleId, panic_text};
use fuelrail_flow::{Assembled, BadSamples, Finished, Objects, SampleSpan, SampleSpans};
use fuelrail_io::{Filling, Slot, Waker, Window, thread_cpu};
use fuelrail_plan::run::BatchSpec;
use std::borrow::Cow;
use std::collections::HashMap;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, OnceLock, PoisonError};
use std::time::Duration;

/// A batch being decoded.
pub(super) struct Work {
    pub spec: BatchSpec,
    pub samples: SampleSpans,
    pub left_out: Vec<(SampleId, Error)>,
    /// Its bytes, as the bucket has them. What a function keeps of them holds all.
    pub raw: Arc<Slot>,
    /// The slot that its samples are decoded into.
    pub filling: Filling,
    /// Samples that could not be decoded, by index in the batch.
    pub bad: Mutex<Vec<(usize, Error)>>,
}

impl Work {
    /// All bytes of a sample, as the bucket has them.
    fn raw_bytes(&self, placed: SampleSpan) -> &[u8] {
        &self.raw[placed.offset..placed.offset + placed.len]
    }
}

/// One sample of a batch, or all of them where a function takes batches.
pub(super) struct Job {
    pub work: Arc<Work>,
    /// The first sample's place in the batch.
    pub index: usize,
    pub window: Window,
}

/// State shared by all threads of the stage.
pub(super) struct Shared {
    pub wanted: Decode,
    /// The program's own function, in the place of our decoders.
    pub function: Option<DecodeFunction>,
    pub seed: u64,
    pub bad_samples: BadSamples,
    pub objects: Arc<Objects>,
    /// Where samples are records, what finds the picture in one.
    pub records: Option<Arc<Records>>,
    pub jobs: ArrayQueue<Job>,
    pub finished: ArrayQueue<Finished>,
    /// Wakes the stage's feeder and the consumer.
    pub feeder: Waker,
    pub consumer: OnceLock<Waker>,
    /// Whether the consumer is blocked.
    pub waits: AtomicBool,
    pub stop: AtomicBool,
    /// It was said that batches are decoded sample by sample.
    pub is_warned: AtomicBool,
    pub facts: Arc<Facts>,
    /// Under `Quarantine`, the samples that could not be decoded, which are not tried again.
    pub quarantine: Mutex<HashMap<SampleId, Error>>,
    /// Where idle threads wait.
    pub rest: (Mutex<()>, Condvar),
}

/// Samples after which a busy thread reports its CPU time.
const METERED_AFTER: u32 = 32;
/// Longest sleep of an idle thread before it checks the queue again.
pub(super) const LOOK_AGAIN: Duration = Duration::from_secs(10);

impl Shared {
    /// Queues a batch's samples. The queue has room for every sample of every open batch.
    pub(super) fn push(&self, jobs: impl Iterator<Item = Job>) {
        for job in jobs {
            let queued = self.jobs.push(job);
            debug_assert!(queued.is_ok(), "the queue holds every sample of every batch let in");
        }
        // Under the lock, so that a thread that has just found the queue empty does not miss the wake-up.
        let _rest = self.rest.0.lock().unwrap_or_else(PoisonError::into_inner);
        self.rest.1.notify_all();
    }

    pub(super) fn end(&self) {
        self.stop.store(true, Ordering::Release);
        self.feeder.wake();
        let _rest = self.rest.0.lock().unwrap_or_else(PoisonError::into_inner);
        self.rest.1.notify_all();
    }

    pub(super) fn is_stopped(&self) -> bool {
        self.stop.load(Ordering::Acquire)
    }

    /// Passes a finished batch, good or failed, to the consumer.
    pub(super) fn hand_over(&self, finished: Finished) {
        self.facts.batch_finished();
        let queued = self.finished.push(finished);
        debug_assert!(queued.is_ok(), "the queue holds every batch let in");
        if let Some(waker) = self.consumer.get() {
            waker.wake();
        }
    }

    /// Returns the next job; sleeps while there is none. `None` when the stage stops.
    fn next(&self, mut idle: impl FnMut()) -> Option<Job> {
        loop {
            if self.is_stopped() {
                return None;
            }
            if let Some(job) = self.jobs.pop() {
                return Some(job);
            }
            idle();
            let rest = self.rest.0.lock().unwrap_or_else(PoisonError::into_inner);
            if self.jobs.is_empty() && !self.is_stopped() {
                drop(self.rest.1.wait_timeout(rest, LOOK_AGAIN));
            }
        }
    }

    fn quarantined(&self, id: SampleId) -> Option<Error> {
        if self.bad_samples != BadSamples::Quarantine {
            return None;
        }
        self.quarantine.lock().unwrap_or_else(PoisonError::into_inner).get(&id).cloned()
    }

    /// Decodes the samples of a job into their places, or records them as bad.
    fn decode(&self, decoder: &mut SampleDecoder, job: &mut Job) {
        let Job { work, index, window } = job;
        let (one, room) = (self.wanted.sample_bytes() as usize, window.room());
        let places = *index..*index + room / one;
        let out = window.unfilled_mut();
        let together =
            if places.len() > 1 { self.decode_together(decoder, work, places.clone(), out) } else { Ok(false) };
        match together {
            Ok(true) => places.for_each(|at| self.facts.ended(Some((work.samples[at].len, one)))),
            // No sample's fault: none is tried alone, and none is named.
            Err(error) if self.bad_samples == BadSamples::Raise && error.kind() == Kind::Program => {
                places.for_each(|at| self.set_aside(work, at, error.clone(), true));
            }
            _ => {
                let (of_all, samples, mut all_decoded) = (together.err(), places.len(), true);
                for (at, out) in places.zip(out.chunks_exact_mut(one)) {
                    all_decoded &= self.decode_alone(decoder, (work, at), out, of_all.as_ref());
                }
                if let Some(error) = of_all.filter(|_| all_decoded && !self.is_warned.swap(true, Ordering::Relaxed)) {
                    let cause = error.cause();
                    tracing::warn!(
                        "decode_with: the function fails with {samples} samples ({cause}), and with each of them alone it does not: \
                         such batches are decoded sample by sample, which is slower; mend the function"
                    );
                }
            }
        }
        window.fill(room);
    }

    /// Decodes one sample into its place, or records it as bad; `of_all` is what was wrong when its batch was decoded as a whole. Returns
    /// whether it was decoded.
    fn decode_alone(
        &self,
        decoder: &mut SampleDecoder,
        (work, at): (&Work, usize),
        out: &mut [u8],
        of_all: Option<&Error>,
    ) -> bool {
        let placed = work.samples[at];
        let known = self.quarantined(placed.id);
        let tried = known.is_none();
        match known.map_or_else(|| self.decode_one(decoder, work, placed, out), Err) {
            Ok(()) => {
                self.facts.ended(Some((placed.len, out.len())));
                true
            }
            Err(error) => {
                let both = |all: &Error| format!("{}; called with this sample alone: {}", all.cause(), error.cause());
                let of_function = of_all.filter(|all| tried && all.kind() == Kind::Program);
                let error = match of_function.map(both) {
                    Some(cause) => error.because(cause),
                    None => error,
                };
                self.set_aside(work, at, error, tried);
                false
            }
        }
    }

    /// Decodes the samples in these places by one call of the program's function. `false` where there is none, or one of them has to be left
    /// out: each is then decoded by itself.
    ///
    /// # Errors
    /// That of the function: of kind `Program` it is no sample's.
    fn decode_together(
        &self,
        decoder: &mut SampleDecoder,
        work: &Work,
        places: Range<usize>,
        out: &mut [u8],
    ) -> Result<bool> {
        let Some(function) = &self.function else { return Ok(false) };
        let samples = || places.clone().map(|at| work.samples[at]);
        if samples().any(|placed| self.quarantined(placed.id).is_some()) {
            return Ok(false);
        }
        let Ok(found) = samples().map(|placed| self.bytes_of(work, placed)).collect::<Result<Vec<_>>>() else {
            return Ok(false);
        };
        let undecoded = samples().zip(&found).map(|(placed, bytes)| self.undecoded(work, placed, bytes));
        let undecoded: Vec<Undecoded<'_>> = undecoded.collect();
        self.guarded(decoder, |_| function.decode(&undecoded, out)).map(|()| true)
    }

    /// Decodes one sample. Errors name its object.
    fn decode_one(&self, decoder: &mut SampleDecoder, work: &Work, placed: SampleSpan, out: &mut [u8]) -> Result<()> {
        let (id, epoch) = (placed.id, work.spec.epoch);
        let decoded = self.bytes_of(work, placed).and_then(|bytes| {
            self.guarded(decoder, |decoder| match &self.function {
                None => decoder.decode_sample(&bytes, DrawKey { seed: self.seed, epoch, id }, out).map(drop),
                Some(function) => function.decode(&[self.undecoded(work, placed, &bytes)], out),
            })
        });
        decoded.map_err(|error| error.with_object(&*self.objects.name(id)))
    }

    /// What is decoded of a sample: its object, or the field of its record.
    fn bytes_of<'a>(&'a self, work: &'a Work, placed: SampleSpan) -> Result<Cow<'a, [u8]>> {
        let bytes = work.raw_bytes(placed);
        self.records.as_ref().map_or(Ok(bytes.into()), |records| records.picture(placed.id, bytes))
    }

    /// A sample for a function, of which `bytes` are decoded.
    fn undecoded<'a>(&'a self, work: &'a Work, placed: SampleSpan, bytes: &'a [u8]) -> Undecoded<'a> {
        let record = self.records.as_deref().map(|records| (records, work.raw_bytes(placed)));
        Undecoded { id: placed.id, epoch: work.spec.epoch, bytes, raw: &work.raw, record }
    }

    /// A panic becomes an error, and the decoder is made anew: it may be half updated.
    fn guarded(
        &self,
        decoder: &mut SampleDecoder,
        decode: impl FnOnce(&mut SampleDecoder) -> Result<()>,
    ) -> Result<()> {
        catch_unwind(AssertUnwindSafe(|| decode(decoder))).unwrap_or_else(|panic| {
            *decoder = SampleDecoder::new(self.wanted);
            let text = panic_text(&*panic);
            Err(match self.function {
                None => undecodable(&format!("the decoder panicked on it: {text}")),
                Some(_) => undecodable(&format!("the program's decode function panicked on it: {text}"))
                    .with_hint("mend the function, or what it is given; bad_samples = skip leaves such samples out"),
            })
        })
    }

    /// Records a sample as bad. `tried`: it was not known before.
    fn set_aside(&self, work: &Work, index: usize, error: Error, tried: bool) {
        if tried && self.bad_samples == BadSamples::Quarantine {
            let mut quarantine = self.quarantine.lock().unwrap_or_else(PoisonError::into_inner);
            quarantine.entry(work.samples[index].id).or_insert_with(|| error.clone());
        }
        work.bad.lock().unwrap_or_else(PoisonError::into_inner).push((index, error));
        if tried {
            self.facts.ended(None);
        }
    }

    /// Completes a batch after all its samples have been tried, and releases the memory of its raw bytes.
    pub(super) fn finish(&self, work: Work) {
        let Work { spec, mut samples, mut left_out, raw, filling, bad } = work;
        let seq = spec.seq;
        let mut bad = bad.into_inner().unwrap_or_else(PoisonError::into_inner);
        bad.sort_unstable_by_key(|(index, _)| *index);
        let Ok(mut slot) = filling.seal() else { unreachable!("every window of a finished batch is home") };
        if self.bad_samples == BadSamples::Raise && !bad.is_empty() {
            let (_, error) = bad.swap_remove(0);
            return self.hand_over(Finished { seq, result: Err(error) });
        }
        let bytes = self.wanted.sample_bytes() as usize;
        let is_bad = |index: usize| bad.binary_search_by_key(&index, |(index, _)| *index).is_ok();
        if !bad.is_empty() {
            let good = (0..samples.len()).filter(|&index| !is_bad(index));
            for (to, from) in good.enumerate().filter(|(to, from)| to != from) {
                slot.copy_within(from * bytes..(from + 1) * bytes, to * bytes);
            }
            left_out.extend(bad.iter().map(|(index, error)| (samples[*index].id, error.clone())));
            samples.retain(|index, _| !is_bad(index));
        }
        let mut end = samples.len() * bytes;
        if let Some(records) = &self.records {
            // Those of samples that were decoded have been checked.
            let bytes = |placed: &SampleSpan| &raw[placed.offset..placed.offset + placed.len];
            samples.iter_mut().for_each(|placed| placed.label = records.label(placed.id, bytes(placed)).ok().flatten());
            match records.write_others(&samples, &raw, &mut slot[end..]) {
                Some(len) => end += len,
                None => return self.hand_over(Finished { seq, result: Err(no_room()) }),
            }
        }
        drop(raw);
        for (at, placed) in samples.iter_mut().enumerate() {
            (placed.offset, placed.len) = (at * bytes, bytes);
        }
        slot.truncate(end);
        self.hand_over(Finished { seq, result: Ok(Assembled { spec, slot, samples, left_out }) });
    }
}

/// Runs one decoding thread.
pub(super) fn serve(shared: &Shared) {
    let mut decoder = SampleDecoder::new(shared.wanted);
    let (mut told, mut since) = (thread_cpu(), 0);
    loop {
        let next = shared.next(|| {
            told = tell(shared, told);
            since = 0;
        });
        let Some(mut job) = next else { break };
        canary::pass(0, Stage::Decode);
        shared.decode(&mut decoder, &mut job);
        since += 1;
        if since >= METERED_AFTER {
            told = tell(shared, told);
            since = 0;
        }
        let Job { work, window, .. } = job;
        drop(window);
        if let Some(work) = Arc::into_inner(work) {
            told = tell(shared, told);
            shared.finish(work);
        }
    }
    tell(shared, told);
}

/// The error for fields whose lengths the index does not have, and that have no room.
fn no_room() -> Error {
    let cause =
        "the fields beside the decoded one take more than 32 KiB a sample, which is the room for those of this format";
    let hint = "name fewer of them as fields, or pack the data set as tar, whose index has their lengths: fuelrail pack --format webdataset";
    Error::new(Kind::Usage, cause).with_hint(hint)
}

fn tell(shared: &Shared, told: Duration) -> Duration {
    let now = thread_cpu();
    shared.facts.spent(now.saturating_sub(told));
    now
}
