//! The load generator: when requests are due, which thread sends them, and where a latency starts.
//!
//! Owns the rule against coordinated omission. In an open loop a request has a moment at which it is meant to be sent, and its
//! latency counts from there, even while all connections still wait for slow responses: the wait is the user's. In a closed loop
//! no request is due before the last response, so latency counts from the sending. The clock is an argument: tests prove the
//! rule against a clock that stalls on command.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use fuelrail::{Error, Kind, Result};
use fuelrail_base::prng::Prng;

use super::histogram::Latencies;

/// How requests come.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Load {
    /// The next when the last is answered.
    Closed,
    /// So many a second, evenly.
    Constant(f64),
    /// So many a second in the mean, at random (a Poisson process): what many independent users come to.
    Poisson(f64),
}

impl Load {
    /// Requests meant a second; none in a closed loop.
    pub fn intended_per_s(self) -> Option<f64> {
        match self {
            Load::Closed => None,
            Load::Constant(rate) | Load::Poisson(rate) => Some(rate),
        }
    }
}

/// Most requests of one run.
const REQUESTS_MAX: u64 = 100_000_000;

/// When every request of a run is meant to be sent, from the run's start; none in a closed loop.
///
/// # Errors
/// `Usage` for a rate that is no rate.
pub(super) fn schedule(load: Load, requests: u64, seed: u64) -> Result<Option<Vec<Duration>>> {
    if !(1..=REQUESTS_MAX).contains(&requests) {
        return Err(Error::new(Kind::Usage, format!("{requests} requests are outside 1 to {REQUESTS_MAX}")));
    }
    let Some(rate) = load.intended_per_s() else { return Ok(None) };
    if !(rate > 0.0 && rate <= 1e7) {
        return Err(Error::new(Kind::Usage, format!("a rate of {rate} a second is outside 0 to 10 000 000")));
    }
    let mut draws = Prng::new(seed);
    let mut at_s = 0.0;
    let moment = |number: u64| match load {
        Load::Poisson(_) => {
            // The time to the next event of a Poisson process is exponential.
            at_s -= (1.0 - draws.unit()).ln() / rate;
            Duration::from_secs_f64(at_s)
        }
        _ => Duration::from_secs_f64(number as f64 / rate),
    };
    Ok(Some((0..requests).map(moment).collect()))
}

/// A clock that can be waited on. Time counts from the run's start.
pub(super) trait Clock {
    fn now(&self) -> Duration;
    /// Returns at `moment`, or at once when it is past.
    fn sleep_until(&self, moment: Duration);
}

/// What one worker measured.
#[derive(Clone, Debug, Default)]
pub(super) struct Measured {
    /// From the moment a request was meant to be sent.
    pub(super) response: Latencies,
    /// From the moment it was sent.
    pub(super) service: Latencies,
    /// When its last answer was there.
    pub(super) ended: Duration,
}

/// Requests still to be sent, shared by all workers of a run.
#[derive(Debug)]
pub(super) struct Queue {
    schedule: Option<Vec<Duration>>,
    next: AtomicU64,
    requests: u64,
}

impl Queue {
    /// The queue of a run.
    ///
    /// # Errors
    /// As [`schedule`].
    pub(super) fn new(load: Load, requests: u64, seed: u64) -> Result<Queue> {
        Ok(Queue { schedule: schedule(load, requests, seed)?, next: AtomicU64::new(0), requests })
    }

