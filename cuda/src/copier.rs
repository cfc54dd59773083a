//! The copy thread of a device: takes batches from the loader, submits their copies to the copy stream, and returns each slot
//! when its bytes are on the device.
//!
//! Owns the loader, the registered memory, the copy stream and every host batch in flight. Never waits for the device on the
//! hot path: it queries events, at most every few milliseconds, and waits for the loader in between. It never frees memory of a
//! copy whose end it cannot see.

use core::ffi::c_void;
use core::mem::{ManuallyDrop, forget};
use core::ops::Range;
use core::sync::atomic::Ordering;
use core::time::Duration;
use std::collections::VecDeque;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use fuelrail::{Batch, Loader, NO_LABEL, Remains, Taken};
use fuelrail_base::{ByteSize, Error, Kind, Result};

use crate::canary::{Canary, Step};
use crate::context::Stream;
use crate::device::{Device, Pinned, warn_leaked};
use crate::ring::{Cell, LABEL_BYTES, Ring, Tally, Token};

/// Time between queries of copies in flight: the least at first, a quarter more after every query that found nothing, so that
/// an end is seen late by a quarter of the copy's time at most.
const LOOK_LEAST: Duration = Duration::from_micros(100);
const LOOK_MOST: Duration = Duration::from_millis(4);
/// With no copy in flight: how long until a closed feed is noticed.
const IDLE: Duration = Duration::from_millis(20);

/// A pending question to the loader.
pub(crate) type Question = Arc<Mutex<Option<Box<dyn FnOnce(&Loader) + Send>>>>;

/// A host batch whose bytes the device may still read.
struct Flight {
    /// Dropped when its bytes are on the device.
    batch: Option<Batch>,
    cell: usize,
    seq: u64,
    bytes: usize,
    /// When its copy was first seen to run.
    since: Option<Instant>,
    /// Its events were recorded, so its end can be seen.
    sound: bool,
}

/// What ended the run.
enum End {
    /// The loader, in its order: the batches before are good.
    Loader(Error),
    /// The device, at once: its state is unknown.
    Device(Error),
    /// All batches are on the device, or the feed is closed.
    Over,
}

/// What copies need in the device's context. Dropped only when none is in flight.
pub(crate) struct DeviceSide {
    pub(crate) device: Device,
    pub(crate) stream: Stream,
    pub(crate) pinned: Option<Pinned>,
    pub(crate) shared: Option<Shared>,
}

/// Where the batches of a shared read lie.
pub(crate) struct Shared {
    addresses: Range<usize>,
    /// `None` where it could not be registered.
    _pinned: Option<Pinned>,
}

/// What a copier shares with its feed.
pub(crate) struct FeedLink {
    pub(crate) ring: Arc<Ring>,
    pub(crate) returned: Receiver<Token>,
    pub(crate) ready: SyncSender<Result<Token>>,
    pub(crate) question: Question,
    pub(crate) timeout: Duration,
    pub(crate) canary: Canary,
}

/// State of the copy thread.
pub(crate) struct Copier {
    loader: Option<Loader>,
    link: FeedLink,
    device: ManuallyDrop<DeviceSide>,
    free: VecDeque<Token>,
    flights: VecDeque<Flight>,
    look: Duration,
}

impl Copier {
    pub(crate) fn new(loader: Loader, device: DeviceSide, link: FeedLink) -> Copier {
        let depth = link.ring.depth();
        let free = (0..depth).map(|cell| Token { cell, info: Box::default() }).collect();
        Copier {
            loader: Some(loader),
            link,
            device: ManuallyDrop::new(device),
            free,
            flights: VecDeque::with_capacity(depth),
            look: LOOK_LEAST,
        }
    }

    /// Copies until the run is over, the feed is gone or something fails. Returns what the loader left behind; `None` when
    /// a copy is still in flight and its memory was kept.
    pub(crate) fn serve(mut self) -> Option<Remains> {
        let ring = Arc::clone(&self.link.ring);
        // Without the context no copy is possible.
        let entered = ring.context.enter();
        let end = match &entered {
            Ok(_) => self.run().unwrap_or_else(End::Device),
            Err(error) => End::Device(error.clone()),
        };
        let is_over = matches!(end, End::Over);
        match end {
            End::Over => {}
            End::Loader(error) => drop(self.link.ready.try_send(Err(error))),
            End::Device(error) => {
                ring.fail(error.clone());
                // Wakes a waiting consumer, which then finds the failure.
                let _ = self.link.ready.try_send(Err(error));
            }
        }
        self.wind_up();
        // Whoever asks for them after the last copy gets these.
        if let Some(loader) = &self.loader {
            let _ = ring.loader_stats.set(loader.stats());
        }
        ring.finished.store(true, Ordering::Release);
        // Tells the consumer that no batch follows.
        self.link.ready = sync_channel(0).0;
        if is_over {
            self.stay_for_peers();
        }
        let loader = self.loader.take().filter(|_| self.flights.is_empty());
        loader.map(Loader::close)
    }

