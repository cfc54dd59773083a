//! A feed: batches of a loader, on a device, in order.
//!
//! Owns the copy thread and the consumer's end of the queue. The consumer's thread never waits for the device; its streams do.

use core::sync::atomic::Ordering;
use core::time::Duration;
use std::sync::mpsc::{Receiver, RecvTimeoutError, TryRecvError, channel, sync_channel};
use std::sync::{Arc, PoisonError};
use std::thread::JoinHandle;
use std::time::Instant;

use fuelrail::{Config, HandOver, Loader, Remains, Stats};
use fuelrail_base::{Error, Kind, Result};

use crate::batch::{DeviceBatch, RawStream};
use crate::canary::{Canary, Step};
use crate::context::new_stream;
use crate::copier::{Copier, DeviceSide, FeedLink, Question};
use crate::device::{Device, Pinned, warn_leaked};
use crate::ring::{FeedStats, Ring, Token};

/// Settings of a feed.
#[derive(Clone, PartialEq, Debug)]
pub struct FeedConfig {
    /// The device's number in this process.
    pub device: u32,
    /// Device buffers: how many batches are on the device, held by the consumer or on their way, at a time.
    pub depth: usize,
    /// A copy that runs for longer than this is an error, ms.
    pub copy_timeout_ms: u64,
}

impl Default for FeedConfig {
    /// Three buffers on device 0, 30 s.
    fn default() -> FeedConfig {
        FeedConfig { device: 0, depth: 3, copy_timeout_ms: 30_000 }
    }
}

/// Most device buffers of a feed.
pub const DEPTH_MAX: usize = 64;

impl FeedConfig {
    /// Checks every field that can be checked without the device.
    ///
    /// # Errors
    /// `Usage` naming the field and what to write.
    pub fn validate(&self) -> Result<()> {
        let usage = |cause: String, cure: &str| Err(Error::new(Kind::Usage, cause).with_hint(cure));
        if !(1..=DEPTH_MAX).contains(&self.depth) {
            return usage(
                format!("depth is {}", self.depth),
                "choose between 1 and 64; 3 keeps the link and the trainer busy",
            );
        }
        if self.copy_timeout_ms == 0 {
            return usage("copy_timeout_ms is 0".into(), "allow at least the time of one copy");
        }
        Ok(())
    }
}

/// How long a waiting consumer sleeps before it checks for a failure.
const LOOK_AGAIN: Duration = Duration::from_millis(50);
/// How long the consumer must have held every buffer while asking for more before that is an error.
const HOLD_PATIENCE: Duration = Duration::from_secs(1);
/// What the loader may take to stop, beside copies that may take their time-out.
const STOP_PATIENCE: Duration = Duration::from_secs(20);

/// Batches on a device.
pub struct Feed {
    ring: Arc<Ring>,
    ready: Receiver<Result<Token>>,
    question: Question,
    thread: Option<JoinHandle<Option<Remains>>>,
    config: FeedConfig,
    loader_config: Config,
    canary: Canary,
    over: bool,
    /// Since when the consumer has asked for the next batch, if it has.
    asked: Option<Instant>,
}

/// What [`Feed::next_within`] found.
#[derive(Debug)]
pub enum DeviceTaken {
    /// The next batch.
    Batch(DeviceBatch),
    /// None yet.
    NotYet,
    /// The run is over, or has failed before.
    Over,
}

impl Feed {
    /// Opens the device, registers the loader's memory with it, allocates the device buffers and starts to copy. Memory of another process,
    /// under `shared_read`, is registered before the first copy from it, to be read; where the driver cannot do that, copies go through its own
    /// buffers, which is slower, and a warning says so.
    ///
    /// # Errors
    /// `Usage` for settings; `Budget` when the device has no room for the buffers, with the numbers; `Environment` when there is
    /// no CUDA, or it refuses, with what to do.
    pub fn start(loader: Loader, config: FeedConfig) -> Result<Feed> {
        config.validate()?;
        let device = Device::open(config.device)?;
        let timeout = Duration::from_millis(config.copy_timeout_ms);
        let canary = Canary::new();
        let bytes = usize::try_from(loader.batch_bytes_max()).unwrap_or(usize::MAX);
        // Every token and one error fit: a send never waits.
        let (send_returned, returned) = sync_channel(config.depth);
        let (send_ready, ready) = sync_channel(config.depth + 1);
        let room = (bytes, loader.config().batch_size as usize);
        let ring = Arc::new(Ring::new(&device, config.depth, room, timeout, send_returned)?);
        let pinned = Pinned::register(&device, loader.memory())?;
        let device_side = {
            let _entered = device.context().enter()?;
            let stream = new_stream(device.context())?;
            DeviceSide { device: device.clone(), stream, pinned: Some(pinned), shared: None }
        };
        let (loader_config, question) = (loader.config().clone(), Question::default());
        let (theirs, asked) = (Arc::clone(&ring), Arc::clone(&question));
        let link = FeedLink { ring: theirs, returned, ready: send_ready, question: asked, timeout, canary };
        let copier = Copier::new(loader, device_side, link);
        let thread = std::thread::Builder::new().name(format!("fuelrail-gpu-{}", config.device));
        let thread = thread.spawn(move || copier.serve()).map_err(|e| {
            Error::from_io(Kind::Environment, format_args!("starting the copy thread of GPU {}", config.device), e)
        })?;
        let thread = Some(thread);
        Ok(Feed { ring, ready, question, thread, config, loader_config, canary, over: false, asked: None })
    }