    /// Takes requests one after the other until there are none left. `ask` sends the request of a number and returns with its
    /// last byte; `go_on` is looked at before each.
    ///
    /// # Errors
    /// The first of `ask` or `go_on`; the others' requests are left then.
    pub(super) fn work(
        &self,
        clock: &impl Clock,
        mut ask: impl FnMut(u64) -> Result<()>,
        go_on: impl Fn() -> Result<()>,
    ) -> Result<Measured> {
        let mut measured = Measured::default();
        loop {
            let number = self.next.fetch_add(1, Ordering::Relaxed);
            if number >= self.requests {
                return Ok(measured);
            }
            go_on()?;
            let meant = self.schedule.as_ref().map(|moments| moments[number as usize]);
            if let Some(moment) = meant {
                clock.sleep_until(moment);
            }
            let sent = clock.now();
            ask(number)?;
            measured.ended = clock.now();
            measured.service.record(measured.ended.saturating_sub(sent));
            measured.response.record(measured.ended.saturating_sub(meant.unwrap_or(sent)));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    /// A clock that moves only when a caller waits or works.
    #[derive(Default)]
    struct Still(Cell<Duration>);

    impl Clock for Still {
        fn now(&self) -> Duration {
            self.0.get()
        }

        fn sleep_until(&self, moment: Duration) {
            self.0.set(self.0.get().max(moment));
        }
    }

    const MS: Duration = Duration::from_millis(1);

    /// 1 000 requests of 1 ms, 100 a second; the 500th stalls for two seconds.
    fn stalled(load: Load) -> Measured {
        let clock = Still::default();
        let queue = Queue::new(load, 1_000, 1).unwrap();
        let ask = |number| {
            clock.0.set(clock.0.get() + if number == 500 { 2_000 * MS } else { MS });
            Ok(())
        };
        queue.work(&clock, ask, || Ok(())).unwrap()
    }

    #[test]
    fn a_stall_counts_for_everybody_it_kept_waiting() {
        let measured = stalled(Load::Constant(100.0));
        let (response, service) = (measured.response.summary(), measured.service.summary());
        assert_eq!((response.count, service.count), (1_000, 1_000));
        // The stalled one alone is slow to a generator that waits; 200 more were meant to be sent while it lasted, and the
        // queue behind it drains by 9 ms a request, so 222 in all waited.
        assert!(service.p99_us < 1_010.0 && service.max_us > 1_990_000.0, "{service:?}");
        assert!(response.p50_us < 1_010.0 && response.p90_us > 1_000_000.0, "{response:?}");
        let waited = response.curve.iter().find(|(_, us)| *us > 2_000.0).unwrap().0;
        assert!((0.75..0.81).contains(&waited), "{waited}");
    }

    #[test]
    fn a_closed_loop_has_no_meant_moments() {
        let measured = stalled(Load::Closed);
        assert_eq!(measured.response.summary(), measured.service.summary());
        assert_eq!(measured.ended, 2_999 * MS);
    }

    #[test]
    fn arrivals_come_at_their_rate() {
        let constant = schedule(Load::Constant(1_000.0), 5, 1).unwrap().unwrap();
        assert_eq!(constant, [0, 1, 2, 3, 4].map(|ms| ms * MS));
        let poisson = schedule(Load::Poisson(1_000.0), 100_000, 1).unwrap().unwrap();
        let mean_s = poisson.last().unwrap().as_secs_f64() / 1e5;
        assert!((mean_s * 1_000.0 - 1.0).abs() < 0.02, "{mean_s}");
        let gaps: Vec<f64> = poisson.windows(2).map(|pair| (pair[1] - pair[0]).as_secs_f64()).collect();
        let longer = gaps.iter().filter(|gap| **gap > mean_s).count() as f64 / gaps.len() as f64;
        // exp(-1) of the gaps of a Poisson process are longer than their mean.
        assert!((longer - (-1.0_f64).exp()).abs() < 0.01, "{longer}");
        assert_eq!(schedule(Load::Closed, 5, 1).unwrap(), None);
        for bad in [Load::Constant(0.0), Load::Poisson(f64::NAN), Load::Constant(-1.0)] {
            assert_eq!(schedule(bad, 5, 1).unwrap_err().kind(), Kind::Usage);
        }
        assert_eq!(schedule(Load::Closed, 0, 1).unwrap_err().kind(), Kind::Usage);
    }

    #[test]
    fn the_first_error_ends_a_worker() {
        let queue = Queue::new(Load::Closed, 10, 1).unwrap();
        let fail = |_| Err(Error::new(Kind::Network, "gone"));
        assert_eq!(queue.work(&Still::default(), fail, || Ok(())).unwrap_err().kind(), Kind::Network);
        let stop = || Err(Error::new(Kind::Cancelled, "interrupted"));
        assert_eq!(queue.work(&Still::default(), |_| Ok(()), stop).unwrap_err().kind(), Kind::Cancelled);
    }
}
