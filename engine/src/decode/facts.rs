//! What the decode stage shows to the outside: counters, gates and one line for the watchdog.
//!
//! Owns numbers only. Threads write them with relaxed stores; nobody waits for anybody here but at the gates, once a batch.

use fuelrail_flow::{Gate, GateFacts};
use fuelrail_io::monotonic_now;
use serde::{Deserialize, Serialize};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// What decoding did and cost.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct DecodeStats {
    /// Threads that decode.
    pub threads: usize,
    /// Samples decoded.
    pub samples: u64,
    /// Samples that could not be decoded. Those in quarantine are not tried, and not counted again.
    pub refused: u64,
    /// Bytes of the objects that were decoded.
    pub object_bytes: u64,
    /// Bytes of pixels made of them.
    pub bytes: u64,
    /// Processor time of the decoding threads, s.
    pub cpu_s: f64,
}

/// Shared between the stage's threads and whoever watches them.
#[derive(Debug)]
pub(crate) struct Facts {
    threads: usize,
    depth: usize,
    samples: AtomicU64,
    refused: AtomicU64,
    object_bytes: AtomicU64,
    bytes: AtomicU64,
    /// Of all threads, as of the last samples each decoded.
    cpu_ns: AtomicU64,
    beats: AtomicU64,
    /// Batches let in, whether they are still inside or not.
    pub(super) opened: AtomicU64,
    /// Batches the consumer has taken.
    pub(super) taken: AtomicU64,
    /// Nothing is inside, and there is no room for the next batch: only the consumer can make some.
    pub(super) starved: AtomicBool,
    /// Batches from their raw bytes to their last pixel, and from there to the consumer.
    decoding: Mutex<Gate>,
    decoded: Mutex<Gate>,
}

impl Facts {
    pub(super) fn new(threads: usize, depth: usize) -> Facts {
        Facts {
            threads,
            depth,
            samples: AtomicU64::new(0),
            refused: AtomicU64::new(0),
            object_bytes: AtomicU64::new(0),
            bytes: AtomicU64::new(0),
            cpu_ns: AtomicU64::new(0),
            beats: AtomicU64::new(0),
            opened: AtomicU64::new(0),
            taken: AtomicU64::new(0),
            starved: AtomicBool::new(false),
            decoding: Mutex::new(Gate::new("decode", depth)),
            decoded: Mutex::new(Gate::new("decoded", depth)),
        }
    }

    pub(super) fn beat(&self) {
        self.beats.fetch_add(1, Ordering::Relaxed);
    }

    /// A sample came to its end: what its object held and what was made of it, or nothing.
    pub(super) fn ended(&self, made: Option<(usize, usize)>) {
        match made {
            Some((object, pixels)) => {
                self.samples.fetch_add(1, Ordering::Relaxed);
                self.object_bytes.fetch_add(object as u64, Ordering::Relaxed);
                self.bytes.fetch_add(pixels as u64, Ordering::Relaxed);
            }
            None => drop(self.refused.fetch_add(1, Ordering::Relaxed)),
        }
        self.beat();
    }

    pub(super) fn spent(&self, cpu: Duration) {
        self.cpu_ns.fetch_add(u64::try_from(cpu.as_nanos()).unwrap_or(u64::MAX), Ordering::Relaxed);
    }

    pub(super) fn batch_opened(&self) {
        // The gate first: whoever sees the batch opened may already see it finished.
        open(&self.decoding).entered(monotonic_now());
        self.opened.fetch_add(1, Ordering::Release);
        self.beat();
    }

    pub(super) fn batch_finished(&self) {
        let now = monotonic_now();
        open(&self.decoding).passed(now);
        open(&self.decoded).entered(now);
        self.beat();
    }

    pub(super) fn batch_taken(&self) {
        open(&self.decoded).passed(monotonic_now());
        self.taken.fetch_add(1, Ordering::Release);
    }

    /// Batches inside: being decoded, or waiting for the consumer.
    pub(super) fn inside(&self) -> u64 {
        let taken = self.taken.load(Ordering::Acquire);
        self.opened.load(Ordering::Acquire).saturating_sub(taken)
    }

    /// Moves whenever a thread of the stage does something.
    pub(crate) fn beats(&self) -> u64 {
        self.beats.load(Ordering::Relaxed)
    }

    pub(crate) fn stats(&self) -> DecodeStats {
        DecodeStats {
            threads: self.threads,
            samples: self.samples.load(Ordering::Relaxed),
            refused: self.refused.load(Ordering::Relaxed),
            object_bytes: self.object_bytes.load(Ordering::Relaxed),
            bytes: self.bytes.load(Ordering::Relaxed),
            cpu_s: Duration::from_nanos(self.cpu_ns.load(Ordering::Relaxed)).as_secs_f64(),
        }
    }

    pub(crate) fn gates(&self) -> [GateFacts; 2] {
        [open(&self.decoding).facts(), open(&self.decoded).facts()]
    }

    /// One line for the watchdog.
    pub(crate) fn describe(&self) -> String {
        let DecodeStats { threads, samples, refused, cpu_s, .. } = self.stats();
        let waits = if self.starved.load(Ordering::Relaxed) { ", no room for the next batch" } else { "" };
        format!(
            "decode: {} of {} batches inside, {samples} samples decoded, {refused} refused, {threads} threads, \
             {cpu_s:.1} CPU-s{waits}; {}; {}",
            self.inside(),
            self.depth,
            open(&self.decoding),
            open(&self.decoded)
        )
    }
}

/// A gate's numbers are whole at every moment: a thread that died at one has not spoilt them.
fn open(gate: &Mutex<Gate>) -> MutexGuard<'_, Gate> {
    gate.lock().unwrap_or_else(PoisonError::into_inner)
}
