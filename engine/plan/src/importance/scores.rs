//! How important each sample is: SHADE's rank scores, kept by the samples they were measured on, and what is added to every score
//! before a draw.

use crate::order::Order;
use crate::usage;
use fuelrail_base::{Result, SampleId};

/// The score of every sample, four bytes each. A step's samples are ranked by loss; the j-th smallest, counted from zero, gets
/// ln(j + 10). Ranks instead of losses, so that scores of an early step and of a late one can stand side by side.
#[derive(Clone, Debug)]
pub struct Scores {
    /// NaN: never reported.
    scores: Vec<f32>,
    /// Where SHADE's fault writes the scores to; `None` without the fault.
    misplaced: Option<Order>,
    /// The step being ranked: kept, because a step is like the one before.
    ranked: Vec<(SampleId, f32)>,
}

impl Scores {
    /// Scores of `samples` samples, none reported yet.
    pub fn new(samples: u64) -> Scores {
        Scores { scores: vec![f32::NAN; samples as usize], misplaced: None, ranked: Vec::new() }
    }

    /// The same with SHADE's fault. Its sampler draws ids, shuffles and replays them, and then writes the scores of the
    /// places of a batch to the ids that stood there before: to other samples, at random.
    #[must_use]
    pub fn misplaced(self, seed: u64) -> Scores {
        Scores { misplaced: Some(Order::new(self.scores.len() as u64, seed, true)), ..self }
    }

    /// Takes scores that were saved; NaN stands for a sample never reported.
    ///
    /// # Errors
    /// [`Kind::Usage`] when these are not scores of as many samples.
    pub fn restore(&mut self, saved: &[f32]) -> Result<()> {
        let sound = |score: &f32| score.is_nan() || (0.0..=64.0).contains(score);
        if saved.len() != self.scores.len() || !saved.iter().all(sound) {
            let cause = format!("{} saved scores do not belong to {} samples", saved.len(), self.scores.len());
            return usage(cause, "resume with the scores that were saved with the state");
        }
        self.scores.copy_from_slice(saved);
        Ok(())
    }

    /// The score of each sample; NaN for those never reported.
    pub fn as_slice(&self) -> &[f32] {
        &self.scores
    }

    /// Checks the losses of a step.
    ///
    /// # Errors
    /// [`Kind::Usage`] when there are not as many losses as ids, or an id is not of the data set.
    pub fn check(&self, ids: &[SampleId], losses: &[f32]) -> Result<()> {
        if ids.len() != losses.len() {
            let cause = format!("{} losses for {} samples", losses.len(), ids.len());
            return usage(cause, "report one loss for each sample of the step");
        }
        if let Some(id) = ids.iter().find(|id| id.0 as usize >= self.scores.len()) {
            let cause = format!("a loss for sample {} of {}", id.0, self.scores.len());
            return usage(cause, "report the ids that the batch has");
        }
        Ok(())
    }

    /// Takes the losses of one whole global step, in any order: what comes out is the same, bit by bit. Of a sample that
    /// is in the step several times, the greatest loss counts. A loss that is no number is left out. Returns the sum of the
    /// losses and how many there were.
    ///
    /// # Errors
    /// As [`check`](Scores::check), and nothing is changed.
    pub fn report(&mut self, epoch: u64, ids: &[SampleId], losses: &[f32]) -> Result<(f64, u64)> {
        self.check(ids, losses)?;
        self.ranked.clear();
        self.ranked.extend(ids.iter().copied().zip(losses.iter().copied()).filter(|(_, loss)| loss.is_finite()));
        self.ranked.sort_unstable_by(|a, b| a.1.total_cmp(&b.1).then(a.0.cmp(&b.0)));
        for (rank, (id, _)) in self.ranked.iter().enumerate() {
            let keeper = self.misplaced.map_or(*id, |order| order.sample_at(epoch, id.0));
            self.scores[keeper.0 as usize] = score_of_rank(rank);
        }
        // Summed in their order, so that rounding is the same on every rank.
        let sum = self.ranked.iter().map(|(_, loss)| f64::from(*loss)).sum();
        Ok((sum, self.ranked.len() as u64))
    }
}

/// ln(j + 10), by a library that has the same bits on every machine.
fn score_of_rank(rank: usize) -> f32 {
    libm::log((rank + 10) as f64) as f32
}

/// What is added to every score before a draw, as SHADE published it: much while the loss is high, little once it is low. Starts at one
/// per cent of the first mean loss and follows exp(relative change of the mean loss).
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct Smoothing {
    /// What is added now.
    pub added: f64,
    /// The mean loss before; zero before there was one.
    pub mean: f64,
}

/// More is not told from infinitely much: a draw in proportion to it is uniform.
const ADDED_MAX: f64 = 4096.0;

