//! Where the trainer's batches come from.

use crate::batch::TensorBatch;
use fuelrail::{Loader, State, Taken};
use fuelrail_base::Result;
use std::time::{Duration, Instant};

/// A batch, and what it was waited for.
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

    /// Where the order stands behind the last batch given.
    fn order(&self) -> State;
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

    /// The loader.
    #[must_use]
    pub fn loader(&self) -> &Loader {
        &self.0
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
}
