//! `fuelrail plan loader`: what other memory, disk, blocks, connections or cards would bring to a run that was measured.
//!
//! Owns what is read out of the run, and the changes. Two predictions stand side by side: the shipping planner in virtual time, and the
//! closed form of [`fuelrail_cost::loader`].

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use fuelrail::{ByteSize, Config, Error, Kind, Result};
use fuelrail_cost::diagnosis::{Cause, Shares, diagnose};
pub use fuelrail_cost::loader::Limit;
use fuelrail_cost::loader::{Loader, over};
use fuelrail_plan::hedge::first_requests;
use fuelrail_plan::order::OrderName;
pub use fuelrail_sim::forecast::World;
use serde::Serialize;

use super::input::{percent, read as read_file};
use crate::bench::accelerators::FeedReport;
use crate::bench::reading::{ReadReport, Reading, read};
use crate::bench::setting;
use crate::failure::Outcome;
use crate::machine::Machine;
use crate::screen::{JsonTo, Table};
use crate::settings::load;

const EXAMPLES: &str = "Examples:
  fuelrail bench read s3://bucket/training/ --epochs 3 --step-ms 40 --json run.json
  fuelrail plan loader run.json
  fuelrail plan loader run.json --latency-ms 20 --disk-gb-per-s 3 --json
  fuelrail plan loader http://127.0.0.1:9000/bucket/training/ --set epochs=3 --set cache_limit_bytes=1GiB --step-ms 40

RUN is what `bench read --json` or `bench feed --json` wrote, or a URI: then it is read first. A run shows latency, bandwidth or \
rate of requests of its bucket, whichever limited it; the others are taken as good as can be, unless they are given.";

/// Predict what other memory, disk, blocks, connections or cards would bring to a run
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES, allow_negative_numbers = true)]
pub(crate) struct LoaderArgs {
    /// The measured run, JSON, or the URI to measure
    #[arg(value_name = "RUN|URI")]
    run: String,
    /// Of a run from a URI: a setting of the loader
    #[arg(long, value_name = "FIELD=VALUE", value_parser = setting)]
    set: Vec<(String, String)>,
    /// Of a run from a URI: the trainer's step, simulated by waiting
    #[arg(long, value_name = "MS", default_value_t = 0.0)]
    step_ms: f64,
    /// From request to first byte, where the run does not show it
    #[arg(long, value_name = "MS")]
    latency_ms: Option<f64>,
    /// What the bucket and the card deliver, where the run does not show it
    #[arg(long, value_name = "GB/S")]
    gb_per_s: Option<f64>,
    /// What the bucket allows all ranks together, where the run does not show it
    #[arg(long, value_name = "N")]
    requests_per_s: Option<f64>,
    /// What a disk reads
    #[arg(long, value_name = "GB/S", default_value_t = 1.0)]
    disk_gb_per_s: f64,
    /// Print the result as one JSON document, or write it to FILE beside the table
    #[arg(long, value_name = "FILE", num_args = 0..=1, default_missing_value = "-")]
    json: Option<String>,
}

/// A loader, as it was or as it would be.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
pub struct Case {
    /// What the simulator plays.
    #[serde(flatten)]
    pub world: World,
    /// The disk's rate.
    pub disk_bytes_per_s: f64,
    /// Cores of a rank.
    pub cores: f64,
    /// What they take for a byte.
    pub core_s_per_byte: f64,
}

/// Seconds of the first epoch and of each later one.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
pub struct Prediction {
    /// By the shipping planner in virtual time.
    pub simulated_s: [f64; 2],
    /// By the closed form.
    pub closed_form_s: [f64; 2],
}

/// Epochs played: the disk is full after the second, and the last looks no further ahead. Those between are a later epoch, on average: in
/// which steps of an epoch there is something to wait for is chance.
const PLAYED: u64 = 6;
/// So many epochs that the first one does not count.
const MANY_EPOCHS: f64 = 1e6;
/// What stands for "no limit" in the closed form.
const UNLIMITED: f64 = 1e15;