    /// The next batch, in order; blocks until its copy is on its way, and makes `stream` wait, on the device, until it has
    /// arrived. `None` when the run is over or has failed.
    ///
    /// # Errors
    /// What the loader reports, after the batches before it; at once, `Environment` when the device fails or a copy hangs, with
    /// the batch and the device; `Budget` when the batches held leave no buffer, after which the next call goes on.
    pub fn next(&mut self, stream: RawStream) -> Option<Result<DeviceBatch>> {
        loop {
            match self.next_within(stream, LOOK_AGAIN) {
                Ok(DeviceTaken::Batch(batch)) => return Some(Ok(batch)),
                Ok(DeviceTaken::NotYet) => {}
                Ok(DeviceTaken::Over) => return None,
                Err(error) => return Some(Err(error)),
            }
        }
    }

    /// As [`Feed::next`], and blocks for `patience` at most.
    ///
    /// # Errors
    /// As [`Feed::next`].
    pub fn next_within(&mut self, stream: RawStream, patience: Duration) -> Result<DeviceTaken> {
        if self.over {
            return Ok(DeviceTaken::Over);
        }
        stream.check()?;
        let outcome = self.ring.context.check_fork().and_then(|()| self.take(stream, patience));
        self.over = match &outcome {
            Ok(taken) => matches!(taken, DeviceTaken::Over),
            // Batches that are held end nothing: it is still being waited for the next one.
            Err(_) => self.ring.failure().is_some() || self.asked.take().is_none(),
        };
        outcome
    }

    fn take(&mut self, stream: RawStream, patience: Duration) -> Result<DeviceTaken> {
        let at_once = self.asked.is_none();
        let begun = *self.asked.get_or_insert_with(Instant::now);
        let (token, at_once) = match self.ready.try_recv() {
            Ok(token) => (Some(token), at_once),
            Err(TryRecvError::Disconnected) => (None, at_once),
            Err(TryRecvError::Empty) => match self.ready.recv_timeout(patience) {
                Ok(token) => (Some(token), false),
                Err(RecvTimeoutError::Disconnected) => (None, false),
                Err(RecvTimeoutError::Timeout) => return self.look(begun).map(|()| DeviceTaken::NotYet),
            },
        };
        self.asked = None;
        if !at_once {
            self.ring.tally.wait(begun.elapsed());
        }
        if let Some(failure) = self.ring.failure() {
            return Err(failure.clone());
        }
        match token {
            Some(token) => self.give(token?, stream, at_once).map(DeviceTaken::Batch),
            None if self.ring.finished.load(Ordering::Acquire) => Ok(DeviceTaken::Over),
            None => Err(Error::new(Kind::Environment, "the copy thread panicked: a bug of the feed")
                .with_hint("report it with the message above")),
        }
    }

    /// Whether it is worth while to go on waiting for what was asked for at `begun`.
    fn look(&self, begun: Instant) -> Result<()> {
        let held = self.ring.tally.held();
        let error = self.ring.failure().cloned().or_else(|| {
            let holds_all = held >= self.ring.depth() && begun.elapsed() > HOLD_PATIENCE;
            let cause =
                || format!("the {held} batches you hold use every buffer of the feed on GPU {}", self.ring.ordinal);
            holds_all.then(|| {
                Error::new(Kind::Budget, cause()).with_hint(
                    "drop batches and their tensors before asking for more, or raise depth (in Python device_depth)",
                )
            })
        });
        let Some(error) = error else { return Ok(()) };
        self.ring.tally.wait(begun.elapsed());
        Err(error)
    }

