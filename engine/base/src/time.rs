//! Time as a value. Real back-ends read the machine's clocks, the simulator its own.

pub use core::time::Duration;

/// Nanoseconds since an arbitrary origin of the ring that handed it out. Never wall time.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Instant(pub u64);

impl Instant {
    /// The origin.
    pub const ZERO: Instant = Instant(0);

    /// This instant moved later; saturates at the end of time (584 years).
    #[must_use]
    pub fn after(self, by: Duration) -> Instant {
        Instant(self.0.saturating_add(u64::try_from(by.as_nanos()).unwrap_or(u64::MAX)))
    }

    /// Time from `earlier` to this instant; zero when `earlier` is later.
    #[must_use]
    pub fn since(self, earlier: Instant) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

/// Seconds since 1970 in UTC, for dates of signatures and credentials only: it may jump.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct WallTime(pub u64);

impl WallTime {
    /// This time moved by so many seconds, either way; saturates.
    #[must_use]
    pub fn shifted(self, seconds: i64) -> WallTime {
        WallTime(self.0.saturating_add_signed(seconds))
    }

    /// Seconds from `earlier` to this time: negative when `earlier` is later.
    #[must_use]
    pub fn seconds_since(self, earlier: WallTime) -> i64 {
        i64::try_from(i128::from(self.0) - i128::from(earlier.0)).unwrap_or(if self > earlier {
            i64::MAX
        } else {
            i64::MIN
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn saturates_both_ways() {
        assert_eq!(Instant(u64::MAX).after(Duration::from_secs(1)), Instant(u64::MAX));
        assert_eq!(Instant(1).since(Instant(5)), Duration::ZERO);
        assert_eq!(Instant(5).after(Duration::from_nanos(2)).since(Instant(5)), Duration::from_nanos(2));
        assert_eq!((WallTime(5).shifted(-9), WallTime(5).shifted(2)), (WallTime(0), WallTime(7)));
        assert_eq!(
            (WallTime(5).seconds_since(WallTime(9)), WallTime(u64::MAX).seconds_since(WallTime(0))),
            (-4, i64::MAX)
        );
    }
}
