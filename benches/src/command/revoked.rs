//! `cargo x bench revoked`: two trainers killed when the plan's own sampled machines are taken away, and when they finish against when the
//! plan said they would.
//!
//! Seconds of the plan are seconds here; lives are short. The bucket's bandwidth sets the pace, so that steps take the same time whatever
//! else runs here. A prediction's interval is the same lives with steps and starts at the ends of theirs.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use clap::Args;
use fuelrail::{Error, Kind, Result};
use fuelrail_bucket::{Bucket, BucketConfig, DataSet, Source};
use fuelrail_cli::bench::this_program;
use fuelrail_cli::failure::{Outcome, Stop, usage};
use fuelrail_cli::machine::Machine;
use fuelrail_cli::screen::{Bar, JsonTo, Table, note};
use fuelrail_cli::signals::stop_on_signals;
use fuelrail_cli::train::{Ranks, find_trainer, folders};
use fuelrail_cost::compare::{Outcome as Played, plan};
use fuelrail_cost::scenario::Scenario;
use serde::Serialize;

use crate::harness::tool::embedded;

const EXAMPLES: &str = "Examples:
  cargo x bench revoked --json revoked.json
  cargo x bench revoked --runs 1 --steps 100

Needs fuelrail-train (cargo build --release -p fuelrail-tch). A first run, killed twice, tells how long steps and starts take.";

/// Kill two trainers as a plan says, and compare when they finish
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(crate) struct RevokedArgs {
    /// Runs, each with lives of its own
    #[arg(long, value_name = "N", default_value_t = 10)]
    runs: u64,
    /// Steps of a run
    #[arg(long, value_name = "N", default_value_t = 500)]
    steps: u64,
    /// Mean life of a worker
    #[arg(long, value_name = "SECONDS", default_value_t = 20.0)]
    life_s: f64,
    /// The trainer's program [default: fuelrail-train beside this one or in PATH]
    #[arg(long, value_name = "FILE")]
    trainer: Option<PathBuf>,
    /// Print the result as one JSON document, or write it to FILE beside the table
    #[arg(long, value_name = "FILE", num_args = 0..=1, default_missing_value = "-")]
    json: Option<String>,
}

/// What a run takes here, seconds.
#[derive(Clone, Copy, Debug, Serialize)]
struct Pace {
    step_s: f64,
    start_s: f64,
}

#[derive(Serialize)]
struct Row {
    seed: u64,
    predicted_s: f64,
    low_s: f64,
    high_s: f64,
    finished_s: f64,
    revocations: u64,
    inside: bool,
}

#[derive(Serialize)]
struct Report {
    schema: u32,
    question: &'static str,
    machine: Machine,
    steps: u64,
    life_s: f64,
    pace: Pace,
    inside: usize,
    /// The widest interval, over its prediction.
    width_max: f64,
    rows: Vec<Row>,
}

const WORKERS: usize = 2;
const BATCH: u64 = 32;
/// What the bucket's bandwidth makes a step take.
const STEP_S: f64 = 0.06;
/// From a loss to the start of the replacement.
const AWAY_S: f64 = 1.0;
/// For so long a checkpoint stops training; the rest of it is written beside the next steps.
const SAVING_S: f64 = 0.01;
/// Steps and starts lie this near to those of the first run.
const STEP_SPREAD: f64 = 0.05;
const START_SPREAD: f64 = 0.25;
/// A run takes far less; only a hang meets it.
const PATIENCE: Duration = Duration::from_secs(600);
const LOOK_EVERY: Duration = Duration::from_millis(5);

struct Lab {
    trainer: PathBuf,
    bucket: Bucket,
    stop: Stop,
}

impl Lab {
    fn start(&self, folder: &Path, every_s: f64) -> Result<Ranks> {
        let at = |name: &str| folder.join(name).display().to_string();
        let words = format!(
            "{} --model lenet --decode 28x28x1 --batch-size {BATCH} --device cpu --threads 1 --timeout-s 30 --set memory_limit_bytes=128MB \
             --set shards=1 --set pin=false --set connections_max=4 --step-log {} --checkpoint {} --checkpoint-every-s {every_s}",
            self.bucket.url("training/"),
            at("log-{rank}"),
            at("saved")
        );
        let words: Vec<String> = words.split_whitespace().map(str::to_owned).collect();
        Ranks::start(&self.trainer, &words, WORKERS as u32, folder)
    }

