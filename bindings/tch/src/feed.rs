//! Where the trainer's batches come from.

use std::ops::Range;
use std::time::{Duration, Instant};

use fuelrail::{Batch, HandOver, Loader, NO_LABEL, Reporter, Result, SampleId, State, Stats, Taken};

use fuelrail_cuda::DeviceBatch;
use tch::{Device, Kind as Element, Tensor};

use crate::ffi::feed_stream;

/// A batch, and how long it was waited for.
#[derive(Debug)]
pub struct Fed {
    /// The batch.
    pub batch: TensorBatch,
    /// Time inside the loader, where it was not there at once; else zero.
    pub data_wait: Duration,
    /// It was there at once.
    pub ready: bool,
}

/// Batches of this rank, in order.
pub trait Feed {
    /// The next batch; `None` when there are no more.
    fn next(&mut self) -> Option<Result<Fed>>;

    /// The order's position after the last batch given.
    fn order(&self) -> State;

    /// Whether [`order`](Feed::order) goes on with every batch: then it says where epochs end.
    fn follows_order(&self) -> bool {
        false
    }

    /// The loader's counters, where they are available.
    fn stats(&self) -> Option<Stats> {
        None
    }

    /// Where losses go, if the order is drawn by importance.
    fn reporter(&self) -> Option<Reporter> {
        None
    }

    /// Hands over what this rank keeps for others, where it does.
    fn hand_over(&self, _within: Duration) -> Option<Result<HandOver>> {
        None
    }
}

/// Batches in the host's memory: for training on the CPU, and for devices that torch copies to itself.
#[derive(Debug)]
pub struct HostFeed(Loader);

impl HostFeed {
    /// Feeds from this loader.
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
        // To take what is there is this thread's own work.
        let data_wait = if ready { Duration::ZERO } else { begun.elapsed() };
        Some(taken.and_then(TensorBatch::over).map(|batch| Fed { batch, data_wait, ready }))
    }

    fn order(&self) -> State {
        self.0.state()
    }

    fn follows_order(&self) -> bool {
        true
    }

    fn stats(&self) -> Option<Stats> {
        Some(self.0.stats())
    }

    fn reporter(&self) -> Option<Reporter> {
        self.0.reporter()
    }

    fn hand_over(&self, within: Duration) -> Option<Result<HandOver>> {
        (!self.0.config().peers.addresses.is_empty()).then(|| self.0.hand_over(within))
    }
}

/// Batches on a CUDA device, copied while torch computes.
#[derive(Debug)]
pub struct GpuFeed {
    feed: fuelrail_cuda::Feed,
    order: State,
    reporter: Option<Reporter>,
}

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
        let ready = self.feed.stats().data_wait_s <= waited;
        let data_wait = if ready { Duration::ZERO } else { begun.elapsed() };
        // The stream waits for the copy by itself, and the host for neither: `FeedStats::landed` tells how often a copy was late.
        if let Some(state) = batch.state() {
            self.order = state.clone();
        }
        let weights = self.reporter.as_ref().map(|reporter| reporter.weights(batch.epoch(), batch.ids()));
        let batch = TensorBatch::on_device(batch, &weights.unwrap_or_default())?;
        Ok(Some(Fed { batch, data_wait, ready }))
    }
}

impl Feed for GpuFeed {
    fn next(&mut self) -> Option<Result<Fed>> {
        self.take().transpose()
    }

    fn order(&self) -> State {
        self.order.clone()
    }

    fn follows_order(&self) -> bool {
        true
    }

    fn stats(&self) -> Option<Stats> {
        self.feed.loader_stats(STATS_PATIENCE)
    }

    fn reporter(&self) -> Option<Reporter> {
        self.reporter.clone()
    }

    fn hand_over(&self, within: Duration) -> Option<Result<HandOver>> {
        let keeps = !self.feed.loader_config().peers.addresses.is_empty();
        keeps.then(|| self.feed.hand_over(within))
    }
}

/// How long the copy thread may take to reply.
const STATS_PATIENCE: Duration = Duration::from_secs(1);

/// The first batches of a feed, again and again, from where the model is: for trials, to see what feeding costs.
pub(crate) struct ResidentFeed {
    /// Not read any more; its order is the run's.
    feed: Box<dyn Feed>,
    batches: Vec<TensorBatch>,
    given: usize,
}

impl ResidentFeed {
    /// Reads so many batches, or as many as there are, and keeps copies of them.
    pub(crate) fn start(mut feed: Box<dyn Feed>, most: usize) -> Result<ResidentFeed> {
        let mut batches = Vec::with_capacity(most);
        while batches.len() < most
            && let Some(fed) = feed.next()
        {
            let batch = fed?.batch;
            batches.push(TensorBatch { bytes: batch.bytes.copy(), labels: batch.labels.copy(), ..batch });
        }
        Ok(ResidentFeed { feed, batches, given: 0 })
    }
}

impl Feed for ResidentFeed {
    fn next(&mut self) -> Option<Result<Fed>> {
        let batch = self.batches.get(self.given % self.batches.len().max(1))?.another();
        self.given += 1;
        Some(Ok(Fed { batch, data_wait: Duration::ZERO, ready: true }))
    }

