//! The learning rate as a function of the share of the work done: it does not depend on the number of ranks, nor on what was resumed.

use clap::{Args, ValueEnum};

/// How the rate falls.
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub enum Decay {
    /// It does not.
    Constant,
    /// Half a cosine, to zero.
    Cosine,
    /// A tenth at half and at three quarters of the work: the steps of He et al. (CVPR 2016) on CIFAR.
    Steps,
}

/// A schedule of the learning rate.
#[derive(Args, Clone, Copy, PartialEq, Debug)]
pub struct Rate {
    /// Greatest learning rate, for the batch of all ranks together
    #[arg(long = "rate", value_name = "RATE", default_value_t = 0.05)]
    pub peak: f64,
    /// Share of the work over which the rate rises from zero
    #[arg(long, default_value_t = 0.0)]
    pub warm_up: f64,
    /// What comes after
    #[arg(long, value_enum, default_value_t = Decay::Constant)]
    pub decay: Decay,
}

impl Rate {
    /// The rate when this share of the work is done, 0 to 1.
    pub(crate) fn at(&self, done: f64) -> f64 {
        if done < self.warm_up {
            return self.peak * (done / self.warm_up).max(1e-3);
        }
        let left = (done - self.warm_up) / (1.0 - self.warm_up);
        match self.decay {
            Decay::Constant => self.peak,
            Decay::Cosine => self.peak * 0.5 * (1.0 + (std::f64::consts::PI * left.min(1.0)).cos()),
            Decay::Steps if left < 0.5 => self.peak,
            Decay::Steps if left < 0.75 => self.peak * 0.1,
            Decay::Steps => self.peak * 0.01,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rises_then_falls() {
        let rate = |decay| Rate { peak: 0.4, warm_up: 0.2, decay };
        assert!((rate(Decay::Cosine).at(0.1) - 0.2).abs() < 1e-12);
        assert!(rate(Decay::Cosine).at(0.0) > 0.0);
        assert!((rate(Decay::Cosine).at(0.6) - 0.2).abs() < 1e-12);
        assert!(rate(Decay::Cosine).at(1.0).abs() < 1e-12);
        assert!((rate(Decay::Constant).at(0.9) - 0.4).abs() < 1e-12);
        assert!((rate(Decay::Steps).at(0.7) - 0.04).abs() < 1e-12);
    }
}