impl Case {
    /// Predicts an epoch.
    ///
    /// # Errors
    /// As [`fuelrail_sim::forecast::epochs_s`].
    pub fn predict(&self) -> Result<Prediction> {
        let played = fuelrail_sim::forecast::epochs_s(&World { epochs: PLAYED, ..self.world })?;
        let closed = self.closed();
        // Virtual work takes no time: what cores and disk take is known.
        let cores_s = closed.epoch_bytes * self.core_s_per_byte / self.cores;
        let disk_s = closed.held().1 * closed.epoch_bytes / self.disk_bytes_per_s;
        let later = &played[2..played.len() - 1];
        let later_s = later.iter().sum::<f64>() / later.len() as f64;
        let simulated_s = [played[0].max(cores_s), later_s.max(cores_s).max(disk_s)];
        Ok(Prediction { simulated_s, closed_form_s: closed.epochs_s().into() })
    }

    /// The same for the closed form.
    fn closed(&self) -> Loader {
        let World { samples, sample_bytes, block_bytes, batch_size, ranks, .. } = self.world;
        let ranks = f64::from(ranks);
        let part = |of_all: u64| if of_all == 0 { UNLIMITED } else { of_all as f64 / ranks };
        let steps = samples as f64 / ranks / f64::from(batch_size);
        Loader {
            epoch_bytes: self.world.bytes() / ranks,
            block_bytes: sample_bytes.min(block_bytes) as f64,
            latency_s: self.world.latency_s.max(1e-6),
            connections: self.world.connections_max as f64 * f64::from(self.world.shards),
            bucket_rate: part(self.world.bytes_per_s),
            request_rate: part(self.world.requests_per_s),
            ram_bytes: self.world.cache_bytes as f64,
            disk_bytes: self.world.disk_bytes as f64,
            disk_rate: self.disk_bytes_per_s,
            cores: self.cores,
            core_s_per_byte: self.core_s_per_byte,
            compute_s: steps * self.world.step_s,
        }
    }

    /// What limits a later epoch, by the closed form.
    pub fn limit_closed_form(&self) -> Limit {
        self.closed().limit(MANY_EPOCHS)
    }

    /// Each resource that there is some of, and the same case with twice as much of it.
    pub fn doubles(&self) -> impl Iterator<Item = (Limit, Case)> {
        Limit::ALL.into_iter().filter_map(|limit| Some((limit, self.doubled(limit)?)))
    }

    /// Predicts an epoch with twice as much of each resource.
    ///
    /// # Errors
    /// As [`Case::predict`].
    pub fn predict_doubles(&self) -> Result<Vec<(Limit, Prediction)>> {
        self.doubles().map(|(limit, case)| Ok((limit, case.predict()?))).collect()
    }

    fn doubled(&self, limit: Limit) -> Option<Case> {
        let (mut case, world) = (*self, self.world);
        match limit {
            Limit::Compute if world.step_s > 0.0 => case.world.step_s /= 2.0,
            Limit::Latency => case.world.latency_s /= 2.0,
            Limit::Bandwidth if world.bytes_per_s > 0 => case.world.bytes_per_s *= 2,
            Limit::Requests if world.requests_per_s > 0 => case.world.requests_per_s *= 2,
            Limit::Ram if world.cache_bytes > 0 => case.world.cache_bytes *= 2,
            Limit::Disk if world.disk_bytes > 0 => {
                (case.world.disk_bytes, case.disk_bytes_per_s) = (world.disk_bytes * 2, self.disk_bytes_per_s * 2.0);
            }
            Limit::Cores if self.core_s_per_byte > 0.0 => case.cores *= 2.0,
            _ => return None,
        }
        Some(case)
    }
}

/// A measured run, as far as it is predicted.
struct Measured {
    case: Case,
    /// Seconds of so many epochs.
    run_s: f64,
    epochs: f64,
    /// Of a step, where the run says it.
    shares: Option<Shares>,
}

#[derive(Serialize)]
struct Document {
    schema: u32,
    case: Case,
    check: Check,
    /// What shortens a later epoch most when it is doubled: by the simulator, and by the closed form.
    limit: Limit,
    limit_closed_form: Limit,
    /// Why a step takes longer than the trainer's own.
    cause: Option<Cause>,
    changes: Vec<Change>,
}

/// The measured run, predicted.
#[derive(Serialize)]
struct Check {
    measured_s: f64,
    simulated_s: f64,
    closed_form_s: f64,
    simulated_error: f64,
    closed_form_error: f64,
}

#[derive(Serialize)]
struct Change {
    change: String,
    prediction: Prediction,
    /// Of a later epoch by the simulator, the time that the change saves.
    saved: f64,
}