    fn give(&self, token: Token, stream: RawStream, at_once: bool) -> Result<DeviceBatch> {
        let copied = &self.ring.cell(token.cell).h2d_done;
        let _entered = self.ring.context.enter()?;
        let landed = copied.is_reached()?;
        if self.canary.takes(Step::AwaitCopy) {
            // SAFETY: the stream is what `RawStream::from_raw` promises.
            unsafe { copied.make_wait(stream.handle()) }?;
        }
        self.ring.tally.give(at_once, landed);
        Ok(DeviceBatch::new(Arc::clone(&self.ring), token, stream))
    }

    /// Counters of the device's side.
    #[must_use]
    pub fn stats(&self) -> FeedStats {
        self.ring.tally.stats()
    }

    /// Counters of the loader, at the end those it ended with; `None` when the copy thread does not reply within `patience`, or has panicked.
    #[must_use]
    pub fn loader_stats(&self, patience: Duration) -> Option<Stats> {
        let at_the_end = || self.ring.loader_stats.get().cloned();
        at_the_end().or_else(|| self.ask(patience, Loader::stats)).or_else(at_the_end)
    }

    /// As [`Loader::hand_over`].
    ///
    /// # Errors
    /// As that, and `Environment` when the copy thread has ended or does not reply.
    pub fn hand_over(&self, within: Duration) -> Result<HandOver> {
        self.handing_over()?(within)
    }

    /// The same, for a thread that does not have the feed.
    #[doc(hidden)]
    pub fn handing_over(&self) -> Result<impl FnOnce(Duration) -> Result<HandOver> + Send + use<>> {
        let handed = self.ask(STOP_PATIENCE, Loader::handing_over);
        let ended = || Error::new(Kind::Environment, "the copy thread has ended, and the loader with it");
        let hint = "set peers, and hand over before the feed has failed";
        handed.unwrap_or_else(|| Err(ended().with_hint(hint)))
    }

    /// The reply of the copy thread; `None` at once when it has ended.
    fn ask<T: Send + 'static>(
        &self,
        patience: Duration,
        what: impl FnOnce(&Loader) -> T + Send + 'static,
    ) -> Option<T> {
        let (tell, told) = channel();
        // Whoever asked may have given up.
        let asked = move |loader: &Loader| drop(tell.send(what(loader)));
        *self.question.lock().unwrap_or_else(PoisonError::into_inner) = Some(Box::new(asked));
        // Not where no batch follows: with peers it replies until the feed is closed.
        let is_over = || self.thread.as_ref().is_none_or(JoinHandle::is_finished);
        let begun = Instant::now();
        while !is_over() && begun.elapsed() < patience {
            if let Ok(reply) = told.recv_timeout(LOOK_AGAIN.min(patience)) {
                return Some(reply);
            }
        }
        told.try_recv().ok()
    }

    /// The loader's effective configuration.
    #[must_use]
    pub fn loader_config(&self) -> &Config {
        &self.loader_config
    }

    /// The feed's settings.
    #[must_use]
    pub fn config(&self) -> &FeedConfig {
        &self.config
    }

    /// Stops copy thread and loader and returns what the loader left behind; `None` when copies did not end and their memory was
    /// kept. Batches still held stay good. Dropping the feed does the same and returns nothing. Whatever of feed and batches is
    /// dropped last waits, at most for the copies' time-out, until the device is done with the buffers, and frees them.
    #[must_use]
    pub fn close(mut self) -> Option<Remains> {
        self.stop()
    }

    fn stop(&mut self) -> Option<Remains> {
        let thread = self.thread.take()?;
        if self.ring.context.check_fork().is_err() {
            // The thread is the parent's.
            core::mem::forget(thread);
            return None;
        }
        self.ring.closed.store(true, Ordering::Release);
        let (begun, patience) = (Instant::now(), STOP_PATIENCE + Duration::from_millis(self.config.copy_timeout_ms));
        while !thread.is_finished() {
            if begun.elapsed() > patience {
                warn_leaked(&format!(
                    "the copy thread of GPU {} hangs in the driver and was abandoned",
                    self.ring.ordinal
                ));
                return None;
            }
            std::thread::sleep(Duration::from_micros(200));
        }
        // A panic was printed where it happened.
        thread.join().ok().flatten()
    }
}

impl Drop for Feed {
    fn drop(&mut self) {
        self.stop();
    }
}

impl core::fmt::Debug for Feed {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Feed").field("config", &self.config).finish_non_exhaustive()
    }
}
