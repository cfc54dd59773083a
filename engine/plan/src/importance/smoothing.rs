//! What is added to every score before a draw, as SHADE published it: much while the loss is high, little once it is low.

/// Starts at one per cent of the first mean loss and follows exp(relative change of the mean loss).
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
