//! The state of a trainer's steps: the run's progress, the current step, and the one whose numbers are still being copied to the host.

use crate::ffi::Later;
use crate::meter::StepTime;
use crate::switch::{Mode, Reason};
use fuelrail::State;
use fuelrail_base::SampleId;
use std::time::Instant;
use tch::{Kind as Element, Tensor};

/// The progress of a run.
#[derive(Clone, Debug)]
pub(super) struct Progress {
    pub step: u64,
    pub samples: u64,
    /// Of them, those of synchronous steps.
    pub synchronous: u64,
    pub loss: f64,
    pub mode: Mode,
    /// Ranks are at positions of their own, since they did not all take part in every step.
    pub apart: bool,
    /// The order's position, once a checkpoint was read.
    pub order: Option<State>,
    /// … and the scores that belong to it, where it is drawn by importance.
    pub scores: Option<Vec<u8>>,
    pub saved: Instant,
    pub saved_step: u64,
    /// Seconds that the last checkpoint took; 0 before the first.
    pub saving_s: f64,
    /// When to act on a notice.
    pub stop_at: Option<Instant>,
    /// Why it was last switched, and how long all switches took, s.
    pub switched: Option<(Reason, f64)>,
    pub stale: u64,
}

/// The results of one rank's passes of a step.
#[derive(Debug, Default)]
pub(super) struct Passes {
    pub ids: Vec<SampleId>,
    pub losses: Vec<Tensor>,
    pub epoch: u64,
    /// Number of the last batch.
    pub seq: u64,
    pub samples: f64,
    /// The sum of the losses, `[1]`, double, where the model is: reading it waits for the device. `None` without a sample.
    pub loss: Option<Tensor>,
    /// Right answers, likewise.
    pub right: Option<Tensor>,
    pub asked: f64,
    pub time: StepTime,
    /// Batches taken.
    pub batches: usize,
    /// The reducer has this step's numbers.
    pub armed: bool,
    /// The notice to stop, if one was given by then.
    pub given: Option<String>,
}

impl Passes {
    pub(super) fn count(&mut self, loss: &Tensor, right: &Tensor) {
        for (sum, more) in [(&mut self.loss, loss), (&mut self.right, right)] {
            let more = more.detach().to_kind(Element::Double).view([1]);
            *sum = Some(match sum.take() {
                Some(before) => before + more,
                None => more,
            });
        }
    }
}

/// A step whose numbers are not read yet.
#[derive(Debug)]
pub(super) struct Unread {
    pub numbers: Later,
    pub passes: Passes,
    pub rate: f64,
    /// Its number.
    pub step: u64,
}

/// The state of reading steps late.
#[derive(Debug, Default)]
pub(super) struct Late {
    /// A step is read while the next one runs; else at once.
    pub on: bool,
    pub unread: Option<Unread>,
    /// Samples of the last step read, of all ranks; 0 at the start of an epoch.
    pub samples: u64,
    /// The epoch of the order after the last step.
    pub epoch: u64,
    /// Seconds of this rank's own work in the last step.
    pub own_s: f64,
}

impl Late {
    /// Samples of the unread step: all steps of an epoch have the same number but the last, which is read at once, as is the first.
    pub(super) fn foreseen(&self) -> u64 {
        if self.unread.is_some() { self.samples } else { 0 }
    }
}