    /// Runs to the end with these kills, seconds from the start and worker, in order. Returns the seconds it took, and how many kills it
    /// met.
    fn run(&self, folder: &Path, every_s: f64, kills: &[(f64, usize)]) -> Result<(f64, u64)> {
        let (begun, mut start_at, mut job) = (Instant::now(), 0.0, None::<Ranks>);
        let mut kills = kills.iter().peekable();
        let mut revocations = 0;
        loop {
            self.stop.check()?;
            let now = begun.elapsed().as_secs_f64();
            if let Some((at, worker)) = kills.next_if(|(at, _)| *at <= now) {
                if let Some(mut ranks) = job.take() {
                    // The other one cannot go on without it.
                    ranks.kill(*worker);
                }
                (start_at, revocations) = (at + AWAY_S, revocations + 1);
            }
            let over = job.as_mut().is_some_and(|ranks| (0..WORKERS).all(|rank| ranks.has_ended(rank)));
            match job.take_if(|_| over) {
                Some(ranks) => {
                    if let Some((status, said)) = ranks.ended()?.into_iter().find(|(status, _)| !status.success()) {
                        return Err(Error::new(Kind::Environment, format!("a trainer failed ({status}): {said}")));
                    }
                    return Ok((begun.elapsed().as_secs_f64(), revocations));
                }
                None if job.is_none() && now >= start_at => job = Some(self.start(folder, every_s)?),
                None => std::thread::sleep(LOOK_EVERY),
            }
            if begun.elapsed() > PATIENCE {
                return Err(Error::new(Kind::Stalled, "the trainers do not finish").with_hint("give a longer --life-s"));
            }
        }
    }

    /// A run that is killed twice, and its pace.
    fn pace(&self, folder: &Path, steps: u64) -> Result<Pace> {
        let log = folder.join("log-0");
        let lines = || std::fs::read_to_string(&log).unwrap_or_default().lines().count() as u64;
        let mut starts = Vec::new();
        for until in [steps / 4, steps / 2, steps] {
            let (begun, before) = (Instant::now(), lines());
            let mut ranks = self.start(folder, 1.0)?;
            let mut wait = |over: &dyn Fn() -> bool| -> Result<()> {
                while !over() && !ranks.has_ended(0) && begun.elapsed() < PATIENCE {
                    self.stop.check()?;
                    std::thread::sleep(LOOK_EVERY);
                }
                Ok(())
            };
            wait(&|| lines() != before)?;
            starts.push(begun.elapsed().as_secs_f64() - STEP_S);
            wait(&|| lines() >= until)?;
            if until == steps {
                ranks.wait(PATIENCE, &self.stop)?;
            }
        }
        let text = std::fs::read_to_string(&log).unwrap_or_default();
        let said = text.lines().filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok());
        let wall: Vec<f64> = said.filter_map(|step| step["wall_ms"].as_f64()).map(|ms| ms / 1e3).collect();
        let mean = |values: &[f64]| values.iter().sum::<f64>() / values.len().max(1) as f64;
        // Well after the last start: what is killed has read ahead, and that is read again. The first start reads the trainer's libraries from
        // the disk.
        let unbroken = &wall[wall.len().saturating_sub(steps as usize / 4)..];
        Ok(Pace { step_s: mean(unbroken), start_s: mean(&starts[1..]) })
    }
}

/// The plan of a run. Bucket, cores and prices have no effect on it.
fn scenario(steps: u64, pace: Pace, life_s: f64) -> Result<Scenario> {
    let Pace { step_s, start_s } = pace;
    let free = |of: &str| {
        format!("{{ value = 0, unit = \"USD/{of}\", date = \"2026-11-01\", region = \"here\", source = \"none\" }}")
    };
    let ages = (1..=60).map(|tenth| f64::from(tenth) / 10.0);
    let ages: Vec<String> = ages.map(|age| format!("[{}, {}]", age * life_s / 3600.0, 1.0 - (-age).exp())).collect();
    let text = format!(
        "name = \"revoked\"\ncurrency = \"USD\"\n[data]\nsamples = {steps}\nsample_bytes = 1\nepochs = 1\n\
         [model]\nname = \"LeNet\"\nbatch = 1\nstep_s = {step_s}\ncheckpoint_s = {SAVING_S}\ncore_s_per_gb = 0\n\
         [bucket]\nlatency_s = 1e-6\nconnections = 64\nblock_bytes = 1e6\ngb_per_s = 1000\nrequests_per_s = 1e9\n\
         storage = {}\nrequests = {}\negress = {}\n[[machine]]\nname = \"here\"\non_demand = {}\nspot = {}\nram_gb = 0\ncores = 1\n\
         start_s = {start_s}\nreplacement_s = {}\nrevoked_by_age = [{}]\n\
         [[cluster]]\nname = \"two\"\nmachine = \"here\"\nworkers = {WORKERS}\nspot = true\nsynchronous = true\nspeedup = 1\n",
        free("GB-month"),
        free("million requests"),
        free("GB"),
        free("hour"),
        free("hour"),
        AWAY_S + start_s,
        ages.join(", ")
    );
    toml::from_str(&text).map_err(|error| Error::new(Kind::Usage, error.to_string()))
}

fn played(steps: u64, pace: Pace, life_s: f64, seed: u64) -> Result<Played> {
    Ok(plan(&scenario(steps, pace, life_s)?, 1, seed)?.clusters.remove(0))
}

