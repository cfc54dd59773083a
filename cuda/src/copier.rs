//! The copy thread of a device: takes batches from the loader, puts their copies into the copy stream, and sends each slot home
//! when its bytes have landed.
//!
//! Owns the loader, the registered memory, the copy stream and every host batch under way. Never waits for the device on the
//! hot path: it looks, at most every few milliseconds, and waits for the loader in between. What it cannot see the end of
//! it never frees.

use core::ffi::c_void;
use core::mem::{ManuallyDrop, forget};
use core::sync::atomic::Ordering;
use core::time::Duration;
use std::collections::VecDeque;
use std::sync::mpsc::{Receiver, Sender, SyncSender};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use fuelrail::{Batch, Loader, Remains, Stats, Taken};
use fuelrail_base::{ByteSize, Error, Kind, Result};

use crate::canary::{Canary, Step};
use crate::context::Stream;
use crate::pinned::{Pinned, kept};
use crate::ring::{Cell, Ring, Token};
use crate::stats::Tally;

/// Between looks at copies under way: this at first, a quarter more after every look in vain, so that an end is seen late by a
/// quarter of the copy's time at most.
const LOOK_LEAST: Duration = Duration::from_micros(100);
const LOOK_MOST: Duration = Duration::from_millis(4);
/// With nothing under way: how long before it is noticed that the feed is gone.
const IDLE: Duration = Duration::from_millis(20);

/// Someone who asks for the loader's counters.
pub(crate) type Question = Arc<Mutex<Option<Sender<Stats>>>>;

/// A host batch whose bytes the device may still read.
struct Flight {
    /// Dropped when its bytes have landed.
    batch: Option<Batch>,
    cell: usize,
    seq: u64,
    bytes: usize,
    /// When its copy was first seen to be under way.
    since: Option<Instant>,
    /// Its events were recorded: they tell its end. Without them nothing does.
    sound: bool,
}

/// What ended the run.
enum End {
    /// The loader, in its order: the batches before are good.
    Loader(Error),
    /// The device, at once: nothing of it can be trusted.
    Device(Error),
    /// All batches are on the device, or nobody wants them any more.
    Over,
}

/// What lives in the device's context for the sake of copies. Dropped only when none is under way.
pub(crate) struct DeviceSide {
    pub(crate) stream: Stream,
    pub(crate) pinned: Option<Pinned>,
}

/// What ties a copier to its feed.
pub(crate) struct Ties {
    pub(crate) ring: Arc<Ring>,
    pub(crate) home: Receiver<Token>,
    pub(crate) ready: SyncSender<Result<Token>>,
    pub(crate) question: Question,
    pub(crate) timeout: Duration,
    pub(crate) canary: Canary,
}

/// The copy thread's own.
pub(crate) struct Copier {
    loader: Option<Loader>,
    ties: Ties,
    device: ManuallyDrop<DeviceSide>,
    free: VecDeque<Token>,
    flights: VecDeque<Flight>,
    look: Duration,
}

impl Copier {
    pub(crate) fn new(loader: Loader, device: DeviceSide, ties: Ties) -> Copier {
        let depth = ties.ring.depth();
        let free = (0..depth).map(|cell| Token { cell, note: Box::default() }).collect();
        Copier {
            loader: Some(loader),
            ties,
            device: ManuallyDrop::new(device),
            free,
            flights: VecDeque::with_capacity(depth),
            look: LOOK_LEAST,
        }
    }

