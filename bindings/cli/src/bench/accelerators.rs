//! The shapes of MLPerf Storage: emulated accelerators that take batches and compute for a fixed time, and how well they are
//! fed. The measurement behind `fuelrail bench feed`.
//!
//! Sizes, batches, compute times and thresholds are those of the workload files of MLCommons' repository `storage`
//! (`configs/dlio/workload/*.yaml`, versions 1.0 to 3.0). Accelerator utilisation is theirs, too (Submission guidelines,
//! "Performance metrics"): `AU = total_compute_time / total_benchmark_running_time`, the first step's input left out. What
//! differs is said in every result: all accelerators of a node share one loader here, and no file format is decoded.
//!
//! Owns the emulation and the shape of the result. Never prints.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use fuelrail::{ByteSize, Config, Error, Kind, Listed, Loader, LoaderBuilder, Result, ShardStats};
use serde::{Deserialize, Serialize};

use crate::machine::Machine;

/// Version of the result's shape.
pub const SCHEMA: u32 = 1;

/// A workload on an accelerator.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
pub struct Workload {
    /// MLPerf's name.
    pub name: &'static str,
    /// The accelerator emulated.
    pub accelerator: &'static str,
    /// Mean length of a sample, bytes.
    pub sample_bytes: u64,
    /// Samples in one of MLPerf's files.
    pub samples_per_file: u32,
    /// Samples a step takes.
    pub batch_size: u32,
    /// Compute time of a step, s.
    pub step_s: f64,
    /// Least utilisation that passes.
    pub au_min: f64,
}

const fn workload(
    name: &'static str,
    accelerator: &'static str,
    (sample_bytes, samples_per_file): (u64, u32),
    (batch_size, step_s, au_min): (u32, f64, f64),
) -> Workload {
    Workload { name, accelerator, sample_bytes, samples_per_file, batch_size, step_s, au_min }
}

const UNET3D: (u64, u32) = (146_600_628, 1);
const RESNET50: (u64, u32) = (114_660, 1251);
const RETINANET: (u64, u32) = (322_957, 1);
const COSMOFLOW: (u64, u32) = (2_828_486, 1);

/// All that is known, an accelerator a row.
pub const WORKLOADS: [Workload; 8] = [
    workload("unet3d", "a100", UNET3D, (7, 0.636, 0.90)),
    workload("unet3d", "h100", UNET3D, (7, 0.323, 0.90)),
    workload("unet3d", "b200", UNET3D, (7, 0.162, 0.90)),
    workload("resnet50", "a100", RESNET50, (400, 0.435, 0.90)),
    workload("resnet50", "h100", RESNET50, (400, 0.224, 0.90)),
    workload("retinanet", "b200", RETINANET, (24, 0.04755, 0.85)),
    workload("cosmoflow", "a100", COSMOFLOW, (1, 0.00551, 0.70)),
    workload("cosmoflow", "h100", COSMOFLOW, (1, 0.0035, 0.70)),
];

impl Workload {
    /// A workload by name, on an accelerator or on the first one listed.
    ///
    /// # Errors
    /// `Usage` naming those there are.
    pub fn named(name: &str, accelerator: Option<&str>) -> Result<Workload> {
        let of_name = |w: &&Workload| w.name == name;
        let found = WORKLOADS.iter().filter(of_name).find(|w| accelerator.is_none_or(|wanted| w.accelerator == wanted));
        found.copied().ok_or_else(|| {
            let known: Vec<String> = WORKLOADS.iter().map(|w| format!("{} {}", w.name, w.accelerator)).collect();
            let asked = format!("{name} {}", accelerator.unwrap_or_default());
            Error::new(Kind::Usage, format!("unknown workload '{}'", asked.trim_end()))
                .with_hint(format!("choose one of: {}", known.join(", ")))
        })
    }
}

/// What to emulate.
#[derive(Clone, Debug)]
pub struct Emulation {
    /// The workload.
    pub workload: Workload,
    /// The loader's configuration; batch size and epochs are the workload's.
    pub config: Config,
    /// The objects, listed once: one sample each.
    pub listing: Vec<Listed>,
    /// Where the objects come from, in words, for the result.
    pub source: String,
    /// Time each run lasts at least, and each run has at least [`STEPS_MIN`] steps per accelerator.
    pub time: Duration,
    /// So many accelerators and no others; `None` looks for the most that pass.
    pub accelerators: Option<u32>,
}

