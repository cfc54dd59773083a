//! What a loader measured: the consumer's side (data wait, readiness) and the shards' counters, added up.

use crate::decode::{DecodeStats, Facts};
use crate::memory::MemoryStats;
use crate::ranks::PeerFacts;
use fuelrail_base::Duration;
use fuelrail_base::metrics::{Histogram, Summary};
use fuelrail_flow::{GateFacts, Snapshot};
use serde::{Deserialize, Serialize};
use std::ops::Add;
use std::sync::Arc;

/// Sets each of these counters of one to what the function makes of it and of the other's.
macro_rules! each {
    ($with:expr, $of:expr, $and:expr; $($counter:ident),+) => { $($of.$counter = $with($of.$counter, $and.$counter);)+ };
}

/// Quantiles of a latency, µs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Quantiles {
    /// Median.
    pub p50: u64,
    /// 99th percentile.
    pub p99: u64,
    /// 99.9th percentile.
    pub p999: u64,
    /// Largest.
    pub max: u64,
    /// Number of values.
    #[serde(default)]
    pub count: u64,
    /// All values together.
    #[serde(default)]
    pub sum: u64,
}

impl From<Summary> for Quantiles {
    fn from(s: Summary) -> Quantiles {
        Quantiles { p50: s.p50_us, p99: s.p99_us, p999: s.p999_us, max: s.max_us, count: s.count, sum: s.sum_us }
    }
}

/// Counters and latencies since the loader was built.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Stats {
    /// Batches delivered.
    pub batches: u64,
    /// Samples delivered.
    pub samples: u64,
    /// Payload bytes delivered.
    pub bytes: u64,
    /// Samples left out under `skip` and `quarantine`.
    pub left_out: u64,
    /// Time since the shards started, s.
    pub wall_s: f64,
    /// Time spent inside `next_batch`, and in a program with a loop of its own between a look that found nothing and what came then, s.
    pub data_wait_s: f64,
    /// Share of `next_batch` calls that did not wait.
    pub readiness: f64,
    /// From the start of the shards until the program had the first batch, µs: how late it came to take it is part of that.
    pub first_batch_us: u64,
    /// Time inside each `next_batch` call, µs.
    pub batch_wait_us: Quantiles,
    /// From request to last byte of each block, µs.
    pub get_latency_us: Quantiles,
    /// Requests sent: also again where a connection closed before a request's turn, which counts as no retry.
    pub requests: u64,
    /// Attempts after the first.
    pub retries: u64,
    /// Times the server asked to slow down.
    pub throttled: u64,
    /// Requests sent a second time, or elsewhere, because the first took far longer than usual.
    #[serde(default)]
    pub hedges: u64,
    /// … whose answer was whole before the first one's.
    #[serde(default)]
    pub hedges_won: u64,
    /// Payload bytes that came twice because of that.
    #[serde(default)]
    pub wasted_bytes: u64,
    /// Blocks given up.
    pub given_up: u64,
    /// Samples fetched anew because checksum or ETags did not agree.
    pub unproved: u64,
    /// Blocks asked for.
    pub asks: u64,
    /// … served from the cache.
    pub hits: u64,
    /// … served by a fetch under way for another batch.
    pub shared: u64,
    /// Payload bytes asked for.
    pub asked_bytes: u64,
    /// … served from the cache.
    pub hit_bytes: u64,
    /// Share of the blocks asked for that took no request to the bucket of their own: RAM, disk, a rank or one under way had them.
    pub hit_ratio: f64,
    /// Of the epochs begun, distinct samples over samples of the data set: below 1 only where epochs are drawn by importance.
    /// A hit ratio says little without it, because what repeats a few samples hits.
    #[serde(default)]
    pub coverage: f64,
    /// Blocks dropped from the cache.
    pub evictions: u64,
    /// What the disk brought and took, where there is one.
    #[serde(default)]
    pub disk: Option<DiskFacts>,
    /// What other ranks sent and asked for, where they keep blocks for each other.
    #[serde(default)]
    pub peers: Option<PeerFacts>,
    /// Payload bytes that came from the bucket.
    pub landed_bytes: u64,
    /// Payload bytes our own code copied.
    pub copied_bytes: u64,
    /// … per byte delivered, or decoded.
    pub copied_bytes_per_byte: f64,
    /// Connections opened.
    pub connections: u64,
    /// … open now.
    pub connections_open: u64,
    /// … ended by an error.
    pub connections_failed: u64,
    /// TLS handshakes that ended well.
    #[serde(default)]
    pub tls_handshakes: u64,
    /// … made short by a ticket of an earlier connection.
    #[serde(default)]
    pub tls_resumed: u64,
    /// Response heads whose length was guessed right, and wrong.
    pub heads_predicted: u64,
    /// See `heads_predicted`.
    pub heads_mispredicted: u64,
    /// System calls of the rings.
    pub enters: u64,
    /// Completions reaped.
    pub completions: u64,
    /// Operations the rings have under way now.
    #[serde(default)]
    pub operations: u64,
    /// Memory the loader takes at most: the arena, the tables and the rest.
    #[serde(default)]
    pub memory: MemoryStats,
    /// Slots not at home now: the cache's, the connections' scratch memory, batches being filled, waiting and leased.
    #[serde(default)]
    pub slots: u64,
    /// Batches that the program holds now: the memory stays mapped until the last of them is dropped, also when the loader is closed.
    #[serde(default)]
    pub batches_held: u64,
    /// Occupancy of the gates between the stages, all shards together: near capacity downstream is slow, near 0 upstream.
    pub gates: Vec<GateStats>,
    /// System calls of the rings per MiB received; 0 before anything was.
    pub syscalls_per_mib: f64,
    /// Completions reaped per system call of the rings.
    pub completions_per_syscall: f64,
    /// The ring's back-end and the kernel abilities it uses.
    pub ring: String,
    /// What decoding did and cost, where samples are decoded. Its gates are among the others: `decode` near its capacity and
    /// `decoded` near zero mean that decoding is the limit.
    #[serde(default)]
    pub decode: Option<DecodeStats>,
    /// What each shard's core has cost and done, in the shards' order.
    pub shards: Vec<ShardStats>,
}

