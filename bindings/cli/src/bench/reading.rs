//! Reading a bucket as a trainer would, and what it cost: the measurement behind `fuelrail bench read`.
//!
//! Owns the measuring and the shape of its result. Never prints. What is counted, and from when to when:
//!
//! * **Wall time** runs from before the listing to the end of the last batch, simulated steps included.
//! * **CPU** is user and system time of the whole process, from before the listing until the loader is gone with its
//!   threads and memory. The bucket's own CPU is in it when the bucket runs in this process: measure against another.
//! * **The content hash** (XXH3-128 over the delivered samples in the order of delivery) is the harness's work, not the
//!   loader's: the time of the hashing thread's own CPU clock is subtracted from the user time and reported as `hash_cpu_s`. It is
//!   still in the wall time, and it warms the caches: `hash: false` measures speed without it.
//! * **Peak memory** is that of the process since it started.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use fuelrail::{
    Batch, Config, DiskFacts, Error, GateStats, Kind, Loader, LoaderBuilder, PeerFacts, Quantiles, Result, ShardStats,
    State, Stats,
};
use fuelrail_base::metrics::Histogram;
use rustix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::Xxh3;

use crate::machine::Machine;

/// Version of the result's shape.
pub const SCHEMA: u32 = 2;

/// What to read and how to consume it.
#[derive(Clone, Debug, Default)]
pub struct Reading {
    /// The loader's configuration.
    pub config: Config,
    /// Whether to hash the samples.
    pub hash: bool,
    /// The fields of records that are hashed, in this order; none hashes all bytes of each sample.
    pub fields: Vec<String>,
    /// The trainer's step, simulated by waiting after every batch.
    pub step: Duration,
    /// Where the loader's state is kept: resumed from when the file exists, written after every batch.
    pub state: Option<PathBuf>,
}

/// What a reading tells while it runs.
#[derive(Debug)]
pub enum Event<'a> {
    /// The loader is open: its effective configuration and its notices can be shown.
    Opened(&'a Loader),
    /// A batch was consumed.
    Batch(Progress),
}

/// How far a reading has come.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Progress {
    /// Batches consumed.
    pub batches: u64,
    /// Batches this run will consume.
    pub batches_total: u64,
    /// Samples consumed.
    pub samples: u64,
    /// Their bytes.
    pub bytes: u64,
}

/// What a reading cost. Rates per byte or sample are absent when nothing was delivered. GB are 10⁹ bytes.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ReadReport {
    /// [`SCHEMA`].
    pub schema: u32,
    /// From before the listing to the end of the last batch, s.
    pub wall_s: f64,
    /// Payload delivered.
    pub bytes: u64,
    /// Samples delivered.
    pub samples: u64,
    /// Batches delivered.
    pub batches: u64,
    /// Payload per wall time, GB/s.
    pub gb_per_s: f64,
    /// Samples per wall time.
    pub samples_per_s: f64,
    /// User time of the process, without the hashing, s.
    pub cpu_user_s: f64,
    /// System time of the process, s.
    pub cpu_sys_s: f64,
    /// User and system time per payload, s/GB.
    pub cpu_s_per_gb: Option<f64>,
    /// User and system time per sample, µs.
    pub cpu_us_per_sample: Option<f64>,
    /// CPU time of the content hash, which is in none of the above, s.
    pub hash_cpu_s: f64,
    /// Most memory the process ever had resident.
    pub peak_rss_bytes: u64,
    /// Memory that the loader has for batches. Absent in results of schema 1 and of shared reads.
    #[serde(default)]
    pub batch_memory_bytes: Option<u64>,
    /// Payload bytes the loader's own code copied, per byte delivered. The kernel's copy is not counted.
    pub copied_bytes_per_byte: f64,
    /// Time inside `next_batch`, per batch.
    pub batch_wait_us: Quantiles,
    /// From request to last byte of each block, µs.
    #[serde(default)]
    pub get_latency_us: Quantiles,
    /// From before the listing to the first batch, µs.
    pub first_batch_us: u64,
    /// Time to the first batch of every epoch: of the run's first as `first_batch_us`, of the others inside `next_batch`.
    pub epoch_first_batch_us: Quantiles,
    /// Time inside `next_batch`, all batches together, s.
    pub data_wait_s: f64,
    /// Share of `next_batch` calls that did not wait.
    pub readiness: f64,
    /// Share of the blocks asked for that took no request to the bucket of their own.
    pub hit_ratio: f64,
    /// What the disk brought and took, where there is one.
    #[serde(default)]
    pub disk: Option<DiskFacts>,
    /// What other ranks sent and asked for, where they keep blocks for each other.
    #[serde(default)]
    pub peers: Option<PeerFacts>,
    /// Attempts beyond the first.
    pub retries: u64,
    /// Requests in answer to which the server asked to slow down. Absent in results of schema 1.
    #[serde(default)]
    pub throttled: u64,
    /// Requests sent.
    pub requests: u64,
    /// Samples skipped by the policy for bad samples.
    pub left_out: u64,
    /// System calls of the rings per MiB received.
    #[serde(default)]
    pub syscalls_per_mib: f64,
    /// Completions reaped per system call of the rings.
    #[serde(default)]
    pub completions_per_syscall: f64,
    /// The ring's back-end and the kernel abilities it used.
    #[serde(default)]
    pub ring: String,
    /// Occupancy of the gates between the stages: near its capacity means downstream is slow, near zero means upstream is.
    #[serde(default)]
    pub gates: Vec<GateStats>,
    /// What each shard's core has cost and done. Absent in results of schema 1.
    #[serde(default)]
    pub shards: Vec<ShardStats>,
    /// XXH3-128 over the delivered samples in order, 32 hexadecimal digits; absent when not asked for.
    pub content_hash: Option<String>,
    /// The loader's notices: fall-backs, their causes and hints.
    pub notices: Vec<String>,
    /// Where it was measured.
    pub machine: Machine,
    /// The effective configuration.
    pub config: Config,
    /// Whether the samples were hashed.
    pub hash: bool,
    /// The simulated step, ms.
    pub step_ms: f64,
}

