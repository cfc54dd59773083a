//! Detects a response so slow that it will not be complete in any useful time.
//!
//! Silence is detected elsewhere: this is for a body of which a few bytes come again and again. Owns what the last check saw; checks
//! only when called.

use fuelrail_base::{Duration, Instant};

/// Less than this is no transfer: a block of 8 MiB would take more than two hours.
pub(super) const BYTES_PER_S_MIN: u64 = 1024;

#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Trickle {
    /// When the response under way began; `None` between two responses.
    answer: Option<Instant>,
    since: Instant,
    heard: u64,
}

impl Trickle {
    /// Checks a response that began at `answer`, when `heard` bytes have come in all. Returns how many came since the check that was
    /// `window` ago, if that is too few.
    pub(super) fn look(&mut self, answer: Option<Instant>, heard: u64, window: Duration, now: Instant) -> Option<u64> {
        let elapsed = now.since(self.since);
        if answer.is_none() || answer != self.answer {
            *self = Trickle { answer, since: now, heard };
            return None;
        }
        if elapsed < window {
            return None;
        }
        let came = heard - self.heard;
        *self = Trickle { answer, since: now, heard };
        ((came as f64) < BYTES_PER_S_MIN as f64 * elapsed.as_secs_f64()).then_some(came)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_one_answer_that_goes_on_and_on_and_brings_nothing_trickles() {
        let at = |secs: u64| Instant::ZERO.after(Duration::from_secs(secs));
        let window = Duration::from_secs(10);
        let mut trickle = Trickle::default();
        let mut look = |answer, heard, now| trickle.look(answer, heard, window, at(now));
        assert_eq!(look(None, 0, 100), None, "nothing is under way");
        assert_eq!(look(Some(at(1)), 50, 100), None);
        assert_eq!(look(Some(at(1)), 60, 109), None, "not long enough");
        assert_eq!(look(Some(at(2)), 70, 111), None, "another answer");
        assert_eq!(look(Some(at(2)), 170, 121), Some(100));
        assert_eq!(look(Some(at(2)), 170 + 10_240, 131), None, "1 KiB a second is a pace");
    }
}