/// One shard's core.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct ShardStats {
    /// The core it is on.
    pub core: Option<usize>,
    /// Processor time in user mode, s.
    pub cpu_user_s: f64,
    /// Processor time in the kernel, s.
    pub cpu_system_s: f64,
    /// Times the shard gave its core up: it slept.
    pub switches_voluntary: u64,
    /// Times its core was taken from it.
    pub switches_involuntary: u64,
    /// Page faults served without a disk.
    pub faults_minor: u64,
    /// Payload bytes that came over the network.
    pub landed_bytes: u64,
    /// Bytes its ring received, heads included.
    pub received_bytes: u64,
    /// System calls of its ring.
    pub enters: u64,
    /// Waits of its ring that may have slept.
    pub sleeps: u64,
    /// Completions it reaped.
    pub completions: u64,
    /// System calls per MiB received; 0 before anything was.
    pub syscalls_per_mib: f64,
    /// Completions per system call.
    pub completions_per_syscall: f64,
}

impl From<&Snapshot> for ShardStats {
    fn from(shard: &Snapshot) -> ShardStats {
        let thread = shard.thread.unwrap_or_default();
        let counts = shard.ring.as_ref().map(|ring| ring.counts).unwrap_or_default();
        ShardStats {
            core: thread.core,
            cpu_user_s: thread.user.as_secs_f64(),
            cpu_system_s: thread.system.as_secs_f64(),
            switches_voluntary: thread.switches_voluntary,
            switches_involuntary: thread.switches_involuntary,
            faults_minor: thread.faults_minor,
            landed_bytes: shard.fetch.landed_bytes,
            received_bytes: counts.received_bytes,
            enters: counts.enters,
            sleeps: counts.sleeps,
            completions: counts.completions,
            ..ShardStats::default()
        }
        .with_ratios()
    }
}

impl ShardStats {
    /// User and system time together, s.
    #[must_use]
    pub fn cpu_s(&self) -> f64 {
        self.cpu_user_s + self.cpu_system_s
    }

