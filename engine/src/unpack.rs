//! Batches of records that have to be unpacked: whole parts of shards are read in the order in which batches need them, and kept unpacked as
//! long as records of them are to come.
//!
//! A loader of ranges reads the parts, threads unpack them, and one fills the batches, in the place of the shards of another loader. Which
//! parts are read when follows from the order of the samples alone (`Walk`), and is worked out twice: ahead, to read, and again to fill.

use crate::builder::ranges_builder;
use crate::config::Config;
use crate::loader::Taken;
use crate::packed::PackedShards;
use crate::system::spawn;
use crate::watch::{Watched, snapshots};
use core::ops::Range;
use fuelrail_base::limits::{OPEN_BATCHES_MAX, SAMPLE_ALIGN};
use fuelrail_base::{ByteSize, Duration, Error, Kind, Result, SampleId};
use fuelrail_flow::{Assembled, BadSamples, ByteRange, Consumer, Finished, Listing, Objects, SampleSpan, Snapshot};
use fuelrail_io::{Receiver, Region, Sender, Slot, Topology, Waker, channel};
use fuelrail_plan::order::{ChunkShape, OrderName};
use fuelrail_plan::run::{BatchSpec, Run};
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

/// A data set whose records have to be unpacked.
#[derive(Debug)]
pub(crate) struct Packed {
    shards: PackedShards,
    listing: Listing,
    /// What each part is unpacked to, bytes.
    bytes: Vec<u64>,
    samples: u64,
}

/// So many threads unpack at most: they are seldom what limits.
const THREADS_MAX: usize = 4;
/// How long threads wait before they look whether they are to stop.
const LOOK_AGAIN: Duration = Duration::from_millis(100);
/// Samples whose parts one loader reads: the first one's, so that it begins soon, and the most.
const STRETCH_SAMPLES: Range<u64> = 1 << 12..1 << 20;
/// Parts that are unpacked for each group of the chunked order at a time, nearly always: of half a part's records on average a chunk
/// touches two, and those of the chunk before are let go of a little later.
const PARTS_OF_GROUP: u64 = 3;
/// Of so many parts at least one group is made: where groups meet, and where one begins, a part is read once more.
const GROUP_PARTS_MIN: u64 = 16;
/// The share of the memory limit, as a divisor, that parts that are unpacked may take, at most but one.
const UNPACKED_SHARE: u64 = 4;

impl Packed {
    /// These shards, whose records are ranges of what their parts are unpacked to. The ranges become ones of objects, for messages.
    pub(crate) fn new(shards: PackedShards, listing: Listing, records: &mut [ByteRange]) -> Packed {
        let mut bytes = vec![0; shards.parts().len()];
        for record in &mut *records {
            let part = record.object as usize;
            bytes[part] = bytes[part].max(record.first + record.len);
            record.object = shards.parts()[part].ranges[0].object;
        }
        Packed { shards, listing, bytes, samples: records.len() as u64 }
    }

    fn part_of(&self, sample: SampleId) -> usize {
        self.shards.parts().partition_point(|part| part.first <= sample.0) - 1
    }

    /// Bytes that all parts are unpacked to, and the longest.
    fn total_and_longest(&self) -> (u64, u64) {
        (self.bytes.iter().sum(), self.bytes.iter().max().copied().unwrap_or(0))
    }

    /// Settles the order of the samples: any, where all parts may be unpacked at once, by settings alone; else groups of neighbouring parts
    /// that are gone through in turn, and mixed.
    ///
    /// # Errors
    /// `Usage` for settings that do not go with it.
    pub(crate) fn settle(&self, config: &mut Config, notices: &mut Vec<String>) -> Result<Option<ChunkShape>> {
        let refused = [
            ("mixture", config.order.mixture.is_some()),
            ("importance", config.order.importance.is_some()),
            ("peers", !config.peers.addresses.is_empty()),
            ("cache_limit", config.memory.cache_limit.0 > 0),
        ];
        if let Some((name, _)) = refused.iter().find(|(_, is_set)| *is_set) {
            let error = Error::new(Kind::Usage, format!("{name} is set, and records have to be unpacked"));
            return Err(error.with_hint("leave it out, or pack the data set first: `fuelrail pack SOURCE TARGET`"));
        }
        let mixed = config.order.chunk_size.0.saturating_mul(u64::from(config.order.chunk_window));
        let (total, parts) = (self.total_and_longest().0, self.bytes.len() as u64);
        if total <= mixed && config.order.name != OrderName::Chunks {
            return Ok(None);
        }
        if config.order.name == OrderName::Sticky {
            let error = Error::new(Kind::Usage, "order is sticky, and records have to be unpacked");
            return Err(error.with_hint("leave order out: parts of shards come back to the same rank anyway"));
        }
        config.order.name = OrderName::Chunks;
        let groups = (mixed / (total / parts).max(1) / PARTS_OF_GROUP).min(parts / GROUP_PARTS_MIN).max(1);
        let window = 1 << groups.ilog2();
        if config.order.shuffle {
            notices.push(format!(
                "order: records of {window} places of the listing are mixed at a time, and gone through in turn, because parts of {} are \
                 unpacked as a whole: raise chunk_window to mix more",
                ByteSize(total / parts)
            ));
        }
        Ok(Some(ChunkShape { samples: (self.samples / parts / 2).max(1), window, in_turn: true }))
    }