pub(crate) fn run(args: &RevokedArgs) -> Outcome {
    if args.runs == 0 || args.steps < 20 || !(args.life_s >= 1.0 && args.life_s < 1e6) {
        let cause = format!("{} runs of {} steps, lives of {} s", args.runs, args.steps, args.life_s);
        return Err(usage(cause, "give at least 1 run, 20 steps, and lives of 1 s or more"));
    }
    let path = folders(&std::env::var_os("PATH").unwrap_or_default());
    let trainer = find_trainer(args.trainer.as_deref(), &this_program()?, &path)?;
    let set = DataSet::digits(args.steps * BATCH * WORKERS as u64, 1);
    let rate = set.total_bytes() as f64 / args.steps as f64 / STEP_S;
    let bucket = embedded(BucketConfig { source: Source::Generated(set), ..BucketConfig::default() })?;
    let script = format!("bandwidth_total={rate:.0}").parse();
    script
        .and_then(|script| bucket.set_script(script))
        .map_err(|error| usage(error.to_string(), "give other --steps"))?;
    let lab = Lab { trainer, bucket, stop: stop_on_signals()? };
    let folder = || tempfile::tempdir().map_err(|error| Error::from_io(Kind::File, "making a folder", error));
    let bar = Bar::new(Some(args.runs + 1), "runs");
    let pace = lab.pace(folder()?.path(), args.steps)?;
    note(&format!("steps of {:.1} ms, starts of {:.2} s", pace.step_s * 1e3, pace.start_s));
    let mut rows = Vec::new();
    for seed in 0..args.runs {
        let row = one(&lab, args, pace, seed, folder()?.path())?;
        bar.at(seed + 2, || format!("predicted {:.1} s, finished in {:.1} s", row.predicted_s, row.finished_s));
        rows.push(row);
    }
    drop(bar);
    let width_max = rows.iter().map(|row| (row.high_s - row.low_s) / row.predicted_s).fold(0.0, f64::max);
    let inside = rows.iter().filter(|row| row.inside).count();
    let (steps, life_s) = (args.steps, args.life_s);
    let report = Report {
        schema: 1,
        question: "revoked",
        machine: Machine::here(),
        steps,
        life_s,
        pace,
        inside,
        width_max,
        rows,
    };
    JsonTo::asked(args.json.as_deref()).show(&report, || text(&report))
}

/// Predicts, then runs.
fn one(lab: &Lab, args: &RevokedArgs, pace: Pace, seed: u64, folder: &Path) -> Result<Row> {
    let seconds = |steps: f64, starts: f64| {
        let pace = Pace { step_s: pace.step_s * steps, start_s: pace.start_s * starts };
        Ok::<_, Error>(played(args.steps, pace, args.life_s, seed)?.hours.mean * 3600.0)
    };
    let middle = played(args.steps, pace, args.life_s, seed)?;
    let (low_s, high_s) =
        (seconds(1.0 - STEP_SPREAD, 1.0 - START_SPREAD)?, seconds(1.0 + STEP_SPREAD, 1.0 + START_SPREAD)?);
    // The same lives, and those after them, should it take longer.
    let longer = played(10 * args.steps, pace, args.life_s, seed)?;
    let kills = longer.timeline.iter().filter(|stay| stay.revoked).map(|stay| (stay.to_hours * 3600.0, stay.worker));
    let mut kills: Vec<(f64, usize)> = kills.collect();
    kills.sort_by(|a, b| a.0.total_cmp(&b.0));
    let every_s = middle.checkpoint_interval_s.unwrap_or(1.0);
    let (finished_s, revocations) = lab.run(folder, every_s, &kills)?;
    let inside = (low_s..=high_s).contains(&finished_s);
    Ok(Row { seed, predicted_s: middle.hours.mean * 3600.0, low_s, high_s, finished_s, revocations, inside })
}

fn text(report: &Report) -> String {
    let mut table = Table::new(&[0, 1, 2, 3, 4]);
    table.row(["seed", "predicted (s)", "interval (s)", "finished (s)", "revocations", "inside"]);
    for Row { seed, predicted_s, low_s, high_s, finished_s, revocations, inside } in &report.rows {
        let seconds = [format!("{predicted_s:.1}"), format!("{low_s:.1} to {high_s:.1}"), format!("{finished_s:.1}")];
        let inside = if *inside { "yes" } else { "no" };
        let first = [seed.to_string()].into_iter().chain(seconds);
        table.row(first.chain([revocations.to_string(), inside.to_owned()]));
    }
    let Report { inside, rows, width_max, machine, .. } = report;
    format!(
        "{}{inside} of {} inside; intervals up to {:.1} % wide\n{}\n",
        table.text(),
        rows.len(),
        width_max * 100.0,
        machine.line()
    )
}
