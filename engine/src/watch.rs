//! The watchdog: one thread that notices when nothing moves and reports every stage's state; also on SIGUSR1, where that is asked for.

use crate::decode::Facts;
use crate::stats::{DiskFacts, add_ended};
use crate::system::spawn;
use fuelrail_base::{Error, Kind, Result};
use fuelrail_flow::{ShardStatus, Snapshot};
use fuelrail_io::Waker;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// A shard as seen from outside.
#[derive(Clone)]
pub(crate) struct Watched {
    pub status: Arc<ShardStatus>,
    pub waker: Waker,
}

/// The shards that read for a loader, once they do: its own, or those of a loader inside it. Clones share one state.
#[derive(Clone, Default)]
pub(crate) struct Shards(Arc<Mutex<Reading>>);

#[derive(Clone, Default)]
struct Reading {
    shards: Vec<Watched>,
    /// What their segment manager counts, where they have one.
    segments: Option<Arc<Mutex<DiskFacts>>>,
    /// What earlier shards had counted at the same index, and their segment managers.
    ended: Vec<Snapshot>,
    ended_segments: DiskFacts,
}

impl Shards {
    pub(crate) fn set(&self, shards: Vec<Watched>, segments: Option<Arc<Mutex<DiskFacts>>>) {
        let mut reading = self.lock();
        (reading.shards, reading.segments) = (shards, segments);
    }

    /// Those that read for a loader inside.
    pub(crate) fn follow(&self, inside: &Shards) {
        let Reading { shards, segments, .. } = inside.lock().clone();
        self.set(shards, segments);
    }

    pub(crate) fn all(&self) -> Vec<Watched> {
        self.lock().shards.clone()
    }

    /// They have ended: what they have counted is kept, in one snapshot for each place.
    pub(crate) fn end(&self) {
        let (mut ended, ended_segments) = (self.snapshots(Duration::ZERO), self.segments());
        ended.iter_mut().for_each(|shard| shard.fetch.connections_open = 0);
        *self.lock() = Reading { ended, ended_segments, ..Reading::default() };
    }

    /// What segment managers have counted.
    pub(crate) fn segments(&self) -> DiskFacts {
        let Reading { segments, ended_segments, .. } = self.lock().clone();
        let counted = segments.map(|counted| counted.lock().unwrap_or_else(PoisonError::into_inner).clone());
        ended_segments.with_segment_manager(&counted.unwrap_or_default())
    }

    /// Fresh snapshots of all; a shard that does not answer within `patience` gives its last one.
    pub(crate) fn snapshots(&self, patience: Duration) -> Vec<Snapshot> {
        let Reading { shards, ended, .. } = self.lock().clone();
        let wanted: Vec<u64> = shards
            .iter()
            .map(|s| {
                let serial = s.status.request();
                s.waker.wake();
                serial
            })
            .collect();
        let deadline = Instant::now() + patience;
        let mut found = Vec::with_capacity(shards.len());
        for (shard, serial) in shards.iter().zip(wanted) {
            loop {
                let answered = shard.status.answered(serial).map(Some);
                // One that has not answered at all has counted nothing yet.
                let latest = || Some(shard.status.latest()).filter(|latest| latest.serial > 0);
                let late = || (Instant::now() >= deadline).then(latest);
                if let Some(snapshot) = answered.or_else(late) {
                    found.push(snapshot);
                    break;
                }
                std::thread::sleep(Duration::from_micros(50));
            }
        }
        let mut ended = ended.into_iter();
        let with_ended = |shard: Option<Snapshot>| match (shard, ended.next()) {
            (Some(mut shard), Some(ended)) => {
                add_ended(&mut shard, &ended);
                shard
            }
            (shard, ended) => shard.or(ended).unwrap_or_default(),
        };
        let mut all: Vec<Snapshot> = found.into_iter().map(with_ended).collect();
        all.extend(ended);
        all
    }

    fn beats(&self) -> u64 {
        self.lock().shards.iter().map(|shard| shard.status.beats()).sum()
    }

