//! How fast bodies come on one connection: how many bytes are worth waking for, and whether a response is so slow that it will not be
//! complete in any useful time.

use fuelrail_base::{Duration, Instant};
use fuelrail_plan::planner::FetchId;

/// Shorter bodies say little about the pace.
const MEASURED_BYTES_MIN: u64 = 256 << 10;
/// Bytes may gather in the kernel for this long: enough for a whole step on each of several connections that share a slow link.
/// No batch is later for it, because the end of a body is woken for at once.
const GATHERING: Duration = Duration::from_millis(50);
/// More at once no longer saves: waking is below a hundredth of the copy, and gathered bytes leave the processor's cache.
const STEP_BYTES_MAX: usize = 512 << 10;
/// Less is what arrives by itself before the thread has woken.
const STEP_BYTES_MIN: usize = 128 << 10;

/// The pace of one connection.
///
/// On a link slower than the core a receive that ends with every few segments spends more on waking than on copying. Never delays the last
/// bytes of a body, and never guesses before it has measured.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Pace {
    /// Bytes per second of the last long body; zero: not known.
    bytes_per_s: f64,
}

impl Pace {
    /// A body of `bytes` took `elapsed` from its head to its end.
    pub(super) fn measured(&mut self, bytes: u64, elapsed: Duration) {
        if bytes >= MEASURED_BYTES_MIN && !elapsed.is_zero() {
            self.bytes_per_s = bytes as f64 / elapsed.as_secs_f64();
        }
    }

    pub(super) fn forget(&mut self) {
        self.bytes_per_s = 0.0;
    }

    /// Bytes worth waking for when `rest` bytes of a body are missing: at most a quarter of them, because as many must
    /// follow each patient receive. Zero: wake for any.
    pub(super) fn step_bytes(self, rest: usize) -> usize {
        let gathered = (self.bytes_per_s * GATHERING.as_secs_f64()) as usize;
        let step = gathered.min(STEP_BYTES_MAX).min(rest / 4);
        if step < STEP_BYTES_MIN { 0 } else { step }
    }
}

/// Less than this is no transfer: a block of 8 MiB would take more than two hours.
const BYTES_PER_S_MIN: u64 = 1024;

/// The fetch that a response is for, and when its head was whole, or else its request was sent.
pub(super) type Answer = (FetchId, Instant);

/// What the last check saw of a response so slow that it will not be complete in any useful time. Silence is detected elsewhere: this is
/// for a body of which a few bytes come again and again.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Trickle {
    /// Whose response is under way or waited for, and when it began; `None` where none is.
    answer: Option<Answer>,
    since: Instant,
    heard: u64,
}

impl Trickle {
    /// Checks the response `answer`, when `heard` bytes have come in all. Returns how many came since the check that was
    /// `window` ago, if that is too few.
    pub(super) fn look(&mut self, answer: Option<Answer>, heard: u64, window: Duration, now: Instant) -> Option<u64> {
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
    fn patience_follows_the_measured_pace_and_leaves_the_end_alone() {
        let mut pace = Pace::default();
        assert_eq!(pace.step_bytes(8 << 20), 0, "nothing is known yet");
        pace.measured(100 << 10, Duration::from_micros(1));
        assert_eq!(pace.step_bytes(8 << 20), 0, "a short body says nothing");
        pace.measured(8 << 20, Duration::from_millis(67));
        assert_eq!(pace.step_bytes(8 << 20), STEP_BYTES_MAX, "125 MB/s");
        assert_eq!(pace.step_bytes(1 << 20), 256 << 10);
        assert_eq!(pace.step_bytes(500 << 10), 0, "the end of a body is woken for at once");
        pace.measured(8 << 20, Duration::from_secs(8));
        assert_eq!(pace.step_bytes(8 << 20), 0, "1 MB/s: no waiting for what takes long");
        pace.measured(8 << 20, Duration::from_millis(2));
        pace.forget();
        assert_eq!(pace.step_bytes(8 << 20), 0);
    }

    #[test]
    fn only_one_answer_that_goes_on_and_on_and_brings_nothing_trickles() {
        let at = |secs: u64| Instant::ZERO.after(Duration::from_secs(secs));
        let window = Duration::from_secs(10);
        let mut trickle = Trickle::default();
        let fetch = FetchId { place: 0, serial: 0 };
        let mut look =
            |answer: Option<Instant>, heard, now| trickle.look(answer.map(|at| (fetch, at)), heard, window, at(now));
        assert_eq!(look(None, 0, 100), None, "nothing is under way");
        assert_eq!(look(Some(at(1)), 50, 100), None);
        assert_eq!(look(Some(at(1)), 60, 109), None, "not long enough");
        assert_eq!(look(Some(at(2)), 70, 111), None, "another answer");
        assert_eq!(look(Some(at(2)), 170, 121), Some(100));
        assert_eq!(look(Some(at(2)), 170 + 10_240, 131), None, "1 KiB a second is a pace");
    }
}