/// The loader's speed without compute time.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct FullSpeed {
    /// Payload per wall time, GB/s.
    pub gb_per_s: f64,
    /// Samples per wall time.
    pub samples_per_s: f64,
    /// Processor time of the shards, s per GB.
    pub cpu_s_per_gb: f64,
    /// What one whole core delivers: payload per processor time of the shards, GB/s.
    pub gb_per_core_s: f64,
    /// Each shard's core.
    pub shards: Vec<ShardStats>,
}

/// One run of so many accelerators.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Run {
    /// Accelerators.
    pub accelerators: u32,
    /// Steps of each.
    pub steps: u32,
    /// Mean utilisation over the accelerators.
    pub au: f64,
    /// The least of them.
    pub au_least: f64,
    /// Payload per wall time, GB/s.
    pub gb_per_s: f64,
    /// Samples per wall time, the first step's included.
    pub samples_per_s: f64,
    /// Whether the mean utilisation reaches the workload's least.
    pub passed: bool,
}

/// The whole result.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct FeedReport {
    /// [`SCHEMA`].
    pub schema: u32,
    /// MLPerf's name of the workload.
    pub workload: String,
    /// The accelerator emulated.
    pub accelerator: String,
    /// Samples of a step.
    pub batch_size: u32,
    /// Compute time of a step, s.
    pub step_s: f64,
    /// Least utilisation that passes.
    pub au_min: f64,
    /// What one accelerator takes when it never waits, at the mean length of these objects, GB/s.
    pub need_gb_per_s: f64,
    /// Mean length of the objects, bytes.
    pub object_bytes_mean: u64,
    /// Objects.
    pub objects: u64,
    /// The loader's speed without compute time.
    pub full_speed: FullSpeed,
    /// Accelerators that speed would feed without a wait.
    pub accelerators_fed: f64,
    /// The most accelerators that passed; 0 when not even one did. Absent when a number was given.
    pub accelerators_max: Option<u32>,
    /// The runs, in order.
    pub runs: Vec<Run>,
    /// What differs from MLPerf's own benchmark.
    pub notes: Vec<String>,
    /// Where the objects came from.
    pub source: String,
    /// Where it was measured.
    pub machine: Machine,
    /// The loader's configuration.
    pub config: Config,
}

/// Steps each accelerator takes at least.
pub const STEPS_MIN: u32 = 6;
/// Runs that look for the most accelerators.
const RUNS_MAX: usize = 8;

/// Measures full speed, then emulates accelerators. `watch` hears of every run.
///
/// # Errors
/// `Usage` when there is nothing to read or no accelerator is asked for; those of the loader.
pub fn emulate(emulation: &Emulation, watch: &mut dyn FnMut(&Run)) -> Result<FeedReport> {
    let Emulation { workload, listing, .. } = emulation;
    let objects = listing.len() as u64;
    let total: u64 = listing.iter().map(|object| object.size).sum();
    if total == 0 {
        return Err(fuelrail::internal::no_objects(&emulation.config.uri));
    }
    if emulation.accelerators == Some(0) {
        return Err(Error::new(Kind::Usage, "the number of accelerators is 0").with_hint("ask for at least one"));
    }
    let mean = total as f64 / objects as f64;
    let need = mean * f64::from(workload.batch_size) / workload.step_s;
    let (full_speed, config) = full_speed(emulation)?;
    let fed = full_speed.gb_per_s * 1e9 / need;
    let mut runs: Vec<Run> = Vec::new();
    let mut run = |accelerators: u32| -> Result<bool> {
        let run = one_run(emulation, accelerators)?;
        watch(&run);
        let passed = run.passed;
        runs.push(run);
        Ok(passed)
    };
    let accelerators_max = match emulation.accelerators {
        Some(given) => run(given).map(|_| None)?,
        None => Some(most_that_pass((fed / workload.au_min) as u32, &mut run)?),
    };
    Ok(FeedReport {
        schema: SCHEMA,
        workload: workload.name.to_owned(),
        accelerator: workload.accelerator.to_owned(),
        batch_size: workload.batch_size,
        step_s: workload.step_s,
        au_min: workload.au_min,
        need_gb_per_s: need / 1e9,
        object_bytes_mean: mean as u64,
        objects,
        full_speed,
        accelerators_fed: fed,
        accelerators_max,
        runs,
        notes: notes(workload, mean),
        source: emulation.source.clone(),
        machine: Machine::here(),
        config,
    })
}