    fn order(&self) -> State {
        self.feed.order()
    }
}

/// A batch of samples as tensors, without a copy: the lease ends when torch drops the last of them.
#[derive(Debug)]
pub struct TensorBatch {
    /// Bytes, `u8`: `[n, height, width, channels]` of decoded pictures, else `[bytes]`, the whole stretch as the bucket has it.
    pub bytes: Tensor,
    /// Where each sample lies in `bytes`, when they are not pictures.
    pub spans: Vec<Range<usize>>,
    /// Classes, `i64`, `[n]`; -1 for samples without. Where `bytes` lies.
    pub labels: Tensor,
    /// The same in the host's memory: to look at them waits for no device.
    pub labels_here: Tensor,
    /// Which samples, in order.
    pub ids: Vec<SampleId>,
    /// The epoch, from 0.
    pub epoch: u64,
    /// Number of the batch in this run of this rank.
    pub seq: u64,
    /// What each sample's loss is to be multiplied by, float, `[n]`; `None` for 1.
    pub weights: Option<Tensor>,
}

impl TensorBatch {
    /// Takes the batch over. Its memory is one tensor's from now on, and returns to the loader when that tensor, its views and
    /// the graphs that need it are gone.
    ///
    /// # Errors
    /// `Environment` for what torch says.
    pub fn over(batch: Batch) -> Result<TensorBatch> {
        let ids = batch.ids().to_vec();
        let spans = (0..ids.len()).map(|i| batch.offsets()[i]..batch.offsets()[i] + batch.sample(i).len()).collect();
        let labels_here = labels_of(batch.labels());
        let labels = labels_here.shallow_clone();
        let (epoch, seq) = (batch.epoch(), batch.seq());
        let weights = weights_of(batch.weights());
        let sizes = match batch.shape() {
            Some(shape) => shape.dims().map(|n| n as i64).to_vec(),
            None => vec![batch.bytes().len() as i64],
        };
        let bytes = crate::ffi::batch_tensor(batch, &sizes)?;
        Ok(TensorBatch { bytes, spans, labels, labels_here, ids, epoch, seq, weights })
    }

    /// The same for a batch on a CUDA device: `bytes` lies there, and is used on the stream the batch was taken with. `weights` are
    /// its samples', in order; none for 1.
    ///
    /// # Errors
    /// `Environment` for what torch says.
    pub fn on_device(batch: DeviceBatch, weights: &[f32]) -> Result<TensorBatch> {
        let ids = batch.ids().to_vec();
        let spans = batch.offsets().iter().zip(batch.lens()).map(|(&at, &len)| at..at + len).collect();
        let labels_here = labels_of(batch.labels());
        let (epoch, seq, weights) = (batch.epoch(), batch.seq(), weights_of(weights));
        let (bytes, labels) = crate::ffi::device_tensors(batch)?;
        Ok(TensorBatch { bytes, spans, labels, labels_here, ids, epoch, seq, weights })
    }

    /// The same tensors again.
    fn another(&self) -> TensorBatch {
        TensorBatch {
            bytes: self.bytes.shallow_clone(),
            spans: self.spans.clone(),
            labels: self.labels.shallow_clone(),
            labels_here: self.labels_here.shallow_clone(),
            ids: self.ids.clone(),
            epoch: self.epoch,
            seq: self.seq,
            weights: self.weights.as_ref().map(Tensor::shallow_clone),
        }
    }

    /// Number of samples.
    pub fn len(&self) -> usize {
        self.ids.len()
    }

    /// No samples.
    pub fn is_empty(&self) -> bool {
        self.ids.is_empty()
    }

    /// The samples' bytes as rows `[n, length]` when all have this length: a view where they lie evenly, else a copy.
    pub fn rows(&self, length: usize) -> Option<Tensor> {
        if self.spans.iter().any(|span| span.len() != length) {
            return None;
        }
        if self.spans.is_empty() {
            return Some(Tensor::zeros(&[0, length as i64], (Element::Uint8, Device::Cpu)));
        }
        let flat = self.bytes.view([-1]);
        let stride = self.spans.get(1).map_or(length, |second| second.start - self.spans[0].start);
        if self.spans.iter().enumerate().all(|(i, span)| span.start == self.spans[0].start + i * stride) {
            let sizes = [self.spans.len() as i64, length as i64];
            return Some(flat.as_strided(&sizes, &[stride as i64, 1], Some(self.spans[0].start as i64)));
        }
        let rows: Vec<Tensor> = self.spans.iter().map(|s| flat.narrow(0, s.start as i64, length as i64)).collect();
        Some(Tensor::stack(&rows, 0))
    }
}

/// Weights as a tensor, where one of them is not 1.
fn weights_of(weights: &[f32]) -> Option<Tensor> {
    weights.iter().any(|weight| *weight != 1.0).then(|| Tensor::from_slice(weights))
}

/// Labels as a tensor of their own, in the host's memory.
fn labels_of(labels: &[u32]) -> Tensor {
    let wide = labels.iter().map(|&label| if label == NO_LABEL { -1 } else { i64::from(label) });
    Tensor::from_slice(&wide.collect::<Vec<i64>>())
}
