//! How long epochs take: the shipping planner and flow, played in virtual time with a given bucket, memory and trainer.
//!
//! Nothing goes wrong here, and work takes no processor time. A data set too large to be played is made smaller, with its tiers.

use fuelrail_base::limits::PIPELINE_DEPTH_MAX;
use fuelrail_base::{Error, Kind, Result};
use fuelrail_plan::order::OrderName;
use fuelrail_plan::policy::PolicyName;
use fuelrail_plan::schedule::horizon_epochs;
use serde::Serialize;

use crate::run::run_sound;
use crate::scenario::{DiskShape, SEGMENT_BYTES, Scenario};

/// What is played. Sizes of memory are those of one rank.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
pub struct World {
    /// Samples of the data set.
    pub samples: u64,
    /// Bytes a sample.
    pub sample_bytes: u64,
    /// Longest span that is fetched as one.
    pub block_bytes: u64,
    /// Samples per batch and rank.
    pub batch_size: u32,
    /// Ranks that share each epoch.
    pub ranks: u32,
    /// Epochs of the run.
    pub epochs: u64,
    /// Whether samples come back to the same rank.
    pub sticky: bool,
    /// Shards of a rank.
    pub shards: u16,
    /// Most connections of a shard for first requests: [`first_requests`](fuelrail_plan::hedge::first_requests).
    pub connections_max: usize,
    /// Memory for batches, which bounds how far is read ahead.
    pub room_bytes: u64,
    /// RAM for samples.
    pub cache_bytes: u64,
    /// Disk for samples; 0 without one.
    pub disk_bytes: u64,
    /// From request to first byte, seconds.
    pub latency_s: f64,
    /// Bytes a second of all ranks together; 0 where there is no limit.
    pub bytes_per_s: u64,
    /// Requests a second of all ranks together; 0 where there is no limit.
    pub requests_per_s: u64,
    /// The trainer's step, seconds.
    pub step_s: f64,
}

/// The largest set that is played, bytes and samples.
const BYTES_MAX: f64 = 64e6;
const SAMPLES_MAX: u64 = 20_000;
/// Steps an epoch of a smaller set keeps.
const STEPS_MIN: u64 = 24;
/// Batches that a shard has room for at least.
const BATCHES_MIN: u64 = 4;
/// Room of a batch per sample, besides the sample's bytes.
const SAMPLE_EXTRA: u64 = 64;
/// Longest time to connect, µs.
const CONNECT_US: u64 = 100;
const CONNECTION_BYTES_PER_S: u64 = 4 << 30;
/// Orders that are played, of the seeds from 1 on: an epoch's time depends on the order, most of all where ranks keep in step.
pub const ORDERS: u32 = 4;

/// Seconds of each epoch, mean over the ranks and over [`ORDERS`] orders.
///
/// # Errors
/// `Usage` for a world that no loader is made for; `Environment` when a check of the simulation fails: a bug of the engine.
pub fn epochs_s(world: &World) -> Result<Vec<f64>> {
    let numbers = [world.samples, world.sample_bytes, world.block_bytes, u64::from(world.batch_size), world.epochs];
    let others = [u64::from(world.ranks), u64::from(world.shards), world.connections_max as u64];
    let times = [world.latency_s, world.step_s];
    if numbers.into_iter().chain(others).any(|number| number == 0) || !times.iter().all(|s| (0.0..1e4).contains(s)) {
        return Err(Error::new(Kind::Usage, format!("nothing can be played of {world:?}"))
            .with_hint("give sizes and counts above 0, and times below 10000 s"));
    }
    let (small, factor) = world.smaller();
    let played = std::thread::scope(|scope| {
        let runs: Vec<_> =
            (1..=u64::from(ORDERS)).map(|seed| scope.spawn(move || run_sound(&small.scenario(seed)))).collect();
        runs.into_iter().map(|run| run.join().expect("a run catches its panics")).collect::<Result<Vec<_>>>()
    })?;
    let mean = |epoch| played.iter().map(|report| report.epoch_s[epoch]).sum::<f64>() / played.len() as f64;
    Ok((0..played[0].epoch_s.len()).map(|epoch| mean(epoch) * factor).collect())
}