    /// What is kept unpacked, and how much memory that takes at most, nearly always.
    fn keep(&self, run: &Run) -> (Keep, u64) {
        let (total, longest) = self.total_and_longest();
        let (config, mean) = (run.config(), total / self.bytes.len() as u64);
        let (Some(ChunkShape { samples, window, .. }), true) = (run.order().chunks(), config.shuffle) else {
            // Without a shuffle a part is over when the next begins; else all are kept.
            let bytes = if config.shuffle { total } else { 0 };
            let keep = Keep { bytes, samples: 2 * u64::from(config.batch_size), last: self.bytes.len() };
            return (keep, bytes.max(2 * longest));
        };
        let (world, batch) = (u64::from(config.world), u64::from(config.batch_size));
        // A group takes a chunk in as many rows as that has samples, of each of which this rank gets its groups' samples.
        let keep = Keep {
            bytes: 0,
            samples: 2 * (samples * 5 / 4 * window.div_ceil(world) + batch),
            last: self.part_of(SampleId(self.samples.saturating_sub(window))),
        };
        (keep, total.min((window.div_ceil(world) * PARTS_OF_GROUP) * mean + 2 * longest))
    }
}

/// Which parts are kept.
#[derive(Clone, Copy, Debug)]
struct Keep {
    /// Up to so many bytes all are.
    bytes: u64,
    /// Else those of which one of the last samples was.
    samples: u64,
    /// From this part on those in which samples stand that come at any time of the epoch.
    last: usize,
}

/// The batches of a run, each with the parts that are unpacked for it, and those that are let go of behind it.
struct Walk {
    packed: Arc<Packed>,
    run: Run,
    keep: Keep,
    next: u64,
    /// When each part that is unpacked was used last, in samples of this rank.
    open: HashMap<usize, u64>,
    open_bytes: u64,
    taken: u64,
}

struct Step {
    spec: BatchSpec,
    samples: Vec<(SampleId, usize)>,
    opened: Vec<usize>,
    closed: Vec<usize>,
}

impl Walk {
    fn new(packed: &Arc<Packed>, run: &Run) -> Walk {
        let keep = packed.keep(run).0;
        let (packed, run) = (Arc::clone(packed), run.clone());
        Walk { packed, run, keep, next: 0, open: HashMap::new(), open_bytes: 0, taken: 0 }
    }

    fn step(&mut self) -> Option<Step> {
        let spec = self.run.batch(fuelrail_base::BatchSeq(self.next))?;
        self.next += 1;
        let samples: Vec<_> = self.run.samples(&spec).map(|sample| (sample, self.packed.part_of(sample))).collect();
        let (mut opened, mut closed) = (Vec::new(), Vec::new());
        for (_, part) in &samples {
            self.taken += 1;
            if self.open.insert(*part, self.taken).is_none() {
                self.open_bytes += self.packed.bytes[*part];
                opened.push(*part);
            }
        }
        if self.open_bytes > self.keep.bytes {
            let Keep { samples, last, .. } = self.keep;
            let is_over = |part: &usize, used: &mut u64| *part < last && *used + samples < self.taken;
            closed.extend(self.open.extract_if(|part, used| is_over(part, used)).map(|(part, _)| part));
            self.open_bytes -= closed.iter().map(|part| self.packed.bytes[*part]).sum::<u64>();
        }
        Some(Step { spec, samples, opened, closed })
    }
}

/// The threads of a loader that unpacks, as the loader sees them.
pub(crate) struct Unpacker(Arc<Shared>);

struct Shared {
    stop: AtomicBool,
    /// Wakes the thread that fills batches.
    waker: Waker,
    /// The next batch waits for memory that only the consumer can give back.
    starved: AtomicBool,
    /// What loaders of ranges that are over have counted, and the shards of the one that reads.
    read: Mutex<(Vec<Snapshot>, Vec<Watched>)>,
}

