//! Tuning a loader to a machine and a bucket: the search behind `fuelrail tune`.
//!
//! Owns the trials (short readings of the real bucket with one setting each), the time they may take, and the shape of the
//! result. Which setting to try next is [`fuelrail_plan::tune`]'s. Never prints and writes no file.

use std::time::{Duration, Instant};

use fuelrail::{ByteSize, Config, Error, Kind, Listed, LoaderBuilder, Result, RingChoice, Stats};
use fuelrail_plan::tune::{Axis, Forecast, Measured, Point, Range, Search, Space, limit};
use serde::{Deserialize, Serialize};

use crate::machine::Machine;

/// Version of the result's shape.
pub const SCHEMA: u32 = 1;

/// What to tune, and for how long.
#[derive(Clone, Debug)]
pub struct Tuning {
    /// The loader's configuration; what is tuned is replaced in it.
    pub config: Config,
    /// The objects under its URI, listed once.
    pub listing: Vec<Listed>,
    /// Time for everything, the final run included.
    pub budget: Duration,
    /// Seed of the search.
    pub seed: u64,
    /// Rings to choose from. The first is where the search starts.
    pub rings: Vec<RingChoice>,
}

/// Progress of the tuner.
#[derive(Clone, Copy, Debug)]
pub struct Progress<'a> {
    /// Trials so far.
    pub trials: u32,
    /// Time spent.
    pub spent: Duration,
    /// What it brought, GB/s; absent when it was refused.
    pub gb_per_s: Option<f64>,
    /// The best so far.
    pub best: &'a Setting,
}

/// The fields of [`Config`] that are tuned.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Setting {
    /// Threads.
    pub shards: u16,
    /// Most connections per shard.
    pub connections_max: usize,
    /// Longest span fetched as one.
    pub block_bytes: u64,
    /// All buffers together: how far the loader can look ahead.
    pub memory_limit_bytes: u64,
    /// The ring's back-end.
    pub ring: String,
    /// Whether the memory is registered with it.
    pub register: bool,
}

/// One setting and what its trials brought.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Tried {
    /// The setting.
    pub setting: Setting,
    /// Each trial's speed, GB/s; none when the setting was refused.
    pub gb_per_s: Vec<f64>,
    /// Mean processor time of the shards, s per GB.
    pub cpu_s_per_gb: f64,
}

/// What the final run was expected to bring, and brought.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
pub struct Outcome {
    /// Expected from the trials, GB/s.
    pub predicted_gb_per_s: f64,
    /// Nineteen of twenty runs should lie between this …
    pub predicted_low_gb_per_s: f64,
    /// … and this.
    pub predicted_high_gb_per_s: f64,
    /// Measured in the final run, GB/s.
    pub achieved_gb_per_s: f64,
    /// Expected processor time of the shards, s per GB.
    pub predicted_cpu_s_per_gb: f64,
    /// Measured in the final run, s per GB.
    pub achieved_cpu_s_per_gb: f64,
}

/// The whole result.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct TuneReport {
    /// [`SCHEMA`].
    pub schema: u32,
    /// Time allowed, s.
    pub budget_s: f64,
    /// Time used, s.
    pub spent_s: f64,
    /// Trials made.
    pub trials: u32,
    /// Settings there were to choose from.
    pub settings: u64,
    /// Scatter of a single trial, as a share of its speed.
    pub noise: f64,
    /// The untuned setting's mean speed, GB/s.
    pub start_gb_per_s: f64,
    /// The setting chosen.
    pub best: Setting,
    /// What limits it, in a word: `link`, `throttled`, `cpu`, `latency`, `memory` or `bucket`.
    pub limit: String,
    /// The same in a sentence, with what would help.
    pub explanation: String,
    /// Predicted beside achieved.
    pub outcome: Outcome,
    /// Every setting tried.
    pub tried: Vec<Tried>,
    /// Speed of the fastest network card, Gbit/s, when it tells and the bucket is not on this machine.
    pub link_gbit_per_s: Option<f64>,
    /// Where it was measured.
    pub machine: Machine,
    /// The tuned configuration.
    pub config: Config,
}

/// A trial warms up for this share of its time.
const WARM_UP: f64 = 0.25;
/// Trials last a hundredth of the budget, but no shorter and no longer than this.
const TRIAL_MIN: Duration = Duration::from_millis(250);
const TRIAL_MAX: Duration = Duration::from_millis(1_500);
/// The final run lasts so many trials.
const FINAL_TRIALS: u32 = 5;
/// Room that one batch needs is the least memory worth trying.
const MEMORY_STEPS: u32 = 4;