    fn run(&mut self) -> Result<End> {
        loop {
            if self.is_unwanted() {
                return Ok(End::Over);
            }
            self.reap()?;
            self.answer();
            while let Ok(token) = self.link.returned.try_recv() {
                self.free.push_back(token);
            }
            let patience = if self.flights.is_empty() { IDLE } else { self.look };
            // A buffer's events are recorded anew only when all of them were seen.
            let in_flight = |token: &Token| self.flights.iter().any(|flight| flight.cell == token.cell);
            let Some(at) = self.free.iter().position(|token| !in_flight(token)) else {
                self.await_token(patience);
                continue;
            };
            let Some(loader) = &mut self.loader else { return Ok(End::Over) };
            match loader.next_batch_within(patience) {
                Ok(Taken::Batch(batch)) => {
                    self.look = LOOK_LEAST;
                    let Some(token) = self.free.remove(at) else { continue };
                    if let Err(error) = self.copy(token, batch)? {
                        return self.drain().map(|()| End::Loader(error));
                    }
                }
                Ok(Taken::NotYet) => self.look = (self.look * 5 / 4).min(LOOK_MOST),
                Ok(Taken::Over) => return self.drain().map(|()| End::Over),
                Err(error) => return self.drain().map(|()| End::Loader(error)),
            }
        }
    }

    /// Other ranks may still ask for what the loader keeps, and a notice for a hand-over: until the feed is closed.
    fn stay_for_peers(&self) {
        let keeps = |loader: &Loader| !loader.config().peers.addresses.is_empty();
        while self.loader.as_ref().is_some_and(keeps) && !self.is_unwanted() {
            self.answer();
            std::thread::sleep(IDLE);
        }
    }

    /// The feed is gone, or the consumer's side has failed.
    fn is_unwanted(&self) -> bool {
        self.link.ring.closed.load(Ordering::Acquire) || self.link.ring.failure().is_some()
    }

    /// Waits for a buffer when all are with the consumer or being filled.
    fn await_token(&mut self, patience: Duration) {
        match self.link.returned.recv_timeout(patience) {
            Ok(token) => {
                self.free.push_back(token);
                self.look = LOOK_LEAST;
            }
            // The ring holds the other end, and this thread the ring: it is never disconnected.
            Err(_) => self.look = (self.look * 5 / 4).min(LOOK_MOST),
        }
    }

    /// Puts a batch's copy into the stream and hands its token to the consumer. The inner error is the batch's own.
    fn copy(&mut self, mut token: Token, batch: Batch) -> Result<Result<()>> {
        let Some(loader) = &self.loader else { return Ok(Ok(())) };
        token.info.describe(&batch, loader.state());
        let (at, bytes) = (batch.bytes().as_ptr(), batch.bytes().len());
        let (seq, room) = (token.info.seq, self.link.ring.bytes);
        if bytes > room || token.info.labels.len() > self.link.ring.samples {
            return Ok(Err(too_large(seq, bytes, room)));
        }
        self.find_shared(at)?;
        // From here on the batch is held, and its buffer not used again, until its events are reached.
        let batch = self.link.canary.takes(Step::HoldSlot).then_some(batch);
        self.flights.push_back(Flight { batch, cell: token.cell, seq, bytes, since: None, sound: false });
        // SAFETY: the bytes lie in the batch's slot, which stays registered or unregistered until no copy is in flight; the flight just made
        // holds them until its `h2d_done` event was seen, or for ever.
        let submitted = unsafe { self.submit(&token, at) };
        // Where it failed, whatever part of it was submitted lies before these events.
        let sound = submitted.is_ok() || self.mark(token.cell).is_ok();
        if let Some(flight) = self.flights.back_mut() {
            flight.sound = sound;
        }
        submitted.map_err(|error| self.on_the_way(seq, &error))?;
        // There is room for every token and one error.
        let _ = self.link.ready.try_send(Ok(token));
        Ok(Ok(()))
    }