impl Smoothing {
    /// Takes the mean loss since the last draw.
    pub fn follow(&mut self, mean: f64) {
        if !mean.is_finite() {
            return;
        }
        let added = if self.mean > 0.0 { self.added * libm::exp((mean - self.mean) / self.mean) } else { mean * 0.01 };
        *self = Smoothing { added: added.clamp(0.0, ADDED_MAX), mean };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use fuelrail_base::{Kind, prng::Prng};

    fn ids(numbers: &[u64]) -> Vec<SampleId> {
        numbers.iter().copied().map(SampleId).collect()
    }

    #[test]
    fn scores_go_to_the_samples_they_were_measured_on() {
        let mut scores = Scores::new(6);
        let told = scores.report(0, &ids(&[4, 1, 3]), &[0.5, 9.0, 0.25]).unwrap();
        assert_eq!(told, (9.75, 3));
        let found: Vec<u32> = scores.as_slice().iter().map(|score| score.to_bits()).collect();
        let nan = f32::NAN.to_bits();
        // ln 10, ln 11 and ln 12 to the last bit: golden.
        assert_eq!(found, [nan, 0x401f_08b6, nan, 0x4013_5d8e, 0x4019_771e, nan]);
    }

    #[test]
    fn any_order_of_a_step_gives_the_same_bits() {
        let mut prng = Prng::new(5);
        for _ in 0..200 {
            let mut step: Vec<(SampleId, f32)> = (0..50)
                .map(|_| (SampleId(prng.below(40)), [0.5, 1.0, f32::NAN, prng.unit() as f32][prng.below(4) as usize]))
                .collect();
            let told = |step: &[(SampleId, f32)]| {
                let (ids, losses): (Vec<_>, Vec<_>) = step.iter().copied().unzip();
                let mut scores = Scores::new(40);
                let (sum, count) = scores.report(0, &ids, &losses).unwrap();
                let bits: Vec<u32> = scores.as_slice().iter().map(|score| score.to_bits()).collect();
                (sum.to_bits(), count, bits)
            };
            let before = told(&step);
            for at in (1..step.len()).rev() {
                step.swap(at, prng.below(at as u64 + 1) as usize);
            }
            assert_eq!(told(&step), before);
        }
    }

    #[test]
    fn of_a_sample_reported_twice_the_greater_loss_counts() {
        let mut scores = Scores::new(3);
        scores.report(0, &ids(&[2, 0, 2]), &[5.0, 1.0, 0.5]).unwrap();
        assert_eq!(scores.as_slice()[2], score_of_rank(2));
        assert_eq!(scores.as_slice()[0], score_of_rank(1));
    }

    #[test]
    fn what_does_not_fit_is_refused_and_changes_nothing() {
        let mut scores = Scores::new(3);
        assert_eq!(scores.report(0, &ids(&[0, 1]), &[1.0]).unwrap_err().kind(), Kind::Usage);
        assert_eq!(scores.report(0, &ids(&[0, 3]), &[1.0, 2.0]).unwrap_err().kind(), Kind::Usage);
        scores.restore(&[1.0; 4]).unwrap_err();
        scores.restore(&[1.0, -1.0, 1.0]).unwrap_err();
        assert!(scores.as_slice().iter().all(|score| score.is_nan()));
        scores.restore(&[1.0, f32::NAN, 3.0]).unwrap();
        assert_eq!((scores.as_slice()[0], scores.as_slice()[2]), (1.0, 3.0));
    }

    #[test]
    fn the_fault_writes_to_other_samples() {
        let mut scores = Scores::new(1_000).misplaced(9);
        let step: Vec<SampleId> = (0..100).map(SampleId).collect();
        scores.report(3, &step, &[1.0; 100]).unwrap();
        let own = step.iter().filter(|id| !scores.as_slice()[id.0 as usize].is_nan()).count();
        assert!(own < 30, "{own} of 100 kept their score, about 10 by chance");
        assert_eq!(scores.as_slice().iter().filter(|score| !score.is_nan()).count(), 100);
    }

    #[test]
    fn follows_the_published_rule() {
        let mut smoothing = Smoothing::default();
        smoothing.follow(2.0);
        assert_eq!(smoothing.added, 0.02);
        smoothing.follow(1.0);
        // 0.02 * exp(-0.5), to the last bit: golden.
        assert_eq!(smoothing.added.to_bits(), 0x3f88_d7ef_5799_11f8);
        smoothing.follow(3.0);
        assert!((smoothing.added - 0.02 * 1.5f64.exp()).abs() < 1e-12);
    }

    #[test]
    fn stays_within_bounds_whatever_the_losses() {
        let mut smoothing = Smoothing::default();
        for mean in [f64::NAN, 0.0, 1e-30, 1e30, f64::INFINITY, 1.0, -5.0, 0.1] {
            smoothing.follow(mean);
            assert!((0.0..=ADDED_MAX).contains(&smoothing.added), "{smoothing:?} after {mean}");
        }
    }
}
