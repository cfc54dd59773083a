//! The only place that reads the machine's clocks: the monotonic one for waits, wall time for signatures.

use fuelrail_base::{Instant, WallTime};
use rustix::time::{ClockId, clock_gettime};

/// The monotonic clock as an [`Instant`]: nanoseconds since the machine's boot-time origin, the same for every thread
/// and every real ring of this machine, so instants taken on different shards compare.
#[must_use]
pub fn monotonic_now() -> Instant {
    let now = clock_gettime(ClockId::Monotonic);
    Instant(now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64)
}

/// Wall time, as of the kernel's last tick: a few milliseconds old, and cheaper for it. Signatures are dated with it.
#[must_use]
pub fn wall_now() -> WallTime {
    WallTime(u64::try_from(clock_gettime(ClockId::RealtimeCoarse).tv_sec).unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wall_time_is_that_of_the_standard_library() {
        let since = || std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_secs();
        let (before, now, after) = (since(), wall_now().0, since());
        assert!((before - 1..=after).contains(&now), "{before} {now} {after}");
    }
}
