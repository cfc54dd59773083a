//! The numbers that travel with every step's gradients: sums over the ranks of each rank's numbers.

/// One step's numbers, of this rank before the sum, of all after it.
#[derive(Debug)]
pub(super) struct Tail {
    /// Samples of the step.
    pub samples: f64,
    /// Sum of their losses.
    pub loss: f64,
    /// Right answers.
    pub right: f64,
    /// Answers asked for.
    pub asked: f64,
    /// Ranks with a notice to stop.
    pub stop: f64,
    /// Ranks that request a checkpoint.
    pub save: f64,
    /// Seconds that the last checkpoint took, which rank 0 knows.
    pub saving_s: f64,
    /// For each rank, seconds of its own work.
    pub own_s: Vec<f64>,
}

const PLAIN: usize = 7;

impl Tail {
    /// How many numbers that is.
    pub(super) fn length(world: usize) -> usize {
        PLAIN + world
    }

    pub(super) fn to_numbers(&self) -> Vec<f64> {
        let plain = [self.samples, self.loss, self.right, self.asked, self.stop, self.save, self.saving_s];
        plain.iter().chain(&self.own_s).copied().collect()
    }

    pub(super) fn of(numbers: &[f64]) -> Tail {
        let [samples, loss, right, asked, stop, save, saving_s, own_s @ ..] = numbers else {
            unreachable!("a tail has {PLAIN} numbers and one per rank");
        };
        let [samples, loss, right, asked] = [*samples, *loss, *right, *asked];
        Tail { samples, loss, right, asked, stop: *stop, save: *save, saving_s: *saving_s, own_s: own_s.to_vec() }
    }
}
