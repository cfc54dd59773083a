//! The ring of device buffers: filled by the copy thread, held by the consumer, then returned.
//!
//! Owns the device memory and its events, the first error of either side, and the counters of both. A buffer's token is unique: its holder, the copy
//! thread or one `DeviceBatch`, owns the buffer. Device memory is freed when copy thread, feed and batches are all gone
//! and every event has been reached; what cannot be shown to be idle is kept until the process ends.

use core::mem::ManuallyDrop;
use core::sync::atomic::{AtomicBool, Ordering};
use core::time::Duration;
use std::sync::mpsc::SyncSender;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Instant;

use fuelrail::{Batch, Dtype, OtherFields, SampleId, State, Stats};
use fuelrail_base::{ByteSize, Error, Kind, Result};

use crate::context::{Context, DeviceMemory, Event, HostMemory, new_event, new_host_memory, new_memory};
use crate::device::{Device, warn_leaked};

/// Time between two queries of an event that is not reached, where nothing else is to be done.
const LOOK: Duration = Duration::from_micros(200);

pub(crate) const LABEL_BYTES: usize = size_of::<i64>();
/// As far as CUDA aligns an allocation.
const LABELS_ALIGN: usize = 256;

/// One device buffer and its events.
pub(crate) struct Cell {
    /// The batch's bytes, and its labels at [`Ring::labels_at`].
    pub(crate) memory: DeviceMemory,
    /// Where the labels are copied from.
    pub(crate) labels: HostMemory,
    /// The copy stream has reached the copy: the previous consumer is done.
    pub(crate) h2d_started: Event,
    /// The bytes are on the device: the host may write their slot again, the consumer's stream may go on.
    pub(crate) h2d_done: Event,
    /// The consumer's stream is past its last use.
    pub(crate) consumer_done: Event,
    /// `consumer_done` was recorded at least once.
    pub(crate) was_held: AtomicBool,
}

impl Cell {
    fn is_idle(&self) -> Result<bool> {
        let consumer_done = !self.was_held.load(Ordering::Acquire) || self.consumer_done.is_reached()?;
        Ok(consumer_done && self.h2d_done.is_reached()?)
    }
}

/// The right to one buffer, with what is known of the batch in it.
pub(crate) struct Token {
    pub(crate) cell: usize,
    pub(crate) info: Box<BatchInfo>,
}

/// The buffers and what all sides share.
pub(crate) struct Ring {
    pub(crate) context: Arc<Context>,
    pub(crate) ordinal: u32,
    pub(crate) tally: Tally,
    /// Room for the bytes of a batch in each buffer.
    pub(crate) bytes: usize,
    /// Where a buffer's labels begin, `i64` each.
    pub(crate) labels_at: usize,
    /// Room for so many of them.
    pub(crate) samples: usize,
    cells: ManuallyDrop<Box<[Cell]>>,
    returns: SyncSender<Token>,
    /// The first error of either side.
    failure: OnceLock<Error>,
    /// The loader's counters, once the copy thread has ended.
    pub(crate) loader_stats: OnceLock<Stats>,
    /// The feed is gone: no more copies.
    pub(crate) closed: AtomicBool,
    /// The copy thread has handed over its last batch, and not panicked.
    pub(crate) finished: AtomicBool,
    /// Work whose end is unknown may touch the buffers: they are never freed.
    pub(crate) kept: AtomicBool,
    patience: Duration,
}

