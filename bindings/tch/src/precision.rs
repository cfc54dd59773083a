//! Mixed precision: which kind the device computes in, and the scale that keeps half-precision gradients from vanishing.

use crate::ffi::Autocast;
use clap::ValueEnum;
use fuelrail_base::Result;
use tch::{Device, Kind as Element};

/// What forward and backward passes compute in. Parameters, gradients and sums stay in single precision.
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub enum Precision {
    /// Single.
    Full,
    /// bfloat16: from compute capability 8.0 on, and on CPUs.
    Bf16,
    /// Half, with a scaled loss: from compute capability 7.0 on. A K80 has neither and stays with single.
    Half,
}

impl Precision {
    /// Autocast for the pass that follows, as long as the guard lives.
    pub(crate) fn cast(self, device: Device) -> Result<Option<Autocast>> {
        let kind = match self {
            Precision::Full => return Ok(None),
            Precision::Bf16 => Element::BFloat16,
            Precision::Half => Element::Half,
        };
        Autocast::new(matches!(device, Device::Cuda(_)), kind).map(Some)
    }
}

/// Dynamic loss scaling (Micikevicius et al., "Mixed Precision Training", ICLR 2018).
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) struct LossScale {
    scale: f64,
    good: u32,
    moves: bool,
}

/// Steps without an overflow after which the scale is doubled.
const GROW_AFTER: u32 = 2000;
const SCALE_FIRST: f64 = 65_536.0;
const SCALE_MAX: f64 = 16_777_216.0;

impl LossScale {
    /// As this precision needs it; `saved` from a checkpoint.
    pub(crate) fn new(precision: Precision, saved: Option<f64>) -> LossScale {
        let moves = precision == Precision::Half;
        LossScale { scale: if moves { saved.unwrap_or(SCALE_FIRST) } else { 1.0 }, good: 0, moves }
    }

    /// The factor of the loss, by which gradients are divided.
    pub(crate) fn scale(&self) -> f64 {
        self.scale
    }

    /// Whether gradients must be checked for overflow.
    pub(crate) fn moves(&self) -> bool {
        self.moves
    }

    /// After a step: were the summed gradients finite? They are the same on every rank, so is what follows.
    pub(crate) fn look(&mut self, finite: bool) {
        if !self.moves {
            return;
        }
        if !finite {
            (self.scale, self.good) = ((self.scale * 0.5).max(1.0), 0);
        } else {
            self.good += 1;
            if self.good >= GROW_AFTER {
                (self.scale, self.good) = ((self.scale * 2.0).min(SCALE_MAX), 0);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_scale_falls_at_once_and_rises_slowly() {
        let mut scale = LossScale::new(Precision::Half, Some(8.0));
        scale.look(false);
        assert_eq!(scale.scale(), 4.0);
        (0..GROW_AFTER).for_each(|_| scale.look(true));
        assert_eq!(scale.scale(), 8.0);
        let mut fixed = LossScale::new(Precision::Bf16, Some(8.0));
        fixed.look(false);
        assert_eq!(fixed.scale(), 1.0);
    }
}
