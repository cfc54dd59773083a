//! Whether the trainer waits: counters of a feed.
//!
//! Owns the counting. Reads no clock: what took how long is told.

use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use core::time::Duration;

/// What a feed has done so far.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct FeedStats {
    /// Batches given to the consumer.
    pub batches: u64,
    /// Batches whose copy has ended.
    pub copies: u64,
    /// Bytes of those copies.
    pub copied_bytes: u64,
    /// Time the device spent on those copies, s.
    pub copy_s: f64,
    /// The longest of them, s.
    pub copy_s_max: f64,
    /// Time the consumer spent inside [`Feed::next`](crate::Feed::next), waiting, s.
    pub data_wait_s: f64,
    /// Share of calls of [`Feed::next`](crate::Feed::next) that found a batch on its way to the device; 1 before the first call.
    pub readiness: f64,
    /// Share of batches that were all there when they were given out: a stream waited for the others. 1 before the first.
    pub landed: f64,
    /// Device buffers the consumer holds.
    pub held: u64,
}

#[derive(Debug, Default)]
pub(crate) struct Tally {
    batches: AtomicU64,
    ready: AtomicU64,
    landed: AtomicU64,
    waited_us: AtomicU64,
    copies: AtomicU64,
    copied_bytes: AtomicU64,
    copied_ns: AtomicU64,
    copied_ns_max: AtomicU64,
    held: AtomicUsize,
}

impl Tally {
    /// A batch goes to the consumer.
    pub(crate) fn give(&self, at_once: bool, landed: bool) {
        self.held.fetch_add(1, Ordering::AcqRel);
        self.batches.fetch_add(1, Ordering::Relaxed);
        self.ready.fetch_add(u64::from(at_once), Ordering::Relaxed);
        self.landed.fetch_add(u64::from(landed), Ordering::Relaxed);
    }

    /// A batch comes back.
    pub(crate) fn come_back(&self) {
        self.held.fetch_sub(1, Ordering::AcqRel);
    }

    /// Batches the consumer holds.
    pub(crate) fn held(&self) -> usize {
        self.held.load(Ordering::Acquire)
    }

    pub(crate) fn wait(&self, time: Duration) {
        self.waited_us.fetch_add(time.as_micros() as u64, Ordering::Relaxed);
    }

    pub(crate) fn copy(&self, bytes: usize, time: Duration) {
        let ns = time.as_nanos() as u64;
        self.copies.fetch_add(1, Ordering::Relaxed);
        self.copied_bytes.fetch_add(bytes as u64, Ordering::Relaxed);
        self.copied_ns.fetch_add(ns, Ordering::Relaxed);
        self.copied_ns_max.fetch_max(ns, Ordering::Relaxed);
    }

    pub(crate) fn stats(&self) -> FeedStats {
        let get = |count: &AtomicU64| count.load(Ordering::Relaxed);
        let batches = get(&self.batches);
        let share = |part: u64| if batches == 0 { 1.0 } else { part as f64 / batches as f64 };
        FeedStats {
            batches,
            copies: get(&self.copies),
            copied_bytes: get(&self.copied_bytes),
            copy_s: get(&self.copied_ns) as f64 / 1e9,
            copy_s_max: get(&self.copied_ns_max) as f64 / 1e9,
            data_wait_s: get(&self.waited_us) as f64 / 1e6,
            readiness: share(get(&self.ready)),
            landed: share(get(&self.landed)),
            held: self.held() as u64,
        }
    }
}
