//! The numbers that travel with every step's gradients: sums over the ranks of each rank's numbers.

use crate::ffi::moved;
use fuelrail_base::Result;
use tch::{Device, Tensor};

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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ffi::Later;
    use std::time::Duration;

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