/// How the memory of a loader that unpacks is shared out.
pub(crate) struct Shares {
    /// Its own settings: what its batches, decoded or not, are given, and no connection.
    pub own: Config,
    /// Parts that are unpacked, bytes outside the arena.
    pub unpacked_bytes: u64,
    reading: u64,
    threads: usize,
}

impl Packed {
    /// Shares out the memory.
    ///
    /// # Errors
    /// `Budget` where the parts that are unpacked at a time would take most of it.
    pub(crate) fn shares(&self, config: &Config, run: &Run, topology: &Topology) -> Result<Shares> {
        let limit = config.memory.limit.map_or(0, |limit| limit.0);
        let threads = topology.shards().clamp(1, THREADS_MAX);
        // Each thread has one in hand, and one waits.
        let unpacked_bytes = self.keep(run).1 + (threads as u64 + 1) * self.total_and_longest().1;
        if unpacked_bytes > limit - limit / UNPACKED_SHARE {
            let need = unpacked_bytes + unpacked_bytes.div_ceil(UNPACKED_SHARE - 1);
            let cause = format!(
                "parts of up to {} are unpacked as a whole, and those in use at a time take {}: memory_limit is {}",
                ByteSize(self.total_and_longest().1),
                ByteSize(unpacked_bytes),
                ByteSize(limit)
            );
            let hint =
                format!("raise memory_limit to {need}, lower chunk_window, or write smaller row groups or shards");
            return Err(Error::new(Kind::Budget, cause).with_hint(hint));
        }
        let mut own = config.clone();
        let rest = limit - unpacked_bytes;
        own.memory.limit = Some(ByteSize(rest / 2));
        (own.shards, own.network.connections_max, own.network.hedge_percent) = (Some(1), 1, 0);
        own.order.name = OrderName::Global;
        Ok(Shares { own, unpacked_bytes, reading: rest / 2, threads })
    }

    /// Starts the threads. `region` holds the batches.
    pub(crate) fn start(
        self: &Arc<Packed>,
        config: &Config,
        shares: &Shares,
        (objects, run): (&Arc<Objects>, &Run),
        region: Region,
        consumer: &Arc<Consumer>,
    ) -> Result<(Unpacker, Receiver<Finished>, Vec<JoinHandle<()>>)> {
        let shared = Arc::new(Shared {
            stop: AtomicBool::new(false),
            waker: Waker::sleeper(),
            starved: AtomicBool::new(false),
            read: Mutex::default(),
        });
        // From here on a failure stops the threads already started.
        let unpacker = Unpacker(Arc::clone(&shared));
        region.set_waker(shared.waker.clone());
        let mut threads = Vec::new();
        let mut begin = |name: String, work: Box<dyn FnOnce() -> Result<()> + Send>| -> Result<()> {
            let consumer = Arc::clone(consumer);
            threads.push(spawn(&name.clone(), move || _ = consumer.failure.guard(name, work))?);
            Ok(())
        };
        let (jobs, to_unpack) = sync_channel(1);
        let (done, unpacked) = sync_channel(1);
        let to_unpack = Arc::new(Mutex::new(to_unpack));
        for n in 0..shares.threads {
            let (packed, jobs, done) = (Arc::clone(self), Arc::clone(&to_unpack), done.clone());
            begin(format!("fuelrail-u{n}"), Box::new(move || packed.serve(&jobs, &done)))?;
        }
        drop((to_unpack, done));
        let mut plain = config.clone();
        plain.memory.limit = Some(ByteSize(shares.reading));
        let reader = Reading { walk: Walk::new(self, run), config: plain, shared: Arc::clone(&shared), jobs };
        begin("fuelrail-read".into(), Box::new(move || reader.run()))?;
        let (deliver, lane) = channel(OPEN_BATCHES_MAX);
        let filling = Filling {
            walk: Walk::new(self, run),
            bad_samples: config.bad_samples,
            objects: Arc::clone(objects),
            shared,
            region,
            deliver,
            unpacked,
            early: HashMap::new(),
            images: HashMap::new(),
            next: 0,
        };
        begin("fuelrail-fill".into(), Box::new(move || filling.run()))?;
        Ok((unpacker, lane, threads))
    }

    /// Unpacks what is read.
    fn serve(&self, jobs: &Mutex<mpsc::Receiver<Job>>, done: &SyncSender<Image>) -> Result<()> {
        loop {
            let job = jobs.lock().unwrap_or_else(PoisonError::into_inner).recv();
            let Ok(Job { turn, part, pieces }) = job else { return Ok(()) };
            let part = &self.shards.parts()[part];
            let key = || self.listing.key(part.ranges[0].object as usize);
            let unpacked = |pieces| self.shards.unpacked(part, pieces).map_err(|error| error.with_object(key()));
            let bytes = pieces.and_then(unpacked);
            if done.send((turn, bytes)).is_err() {
                return Ok(());
            }
        }
    }
}

