//! Observability of the decode stage: counters, queue gauges and one line for the watchdog.
//!
//! Holds only numbers, behind a lock that is held for a few additions per sample.

use fuelrail_flow::{Gate, GateFacts};
use fuelrail_io::monotonic_now;
use serde::{Deserialize, Serialize};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Counters and costs of decoding.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct DecodeStats {
    /// Threads that decode.
    pub threads: usize,
    /// Samples decoded.
    pub samples: u64,
    /// Samples that could not be decoded. A quarantined sample is not tried or counted again.
    pub refused: u64,
    /// Bytes of the decoded objects.
    pub object_bytes: u64,
    /// Bytes of the pixels they became.
    pub bytes: u64,
    /// CPU time of the decoding threads, s.
    pub cpu_s: f64,
}

/// Shared between the stage's threads and its observers.
#[derive(Debug)]
pub(crate) struct Facts {
    depth: usize,
    beats: AtomicU64,
    /// Batches being decoded or waiting for the consumer.
    inside: AtomicU64,
    /// No batch is inside and there is no slot for the next one: only the consumer can free one.
    pub(super) starved: AtomicBool,
    counted: Mutex<Counted>,
}

#[derive(Debug)]
struct Counted {
    stats: DecodeStats,
    /// Queue gauges: from a batch's raw bytes to its last pixel, and from there to the consumer.
    decoding: Gate,
    decoded: Gate,
}

impl Facts {
    pub(super) fn new(threads: usize, depth: usize) -> Facts {
        let stats = DecodeStats { threads, ..DecodeStats::default() };
        let (decoding, decoded) = (Gate::new("decode", depth), Gate::new("decoded", depth));
        Facts {
            depth,
            beats: AtomicU64::new(0),
            inside: AtomicU64::new(0),
            starved: AtomicBool::new(false),
            counted: Mutex::new(Counted { stats, decoding, decoded }),
        }
    }

    /// Every update leaves the counters consistent, so a poisoned lock is safe to use.
    fn counted(&self) -> MutexGuard<'_, Counted> {
        self.counted.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn beat(&self) {
        self.beats.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts a finished sample: the bytes of its object and of its pixels, or `None` when it could not be decoded.
    pub(super) fn ended(&self, made: Option<(usize, usize)>) {
        let stats = &mut self.counted().stats;
        match made {
            Some((object, pixels)) => {
                stats.samples += 1;
                stats.object_bytes += object as u64;
                stats.bytes += pixels as u64;
            }
            None => stats.refused += 1,
        }
        self.beat();
    }

    pub(super) fn spent(&self, cpu: Duration) {
        self.counted().stats.cpu_s += cpu.as_secs_f64();
    }

    pub(super) fn batch_opened(&self) {
        // The gauge first: an observer that sees the batch opened may already see it finished.
        self.counted().decoding.entered(monotonic_now());
        self.inside.fetch_add(1, Ordering::Release);
        self.beat();
    }

    pub(super) fn batch_finished(&self) {
        let (now, mut counted) = (monotonic_now(), self.counted());
        counted.decoding.passed(now);
        counted.decoded.entered(now);
        self.beat();
    }

    pub(super) fn batch_taken(&self) {
        self.counted().decoded.passed(monotonic_now());
        self.inside.fetch_sub(1, Ordering::Release);
    }

    /// Batches being decoded or waiting for the consumer.
    pub(super) fn inside(&self) -> u64 {
        self.inside.load(Ordering::Acquire)
    }

    /// A counter that advances whenever a thread of the stage makes progress.
    pub(crate) fn beats(&self) -> u64 {
        self.beats.load(Ordering::Relaxed)
    }

    pub(crate) fn stats(&self) -> DecodeStats {
        self.counted().stats.clone()
    }

    pub(crate) fn gates(&self) -> [GateFacts; 2] {
        let counted = self.counted();
        [counted.decoding.facts(), counted.decoded.facts()]
    }

    /// One line for the watchdog.
    pub(crate) fn describe(&self) -> String {
        let Counted { stats, decoding, decoded } = &*self.counted();
        let DecodeStats { threads, samples, refused, cpu_s, .. } = stats;
        let waits = if self.starved.load(Ordering::Relaxed) { ", no room for the next batch" } else { "" };
        let (inside, depth) = (self.inside(), self.depth);
        format!(
            "decode: {inside} of {depth} batches inside, {samples} samples decoded, {refused} refused, {threads} threads, \
             {cpu_s:.1} CPU-s{waits}; {decoding}; {decoded}"
        )
    }
}