    fn lock(&self) -> MutexGuard<'_, Reading> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Called with the report when nothing has moved for too long, or on the signal.
pub(crate) type Report = dyn Fn(&str) + Send + Sync;

/// The watching thread; stops when dropped.
pub(crate) struct Watchdog {
    stop: Arc<(Mutex<bool>, Condvar)>,
    thread: Option<JoinHandle<()>>,
    signal: Option<signal_hook::SigId>,
}

/// What the watchdog looks at.
pub(crate) struct Watch {
    pub shards: Shards,
    /// The stage after the shards, where there is one.
    pub decode: Option<Arc<Facts>>,
    /// One line of what stands in the place of shards, where another process reads.
    pub relay: Option<Box<dyn Fn() -> String + Send>>,
    /// Batches that the consumer has taken: what another process reads moves nothing else.
    pub taken: Arc<AtomicU64>,
    /// The consumer is inside `next_batch`.
    pub waiting: Arc<AtomicBool>,
    /// Silence that is reported; zero never.
    pub after: Duration,
    /// SIGUSR1 is answered with a report. Otherwise it stays the program's own.
    pub on_signal: bool,
    pub report: Box<Report>,
}

impl Watchdog {
    pub(crate) fn start(watch: Watch) -> Result<Watchdog> {
        let asked = Arc::new(AtomicBool::new(false));
        let register = || signal_hook::flag::register(signal_hook::consts::SIGUSR1, Arc::clone(&asked));
        let signal = watch.on_signal.then(register).transpose();
        let signal =
            signal.map_err(|e| Error::from_io(Kind::Environment, "report_on_sigusr1: the signal handler", e))?;
        let stop = Arc::new((Mutex::new(false), Condvar::new()));
        let stopped = Arc::clone(&stop);
        let thread = spawn("fuelrail-watch", move || watch.run(&stopped, &asked))?;
        Ok(Watchdog { stop, thread: Some(thread), signal })
    }
}

impl Drop for Watchdog {
    fn drop(&mut self) {
        *self.stop.0.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.stop.1.notify_all();
        if let Some(thread) = self.thread.take() {
            // A panic of the watchdog was printed when it happened; it must not take the loader with it.
            let _ = thread.join();
        }
        if let Some(signal) = self.signal.take() {
            signal_hook::low_level::unregister(signal);
        }
    }
}

impl Watch {
    fn run(&self, stop: &(Mutex<bool>, Condvar), asked: &AtomicBool) {
        let tick = if self.after.is_zero() { Duration::from_millis(250) } else { (self.after / 4).min(TICK_MAX) };
        let mut beats = self.beats();
        let mut still = Duration::ZERO;
        let mut stopped = stop.0.lock().unwrap_or_else(PoisonError::into_inner);
        while !*stopped {
            let begun = Instant::now();
            stopped = stop.1.wait_timeout(stopped, tick).unwrap_or_else(PoisonError::into_inner).0;
            let now = self.beats();
            // Of the time in which the process was stopped, little counts.
            still += begun.elapsed().min(2 * tick);
            if now != beats || !self.waiting.load(Ordering::Acquire) {
                (beats, still) = (now, Duration::ZERO);
            }
            if asked.swap(false, Ordering::AcqRel) {
                (self.report)(&self.describe("state of all stages (SIGUSR1)"));
            }
            if !self.after.is_zero() && still >= self.after {
                let secs = still.as_secs_f64();
                (self.report)(&self.describe(&format!("nothing moved for {secs:.1} s while the consumer waits")));
                (beats, still) = (self.beats(), Duration::ZERO);
            }
        }
    }

    fn beats(&self) -> u64 {
        let decode = self.decode.as_ref().map_or(0, |facts| facts.beats());
        decode + self.shards.beats() + self.taken.load(Ordering::Relaxed)
    }

    fn describe(&self, why: &str) -> String {
        let mut texts: Vec<String> =
            self.shards.snapshots(Duration::from_millis(200)).into_iter().map(|s| s.text).collect();
        texts.extend(self.relay.as_ref().map(|describe| describe()));
        texts.extend(self.decode.as_ref().map(|facts| facts.describe()));
        format!("{why}\n{}", texts.join("\n"))
    }
}

const TICK_MAX: Duration = Duration::from_millis(250);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_do_not_go_back_before_a_shard_answers() {
        let watched = || Watched { status: Arc::default(), waker: Waker::sleeper() };
        let mut ended = Snapshot { serial: 7, ..Snapshot::default() };
        ended.fetch.requests = 5;
        ended.thread = Some(Default::default());
        let shards = Shards::default();
        *shards.lock() = Reading { shards: vec![watched(), watched()], ended: vec![ended], ..Reading::default() };
        let found = shards.snapshots(Duration::ZERO);
        assert_eq!(found.iter().map(|shard| shard.fetch.requests).collect::<Vec<_>>(), [5, 0]);
        assert!(found[0].thread.is_some(), "all of it is there");
    }
}
