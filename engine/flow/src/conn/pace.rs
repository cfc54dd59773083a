//! How fast bodies come on one connection, and so how many bytes are worth waking for.
//!
//! On a link slower than the core a receive that ends with every few segments spends more on waking than on copying.
//! Owns one number. Never delays the last bytes of a body, and never guesses before it has measured.

use fuelrail_base::Duration;

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

    /// Forgets the pace.
    pub(super) fn forget(&mut self) {
        self.bytes_per_s = 0.0;
    }

    /// Bytes worth waking for when `rest` bytes of a body are missing: at most a quarter of them, because as many must
    /// follow behind each patient receive. Zero: wake for any.
    pub(super) fn step_bytes(self, rest: usize) -> usize {
        let gathered = (self.bytes_per_s * GATHERING.as_secs_f64()) as usize;
        let step = gathered.min(STEP_BYTES_MAX).min(rest / 4);
        if step < STEP_BYTES_MIN { 0 } else { step }
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
}