    /// Copies until the run is over, the feed is gone or something fails. Returns what the loader left behind; `None` when
    /// something is still under way and was kept.
    pub(crate) fn serve(mut self) -> Option<Remains> {
        let ring = Arc::clone(&self.ties.ring);
        // Failing to enter is failing to copy.
        let entered = ring.context.enter();
        let end = match &entered {
            Ok(_) => self.run().unwrap_or_else(End::Device),
            Err(error) => End::Device(error.clone()),
        };
        match end {
            End::Over => {}
            End::Loader(error) => drop(self.ties.ready.try_send(Err(error))),
            End::Device(error) => {
                ring.fail(error.clone());
                // Wakes a waiting consumer, who then finds the failure.
                let _ = self.ties.ready.try_send(Err(error));
            }
        }
        self.wind_up();
        ring.finished.store(true, Ordering::Release);
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
            while let Ok(token) = self.ties.home.try_recv() {
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
                        return self.land().map(|()| End::Loader(error));
                    }
                }
                Ok(Taken::NotYet) => self.look = (self.look * 5 / 4).min(LOOK_MOST),
                Ok(Taken::Over) => return self.land().map(|()| End::Over),
                Err(error) => return self.land().map(|()| End::Loader(error)),
            }
        }
    }

    /// The feed is gone, or the consumer's side has failed.
    fn is_unwanted(&self) -> bool {
        self.ties.ring.closed.load(Ordering::Acquire) || self.ties.ring.has_failed()
    }

    /// Every buffer is with the consumer or being filled: waits for one, looking at copies in between.
    fn await_token(&mut self, patience: Duration) {
        match self.ties.home.recv_timeout(patience) {
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
        token.note.take_down(&batch, loader.state());
        let (at, bytes) = (batch.bytes().as_ptr(), batch.bytes().len());
        let (seq, room) = (token.note.seq, self.ties.ring.bytes);
        if bytes > room {
            return Ok(Err(too_large(seq, bytes, room)));
        }
        // From here on the batch is held, and its buffer not used again, until its events tell the end.
        let batch = self.ties.canary.takes(Step::HoldSlot).then_some(batch);
        self.flights.push_back(Flight { batch, cell: token.cell, seq, bytes, since: None, sound: false });
        // SAFETY: the bytes lie in the batch's slot, registered as long as `self.device` lives; the flight just made holds them
        // until its `landed` event was seen, or for ever.
        let submitted = unsafe { self.submit(&token, at) };
        // Where it failed, whatever part of it was submitted lies before these events.
        let sound = submitted.is_ok() || self.mark(token.cell).is_ok();
        if let Some(flight) = self.flights.back_mut() {
            flight.sound = sound;
        }
        submitted.map_err(|error| self.on_the_way(seq, &error))?;
        // There is room for every token and one error.
        let _ = self.ties.ready.try_send(Ok(token));
        Ok(Ok(()))
    }

    /// # Safety
    /// The bytes of the batch that the token describes are at `at`, in registered memory, and stay until `landed` is reached.
    unsafe fn submit(&self, token: &Token, at: *const u8) -> Result<()> {
        let ring = &self.ties.ring;
        let (cell, stream) = (ring.cell(token.cell), self.device.stream.handle());
        // SAFETY, for all events: the stream is ours and not destroyed before `self.device` is dropped.
        if cell.was_held.load(Ordering::Acquire) && self.ties.canary.takes(Step::AwaitConsumer) {
            // SAFETY: as above.
            unsafe { cell.released.hold_back(stream) }?;
        }
        // SAFETY: as above.
        unsafe { cell.begun.record(stream) }?;
        if token.note.bytes > 0 {
            let driver = ring.context.driver;
            // SAFETY: the source is the caller's promise; the target is a buffer at least that long, which nobody else uses
            // before `landed` (the stream has waited for the consumer before), and which lives until its events were seen.
            let code = unsafe {
                driver.cuMemcpyHtoDAsync_v2(cell.memory.handle(), at.cast::<c_void>(), token.note.bytes, stream)
            };
            driver.check(code, "starting the copy")?;
        }
        // SAFETY: as above.
        unsafe { cell.landed.record(stream) }
    }

    /// Records all events of a buffer behind whatever the stream has been given.
    fn mark(&self, cell: usize) -> Result<()> {
        let (cell, stream) = (self.ties.ring.cell(cell), self.device.stream.handle());
        for event in [&cell.begun, &cell.landed] {
            // SAFETY: the stream is ours and not destroyed before `self.device` is dropped.
            unsafe { event.record(stream) }?;
        }
        Ok(())
    }

    /// Looks at the copies under way, in their order: sends slots home whose bytes have landed, forgets what is done.
    fn reap(&mut self) -> Result<()> {
        while let Some(flight) = self.flights.front_mut() {
            let cell = self.ties.ring.cell(flight.cell);
            match flight.look(cell, &self.ties.ring.tally) {
                Ok(true) => {
                    self.flights.pop_front();
                    self.look = LOOK_LEAST;
                }
                Ok(false) => {
                    let (seq, bytes, since) = (flight.seq, flight.bytes, flight.since);
                    let slow = since.map(|since| since.elapsed()).filter(|time| *time > self.ties.timeout);
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

    /// Waits until everything under way is done.
    fn land(&mut self) -> Result<()> {
        while !self.flights.is_empty() && !self.is_unwanted() {
            self.reap()?;
            self.answer();
            std::thread::sleep(self.look);
        }
        Ok(())
    }

    /// Waits, within the time-out, for what is still under way.
    fn wind_up(&mut self) {
        let begun = Instant::now();
        while !self.flights.is_empty() && begun.elapsed() < self.ties.timeout {
            let tells = self.flights.iter().all(|flight| flight.sound);
            if !tells || self.reap().is_err() {
                return;
            }
            std::thread::sleep(LOOK_LEAST);
        }
    }

    /// Tells the loader's counters to whoever asked.
    fn answer(&self) {
        let asked = self.ties.question.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let (Some(asked), Some(loader)) = (asked, &self.loader) {
            // Who asked may have lost patience.
            let _ = asked.send(loader.stats());
        }
    }

    fn on_the_way(&self, seq: u64, error: &Error) -> Error {
        Error::new(error.kind(), format!("batch {seq} on its way to GPU {}: {error}", self.ties.ring.ordinal))
    }

    fn hung(&self, seq: u64, bytes: usize, time: Duration) -> Error {
        let (bytes, gpu, s) = (ByteSize(bytes as u64), self.ties.ring.ordinal, time.as_secs_f64());
        Error::new(Kind::Environment, format!("batch {seq} ({bytes}) has been on its way to GPU {gpu} for {s:.1} s")).with_hint(
            "look at `nvidia-smi` and `dmesg | grep Xid`; where the device is only that slow, raise copy_timeout_ms",
        )
    }
}

impl Flight {
    /// Whether the copy has ended; counts it then.
    fn look(&mut self, cell: &Cell, tally: &Tally) -> Result<bool> {
        if self.since.is_none() {
            if !cell.begun.is_reached()? {
                return Ok(false);
            }
            self.since = Some(Instant::now());
        }
        if !cell.landed.is_reached()? {
            return Ok(false);
        }
        let ms = cell.begun.elapsed_ms(&cell.landed).unwrap_or(0.0);
        tally.copy(self.bytes, Duration::from_secs_f64(f64::from(ms.max(0.0)) / 1e3));
        Ok(true)
    }
}

impl Drop for Copier {
    fn drop(&mut self) {
        self.loader = None;
        if self.flights.is_empty() {
            if !self.ties.canary.takes(Step::Unregister) {
                forget(self.device.pinned.take());
            }
            // SAFETY: dropped once, here, and not used after; every flight was seen to its end.
            unsafe { ManuallyDrop::drop(&mut self.device) };
            return;
        }
        self.ties.ring.kept.store(true, Ordering::Release);
        let bytes: usize = self.flights.iter().map(|flight| flight.bytes).sum();
        for flight in self.flights.drain(..) {
            forget(flight.batch);
        }
        kept(&format!(
            "copies of {} to GPU {} did not end: the loader's memory stays registered until the process ends",
            ByteSize(bytes as u64),
            self.ties.ring.ordinal
        ));
    }
}

fn too_large(seq: u64, bytes: usize, room: usize) -> Error {
    Error::new(Kind::Mismatch, format!("batch {seq} of {bytes} bytes does not fit a device buffer of {room}"))
        .with_hint("report it: the loader promised smaller batches")
}