/// Starts at the number that full speed promises and walks to the edge: one more when it passes, one less when not.
fn most_that_pass(promised: u32, run: &mut dyn FnMut(u32) -> Result<bool>) -> Result<u32> {
    let (mut at, mut best, mut failed) = (promised.max(1), 0, u32::MAX);
    for _ in 0..RUNS_MAX {
        if run(at)? {
            best = at;
        } else {
            failed = at;
        }
        if best + 1 >= failed {
            break;
        }
        at = if failed == u32::MAX { at + 1 } else { failed - 1 };
    }
    Ok(best)
}

fn notes(workload: &Workload, mean: f64) -> Vec<String> {
    let mut notes = vec![
        "all accelerators take their batches from one loader; MLPerf gives each a process".to_owned(),
        "samples are delivered as stored: no npz, tfrecord or jpeg is decoded".to_owned(),
    ];
    if workload.samples_per_file > 1 {
        notes.push(format!(
            "MLPerf packs {} samples into a file; here each sample is an object of its own, which asks more of a loader",
            workload.samples_per_file
        ));
    }
    let off = mean / workload.sample_bytes as f64;
    if !(0.75..=1.25).contains(&off) {
        let (has, wants) = (ByteSize(mean as u64), ByteSize(workload.sample_bytes));
        notes.push(format!("these objects are {has} in the mean, the workload's {wants}: not its shape"));
    }
    notes
}

fn open(emulation: &Emulation, steps: u64) -> Result<Loader> {
    let batch_size = emulation.workload.batch_size;
    // One step more than taken, so that look-ahead never ends within the run.
    let samples = (steps + 1).saturating_mul(u64::from(batch_size));
    let epochs = samples.div_ceil(emulation.listing.len() as u64).max(1);
    let builder = LoaderBuilder::new(emulation.config.clone()).batch_size(batch_size).epochs(epochs);
    builder.listing(emulation.listing.clone()).build()
}

/// Takes batches as fast as they come.
fn full_speed(emulation: &Emulation) -> Result<(FullSpeed, Config)> {
    let mut loader = open(emulation, u64::from(u32::MAX))?;
    // The first batch is start-up: connections, memory from the kernel.
    drop(loader.next_batch().ok_or_else(ended_early)??);
    let (before, start) = (loader.stats(), Instant::now());
    let mut batches = 0;
    while batches < STEPS_MIN || start.elapsed() < emulation.time {
        drop(loader.next_batch().ok_or_else(ended_early)??);
        batches += 1;
    }
    let wall_s = start.elapsed().as_secs_f64();
    let after = loader.stats();
    let cpu = |shards: &[ShardStats]| shards.iter().map(ShardStats::cpu_s).sum::<f64>();
    let cpu_s = cpu(&after.shards) - cpu(&before.shards);
    let gb = (after.bytes - before.bytes) as f64 / 1e9;
    let speed = FullSpeed {
        gb_per_s: gb / wall_s,
        samples_per_s: (after.samples - before.samples) as f64 / wall_s,
        cpu_s_per_gb: cpu_s / gb,
        gb_per_core_s: if cpu_s > 0.0 { gb / cpu_s } else { 0.0 },
        shards: after.shards,
    };
    Ok((speed, loader.config().clone()))
}

fn ended_early() -> Error {
    Error::new(Kind::Usage, "the data set ended within a run").with_hint("give more objects")
}