impl Unpacker {
    /// Whether only the consumer can make room for the next batch.
    pub(crate) fn is_starved(&self) -> bool {
        self.0.starved.load(Ordering::Relaxed)
    }

    pub(crate) fn waker(&self) -> &Waker {
        &self.0.waker
    }

    /// What was counted of reading.
    pub(crate) fn snapshots(&self, patience: Duration) -> Vec<Snapshot> {
        let (mut found, reading) = self.0.read.lock().unwrap_or_else(PoisonError::into_inner).clone();
        found.extend(snapshots(&reading, patience));
        found
    }
}

impl Drop for Unpacker {
    fn drop(&mut self) {
        self.0.stop.store(true, Ordering::Relaxed);
        self.0.waker.wake();
    }
}

/// A part to be unpacked, by its turn: the bytes of its ranges, or why they could not be had.
struct Job {
    turn: u64,
    part: usize,
    pieces: Result<Vec<Vec<u8>>>,
}

/// What was unpacked, by its turn.
type Image = (u64, Result<Vec<u8>>);

/// The thread that reads parts, in the order in which they are needed.
struct Reading {
    walk: Walk,
    config: Config,
    shared: Arc<Shared>,
    jobs: SyncSender<Job>,
}

impl Reading {
    fn run(mut self) -> Result<()> {
        let (mut turn, mut samples) = (0, STRETCH_SAMPLES.start);
        let mut parts = self.stretch(samples);
        while !parts.is_empty() {
            let packed = Arc::clone(&self.walk.packed);
            let ranges = |part: &usize| packed.shards.parts()[*part].ranges.iter().copied();
            let ranges = parts.iter().flat_map(ranges).collect();
            let loader = ranges_builder(self.config.clone(), &packed.listing, ranges);
            let mut loader = loader.bad_samples(self.config.bad_samples).build()?;
            self.read().1 = loader.watched().to_vec();
            samples = (2 * samples).min(STRETCH_SAMPLES.end);
            for part in std::mem::replace(&mut parts, self.stretch(samples)) {
                let (mut pieces, mut left) = (Ok(Vec::new()), packed.shards.parts()[part].ranges.len());
                while left > 0 {
                    match loader.next_batch_within(LOOK_AGAIN)? {
                        Taken::Batch(batch) => {
                            left -= 1;
                            match (batch.left_out().first(), &mut pieces) {
                                (Some((_, error)), _) => pieces = Err(error.clone()),
                                (None, Ok(pieces)) => pieces.push(batch.sample(0).to_vec()),
                                (None, Err(_)) => {}
                            }
                        }
                        Taken::NotYet if self.shared.stop.load(Ordering::Relaxed) => return Ok(()),
                        Taken::NotYet => {}
                        Taken::Over => return Err(Error::new(Kind::Cancelled, "the parts of a shard ended early")),
                    }
                }
                if self.jobs.send(Job { turn, part, pieces }).is_err() {
                    return Ok(());
                }
                turn += 1;
            }
            let last = snapshots(loader.watched(), LOOK_AGAIN);
            let mut read = self.read();
            read.0.extend(last);
            read.1.clear();
        }
        Ok(())
    }

    fn read(&self) -> std::sync::MutexGuard<'_, (Vec<Snapshot>, Vec<Watched>)> {
        self.shared.read.lock().unwrap_or_else(PoisonError::into_inner)
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
    unpacked: mpsc::Receiver<Image>,
    /// Unpacked before their turn.
    early: HashMap<u64, Result<Vec<u8>>>,
    images: HashMap<usize, Result<Vec<u8>>>,
    next: u64,
}

impl Filling {
    fn run(mut self) -> Result<()> {
        while let Some(Step { spec, samples, opened, closed }) = self.walk.step() {
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

    /// The next part, unpacked. `None` when there is none to come: this is to stop, or reading has failed.
    fn image(&mut self) -> Option<Result<Vec<u8>>> {
        let turn = self.next;
        self.next += 1;
        loop {
            if let Some(image) = self.early.remove(&turn) {
                return Some(image);
            }
            match self.unpacked.recv_timeout(LOOK_AGAIN) {
                Ok((turn, image)) => drop(self.early.insert(turn, image)),
                Err(RecvTimeoutError::Timeout) if !self.shared.stop.load(Ordering::Relaxed) => {}
                Err(_) => return None,
            }
        }
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
