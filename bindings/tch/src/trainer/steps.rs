//! The state of a trainer's steps: the run's progress, the current step, and the one whose numbers are still being copied to the host. Those
//! numbers travel with every step's gradients, and are sums over the ranks of each rank's.

use crate::ffi::{Later, moved};
use crate::meter::StepTime;
use crate::switch::{Mode, Reason};
use fuelrail::State;
use fuelrail_base::{Error, Kind, Result, SampleId};
use std::time::{Duration, Instant};
use tch::nn::VarStore;
use tch::{Device, Kind as Element, Tensor};

#[derive(Clone, Debug)]
pub(super) struct Progress {
    pub step: u64,
    pub samples: u64,
    /// Of them, those of synchronous steps.
    pub synchronous: u64,
    pub loss: f64,
    /// Steps in a row whose loss was infinite or NaN.
    pub bad_steps: u32,
    /// Steps in all in which that of this rank's own samples was.
    pub bad_losses: u64,
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
    /// How many ranks were told to stop, where that ended the run.
    pub told: usize,
    /// Why it was last switched, and how long all switches took, s.
    pub switched: Option<(Reason, f64)>,
    pub stale: u64,
}

impl Progress {
    /// Before the first step.
    pub(super) fn new() -> Progress {
        Progress {
            step: 0,
            samples: 0,
            synchronous: 0,
            loss: f64::NAN,
            bad_steps: 0,
            bad_losses: 0,
            mode: Mode::Synchronous,
            apart: false,
            order: None,
            scores: None,
            saved: Instant::now(),
            saved_step: 0,
            saving_s: 0.0,
            stop_at: None,
            told: 0,
            switched: None,
            stale: 0,
        }
    }
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
    /// This rank's own time since the step began: without the wait for data.
    pub(super) fn own_since(&self, begun: Instant) -> Duration {
        begun.elapsed().saturating_sub(self.time.data_wait)
    }

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

/// One step's numbers, of this rank before the sum, of all after it.
#[derive(Debug, Default)]
pub(super) struct Tail {
    /// Sum of the samples' losses; set by the sum, because a rank's own is still on the device before.
    pub loss: f64,
    /// Right answers; likewise.
    pub right: f64,
    /// Samples of the step.
    pub samples: f64,
    /// Answers asked for.
    pub asked: f64,
    /// Ranks with a notice to stop.
    pub stop: f64,
    /// Ranks that request a checkpoint.
    pub save: f64,
    /// Seconds that the last checkpoint took, from rank 0.
    pub saving_s: f64,
    /// For each rank, seconds of its own work in the step before.
    pub own_s: Vec<f64>,
    /// For each rank, its part of `loss`; likewise.
    pub own_loss: Vec<f64>,
}

const PLAIN: usize = 7;
/// The index of `samples` in the tensor.
pub(super) const SAMPLES: i64 = 2;

impl Tail {
    /// How many numbers that is.
    pub(super) fn length(world: usize) -> usize {
        PLAIN + 2 * world
    }

    /// This rank's numbers, put together on the device without waiting for it: `loss` and `right`, `[1]` each, are still being computed there.
    pub(super) fn to_tensor(&self, rank: usize, loss: &Tensor, right: &Tensor, device: Device) -> Result<Tensor> {
        let plain = [self.samples, self.asked, self.stop, self.save, self.saving_s];
        let others = vec![0.0; self.own_s.len() - 1];
        let known = plain.iter().chain(&self.own_s).chain(&others).copied().collect::<Vec<f64>>();
        let (before, all) = ((plain.len() + self.own_s.len() + rank) as i64, known.len() as i64);
        let known = moved(&Tensor::from_slice(&known), device)?;
        let (before, after) = (known.narrow(0, 0, before), known.narrow(0, before, all - before));
        Ok(Tensor::cat(&[loss, right, &before, loss, &after], 0))
    }

    pub(super) fn of(numbers: &[f64]) -> Tail {
        let &[loss, right, samples, asked, stop, save, saving_s, ref each @ ..] = numbers else {
            unreachable!("a tail has {PLAIN} numbers and two per rank");
        };
        let (own_s, own_loss) = each.split_at(each.len() / 2);
        let (own_s, own_loss) = (own_s.to_vec(), own_loss.to_vec());
        Tail { loss, right, samples, asked, stop, save, saving_s, own_s, own_loss }
    }
}

/// The variables that are trained, in order of their making, with names. Those that a program has frozen are kept as they are.
pub(super) fn named_parameters(variables: &VarStore) -> Result<Vec<(String, Tensor)>> {
    let named = variables.variables();
    let name_of = |tensor: &Tensor| {
        named.iter().find(|(_, other)| other.data_ptr() == tensor.data_ptr() && other.size() == tensor.size())
    };
    let all = variables.trainable_variables().into_iter().filter(Tensor::requires_grad).enumerate();
    let all: Vec<_> = all
        .map(|(n, tensor)| (name_of(&tensor).map_or_else(|| n.to_string(), |(name, _)| name.clone()), tensor))
        .collect();
    if all.is_empty() {
        return Err(Error::new(Kind::Usage, "the model has no parameter that is trained")
            .with_hint("make its layers in the VarStore that the trainer gets, and freeze only some of them"));
    }
    Ok(all)
}

/// The parameters' parts of a tensor that is laid out as `parameters`, the flat tensor they are views of.
pub(super) fn views(flat: &Tensor, parameters: &Tensor, named: &[(String, Tensor)]) -> Vec<(String, Tensor)> {
    let begin = parameters.data_ptr().addr();
    let part = |(name, tensor): &(String, Tensor)| {
        let at = tensor.data_ptr().addr().saturating_sub(begin) / tensor.kind().elt_size_in_bytes();
        let part = flat.narrow(0, at as i64, tensor.numel() as i64);
        (name.clone(), part.view(&tensor.size()[..]))
    };
    named.iter().map(part).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ffi::Later;

    #[test]
    fn numbers_come_back_as_they_were_put_together() {
        let own =
            Tail { samples: 4.0, asked: 8.0, stop: 1.0, saving_s: 2.5, own_s: vec![0.0, 0.5, 0.0], ..Tail::default() };
        let (loss, right) = (Tensor::from_slice(&[7.5]), Tensor::from_slice(&[3.0]));
        let tensor = own.to_tensor(1, &loss, &right, Device::Cpu).unwrap();
        assert_eq!(tensor.numel(), Tail::length(3));
        assert_eq!(tensor.double_value(&[SAMPLES]), 4.0);
        let read = Tail::of(&Later::new(&tensor).unwrap().read(Duration::ZERO).unwrap());
        assert_eq!(
            (read.loss, read.right, read.samples, read.asked, read.stop, read.save, read.saving_s),
            (7.5, 3.0, 4.0, 8.0, 1.0, 0.0, 2.5)
        );
        assert_eq!((read.own_s, read.own_loss), (vec![0.0, 0.5, 0.0], vec![0.0, 7.5, 0.0]));
    }
}
