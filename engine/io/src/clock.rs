//! The one place that reads the machine's clock. Never wall time.

use fuelrail_base::Instant;

/// The monotonic clock as an [`Instant`]: nanoseconds since the machine's boot-time origin, the same for every thread
/// and every real ring of this machine, so instants taken on different shards compare.
#[must_use]
pub fn monotonic_now() -> Instant {
    let mut spec = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the kernel writes only into `spec`, which lives on this stack until after the call.
    let rc = unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut spec) };
    assert_eq!(rc, 0, "CLOCK_MONOTONIC exists on every Linux");
    Instant(spec.tv_sec as u64 * 1_000_000_000 + spec.tv_nsec as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn never_goes_back() {
        let mut last = monotonic_now();
        for _ in 0..1_000 {
            let now = monotonic_now();
            assert!(now >= last);
            last = now;
        }
    }
}