impl World {
    /// A world small enough to be played, and how many times as long an epoch of this one takes: with fewer samples, and where the fewest
    /// possible are too many bytes, with shorter ones from a slower bucket.
    fn smaller(&self) -> (World, f64) {
        let step = u64::from(self.batch_size) * u64::from(self.ranks);
        let fit = ((self.samples as f64 * (BYTES_MAX / self.bytes()).min(1.0)) as u64).min(SAMPLES_MAX);
        let samples = fit.next_multiple_of(step).max(STEPS_MIN * step).min(self.samples);
        let shorter = (BYTES_MAX / (samples as f64 * self.sample_bytes as f64)).min(1.0);
        let times = self.samples as f64 / samples as f64;
        let short = |bytes: u64| ((bytes as f64 * shorter) as u64).max(1);
        let tier = |bytes: u64| (bytes as f64 * shorter / times) as u64;
        let small = World {
            samples,
            sample_bytes: short(self.sample_bytes),
            block_bytes: short(self.block_bytes),
            room_bytes: tier(self.room_bytes),
            cache_bytes: tier(self.cache_bytes),
            disk_bytes: tier(self.disk_bytes),
            bytes_per_s: if self.bytes_per_s == 0 { 0 } else { short(self.bytes_per_s) },
            ..*self
        };
        (small, times)
    }

    /// Bytes of the data set.
    pub fn bytes(&self) -> f64 {
        self.samples as f64 * self.sample_bytes as f64
    }

    fn scenario(&self, seed: u64) -> Scenario {
        let mut scenario = Scenario::quiet(seed, self.samples, self.sample_bytes, self.batch_size);
        scenario.order = if self.sticky { OrderName::Sticky } else { OrderName::Global };
        (scenario.block_bytes, scenario.epochs) = (self.block_bytes, self.epochs);
        // Trainers sum their gradients in every step.
        (scenario.lives[0].world, scenario.lockstep) = (self.ranks, true);
        let micros = |seconds: f64| (seconds * 1e6).round() as u64;
        let bucket = &mut scenario.bucket;
        (bucket.latency_us, bucket.connect_us) = ((micros(self.latency_s), micros(self.latency_s)), CONNECT_US);
        (bucket.connection_bytes_per_s, bucket.total_bytes_per_s) = (CONNECTION_BYTES_PER_S, self.bytes_per_s);
        (bucket.etags, bucket.crc32c, bucket.requests_per_s) = ((true, true), false, self.requests_per_s);
        let shards = u64::from(self.shards);
        let loader = &mut scenario.loader;
        (loader.shards, loader.policy, loader.cache_bytes) = (self.shards, PolicyName::NextUse, self.cache_bytes);
        (loader.connections_start, loader.connections_max) = (8.min(self.connections_max), self.connections_max);
        (loader.depth_max, loader.ring_sockets) = (PIPELINE_DEPTH_MAX, 2 * self.connections_max as u32 + 2);
        loader.ring_entries = (2 * self.connections_max as u32 + 16).next_power_of_two().max(64);
        // As the loader waits when it is asked to slow down: half a second at most.
        (loader.retry_base_us, loader.retry_cap_us) = (250_000, 20_000_000);
        let kept = (self.cache_bytes + self.disk_bytes) as f64 / self.bytes();
        loader.horizon_epochs = horizon_epochs(self.ranks, kept);
        let batch = u64::from(self.batch_size) * (self.sample_bytes.next_multiple_of(64) + SAMPLE_EXTRA);
        loader.room_bytes = (self.room_bytes / shards).max(BATCHES_MIN * batch);
        (loader.stall_after_ms, loader.spare_bytes) = (60_000, self.sample_bytes.min(self.block_bytes) as usize);
        (scenario.consumer.steady, scenario.consumer.step_us) = (true, micros(self.step_s));
        if self.disk_bytes > 0 {
            let segments_max = (self.disk_bytes / SEGMENT_BYTES / shards).max(1) * shards;
            let disk = DiskShape { segments_max, unit: 4096, ..DiskShape::faultless() };
            scenario.add_disk(disk);
        }
        scenario
    }
}
