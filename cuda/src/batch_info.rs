//! The description of a batch whose bytes are on the device.
//!
//! Owns lists that are filled anew for every batch and keep their memory: a warm feed allocates nothing for them.

use core::ops::Range;

use fuelrail::{Batch, SampleId, State};
use fuelrail_base::Error;

/// The description that travels with a device buffer.
#[derive(Default)]
pub(crate) struct BatchInfo {
    pub(crate) epoch: u64,
    pub(crate) step: u64,
    pub(crate) seq: u64,
    pub(crate) positions: Range<u64>,
    pub(crate) ids: Vec<SampleId>,
    pub(crate) labels: Vec<u32>,
    pub(crate) offsets: Vec<usize>,
    pub(crate) lens: Vec<usize>,
    pub(crate) left_out: Vec<(SampleId, Error)>,
    /// Samples, rows, columns, channels, where they were decoded; else bytes.
    pub(crate) shape: Vec<i64>,
    pub(crate) bytes: usize,
    pub(crate) payload_bytes: u64,
    pub(crate) state: Option<State>,
}

impl BatchInfo {
    /// Describes `batch`; `state` is the run's after it.
    pub(crate) fn describe(&mut self, batch: &Batch, state: State) {
        self.epoch = batch.epoch();
        self.step = batch.step();
        self.seq = batch.seq();
        self.positions = batch.positions();
        self.bytes = batch.bytes().len();
        self.payload_bytes = batch.payload_bytes();
        self.state = Some(state);
        refill(&mut self.ids, batch.ids());
        refill(&mut self.labels, batch.labels());
        refill(&mut self.offsets, batch.offsets());
        refill(&mut self.left_out, batch.left_out());
        self.shape.clear();
        match batch.shape() {
            Some(s) => self.shape.extend([s.samples, s.height, s.width, s.channels].map(|n| n as i64)),
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