    /// What the shard did since `earlier`.
    #[must_use]
    pub fn since(&self, earlier: &ShardStats) -> ShardStats {
        let mut since = ShardStats {
            cpu_user_s: (self.cpu_user_s - earlier.cpu_user_s).max(0.0),
            cpu_system_s: (self.cpu_system_s - earlier.cpu_system_s).max(0.0),
            ..self.clone()
        };
        each!(u64::saturating_sub, since, earlier; switches_voluntary, switches_involuntary, faults_minor, landed_bytes);
        each!(u64::saturating_sub, since, earlier; received_bytes, enters, sleeps, completions);
        since.with_ratios()
    }

    fn with_ratios(self) -> ShardStats {
        let (syscalls_per_mib, completions_per_syscall) =
            per_syscall(self.enters, self.completions, self.received_bytes);
        ShardStats { syscalls_per_mib, completions_per_syscall, ..self }
    }
}

/// System calls per MiB received, and completions per system call.
fn per_syscall(enters: u64, completions: u64, received_bytes: u64) -> (f64, f64) {
    (ratio(enters, received_bytes) * MIB, ratio(completions, enters))
}

const MIB: f64 = (1u64 << 20) as f64;

/// What the disk brought and took since the loader was built.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct DiskFacts {
    /// Blocks served from disk.
    pub hits: u64,
    /// … their payload bytes.
    pub hit_bytes: u64,
    /// Blocks that were there at the start: of an earlier run, or of another process.
    pub adopted: u64,
    /// Blocks written so far: what waits when the run is over is written until the loader is closed, for up to 5 s, and is not counted here.
    pub written: u64,
    /// … their payload bytes.
    pub written_bytes: u64,
    /// Blocks worth keeping that found no room.
    pub refused: u64,
    /// Blocks not kept because writes were behind.
    pub skipped: u64,
    /// Blocks that could not be written.
    pub write_failures: u64,
    /// Blocks that could not be read, or were not what was written: fetched again.
    pub lost: u64,
    /// Segments given up for better blocks.
    pub trims: u64,
    /// Segments lost with their disk.
    pub broken: u64,
    /// Segments created, taken over from ended processes at the start, and removed from ended processes to free room.
    pub segments_made: u64,
    /// See `segments_made`.
    pub segments_taken_over: u64,
    /// See `segments_made`.
    pub segments_reclaimed: u64,
    /// Operations that failed, on files and on directories.
    pub failures: u64,
    /// Directories nothing is kept in any more because they failed.
    pub directories_failed: u64,
    /// Bytes read from disk, rounded up to its units.
    pub read_bytes: u64,
    /// Bytes written to disk, padding and journal included.
    pub device_written_bytes: u64,
    /// Payload bytes of short blocks that the CPU copied on their way to the disk and back.
    pub copied_bytes: u64,
    /// From the command to the last byte of reads while nothing was being written, µs.
    pub read_alone_us: Quantiles,
    /// … of reads that met writes, µs.
    pub read_beside_writes_us: Quantiles,
    /// Memory that knowing where blocks lie takes, bytes.
    pub index_bytes: u64,
    /// Blocks on disk now.
    pub blocks: u64,
}

impl DiskFacts {
    /// The same, with what the segment manager has counted.
    pub(crate) fn with_segment_manager(mut self, counted: &DiskFacts) -> DiskFacts {
        each!(u64::add, self, counted; segments_made, segments_taken_over, segments_reclaimed, failures, directories_failed);
        self
    }

    pub(crate) fn add(&mut self, shard: &Snapshot) {
        let (planner, disk) = (&shard.planner.spill, &shard.disk);
        each!(u64::add, self, planner; hits, hit_bytes, adopted, written, written_bytes, refused, skipped, write_failures);
        each!(u64::add, self, planner; lost, trims, broken);
        each!(u64::add, self, disk; failures, read_bytes, copied_bytes);
        self.device_written_bytes += disk.written_bytes;
        self.index_bytes += shard.index_bytes;
        self.blocks += shard.disk_blocks;
    }
}

