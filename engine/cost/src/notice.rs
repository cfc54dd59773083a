//! What to do on a notice that the machine is about to be taken away: save a checkpoint now, or go on for a while, by expected loss.

/// A notice, and what saving takes.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Notice {
    /// Seconds until the machine is gone.
    pub lead_s: f64,
    /// Seconds of work since the last checkpoint.
    pub unsaved_s: f64,
    /// Seconds that saving takes.
    pub saving_s: f64,
}

/// A saving takes up to twice as long in nineteen of twenty cases.
const SAVING_SPREAD: f64 = core::f64::consts::LN_2 / crate::ONE_IN_TWENTY;
/// A saving that keeps less than a twentieth of what is at stake is not begun.
const WORTH: f64 = 0.95;
/// Moments that are compared.
const MOMENTS: u32 = 100;

impl Notice {
    /// Seconds to go on before saving and stopping: the moment of least expected loss; `None` where saving loses more than it keeps.
    pub fn go_on_s(&self) -> Option<f64> {
        let moments = (0..MOMENTS).map(|n| self.lead_s * f64::from(n) / f64::from(MOMENTS));
        let best = moments.min_by(|a, b| self.loss_s(*a).total_cmp(&self.loss_s(*b)))?;
        (self.loss_s(best) < WORTH * (self.unsaved_s + self.lead_s)).then_some(best)
    }

    /// Seconds of work that are lost in the mean when saving begins at this moment.
    fn loss_s(&self, begin_s: f64) -> f64 {
        let left_s = self.lead_s - begin_s;
        // The normal distribution of the logarithm, to a hundredth (Bowling et al. 2009).
        let deviations = (left_s / self.saving_s.max(1e-6)).ln() / SAVING_SPREAD;
        let saved = 1.0 / (1.0 + (-1.702 * deviations).exp());
        saved * left_s + (1.0 - saved) * (self.unsaved_s + self.lead_s)
    }
}