pub(crate) fn run(args: &LoaderArgs) -> Outcome {
    for (name, number) in [
        ("latency-ms", args.latency_ms),
        ("gb-per-s", args.gb_per_s),
        ("requests-per-s", args.requests_per_s),
        ("disk-gb-per-s", Some(args.disk_gb_per_s)),
    ] {
        if let Some(number) = number.filter(|number| !(*number > 0.0 && number.is_finite())) {
            return Err(Error::new(Kind::Usage, format!("--{name} {number}"))
                .with_hint("give a number above 0")
                .into());
        }
    }
    let mut measured = if args.run.contains("://") {
        let uri = ("uri".to_owned(), args.run.clone());
        let config = load(None, &[vec![uri], args.set.clone()].concat())?;
        let step = Duration::try_from_secs_f64(args.step_ms / 1e3).map_err(|error| {
            Error::new(Kind::Usage, format!("--step-ms {}: {error}", args.step_ms)).with_hint("give milliseconds")
        })?;
        of_read(&read(&Reading { config, step, ..Reading::default() }, &mut |_| {})?)?
    } else {
        read_file(&PathBuf::from(&args.run), of_text)?
    };
    let case = &mut measured.case;
    case.disk_bytes_per_s = args.disk_gb_per_s * 1e9;
    case.world.latency_s = args.latency_ms.map_or(case.world.latency_s, |ms| ms / 1e3);
    case.world.bytes_per_s = args.gb_per_s.map_or(case.world.bytes_per_s, |rate| (rate * 1e9) as u64);
    case.world.requests_per_s = args.requests_per_s.map_or(case.world.requests_per_s, |rate| rate.ceil() as u64);
    let document = answer(&measured)?;
    JsonTo::asked(args.json.as_deref()).show(&document, || text(&document))
}

fn of_text(text: &str) -> Result<Measured> {
    let wrong = |error: serde_json::Error| {
        Error::new(Kind::Usage, format!("not a measured run: {error}"))
            .with_hint("give what `fuelrail bench read --json FILE` or `bench feed --json FILE` wrote")
    };
    let document: serde_json::Value = serde_json::from_str(text).map_err(wrong)?;
    if document.get("workload").is_some() {
        return of_feed(&serde_json::from_str(text).map_err(wrong)?);
    }
    of_read(&serde_json::from_str(text).map_err(wrong)?)
}

/// A wait of less than this share of a run is none: its bucket was not its limit.
const WAITS: f64 = 0.05;
/// With so many of its connections in use, latency was its limit.
const IN_USE: f64 = 0.7;
/// When more than this share of requests was asked to slow down, the rate was its limit.
const THROTTLED: f64 = 0.005;

/// What its cache left of the measured loader's memory. A result that does not tell its limit had the default: its rank's part of half of
/// its machine.
fn left_by_cache(config: &Config, machine: &Machine) -> u64 {
    let ranks = u64::from(config.local_world.unwrap_or(1).max(1));
    let limit = config.memory.limit.map_or(machine.memory_bytes / 2 / ranks, |limit| limit.0);
    limit.saturating_sub(config.memory.cache_limit.0)
}