/// One gate over all shards.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct GateStats {
    /// `fetch` (blocks requested), `assemble` (batches being filled), `deliver` (batches waiting for the consumer, or to be
    /// decoded), `decode` (batches being decoded), `decoded` (batches waiting for the consumer).
    pub name: String,
    /// Most things it may hold.
    pub capacity: usize,
    /// Things that have gone through.
    pub passed: u64,
    /// Mean number of things inside.
    pub occupancy_mean: f64,
    /// Mean time inside, µs.
    pub wait_us_mean: f64,
}

/// What the consumer's side counts.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Tally {
    pub batches: u64,
    pub samples: u64,
    pub bytes: u64,
    pub left_out: u64,
    pub calls: u64,
    pub ready: u64,
    pub wait: Duration,
    /// Of the call that has not brought a batch yet.
    pub waiting: Duration,
    pub first_batch: Duration,
    /// Places of the epochs begun, and distinct samples in them.
    pub places: u64,
    pub distinct: u64,
    epoch: Option<u64>,
}

impl Tally {
    /// A batch of this epoch, which has so many distinct samples: all of them, if nothing is said.
    pub(crate) fn begin(&mut self, epoch: u64, samples: u64, distinct: Option<u64>) {
        if self.epoch.replace(epoch) != Some(epoch) {
            self.places += samples;
            self.distinct += distinct.unwrap_or(samples);
        }
    }

    /// A call for a batch has ended, however often it looked. Returns how long it has waited.
    pub(crate) fn end_call(&mut self, ready: bool) -> Duration {
        let waited = core::mem::take(&mut self.waiting);
        self.calls += 1;
        self.ready += u64::from(ready);
        self.wait += waited;
        waited
    }
}

impl Stats {
    pub(crate) fn new(tally: &Tally, wall: Duration, shards: &[Snapshot]) -> Stats {
        let (mut gets, mut alone, mut beside) = (Histogram::new(), Histogram::new(), Histogram::new());
        let mut stats = Stats {
            batches: tally.batches,
            samples: tally.samples,
            bytes: tally.bytes,
            left_out: tally.left_out,
            coverage: ratio(tally.distinct, tally.places),
            wall_s: wall.as_secs_f64(),
            data_wait_s: tally.wait.as_secs_f64(),
            readiness: ratio(tally.ready, tally.calls),
            first_batch_us: u64::try_from(tally.first_batch.as_micros()).unwrap_or(u64::MAX),
            ..Stats::default()
        };
        let (mut disk, mut peers) = (DiskFacts::default(), PeerFacts::default());
        for shard in shards {
            stats.add(shard);
            disk.add(shard);
            peers.add(shard);
            gets.merge(&shard.get_latency);
            alone.merge(&shard.disk.read_alone);
            beside.merge(&shard.disk.read_beside);
        }
        (disk.read_alone_us, disk.read_beside_writes_us) = (alone.summary().into(), beside.summary().into());
        stats.get_latency_us = gets.summary().into();
        let spared = (stats.hits + stats.shared + peers.hits + disk.hits).saturating_sub(disk.lost);
        stats.hit_ratio = ratio(spared.min(stats.asks), stats.asks);
        stats.peers = (peers != PeerFacts::default()).then_some(peers);
        stats.disk = (disk.index_bytes > 0).then_some(disk);
        stats.copied_bytes_per_byte = ratio(stats.copied_bytes, stats.bytes);
        let received: u64 = stats.shards.iter().map(|shard| shard.received_bytes).sum();
        (stats.syscalls_per_mib, stats.completions_per_syscall) =
            per_syscall(stats.enters, stats.completions, received);
        stats
    }

    /// The same, with what the decode stage has to tell.
    pub(crate) fn with_decode(mut self, facts: Option<&Arc<Facts>>) -> Stats {
        if let Some(facts) = facts {
            let decode = facts.stats();
            self.copied_bytes_per_byte = ratio(self.copied_bytes, decode.object_bytes);
            facts.gates().iter().for_each(|gate| self.add_gate(gate));
            self.decode = Some(decode);
        }
        self
    }