    /// Registers the memory of a shared read before the first copy from it, in place of what its batches lay in before. Of those that were
    /// handed over between the two the driver takes a copy before its call returns.
    fn find_shared(&mut self, at: *const u8) -> Result<()> {
        let is_known = |device: &DeviceSide, at: *const u8| {
            device.shared.as_ref().is_some_and(|shared| shared.addresses.contains(&at.addr()))
        };
        if is_known(&self.device, at) {
            return Ok(());
        }
        let Some(memory) = self.loader.as_ref().and_then(Loader::shared_memory) else { return Ok(()) };
        let (base, len) = memory.span();
        if is_known(&self.device, base) {
            return Ok(());
        }
        self.drain()?;
        if !self.flights.is_empty() {
            // The feed is closed: nothing is unregistered below a copy.
            return Ok(());
        }
        self.device.shared = None;
        let pinned = Pinned::register(&self.device.device, memory).inspect_err(|error| {
            let gpu = self.link.ring.ordinal;
            tracing::warn!(
                "GPU {gpu}: the batches of a shared read are copied through the driver's own buffers: {error}"
            );
        });
        self.device.shared = Some(Shared { addresses: base.addr()..base.addr() + len, _pinned: pinned.ok() });
        Ok(())
    }

    /// # Safety
    /// The bytes of the batch that the token describes are at `at`, and stay until `h2d_done` is reached.
    unsafe fn submit(&self, token: &Token, at: *const u8) -> Result<()> {
        let ring = &self.link.ring;
        let (cell, stream) = (ring.cell(token.cell), self.device.stream.handle());
        // SAFETY, for all events: the stream is ours and not destroyed before `self.device` is dropped.
        if cell.was_held.load(Ordering::Acquire) && self.link.canary.takes(Step::AwaitConsumer) {
            // SAFETY: as above.
            unsafe { cell.consumer_done.make_wait(stream) }?;
        }
        // SAFETY: as above.
        unsafe { cell.h2d_started.record(stream) }?;
        if token.info.bytes > 0 {
            let driver = ring.context.driver;
            // SAFETY: the source is the caller's promise; the target is a buffer at least that long, which nothing else uses
            // before `h2d_done` (the stream has waited for the consumer before), and which lives until its events were seen.
            let code = unsafe {
                driver.cuMemcpyHtoDAsync_v2(cell.memory.handle(), at.cast::<c_void>(), token.info.bytes, stream)
            };
            driver.check(code, "starting the copy")?;
        }
        // SAFETY: the buffer was taken off the free ones, and no flight of it is left.
        unsafe { self.submit_labels(token)? };
        // SAFETY: as above.
        unsafe { cell.h2d_done.record(stream) }
    }

    /// # Safety
    /// No copy of this buffer's labels is on its way.
    unsafe fn submit_labels(&self, token: &Token) -> Result<()> {
        let ring = &self.link.ring;
        let (cell, labels) = (ring.cell(token.cell), &token.info.labels);
        if labels.is_empty() {
            return Ok(());
        }
        let at: *mut i64 = cell.labels.handle().cast();
        for (n, &label) in labels.iter().enumerate() {
            // SAFETY: page-locked memory of this cell, aligned to a page, with room for `ring.samples` labels, which `copy` has compared; by
            // the caller's promise no copy reads it.
            unsafe { at.add(n).write(if label == NO_LABEL { -1 } else { i64::from(label) }) };
        }
        let (to, bytes) = (cell.memory.handle() + ring.labels_at as u64, labels.len() * LABEL_BYTES);
        let (driver, stream) = (ring.context.driver, self.device.stream.handle());
        // SAFETY: both ends are the cell's, have that much room, and live until its events were seen.
        let code = unsafe { driver.cuMemcpyHtoDAsync_v2(to, at.cast(), bytes, stream) };
        driver.check(code, "starting the copy of the labels")
    }

    /// Records all events of a buffer after whatever the stream has been given.
    fn mark(&self, cell: usize) -> Result<()> {
        let (cell, stream) = (self.link.ring.cell(cell), self.device.stream.handle());
        for event in [&cell.h2d_started, &cell.h2d_done] {
            // SAFETY: the stream is ours and not destroyed before `self.device` is dropped.
            unsafe { event.record(stream) }?;
        }
        Ok(())
    }