fn of_read(report: &ReadReport) -> Result<Measured> {
    let ReadReport { config, wall_s, bytes, samples, batches, .. } = report;
    if *bytes == 0 || *batches == 0 || *samples < config.epochs || !(*wall_s > 0.0 && wall_s.is_finite()) {
        return Err(Error::new(Kind::Usage, format!("the run read {samples} samples, {bytes} bytes in {wall_s} s"))
            .with_hint("measure whole epochs of a data set that is not empty"));
    }
    let ranks = f64::from(config.world);
    let shards = report.shards.len().max(1) as u16;
    let mut world = World {
        samples: (*samples as f64 * ranks / config.epochs as f64).round() as u64,
        sample_bytes: bytes / samples,
        block_bytes: config.memory.block_size.0,
        batch_size: config.batch_size,
        ranks: config.world,
        epochs: config.epochs,
        sticky: config.order.name != OrderName::Global,
        shards,
        connections_max: first_requests(config.network.connections_max, config.network.hedge_percent),
        room_bytes: report.batch_memory_bytes.unwrap_or_else(|| left_by_cache(config, &report.machine)),
        cache_bytes: config.memory.cache_limit.0,
        disk_bytes: 0,
        latency_s: report.get_latency_us.p50 as f64 / 1e6,
        bytes_per_s: 0,
        requests_per_s: 0,
        step_s: report.step_ms / 1e3,
    };
    if !config.disk.dirs.is_empty() {
        world.disk_bytes = config.disk.limit.map_or(world.bytes() as u64, |ByteSize(limit)| limit);
    }
    let reading_s = (wall_s - report.first_batch_us as f64 / 1e6).max(wall_s / 2.0);
    let rate = report.shards.iter().map(|shard| shard.landed_bytes).sum::<u64>() as f64 / reading_s;
    // Little's law.
    let in_flight = rate * world.latency_s / world.sample_bytes.min(world.block_bytes).max(1) as f64;
    let most = world.connections_max as f64 * f64::from(shards);
    let waits = report.data_wait_s > WAITS * wall_s;
    if waits && report.throttled as f64 > THROTTLED * report.requests as f64 {
        let served = report.requests.saturating_sub(report.throttled) as f64;
        world.requests_per_s = (served / reading_s * ranks).ceil() as u64;
    } else if waits && in_flight < IN_USE * most {
        world.bytes_per_s = (rate * ranks) as u64;
        // The loader keeps the fewest connections that reach the rate, within a factor of two.
        world.latency_s /= core::f64::consts::SQRT_2;
    }
    let decode = report.gates.iter().find(|gate| gate.name == "decode");
    let step = |seconds: f64| seconds / *batches as f64;
    let shares = Shares {
        wall_s: step(*wall_s),
        data_wait_s: step(report.data_wait_s),
        compute_s: world.step_s,
        decode_share: decode.map_or(0.0, |gate| gate.occupancy_mean / gate.capacity.max(1) as f64),
        ..Shares::default()
    };
    let core_s_per_byte = report.cpu_s_per_gb.unwrap_or(0.0) / 1e9;
    let case = Case { world, disk_bytes_per_s: UNLIMITED, cores: report.machine.cores as f64, core_s_per_byte };
    Ok(Measured { case, run_s: *wall_s, epochs: config.epochs as f64, shares: Some(shares) })
}

/// Its bucket's bandwidth is the full speed, and its trainer all accelerators of the last run together.
fn of_feed(report: &FeedReport) -> Result<Measured> {
    let full = &report.full_speed;
    let (accelerators, samples_per_s) =
        report.runs.last().map_or((0, full.samples_per_s), |run| (run.accelerators, run.samples_per_s));
    if report.objects == 0 || report.object_bytes_mean == 0 || !(samples_per_s > 0.0 && full.gb_per_s > 0.0) {
        return Err(Error::new(Kind::Usage, format!("the run read {} objects at {samples_per_s}/s", report.objects))
            .with_hint("measure a data set that is not empty"));
    }
    let config = &report.config;
    let world = World {
        samples: report.objects,
        sample_bytes: report.object_bytes_mean,
        block_bytes: config.memory.block_size.0,
        batch_size: report.batch_size,
        ranks: 1,
        epochs: 1,
        sticky: false,
        shards: full.shards.len().max(1) as u16,
        connections_max: first_requests(config.network.connections_max, config.network.hedge_percent),
        room_bytes: left_by_cache(config, &report.machine),
        cache_bytes: config.memory.cache_limit.0,
        disk_bytes: 0,
        latency_s: 0.001,
        bytes_per_s: (full.gb_per_s * 1e9) as u64,
        requests_per_s: 0,
        step_s: if accelerators == 0 { 0.0 } else { report.step_s / f64::from(accelerators) },
    };
    let cores = report.machine.cores as f64;
    let case = Case { world, disk_bytes_per_s: UNLIMITED, cores, core_s_per_byte: full.cpu_s_per_gb / 1e9 };
    Ok(Measured { case, run_s: report.objects as f64 / samples_per_s, epochs: 1.0, shares: None })
}

/// Bytes a second of a card of 100 Gbit/s.
const CARD_BYTES_PER_S: u64 = 12_500_000_000;

/// What might be changed besides a resource that is doubled, each with its case.
fn changes(case: &Case) -> Vec<(String, Case)> {
    let (world, mut changes) = (case.world, Vec::new());
    let own = (world.bytes() / f64::from(world.ranks)) as u64;
    let mut change = |name: String, world: World| changes.push((name, Case { world, ..*case }));
    let more = if world.cache_bytes > 0 { 2 * world.cache_bytes } else { world.room_bytes.min(own / 2) };
    change(format!("RAM for {} of samples", ByteSize(more)), World { cache_bytes: more, ..world });
    if world.disk_bytes < own {
        change(format!("a disk for {}", ByteSize(own)), World { disk_bytes: own, ..world });
    }
    for block_bytes in [world.block_bytes / 4, world.block_bytes * 4] {
        if block_bytes.min(world.sample_bytes) != world.block_bytes.min(world.sample_bytes) {
            change(format!("blocks of {}", ByteSize(block_bytes)), World { block_bytes, ..world });
        }
    }
    if (1..CARD_BYTES_PER_S).contains(&world.bytes_per_s) {
        change(
            "a 100 Gbit/s card, and a bucket that fills it".to_owned(),
            World { bytes_per_s: CARD_BYTES_PER_S, ..world },
        );
    }
    change(
        "twice the connections".to_owned(),
        World { connections_max: (2 * world.connections_max).min(256), ..world },
    );
    changes
}

