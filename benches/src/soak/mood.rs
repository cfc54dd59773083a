//! What the consumer of a soak does besides taking batches: it keeps some for a while, takes slowly, pauses, and now and then
//! has its loader opened anew.
//!
//! Owns the draw and its times. Never touches a batch.

use std::time::{Duration, Instant};

use fuelrail_base::prng::Prng;

/// How the consumer takes the next batches.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Whim {
    /// As fast as they come.
    Hurry,
    /// Keeps this many beside the one at hand.
    Hold(usize),
    /// Works this long on each.
    Slow(Duration),
    /// Works this long on one, once.
    Pause(Duration),
}

/// The consumer's mood.
#[derive(Debug)]
pub(super) struct Mood {
    draw: Prng,
    /// The mean time between whims; a whim lasts a quarter of it.
    mean: Duration,
    reopen_every: Duration,
    whim: Whim,
    turn_at: Instant,
    reopen_at: Instant,
}

impl Mood {
    pub(super) fn new(seed: u64, mean: Duration, reopen_every: Duration) -> Mood {
        let now = Instant::now();
        let (turn_at, reopen_at) = (now + mean, now + reopen_every);
        Mood { draw: Prng::new(seed ^ 0x3000D), mean, reopen_every, whim: Whim::Hurry, turn_at, reopen_at }
    }

    /// The whim of this moment.
    pub(super) fn whim(&mut self) -> Whim {
        let now = Instant::now();
        if let Whim::Pause(_) = self.whim {
            self.whim = Whim::Hurry;
        }
        if now >= self.turn_at {
            let hurried = self.whim == Whim::Hurry;
            self.whim = if hurried { self.drawn() } else { Whim::Hurry };
            let share = if hurried { 0.25 } else { 0.5 + self.draw.unit() };
            self.turn_at = now + self.mean.mul_f64(share);
        }
        self.whim
    }

    /// Whether it is time to close the loader and go on from its state.
    pub(super) fn reopens(&mut self) -> bool {
        let now = Instant::now();
        let due = now >= self.reopen_at;
        if due {
            self.reopen_at = now + self.reopen_every.mul_f64(0.5 + self.draw.unit());
        }
        due
    }

    /// Whether a batch shall outlive the loader this time.
    pub(super) fn keeps_one(&mut self) -> bool {
        self.draw.chance(0.5)
    }

    fn drawn(&mut self) -> Whim {
        match self.draw.below(3) {
            0 => Whim::Hold(1 + self.draw.below(2) as usize),
            1 => Whim::Slow(Duration::from_millis(1 + self.draw.below(20))),
            _ => Whim::Pause(self.mean.mul_f64(0.25 * self.draw.unit())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_whim_comes_and_goes() {
        let mut mood = Mood::new(3, Duration::from_millis(1), Duration::from_millis(2));
        let (mut seen, mut reopened) = ([false; 4], 0);
        for _ in 0..100_000 {
            if seen.iter().all(|one| *one) && reopened >= 2 {
                return;
            }
            seen[match mood.whim() {
                Whim::Hurry => 0,
                Whim::Hold(count) => count.clamp(1, 1),
                Whim::Slow(_) => 2,
                Whim::Pause(_) => 3,
            }] = true;
            reopened += u32::from(mood.reopens());
            std::thread::sleep(Duration::from_micros(50));
        }
        panic!("{seen:?}, opened anew {reopened} times");
    }
}
