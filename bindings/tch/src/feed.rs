//! Where the trainer's batches come from.

use crate::batch::TensorBatch;
use crate::ffi::feed_stream;
use fuelrail::{Loader, Reporter, State, Stats, Taken};
use fuelrail_base::Result;
use std::time::{Duration, Instant};

/// A batch, and how long each part of it was waited for.
#[derive(Debug)]
pub struct Fed {
    /// The batch.
    pub batch: TensorBatch,
    /// Time inside the loader.
    pub data_wait: Duration,
    /// It was there at once.
    pub ready: bool,
    /// Time for the copy to the device, beyond that.
    pub copy_wait: Duration,
}

/// Batches of this rank, in order.
pub trait Feed {
    /// The next batch; `None` when there are no more.
    fn next(&mut self) -> Option<Result<Fed>>;

    /// The order's position after the last batch given.
    fn order(&self) -> State;

    /// The loader's counters, where they are available.
    fn stats(&self) -> Option<Stats> {
        None
    }

    /// Where losses go, if the order is drawn by importance.
    fn reporter(&self) -> Option<Reporter> {
        None
    }
}

/// Batches in the host's memory: for training on the CPU, and for devices that torch copies to itself.
#[derive(Debug)]
pub struct HostFeed(Loader);

impl HostFeed {
    /// Feeds from this loader.
    #[must_use]
    pub fn new(loader: Loader) -> HostFeed {
        HostFeed(loader)
    }
}

impl Feed for HostFeed {
    fn next(&mut self) -> Option<Result<Fed>> {
        let begun = Instant::now();
        let (ready, taken) = match self.0.next_batch_within(Duration::ZERO) {
            Ok(Taken::Batch(batch)) => (true, Ok(batch)),
            Ok(Taken::Over) => return None,
            Ok(Taken::NotYet) => (false, self.0.next_batch()?),
            Err(error) => (false, Err(error)),
        };
        let data_wait = begun.elapsed();
        Some(taken.and_then(TensorBatch::over).map(|batch| Fed { batch, data_wait, ready, copy_wait: Duration::ZERO }))
    }

    fn order(&self) -> State {
        self.0.state()
    }

    fn stats(&self) -> Option<Stats> {
        Some(self.0.stats())
    }

    fn reporter(&self) -> Option<Reporter> {
        self.0.reporter()
    }
}

/// Batches on a CUDA device, copied while torch computes.
#[derive(Debug)]
pub struct GpuFeed {
    feed: fuelrail_cuda::Feed,
    order: State,
    reporter: Option<Reporter>,
}

/// How often a step that waits for its copy polls for its end.
const LOOK_EVERY: Duration = Duration::from_micros(20);

impl GpuFeed {
    /// Feeds from this loader over device `config.device`. Torch must have been asked for that device before.
    ///
    /// # Errors
    /// As [`fuelrail_cuda::Feed::start`].
    pub fn start(loader: Loader, config: fuelrail_cuda::FeedConfig) -> Result<GpuFeed> {
        let (order, reporter) = (loader.state(), loader.reporter());
        Ok(GpuFeed { feed: fuelrail_cuda::Feed::start(loader, config)?, order, reporter })
    }

    fn take(&mut self) -> Result<Option<Fed>> {
        let begun = Instant::now();
        let waited = self.feed.stats().data_wait_s;
        let stream = feed_stream(self.feed.config().device as usize)?;
        let Some(batch) = self.feed.next(stream).transpose()? else { return Ok(None) };
        let (data_wait, ready) = (begun.elapsed(), self.feed.stats().data_wait_s <= waited);
        // The stream waits for the copy by itself; waiting here too costs nothing but a launch, and measures the time.
        let begun = Instant::now();
        while !batch.has_landed()? {
            std::thread::sleep(LOOK_EVERY);
        }
        let copy_wait = begun.elapsed();
        if let Some(state) = batch.state() {
            self.order = state.clone();
        }
        let weights = self.reporter.as_ref().map(|reporter| reporter.weights(batch.epoch(), batch.ids()));
        let batch = TensorBatch::on_device(batch, &weights.unwrap_or_default())?;
        Ok(Some(Fed { batch, data_wait, ready, copy_wait }))
    }
}

impl Feed for GpuFeed {
    fn next(&mut self) -> Option<Result<Fed>> {
        self.take().transpose()
    }

    fn order(&self) -> State {
        self.order.clone()
    }

    fn reporter(&self) -> Option<Reporter> {
        self.reporter.clone()
    }
}