    /// Adds a gate to those of its name.
    fn add_gate(&mut self, gate: &GateFacts) {
        let at = self.gates.iter().position(|known| known.name == gate.name).unwrap_or(self.gates.len());
        if at == self.gates.len() {
            self.gates.push(GateStats {
                name: gate.name.into(),
                wait_us_mean: gate.wait_us_mean,
                ..GateStats::default()
            });
        }
        let sum = &mut self.gates[at];
        sum.wait_us_mean = mean((sum.wait_us_mean, sum.passed), (gate.wait_us_mean, gate.passed));
        sum.passed += gate.passed;
        sum.capacity += gate.capacity;
        sum.occupancy_mean += gate.occupancy_mean;
    }

    fn add(&mut self, shard: &Snapshot) {
        let (planner, fetch) = (&shard.planner, &shard.fetch);
        self.shards.push(ShardStats::from(shard));
        each!(u64::add, self, fetch; requests, landed_bytes, connections, connections_open, connections_failed);
        each!(u64::add, self, fetch; tls_handshakes, tls_resumed, heads_predicted, heads_mispredicted);
        each!(u64::add, self, planner; retries, throttled, given_up, hedges, hedges_won, evictions);
        each!(u64::add, self, planner; asks, hits, shared, asked_bytes, hit_bytes);
        each!(u64::add, self, shard; wasted_bytes, copied_bytes, unproved);
        self.operations += shard.operations as u64;
        shard.gates.iter().for_each(|gate| self.add_gate(gate));
        if let Some(ring) = &shard.ring {
            self.enters += ring.counts.enters;
            self.completions += ring.counts.completions;
            self.ring = format!("{} ({})", ring.backend, ring.abilities.join(", "));
        }
    }
}

/// Adds what another shard had counted in the place of this one before it ended. Gauges stay those of this one.
pub(crate) fn add_ended(shard: &mut Snapshot, ended: &Snapshot) {
    let Snapshot { planner, fetch, disk, ring, thread, gates, .. } = shard;
    let (spill, before) = (&mut planner.spill, &ended.planner.spill);
    each!(u64::add, spill, before; hits, hit_bytes, adopted, written, written_bytes, refused, skipped, write_failures);
    each!(u64::add, spill, before; lost, trims, broken);
    each!(u64::add, planner, ended.planner; asks, hits, shared, asked_bytes, hit_bytes, retries, throttled, given_up);
    each!(u64::add, planner, ended.planner; hedges, hedges_won, evictions);
    each!(u64::add, fetch, ended.fetch; requests, connections, connections_failed, landed_bytes, copied_bytes);
    each!(u64::add, fetch, ended.fetch; tls_handshakes, tls_resumed, heads_predicted, heads_mispredicted);
    each!(u64::add, disk, ended.disk; read_bytes, written_bytes, copied_bytes, failures);
    disk.read_alone.merge(&ended.disk.read_alone);
    disk.read_beside.merge(&ended.disk.read_beside);
    if let Some((ring, ended)) = ring.as_mut().zip(ended.ring.as_ref()) {
        each!(u64::add, ring.counts, ended.counts; enters, sleeps, completions, received_bytes);
    }
    if let Some((thread, ended)) = thread.as_mut().zip(ended.thread) {
        (thread.user, thread.system) = (thread.user + ended.user, thread.system + ended.system);
        each!(u64::add, thread, ended; switches_voluntary, switches_involuntary, faults_minor);
    }
    for (gate, ended) in gates.iter_mut().zip(&ended.gates) {
        gate.wait_us_mean = mean((gate.wait_us_mean, gate.passed), (ended.wait_us_mean, ended.passed));
        gate.passed += ended.passed;
    }
    each!(u64::add, shard, ended; copied_bytes, wasted_bytes, unproved);
    shard.get_latency.merge(&ended.get_latency);
}

/// The mean over both, of a mean each over so many.
fn mean(a: (f64, u64), b: (f64, u64)) -> f64 {
    let all = a.1 + b.1;
    if all == 0 { a.0 } else { (a.0 * a.1 as f64 + b.0 * b.1 as f64) / all as f64 }
}

fn ratio(a: u64, b: u64) -> f64 {
    if b == 0 { 0.0 } else { a as f64 / b as f64 }
}
