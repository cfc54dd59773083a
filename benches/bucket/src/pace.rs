//! Pacing by reservation: each reservation is told the moment from which it may go. One word of state, no timer.

use std::collections::BTreeMap;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::{Duration, Instant};

use tokio::sync::oneshot;

use crate::{Error, Result};

/// A rate with a small burst.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pace {
    ns_per_unit: f64,
    burst: Duration,
    /// When everything reserved so far will have been sent at the rate.
    spent_until: Option<Instant>,
}

impl Pace {
    /// Bytes a second; two milliseconds' worth may go at once, so that timer slack does not lower the rate.
    pub(crate) fn bytes(per_s: u64) -> Pace {
        Pace { ns_per_unit: 1e9 / per_s as f64, burst: Duration::from_millis(2), spent_until: None }
    }

    /// Requests a second; a tenth of a second's worth may come at once.
    pub(crate) fn requests(per_s: u32) -> Pace {
        Pace { ns_per_unit: 1e9 / f64::from(per_s), burst: Duration::from_millis(100), spent_until: None }
    }

    /// Reserves `units` and returns when they may go.
    pub(crate) fn reserve(&mut self, now: Instant, units: u64) -> Instant {
        let from = self.spent_until.map_or(now, |spent| spent.max(now));
        self.spent_until = Some(from + Duration::from_nanos((self.ns_per_unit * units as f64) as u64));
        from.checked_sub(self.burst).map_or(now, |early| early.max(now))
    }

    /// Takes one unit when the rate allows it now.
    pub(crate) fn admit(&mut self, now: Instant) -> bool {
        let mut after = *self;
        let is_admitted = after.reserve(now, 1) <= now;
        if is_admitted {
            *self = after;
        }
        is_admitted
    }
}

/// A deadline, and who sleeps until then.
type Sleeper = (Instant, oneshot::Sender<()>);

/// The alarm thread's entrance; the thread ends when it is dropped.
#[derive(Debug)]
pub(crate) struct Alarm {
    sleepers: mpsc::Sender<Sleeper>,
}

impl Alarm {
    pub(crate) fn start() -> Result<Alarm> {
        let (sleepers, incoming) = mpsc::channel();
        std::thread::Builder::new()
            .name("bucket-alarm".to_owned())
            .spawn(move || run(&incoming))
            .map_err(|e| Error::system("starting the alarm thread", &e))?;
        Ok(Alarm { sleepers })
    }

    /// Waits until `deadline`.
    pub(crate) async fn sleep_until(&self, deadline: Instant) {
        let (wake, woken) = oneshot::channel();
        // Neither fails: the thread lives as long as this sender, and wakes whom it was given.
        let _ = self.sleepers.send((deadline, wake));
        let _ = woken.await;
    }
}

fn run(incoming: &mpsc::Receiver<Sleeper>) {
    // The number tells equal deadlines apart.
    let mut sleepers: BTreeMap<(Instant, u64), oneshot::Sender<()>> = BTreeMap::new();
    for number in 0u64.. {
        while let Some(first) = sleepers.first_entry().filter(|first| first.key().0 <= Instant::now()) {
            // A sleeper that was dropped needs no waking.
            let _ = first.remove().send(());
        }
        let next = match sleepers.first_key_value() {
            Some(((deadline, _), _)) => incoming.recv_timeout(deadline.saturating_duration_since(Instant::now())),
            None => incoming.recv().map_err(|_| RecvTimeoutError::Disconnected),
        };
        match next {
            Ok((deadline, wake)) => drop(sleepers.insert((deadline, number), wake)),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reservations_follow_each_other_at_the_rate() {
        let now = Instant::now();
        let mut pace = Pace::bytes(1_000_000);
        let last = (0..101).map(|_| pace.reserve(now, 10_000)).last().unwrap();
        // A hundred frames of 10 ms before it, less the burst.
        assert_eq!(last - now, Duration::from_millis(998));
        let later = now + Duration::from_secs(60);
        assert_eq!(pace.reserve(later, 1), later, "unused time does not pile up");
    }
}
