//! Batches of records that have to be unpacked: whole parts of shards are read in the order in which batches need them, unpacked, and kept
//! until their last record has been copied into a batch.
//!
//! A loader of ranges reads the parts, threads unpack them, and one fills the batches, in the place of the shards of another loader. Which
//! parts are read when follows from the order of the samples alone (`Walk`), and is worked out twice: ahead, to read, and again to fill.

mod handle;
mod walk;

pub(crate) use handle::Unpacker;
pub(crate) use walk::{Packed, Shares};

use crate::config::Config;
use crate::loader::{Loader, Taken};
use crate::system::spawn_guarded;
use crate::watch::Shards;
use core::ops::Range;
use fuelrail_base::limits::{OPEN_BATCHES_MAX, SAMPLE_ALIGN};
use fuelrail_base::{ByteSize, Duration, Error, Kind, Result, SampleId};
use fuelrail_flow::{Assembled, BadSamples, Consumer, Finished, Objects, SampleSpan};
use fuelrail_io::{Receiver, Region, Sender, Slot, channel};
use fuelrail_plan::run::{BatchSpec, Run};
use fuelrail_plan::spill::SpillPolicy;
use handle::Shared;
use std::collections::HashMap;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{self, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use walk::{Step, Walk};

/// How long threads wait before they look whether they are to stop.
const LOOK_AGAIN: Duration = Duration::from_millis(100);
/// Samples whose parts one loader reads: the first one's, so that it begins soon, and the most.
const STRETCH_SAMPLES: Range<u64> = 1 << 12..1 << 20;

impl Packed {
    /// Starts the threads. `region` holds the batches; `shards` are set to those that read.
    pub(crate) fn start(
        self: &Arc<Packed>,
        config: &Config,
        shares: &Shares,
        (objects, run): (&Arc<Objects>, &Run),
        region: Region,
        (consumer, shards): (&Arc<Consumer>, &Shards),
    ) -> Result<(Unpacker, Receiver<Finished>)> {
        let shared = Arc::new(Shared::new());
        // From here on a failure stops the threads already started.
        let mut unpacker = Unpacker { shared: Arc::clone(&shared), threads: Vec::new() };
        region.set_waker(shared.waker.clone());
        let (jobs, to_unpack) = sync_channel(1);
        // With the one that is waited for: so many parts are unpacked ahead at most.
        let (due, in_order) = sync_channel(shares.threads);
        let to_unpack = Arc::new(Mutex::new(to_unpack));
        for n in 0..shares.threads {
            let (packed, jobs) = (Arc::clone(self), Arc::clone(&to_unpack));
            let serve = move || packed.serve(&jobs);
            let thread = spawn_guarded(consumer, &format!("fuelrail-u{n}"), "a thread that unpacks", serve)?;
            unpacker.threads.push(thread);
        }
        drop(to_unpack);
        let mut plain = config.clone();
        plain.memory.limit = Some(ByteSize(shares.reading_bytes));
        plain.shards = plain.shards.map(|_| shares.reading_shards);
        // The loader outside answers the signal for both.
        plain.report_on_sigusr1 = false;
        if plain.bad_samples == BadSamples::Raise {
            // What a part lacks is raised by the batch that needs it.
            plain.bad_samples = BadSamples::Skip;
        }
        if plain.disk.policy == SpillPolicy::NextUse {
            // A loader of ranges reads each once, and sees no other use that a disk could keep it for.
            plain.disk.policy = SpillPolicy::Lru;
        }
        let (walk, shards) = (Walk::new(self, run), shards.clone());
        let reader = Reading { walk, config: plain, shared: Arc::clone(&shared), shards, jobs, due };
        let thread = spawn_guarded(consumer, "fuelrail-read", "reading what is to be unpacked", move || reader.run())?;
        unpacker.threads.push(thread);
        let (deliver, lane) = channel(OPEN_BATCHES_MAX);
        let filling = Filling {
            walk: Walk::new(self, run),
            bad_samples: config.bad_samples,
            objects: Arc::clone(objects),
            shared,
            region,
            deliver,
            due: in_order,
            images: HashMap::new(),
        };
        let thread = spawn_guarded(consumer, "fuelrail-fill", "filling batches", move || filling.run())?;
        unpacker.threads.push(thread);
        Ok((unpacker, lane))
    }

    /// Unpacks what is read.
    fn serve(&self, jobs: &Mutex<mpsc::Receiver<Job>>) -> Result<()> {
        loop {
            let job = jobs.lock().unwrap_or_else(PoisonError::into_inner).recv();
            let Ok(Job { part, pieces, done }) = job else { return Ok(()) };
            let part = &self.shards.parts()[part];
            let key = || self.listing.key(part.ranges[0].object as usize);
            let unpacked = |pieces| self.shards.unpacked(part, pieces).map_err(|error| error.with_object(key()));
            drop(done.send(pieces.and_then(unpacked)));
        }
    }
}

/// A part to be unpacked: the bytes of its ranges, or why they could not be had, and where it goes.
struct Job {
    part: usize,
    pieces: Result<Vec<Vec<u8>>>,
    done: SyncSender<Image>,
}

/// A part that is unpacked, or why it could not be.
type Image = Result<Vec<u8>>;

/// The thread that reads parts, in the order in which they are needed.
struct Reading {
    walk: Walk,
    config: Config,
    shared: Arc<Shared>,
    shards: Shards,
    jobs: SyncSender<Job>,
    /// Where each part comes from, in their order.
    due: SyncSender<mpsc::Receiver<Image>>,
}

impl Reading {
    fn run(mut self) -> Result<()> {
        let mut samples = STRETCH_SAMPLES.start;
        let mut parts = self.stretch(samples);
        while !parts.is_empty() {
            let packed = Arc::clone(&self.walk.packed);
            let ranges = |part: &usize| packed.shards.parts()[*part].ranges.iter().copied();
            let ranges = parts.iter().flat_map(ranges).collect();
            let mut loader = (packed.open_ranges)(self.config.clone(), &packed.listing, ranges)?;
            self.shards.follow(loader.shards());
            samples = (2 * samples).min(STRETCH_SAMPLES.end);
            for part in std::mem::replace(&mut parts, self.stretch(samples)) {
                let Some(pieces) = self.pieces(&mut loader, packed.shards.parts()[part].ranges.len())? else {
                    return Ok(());
                };
                let (done, image) = sync_channel(1);
                if self.due.send(image).is_err() || self.jobs.send(Job { part, pieces, done }).is_err() {
                    return Ok(());
                }
            }
            drop(loader);
            self.shards.end();
        }
        Ok(())
    }

    /// The bytes of the next ranges, or why one of them could not be had. `None` when this is to stop.
    fn pieces(&self, loader: &mut Loader, ranges: usize) -> Result<Option<Result<Vec<Vec<u8>>>>> {
        let mut pieces = Vec::with_capacity(ranges);
        while pieces.len() < ranges {
            if self.shared.stop.load(Ordering::Relaxed) {
                return Ok(None);
            }
            match loader.next_batch_within(LOOK_AGAIN)? {
                Taken::Batch(batch) => pieces.push(match batch.left_out().first() {
                    Some((_, error)) => Err(error.clone()),
                    None => Ok(batch.sample(0).to_vec()),
                }),
                Taken::NotYet => {}
                Taken::Over => return Err(Error::new(Kind::Cancelled, "the parts of a shard ended early")),
            }
        }
        Ok(Some(pieces.into_iter().collect()))
    }

    /// The parts that the next so many samples need; none when the run is over.
    fn stretch(&mut self, samples: u64) -> Vec<usize> {
        let (end, mut parts) = (self.walk.taken + samples, Vec::new());
        while self.walk.taken < end || parts.is_empty() {
            let Some(step) = self.walk.step() else { break };
            parts.extend(step.opened);
        }
        parts
    }
}

/// The thread that fills batches.
struct Filling {
    walk: Walk,
    bad_samples: BadSamples,
    objects: Arc<Objects>,
    shared: Arc<Shared>,
    region: Region,
    deliver: Sender<Finished>,
    due: mpsc::Receiver<mpsc::Receiver<Image>>,
    images: HashMap<usize, Image>,
}

impl Filling {
    fn run(mut self) -> Result<()> {
        while let Some(Step { spec, samples, opened, closed }) = self.walk.step() {
            if self.shared.stop.load(Ordering::Relaxed) {
                return Ok(());
            }
            for part in opened {
                let Some(image) = self.image() else { return Ok(()) };
                self.images.insert(part, image);
            }
            let room = samples.iter().map(|(sample, _)| self.objects.catalog().room(*sample)).sum::<u64>();
            let Some(slot) = self.until(|filling| filling.region.alloc(room as usize)) else { return Ok(()) };
            let seq = spec.seq;
            let mut finished = Some(Finished { seq, result: self.filled(spec, slot, &samples) });
            let sent = self.until(|filling| match filling.deliver.send(finished.take()?) {
                Ok(()) => Some(()),
                Err(back) => {
                    finished = Some(back);
                    None
                }
            });
            if sent.is_none() {
                return Ok(());
            }
            closed.iter().for_each(|part| drop(self.images.remove(part)));
        }
        Ok(())
    }

    /// The next part. `None` when the loader is dropped or reading has failed.
    fn image(&self) -> Option<Image> {
        self.due.recv().ok()?.recv().ok()
    }

    /// What `attempt` returns as soon as it does; `None` when this is to stop.
    fn until<T>(&mut self, mut attempt: impl FnMut(&mut Filling) -> Option<T>) -> Option<T> {
        let waker = self.shared.waker.clone();
        loop {
            let sleep = waker.arm();
            let done = attempt(self);
            let is_over = done.is_some() || self.shared.stop.load(Ordering::Relaxed) || self.deliver.is_closed();
            self.shared.starved.store(!is_over, Ordering::Relaxed);
            if sleep && !is_over {
                waker.sleep(LOOK_AGAIN);
            }
            waker.disarm();
            if is_over {
                return done;
            }
        }
    }

    /// A batch of these samples, each with its part.
    fn filled(&self, spec: BatchSpec, mut slot: Slot, samples: &[(SampleId, usize)]) -> Result<Assembled> {
        let (mut placed, mut left_out, mut offset) = (Vec::with_capacity(samples.len()), Vec::new(), 0);
        for (id, part) in samples {
            let (first, len) = (self.objects.first(*id) as usize, self.objects.catalog().size(*id) as usize);
            let image = self.images[part].as_ref().map_err(Clone::clone);
            let record = image.and_then(|image| {
                let changed = || Error::new(Kind::Changed, "it is not what it was when its records were found");
                image.get(first..first + len).ok_or_else(|| changed().with_hint("read the data set anew"))
            });
            match record {
                Ok(record) => {
                    slot[offset..offset + len].copy_from_slice(record);
                    placed.push(SampleSpan { id: *id, offset, len, label: None });
                    offset += len.next_multiple_of(SAMPLE_ALIGN);
                }
                Err(error) if self.bad_samples == BadSamples::Raise => return Err(error),
                Err(error) => {
                    left_out.push((*id, error));
                }
            }
        }
        slot.truncate(offset);
        Ok(Assembled { spec, slot, samples: placed.into_iter().collect(), left_out })
    }
}