fn one_run(emulation: &Emulation, accelerators: u32) -> Result<Run> {
    let step = Duration::from_secs_f64(emulation.workload.step_s);
    let steps = (emulation.time.as_secs_f64() / emulation.workload.step_s).ceil().min(f64::from(u32::MAX)) as u32;
    let steps = steps.max(STEPS_MIN);
    let loader = Mutex::new(open(emulation, u64::from(steps) * u64::from(accelerators))?);
    let start = Instant::now();
    let ran: Vec<Result<Duration>> = std::thread::scope(|scope| {
        let each: Vec<_> = (0..accelerators).map(|_| scope.spawn(|| accelerator(&loader, steps, step))).collect();
        each.into_iter().map(|one| one.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))).collect()
    });
    let wall_s = start.elapsed().as_secs_f64();
    let ran = ran.into_iter().collect::<Result<Vec<Duration>>>()?;
    let utilisation: Vec<f64> = ran.iter().map(|running| au(step, steps, *running)).collect();
    let mean = utilisation.iter().sum::<f64>() / f64::from(accelerators);
    let stats = loader.into_inner().unwrap_or_else(PoisonError::into_inner).stats();
    Ok(Run {
        accelerators,
        steps,
        au: mean,
        au_least: utilisation.iter().copied().fold(f64::INFINITY, f64::min),
        gb_per_s: stats.bytes as f64 / 1e9 / wall_s,
        samples_per_s: stats.samples as f64 / wall_s,
        passed: mean >= emulation.workload.au_min,
    })
}

/// Takes a batch, gives its memory back (a real one has it on the device by then), computes, and so on. From its first batch in hand to the
/// end of its last step.
fn accelerator(loader: &Mutex<Loader>, steps: u32, step: Duration) -> Result<Duration> {
    let mut begun = None;
    for _ in 0..steps {
        drop(loader.lock().unwrap_or_else(PoisonError::into_inner).next_batch().ok_or_else(ended_early)??);
        begun.get_or_insert_with(Instant::now);
        std::thread::sleep(step);
    }
    Ok(begun.map_or(Duration::ZERO, |begun| begun.elapsed()))
}

/// Share of the running time that was compute: the first step's input is not in it.
fn au(step: Duration, steps: u32, running: Duration) -> f64 {
    step.as_secs_f64() * f64::from(steps) / running.as_secs_f64()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn utilisation_is_compute_over_running_time() {
        let step = Duration::from_millis(100);
        assert!((au(step, 10, Duration::from_secs(1)) - 1.0).abs() < 1e-12, "all input hidden");
        assert!((au(step, 10, Duration::from_millis(1250)) - 0.8).abs() < 1e-12, "a quarter second of waiting");
    }

    #[test]
    fn workloads_are_those_of_mlcommons() {
        // In GB/s; mlcommons/storage#692 says 5.9 GiB/s for a B200.
        for (accelerator, takes) in [("h100", 3.177), ("b200", 6.335)] {
            let of = Workload::named("unet3d", Some(accelerator)).unwrap();
            let need = of.sample_bytes as f64 * f64::from(of.batch_size) / of.step_s / 1e9;
            assert!((need - takes).abs() < 0.001, "{need}");
        }
        assert_eq!(Workload::named("cosmoflow", None).unwrap().accelerator, "a100");
        for (name, accelerator) in [("bert", None), ("retinanet", Some("a100"))] {
            let error = Workload::named(name, accelerator).unwrap_err();
            assert!(error.kind() == Kind::Usage && error.to_string().contains("resnet50 h100"), "{error}");
        }
    }

    #[test]
    fn the_walk_ends_at_the_edge() {
        let walked = |edge: u32, promised: u32| {
            let mut tried = Vec::new();
            let best = most_that_pass(promised, &mut |n| {
                tried.push(n);
                Ok(n <= edge)
            });
            (best.unwrap(), tried)
        };
        assert_eq!(walked(3, 3), (3, vec![3, 4]));
        assert_eq!(walked(3, 5), (3, vec![5, 4, 3]));
        assert_eq!(walked(3, 1), (3, vec![1, 2, 3, 4]));
        assert_eq!(walked(0, 0), (0, vec![1]));
        assert_eq!(walked(0, 2), (0, vec![2, 1]));
        assert_eq!(walked(100, 1).1.len(), RUNS_MAX, "bounded");
    }

    #[test]
    fn what_differs_from_mlperf_is_said() {
        let resnet = Workload::named("resnet50", None).unwrap();
        assert!(notes(&resnet, 114_660.0).iter().any(|note| note.contains("1251")));
        assert!(notes(&resnet, 1e6).iter().any(|note| note.contains("not its shape")));
        assert_eq!(notes(&Workload::named("cosmoflow", None).unwrap(), 2.8e6).len(), 2);
    }
}