impl Ring {
    /// Allocates the device memory: all that the feed will ever use.
    ///
    /// # Errors
    /// `Budget` with the numbers when the device has not that much.
    pub(crate) fn new(
        device: &Device,
        depth: usize,
        (bytes, samples): (usize, usize),
        patience: Duration,
        returns: SyncSender<Token>,
    ) -> Result<Ring> {
        let context = device.context();
        let _entered = context.enter()?;
        let labels_at = bytes.next_multiple_of(LABELS_ALIGN);
        let len = labels_at + samples * LABEL_BYTES;
        let cell = |n: usize| {
            let memory = new_memory(context, len)?;
            Ok(Cell {
                memory: memory.ok_or_else(|| no_room(device, (depth, len), n * len))?,
                labels: new_host_memory(context, samples * LABEL_BYTES)?,
                h2d_started: new_event(context, true)?,
                h2d_done: new_event(context, true)?,
                consumer_done: new_event(context, false)?,
                was_held: AtomicBool::new(false),
            })
        };
        let cells: Vec<Cell> = (0..depth).map(cell).collect::<Result<_>>()?;
        Ok(Ring {
            context: Arc::clone(context),
            ordinal: device.facts().ordinal,
            tally: Tally::default(),
            bytes,
            labels_at,
            samples,
            cells: ManuallyDrop::new(cells.into()),
            returns,
            failure: OnceLock::new(),
            loader_stats: OnceLock::new(),
            closed: AtomicBool::new(false),
            finished: AtomicBool::new(false),
            kept: AtomicBool::new(false),
            patience,
        })
    }

    pub(crate) fn cell(&self, cell: usize) -> &Cell {
        &self.cells[cell]
    }

    pub(crate) fn depth(&self) -> usize {
        self.cells.len()
    }

    /// Gives a buffer back for the next copy. After the copy thread has ended it is unused until the ring is dropped.
    pub(crate) fn give_back(&self, token: Token) {
        // There is room for every token; an error means that the copy thread has ended.
        let _ = self.returns.try_send(token);
    }

    /// Keeps the first error; later ones are its consequences.
    pub(crate) fn fail(&self, error: Error) {
        let _ = self.failure.set(error);
    }

    /// The first error, if there was one.
    pub(crate) fn failure(&self) -> Option<&Error> {
        self.failure.get()
    }

    /// Waits, at most `patience`, until no work touches any buffer.
    fn settle(&self) -> Result<bool> {
        let begun = Instant::now();
        let _entered = self.context.enter()?;
        for cell in &*self.cells {
            while !cell.is_idle()? {
                if begun.elapsed() > self.patience {
                    return Ok(false);
                }
                std::thread::sleep(LOOK);
            }
        }
        Ok(true)
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        if self.context.check_fork().is_err() {
            return;
        }
        let idle = if self.kept.load(Ordering::Acquire) { Ok(false) } else { self.settle() };
        let why = match idle {
            Ok(true) => {
                // SAFETY: dropped once, here, and not used after; every event was reached, so no work touches the buffers.
                unsafe { ManuallyDrop::drop(&mut self.cells) };
                return;
            }
            Ok(false) => "a stream may still use them".to_owned(),
            Err(error) => error.to_string(),
        };
        let bytes = ByteSize((self.cells.len() * self.bytes) as u64);
        warn_leaked(&format!("{bytes} of buffers on GPU {} stay taken until the process ends: {why}", self.ordinal));
    }
}

/// The error when device memory runs out; `taken` bytes of what is needed are allocated already.
fn no_room(device: &Device, (depth, each): (usize, usize), taken: usize) -> Error {
    let driver = device.context().driver;
    let (mut free, mut total) = (0, 0);
    // SAFETY: writes two numbers, to variables that live through the call.
    let code = unsafe { driver.cuMemGetInfo_v2(&raw mut free, &raw mut total) };
    let left = match driver.check(code, "") {
        Ok(()) => format!("{} of {} are free", ByteSize((free + taken) as u64), ByteSize(total as u64)),
        Err(_) => "the free memory is unknown".to_owned(),
    };
    let need = each * depth;
    let cause = format!(
        "GPU {} has no room for {depth} buffers of {} ({each} bytes): {need} bytes in all, {left}",
        device.facts().ordinal,
        ByteSize(each as u64),
    );
    Error::new(Kind::Budget, cause)
        .with_hint("lower the feed's depth or the batch size, or start the feed before the trainer takes all")
}