    /// Queries the copies in flight, in order, and returns the slots of those that have ended.
    fn reap(&mut self) -> Result<()> {
        while let Some(flight) = self.flights.front_mut() {
            let cell = self.link.ring.cell(flight.cell);
            match flight.look(cell, &self.link.ring.tally) {
                Ok(true) => {
                    self.flights.pop_front();
                    self.look = LOOK_LEAST;
                }
                Ok(false) => {
                    let (seq, bytes, since) = (flight.seq, flight.bytes, flight.since);
                    let slow = since.map(|since| since.elapsed()).filter(|time| *time > self.link.timeout);
                    return slow.map_or(Ok(()), |time| Err(self.hung(seq, bytes, time)));
                }
                Err(error) => {
                    let seq = flight.seq;
                    return Err(self.on_the_way(seq, &error));
                }
            }
        }
        Ok(())
    }

    /// Waits until no copy is in flight.
    fn drain(&mut self) -> Result<()> {
        while !self.flights.is_empty() && !self.is_unwanted() {
            self.reap()?;
            self.answer();
            std::thread::sleep(self.look);
        }
        Ok(())
    }

    /// Waits, at most for the time-out, for copies still in flight.
    fn wind_up(&mut self) {
        let begun = Instant::now();
        while !self.flights.is_empty() && begun.elapsed() < self.link.timeout {
            let tells = self.flights.iter().all(|flight| flight.sound);
            if !tells || self.reap().is_err() {
                return;
            }
            std::thread::sleep(LOOK_LEAST);
        }
    }

    /// Answers a pending question to the loader.
    fn answer(&self) {
        let asked = self.link.question.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let (Some(asked), Some(loader)) = (asked, &self.loader) {
            asked(loader);
        }
    }

    fn on_the_way(&self, seq: u64, error: &Error) -> Error {
        Error::new(error.kind(), format!("batch {seq} on its way to GPU {}: {error}", self.link.ring.ordinal))
    }

    fn hung(&self, seq: u64, bytes: usize, time: Duration) -> Error {
        let (bytes, gpu, s) = (ByteSize(bytes as u64), self.link.ring.ordinal, time.as_secs_f64());
        Error::new(Kind::Environment, format!("batch {seq} ({bytes}) has been on its way to GPU {gpu} for {s:.1} s")).with_hint(
            "look at `nvidia-smi` and `dmesg | grep Xid`; where the device is only that slow, raise copy_timeout_ms",
        )
    }
}

impl Flight {
    /// Whether the copy has ended; counts it then.
    fn look(&mut self, cell: &Cell, tally: &Tally) -> Result<bool> {
        if self.since.is_none() {
            if !cell.h2d_started.is_reached()? {
                return Ok(false);
            }
            self.since = Some(Instant::now());
        }
        if !cell.h2d_done.is_reached()? {
            return Ok(false);
        }
        let ms = cell.h2d_started.elapsed_ms(&cell.h2d_done).unwrap_or(0.0);
        tally.copy(self.bytes, Duration::from_secs_f64(f64::from(ms.max(0.0)) / 1e3));
        Ok(true)
    }
}

impl Drop for Copier {
    fn drop(&mut self) {
        self.loader = None;
        if self.flights.is_empty() {
            if !self.link.canary.takes(Step::Unregister) {
                forget(self.device.pinned.take());
            }
            // SAFETY: dropped once, here, and not used after; every flight was seen to its end.
            unsafe { ManuallyDrop::drop(&mut self.device) };
            return;
        }
        self.link.ring.kept.store(true, Ordering::Release);
        let bytes: usize = self.flights.iter().map(|flight| flight.bytes).sum();
        for flight in self.flights.drain(..) {
            forget(flight.batch);
        }
        warn_leaked(&format!(
            "copies of {} to GPU {} did not end: the loader's memory stays registered until the process ends",
            ByteSize(bytes as u64),
            self.link.ring.ordinal
        ));
    }
}

fn too_large(seq: u64, bytes: usize, room: usize) -> Error {
    Error::new(Kind::Mismatch, format!("batch {seq} of {bytes} bytes does not fit a device buffer of {room}"))
        .with_hint("report it: the loader promised smaller batches")
}