fn answer(measured: &Measured) -> Result<Document> {
    let Measured { case, run_s, epochs, shares } = measured;
    let now = case.predict()?;
    let of_run = |[first, later]: [f64; 2]| over(*epochs, first, later);
    let (simulated_s, closed_form_s) = (of_run(now.simulated_s), of_run(now.closed_form_s));
    let check = Check {
        measured_s: *run_s,
        simulated_s,
        closed_form_s,
        simulated_error: simulated_s / run_s - 1.0,
        closed_form_error: closed_form_s / run_s - 1.0,
    };
    let change = |change: String, prediction: Prediction| {
        let saved = 1.0 - prediction.simulated_s[1] / now.simulated_s[1];
        Change { change, prediction, saved }
    };
    let changes = changes(case).into_iter().map(|(name, case)| Ok(change(name, case.predict()?)));
    let mut changes = changes.collect::<Result<Vec<_>>>()?;
    let doubles = case.predict_doubles()?;
    for (limit, prediction) in &doubles {
        let name = match limit {
            Limit::Latency => "half the latency",
            Limit::Requests => "twice the rate of requests",
            Limit::Compute => "a device twice as fast",
            Limit::Cores => "twice the cores",
            _ => continue,
        };
        changes.push(change(name.to_owned(), *prediction));
    }
    let step = [case.world.step_s, case.world.step_s * 1.1];
    Ok(Document {
        schema: 1,
        case: *case,
        check,
        limit: shortest(doubles.iter().map(|(limit, then)| (*limit, then.simulated_s[1]))),
        limit_closed_form: case.limit_closed_form(),
        cause: shares.and_then(|shares| diagnose(step, &[shares])?.cause),
        changes,
    })
}

/// The resource that limits: the one whose doubling leaves the shortest epoch, seconds; the first of equals.
pub fn shortest(doubled_s: impl Iterator<Item = (Limit, f64)>) -> Limit {
    doubled_s.min_by(|a, b| a.1.total_cmp(&b.1)).map_or(Limit::Compute, |(limit, _)| limit)
}

fn text(document: &Document) -> String {
    let Check { measured_s, simulated_s, closed_form_s, simulated_error, closed_form_error } = document.check;
    let cause = document.cause.map_or_else(|| "none: the device is busy".to_owned(), |cause| cause.to_string());
    let (latency_ms, rate) = (document.case.world.latency_s * 1e3, document.case.world.bytes_per_s as f64 / 1e9);
    let rate = if rate > 0.0 { format!("{rate:.3} GB/s") } else { "not its limit".to_owned() };
    let allowed = match document.case.world.requests_per_s {
        0 => String::new(),
        rate => format!(", {rate} requests a second"),
    };
    let facts = Table::facts([
        ("measured", format!("{measured_s:.2} s")),
        (
            "predicted",
            format!(
                "{simulated_s:.2} s by the simulator ({}), {closed_form_s:.2} s by the closed form ({})",
                percent(simulated_error),
                percent(closed_form_error)
            ),
        ),
        ("bucket", format!("{latency_ms:.1} ms, bandwidth {rate}{allowed}")),
        ("waits for", cause),
        ("limit", format!("{}; by the closed form {}", document.limit, document.limit_closed_form)),
    ]);
    let mut table = Table::new(&[1, 2, 3]);
    table.row(["change", "later epoch, simulator (s)", "closed form (s)", "saved"]);
    for Change { change, prediction, saved } in &document.changes {
        let seconds = [prediction.simulated_s[1], prediction.closed_form_s[1]].map(|s| format!("{s:.2}"));
        table.row([change.clone()].into_iter().chain(seconds).chain([percent(*saved)]));
    }
    format!("{}\n{}", facts.text(), table.text())
}