/// Reads all that `reading` asks for. `watch` hears of the start and of every batch.
///
/// # Errors
/// Those of the loader; `Usage` when the state file is not a state of this run, `File` when it cannot be read or written.
pub fn read(reading: &Reading, watch: &mut dyn FnMut(Event<'_>)) -> Result<ReadReport> {
    let cpu_before = fuelrail::internal::process_cpu();
    let start = Instant::now();
    let mut loader = open(reading)?;
    let (hash, fields) = (reading.hash.then(Box::default), reading.fields.clone());
    let mut tally = Tally { hash, fields, ..Tally::default() };
    tally.progress.batches_total = loader.batches();
    watch(Event::Opened(&loader));
    loop {
        let asked = Instant::now();
        let Some(batch) = loader.next_batch() else { break };
        let batch = batch?;
        tally.arrived(&batch, start, asked);
        // The trainer works on its own copy on a device: the batch's memory is free again during the step.
        drop(batch);
        if !reading.step.is_zero() {
            std::thread::sleep(reading.step);
        }
        if let Some(path) = &reading.state {
            save(&loader.state(), path)?;
        }
        watch(Event::Batch(tally.progress));
    }
    let wall = start.elapsed();
    let (stats, config, notices) = (loader.stats(), loader.config().clone(), loader.notices().to_vec());
    drop(loader);
    let cpu_after = fuelrail::internal::process_cpu();
    let user = (cpu_after.0 - cpu_before.0).saturating_sub(tally.hash_cpu);
    let report = tally.report(wall, (user, cpu_after.1 - cpu_before.1), stats);
    Ok(ReadReport { config, notices, hash: reading.hash, step_ms: reading.step.as_secs_f64() * 1e3, ..report })
}

fn open(reading: &Reading) -> Result<Loader> {
    let builder = LoaderBuilder::new(reading.config.clone());
    match reading.state.as_deref().map(saved).transpose()?.flatten() {
        Some(state) => builder.resume(state).build(),
        None => builder.build(),
    }
}

/// The state in the file; `None` when there is no file yet.
fn saved(path: &Path) -> Result<Option<State>> {
    match fs::read(path) {
        Ok(text) => State::from_json(&String::from_utf8_lossy(&text)).map(Some).map_err(|error| {
            let cause = format!("{}: {}", path.display(), error.cause());
            Error::new(error.kind(), cause).with_hint("use another file, or remove this one to start over")
        }),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(Error::from_io(Kind::File, format_args!("reading the state {}", path.display()), error)),
    }
}

/// Replaces the file in one step: a process killed at any moment leaves the old state or the new one, never a torn one.
fn save(state: &State, path: &Path) -> Result<()> {
    let beside = path.with_added_extension("new");
    let written = fs::File::create(&beside)
        .and_then(|mut file| file.write_all(state.to_json().as_bytes()))
        .and_then(|()| fs::rename(&beside, path))
        .inspect_err(|_| drop(fs::remove_file(&beside)));
    written.map_err(|error| Error::from_io(Kind::File, format_args!("writing the state {}", path.display()), error))
}

/// What the consumer sees, batch by batch.
#[derive(Default)]
struct Tally {
    progress: Progress,
    waits: Histogram,
    epoch_first: Histogram,
    first_batch: Option<Duration>,
    epoch: Option<u64>,
    waited: Duration,
    hash: Option<Box<Xxh3>>,
    fields: Vec<String>,
    hash_cpu: Duration,
}

impl Tally {
    fn arrived(&mut self, batch: &Batch, start: Instant, asked: Instant) {
        let now = Instant::now();
        let wait = now - asked;
        self.waits.record(wait);
        self.waited += wait;
        let first = *self.first_batch.get_or_insert(now - start);
        if self.epoch != Some(batch.epoch()) {
            self.epoch_first.record(if self.epoch.is_none() { first } else { wait });
            self.epoch = Some(batch.epoch());
        }
        if let Some(hash) = &mut self.hash {
            let before = thread_cpu();
            if self.fields.is_empty() {
                batch.samples().for_each(|sample| hash.update(sample.bytes));
            }
            for (i, name) in (0..batch.len()).flat_map(|i| self.fields.iter().map(move |name| (i, name))) {
                hash.update(&batch.field(i, name).unwrap_or_default());
            }
            self.hash_cpu += thread_cpu().saturating_sub(before);
        }
        self.progress.batches += 1;
        self.progress.samples += batch.len() as u64;
        self.progress.bytes += batch.payload_bytes();
    }

    /// What it cost; what was asked for is not in it yet.
    fn report(self, wall: Duration, (user, system): (Duration, Duration), stats: Stats) -> ReadReport {
        let Progress { batches, samples, bytes, .. } = self.progress;
        let (wall_s, cpu_s, gb) = (wall.as_secs_f64(), (user + system).as_secs_f64(), bytes as f64 / 1e9);
        ReadReport {
            schema: SCHEMA,
            wall_s,
            bytes,
            samples,
            batches,
            gb_per_s: gb / wall_s,
            samples_per_s: samples as f64 / wall_s,
            cpu_user_s: user.as_secs_f64(),
            cpu_sys_s: system.as_secs_f64(),
            cpu_s_per_gb: (bytes > 0).then(|| cpu_s / gb),
            cpu_us_per_sample: (samples > 0).then(|| cpu_s * 1e6 / samples as f64),
            hash_cpu_s: self.hash_cpu.as_secs_f64(),
            peak_rss_bytes: fuelrail::internal::memory_use().peak_rss_bytes,
            batch_memory_bytes: Some(stats.memory.batch_bytes).filter(|bytes| *bytes > 0),
            copied_bytes_per_byte: stats.copied_bytes_per_byte,
            batch_wait_us: self.waits.summary().into(),
            get_latency_us: stats.get_latency_us,
            first_batch_us: self.first_batch.map_or(0, |first| first.as_micros() as u64),
            epoch_first_batch_us: self.epoch_first.summary().into(),
            data_wait_s: self.waited.as_secs_f64(),
            readiness: stats.readiness,
            hit_ratio: stats.hit_ratio,
            disk: stats.disk,
            peers: stats.peers,
            retries: stats.retries,
            throttled: stats.throttled,
            requests: stats.requests,
            left_out: stats.left_out,
            syscalls_per_mib: stats.syscalls_per_mib,
            completions_per_syscall: stats.completions_per_syscall,
            ring: stats.ring,
            gates: stats.gates,
            shards: stats.shards,
            content_hash: self.hash.map(|hash| format!("{:032x}", hash.digest128())),
            machine: Machine::here(),
            notices: Vec::new(),
            config: Config::default(),
            hash: false,
            step_ms: 0.0,
        }
    }
}

/// CPU time of this thread, to the nanosecond: `getrusage` moves with the scheduler's ticks, too coarse for one batch.
fn thread_cpu() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}