/// Tunes. `watch` hears of every trial.
///
/// # Errors
/// `Usage` when the budget is too short or there is nothing to read; those of the loader when no setting works at all.
pub fn tune(tuning: &Tuning, watch: &mut dyn FnMut(Progress<'_>)) -> Result<TuneReport> {
    let begun = Instant::now();
    let trial = (tuning.budget / 100).clamp(TRIAL_MIN, TRIAL_MAX);
    // Besides a trial's reading there is the loader's start and end.
    let slot = trial + trial / 2;
    if tuning.budget < slot * (FINAL_TRIALS + 10) {
        let least = (slot * (FINAL_TRIALS + 10)).as_secs_f64().ceil();
        return Err(Error::new(Kind::Usage, format!("a budget of {:?} is too short", tuning.budget))
            .with_hint(format!("give at least {least} s")));
    }
    if tuning.listing.iter().all(|object| object.size == 0) {
        return Err(fuelrail::internal::no_objects(&tuning.config.uri));
    }
    let space = space(tuning)?;
    let mut search = Search::new(space, tuning.seed, (tuning.budget.as_nanos() / slot.as_nanos()) as u32);
    let (mut trials, mut last_refusal) = (0, None);
    loop {
        let spent = begun.elapsed();
        // Trials that turn out slower than thought shorten the search, never lengthen it.
        let each = slot.max(spent / trials.max(1));
        let left = tuning.budget.saturating_sub(spent).as_nanos() / each.as_nanos();
        // However slow the machine: something is tried.
        let affordable = (left as u32).saturating_sub(FINAL_TRIALS).max(u32::from(trials == 0));
        let Some(point) = search.next(affordable) else { break };
        let setting = setting(search.space(), &point, tuning);
        let told = measure(tuning, &setting, trial);
        trials += 1;
        let speed = told.as_ref().ok().map(|measured| measured.bytes_per_s / 1e9);
        match told {
            Ok(measured) => search.tell(&point, measured),
            Err(error) if is_of_the_setting(&error) => {
                search.refuse(&point);
                last_refusal = Some(error);
            }
            Err(error) => return Err(error),
        }
        let best = self::setting(search.space(), search.best(), tuning);
        watch(Progress { trials, spent: begun.elapsed(), gb_per_s: speed, best: &best });
    }
    let Some(forecast) = search.forecast() else {
        return Err(
            last_refusal.unwrap_or_else(|| Error::new(Kind::Usage, "no setting could be tried within the budget"))
        );
    };
    let best = setting(search.space(), search.best(), tuning);
    let achieved = measure(tuning, &best, trial * FINAL_TRIALS)?;
    let report = report(tuning, &search, best, &forecast, &achieved);
    Ok(TuneReport { trials, spent_s: begun.elapsed().as_secs_f64(), ..report })
}

/// A setting that this machine refuses, as against a bucket that fails.
fn is_of_the_setting(error: &Error) -> bool {
    matches!(error.kind(), Kind::Budget | Kind::Environment)
}

/// What there is to choose from, around what the loader would take by itself.
fn space(tuning: &Tuning) -> Result<Space> {
    let probe = fuelrail::internal::probe();
    let cores = probe.topology.shards() as u64;
    let shards: Vec<u64> = (0..).map(|n| 1u64 << n).take_while(|n| *n < cores).chain([cores]).collect();
    let largest = tuning.listing.iter().map(|object| object.size).max().unwrap_or(0);
    // A span longer than the longest object is the object.
    let blocks = (18..=26).map(|n| 1u64 << n).filter(|block| *block == 1 << 18 || *block / 2 < largest).collect();
    let most = tuning.config.memory.limit.map_or(probe.default_budget.bytes.min(2 << 30), |limit| limit.0);
    let memory: Vec<u64> = (0..MEMORY_STEPS).rev().map(|step| most >> step).collect();
    let connections = (0..=8).map(|n| 1u64 << n).collect();
    let config = &tuning.config;
    let wanted_shards = config.shards.map_or(cores, u64::from);
    // From the least value that is enough, or the greatest.
    let range = |axis, values: Vec<u64>, wanted: u64| {
        let enough = values.iter().position(|value| *value >= wanted);
        Range { axis, start: enough.unwrap_or(values.len() - 1), values }
    };
    Space::new(vec![
        range(Axis::Shards, shards, wanted_shards),
        range(Axis::Connections, connections, config.network.connections_max as u64),
        range(Axis::BlockBytes, blocks, config.memory.block_size.0),
        range(Axis::MemoryBytes, memory, most),
        range(Axis::Ring, (0..tuning.rings.len() as u64).collect(), 0),
        range(Axis::Register, vec![0, 1], u64::from(config.register)),
    ])
}

fn setting(space: &Space, point: &Point, tuning: &Tuning) -> Setting {
    let of = |axis| space.value(point, axis).unwrap_or(0);
    Setting {
        shards: of(Axis::Shards) as u16,
        connections_max: of(Axis::Connections) as usize,
        block_bytes: of(Axis::BlockBytes),
        memory_limit_bytes: of(Axis::MemoryBytes),
        ring: tuning.rings.get(of(Axis::Ring) as usize).copied().unwrap_or_default().to_string(),
        register: of(Axis::Register) == 1,
    }
}

impl Setting {
    /// The configuration with this setting in it.
    pub fn applied(&self, config: &Config) -> Config {
        let builder = LoaderBuilder::new(config.clone()).shards(self.shards).connections_max(self.connections_max);
        let builder = builder.block_size(ByteSize(self.block_bytes)).memory_limit(ByteSize(self.memory_limit_bytes));
        builder.ring(self.ring.parse::<RingChoice>().unwrap_or_default()).register(self.register).config().clone()
    }
}

/// Reads with one setting for about `time`, and says what that brought after its warm-up.
fn measure(tuning: &Tuning, setting: &Setting, time: Duration) -> Result<Measured> {
    // Epochs without end: time ends the trial.
    let mut config = setting.applied(&tuning.config);
    (config.epochs, config.audit) = (u64::from(u32::MAX), None);
    let mut loader = LoaderBuilder::new(config).listing(tuning.listing.clone()).build()?;
    let begun = Instant::now();
    // A run so slow that its first batch outlasted the trial is judged from its start.
    let (mut from, mut start) = (begun, None::<Stats>);
    while let Some(batch) = loader.next_batch() {
        drop(batch?);
        let spent = begun.elapsed();
        if start.is_none() && spent >= time.mul_f64(WARM_UP) {
            (from, start) = (Instant::now(), Some(loader.stats()));
        } else if start.is_some() && spent >= time {
            break;
        }
    }
    let (wall_s, end) = (from.elapsed().as_secs_f64().max(1e-9), loader.stats());
    let cpu_before = |shard: usize| start.as_ref().map_or(0.0, |stats| stats.shards[shard].cpu_s());
    let used: Vec<f64> = end.shards.iter().enumerate().map(|(n, shard)| shard.cpu_s() - cpu_before(n)).collect();
    let bytes = (end.bytes - start.as_ref().map_or(0, |stats| stats.bytes)).max(1) as f64;
    let fetch = end.gates.iter().find(|gate| gate.name == "fetch");
    Ok(Measured {
        bytes_per_s: bytes / wall_s,
        cpu_s_per_byte: used.iter().sum::<f64>() / bytes,
        busy: used.iter().fold(0.0, |most: f64, used| most.max(*used)) / wall_s,
        latency_s: end.get_latency_us.p50 as f64 / 1e6,
        requests_in_flight: fetch.map_or(0.0, |gate| gate.occupancy_mean),
        throttled: end.throttled - start.map_or(0, |stats| stats.throttled),
    })
}

/// The result, without what it took.
fn report(tuning: &Tuning, search: &Search, best: Setting, forecast: &Forecast, achieved: &Measured) -> TuneReport {
    let link = link_gbit_per_s(&tuning.config.uri);
    let limit = limit(search, link.map(|gbit| gbit * 1e9 / 8.0));
    let tried = search.trials().iter().map(|(point, trials)| Tried {
        setting: setting(search.space(), point, tuning),
        gb_per_s: trials.told().iter().map(|measured| measured.bytes_per_s / 1e9).collect(),
        cpu_s_per_gb: trials.mean_of(|measured| measured.cpu_s_per_byte) * 1e9,
    });
    let start = search.trials().get(&search.space().start());
    TuneReport {
        schema: SCHEMA,
        budget_s: tuning.budget.as_secs_f64(),
        spent_s: 0.0,
        trials: 0,
        settings: search.space().points(),
        noise: search.noise(),
        start_gb_per_s: start.map_or(0.0, |trials| trials.mean_of(|measured| measured.bytes_per_s) / 1e9),
        config: best.applied(&tuning.config),
        best,
        limit: limit.map_or("unknown", |limit| limit.name()).to_owned(),
        explanation: limit.map_or_else(String::new, |limit| limit.to_string()),
        outcome: Outcome {
            predicted_gb_per_s: forecast.bytes_per_s / 1e9,
            predicted_low_gb_per_s: forecast.bytes_per_s_low / 1e9,
            predicted_high_gb_per_s: forecast.bytes_per_s_high / 1e9,
            achieved_gb_per_s: achieved.bytes_per_s / 1e9,
            predicted_cpu_s_per_gb: forecast.cpu_s_per_byte * 1e9,
            achieved_cpu_s_per_gb: achieved.cpu_s_per_byte * 1e9,
        },
        tried: tried.collect(),
        link_gbit_per_s: link,
        machine: Machine::here(),
    }
}

/// Speed of the fastest card. A bucket on this machine goes through none.
fn link_gbit_per_s(uri: &str) -> Option<f64> {
    let here = ["localhost", "127.", "[::1]"];
    let host = uri.split_once("://").map_or(uri, |(_, rest)| rest);
    if here.iter().any(|name| host.starts_with(name)) {
        return None;
    }
    let speeds = fuelrail::internal::probe().nics.into_iter().filter_map(|nic| nic.speed_mbit_per_s);
    speeds.max().map(|mbit| mbit as f64 / 1e3)
}