/// The description that travels with a device buffer.
#[derive(Default)]
pub(crate) struct BatchInfo {
    pub(crate) epoch: u64,
    pub(crate) step: u64,
    pub(crate) seq: u64,
    pub(crate) ids: Vec<SampleId>,
    pub(crate) labels: Vec<u32>,
    pub(crate) offsets: Vec<usize>,
    pub(crate) lens: Vec<usize>,
    pub(crate) left_out: Vec<(SampleId, Error)>,
    pub(crate) other_fields: OtherFields,
    /// Samples, rows, columns, channels, as they lie in memory, where they were decoded; else bytes.
    pub(crate) shape: Vec<i64>,
    pub(crate) dtype: Dtype,
    pub(crate) bytes: usize,
    pub(crate) state: Option<State>,
}

impl BatchInfo {
    /// Describes `batch`; `state` is the run's after it.
    pub(crate) fn describe(&mut self, batch: &Batch, state: State) {
        self.epoch = batch.epoch();
        self.step = batch.step();
        self.seq = batch.seq();
        self.bytes = batch.bytes().len();
        self.state = Some(state);
        refill(&mut self.ids, batch.ids());
        refill(&mut self.labels, batch.labels());
        refill(&mut self.offsets, batch.offsets());
        refill(&mut self.left_out, batch.left_out());
        self.other_fields = batch.other_fields();
        self.shape.clear();
        self.dtype = batch.shape().map_or(Dtype::U8, |shape| shape.dtype);
        match batch.shape() {
            Some(shape) => self.shape.extend(shape.dims().map(|n| n as i64)),
            None => self.shape.push(self.bytes as i64),
        }
        self.lens.clear();
        self.lens.extend(batch.samples().map(|sample| sample.bytes.len()));
    }
}

fn refill<T: Clone>(list: &mut Vec<T>, from: &[T]) {
    list.clear();
    list.extend_from_slice(from);
}

/// What a feed has done so far.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct FeedStats {
    /// Batches given to the consumer.
    pub batches: u64,
    /// Batches whose copy has ended.
    pub copies: u64,
    /// Bytes of those copies.
    pub copied_bytes: u64,
    /// Time the device spent on those copies, s.
    pub copy_s: f64,
    /// The longest of them, s.
    pub copy_s_max: f64,
    /// Time the consumer spent inside [`Feed::next`](crate::Feed::next), waiting, s.
    pub data_wait_s: f64,
    /// Share of calls of [`Feed::next`](crate::Feed::next) that found a batch on its way to the device; 1 before the first call.
    pub readiness: f64,
    /// Share of batches that were on the device when they were given out; a stream waited for the others. 1 before the first.
    pub landed: f64,
    /// Device buffers the consumer holds.
    pub held: u64,
}

/// The counters of a running feed. Of the shares, the numbers of batches are kept; the lock is taken once or twice a batch.
#[derive(Debug, Default)]
pub(crate) struct Tally(Mutex<FeedStats>);

impl Tally {
    fn counts(&self) -> MutexGuard<'_, FeedStats> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A batch is handed to the consumer.
    pub(crate) fn give(&self, at_once: bool, landed: bool) {
        let mut counts = self.counts();
        counts.held += 1;
        counts.batches += 1;
        counts.readiness += f64::from(at_once);
        counts.landed += f64::from(landed);
    }

    /// A batch is returned.
    pub(crate) fn come_back(&self) {
        self.counts().held -= 1;
    }

    /// Batches the consumer holds.
    pub(crate) fn held(&self) -> usize {
        self.counts().held as usize
    }

    pub(crate) fn wait(&self, time: Duration) {
        self.counts().data_wait_s += time.as_secs_f64();
    }

    pub(crate) fn copy(&self, bytes: usize, time: Duration) {
        let mut counts = self.counts();
        counts.copies += 1;
        counts.copied_bytes += bytes as u64;
        counts.copy_s += time.as_secs_f64();
        counts.copy_s_max = counts.copy_s_max.max(time.as_secs_f64());
    }

    pub(crate) fn stats(&self) -> FeedStats {
        let counts = *self.counts();
        let share = |part: f64| if counts.batches == 0 { 1.0 } else { part / counts.batches as f64 };
        FeedStats { readiness: share(counts.readiness), landed: share(counts.landed), ..counts }
    }
}
