//! `cargo x bench plan`: epochs predicted, written down, and then measured: how far off `fuelrail plan loader` is, and whether it names the
//! resource that limits.
//!
//! Each design is measured as it is and with twice as much of every resource it has. What shortens the measured epoch most is the limit.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use fuelrail_base::prng::Prng;
use fuelrail_cli::bench::this_program;
use fuelrail_cli::failure::{Outcome, Stop, stop_on_signals, usage};
use fuelrail_cli::machine::Machine;
use fuelrail_cli::plan::loader::{Case, Limit, Prediction, World, shortest};
use fuelrail_cli::screen::{Bar, JsonTo, Table, note};
use fuelrail_cli::whole::WholeFile;
use fuelrail_plan::hedge::first_requests;
use serde::Serialize;

use crate::harness::Spread;
use crate::scenario::{RunResult, Runner, Scenario};

const EXAMPLES: &str = "Examples:
  cargo x bench plan --json plan.json
  cargo x bench plan --designs 2 --scale 0.25

Designs are drawn: latency 5, 20 or 55 ms, bandwidth, RAM for 5 to 95 % of a rank's samples, a disk or none, 1 to 3 ranks, the trainer's \
step. The bucket runs in this process, ranks are processes of their own that keep in step, as trainers do. The overhead of a step, \
with everything in RAM, is measured first, for each number of ranks. Predictions are written to --predictions before anything else runs.";

/// Predict epochs, then measure them with the real engine
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(crate) struct PlanArgs {
    /// Designs
    #[arg(long, value_name = "N", default_value_t = 24)]
    designs: u64,
    /// Seed they are drawn by
    #[arg(long, default_value_t = 20)]
    seed: u64,
    /// Multiply the number of objects
    #[arg(long, value_name = "FACTOR", default_value_t = 1.0)]
    scale: f64,
    /// Where the predictions go before anything runs
    #[arg(long, value_name = "FILE", default_value = "target/plan-predictions.json")]
    predictions: PathBuf,
    /// Print the result as one JSON document, or write it to FILE beside the table
    #[arg(long, value_name = "FILE", num_args = 0..=1, default_missing_value = "-")]
    json: Option<String>,
}

/// What a run is made of.
#[derive(Clone, Serialize)]
struct Design {
    name: String,
    latency_ms: u64,
    bandwidth_mib_per_s: u64,
    ram_percent: u64,
    disk_percent: u64,
    ranks: u32,
    step_ms: u64,
}

/// A design, and what was predicted of a later epoch.
#[derive(Serialize)]
struct Predicted {
    design: Design,
    limit: Limit,
    limit_closed_form: Limit,
    simulated_s: f64,
    closed_form_s: f64,
    #[serde(skip)]
    case: Case,
}

/// A prediction beside what was measured.
#[derive(Serialize)]
struct Row {
    #[serde(flatten)]
    predicted: Predicted,
    measured_s: f64,
    error: f64,
    error_closed_form: f64,
    limit_measured: Limit,
    /// Seconds of an epoch with twice as much of each.
    doubled_s: Vec<(Limit, f64)>,
}

/// The result.
#[derive(Serialize)]
struct Report {
    schema: u32,
    question: &'static str,
    machine: Machine,
    seed: u64,
    scale: f64,
    /// When the predictions were written.
    predicted: String,
    /// Seconds that a step takes longer than it should with everything in RAM: of one rank, two and three.
    overhead_s: [f64; RANKS_MAX],
    error: Spread,
    error_closed_form: Spread,
    limits_named: usize,
    limits_named_closed_form: usize,
    rows: Vec<Row>,
}

const RANKS_MAX: usize = 3;
const OBJECTS: f64 = 960.0;
const OBJECT_BYTES: u64 = 64 << 10;
const BATCH: u32 = 8;
const CONNECTIONS: usize = 16;
const HEDGE_PERCENT: u32 = 2;
/// Memory besides the cache, and the part of it that connections take.
const ROOM_BYTES: u64 = 4 << 20;
const SCRATCH_BYTES: u64 = CONNECTIONS as u64 * (16 << 10);
/// What the disk's buffers take besides.
const DISK_BUFFERS: u64 = 4 << 20;
/// Those from the third on count: the disk is full after the second.
const EPOCHS: u64 = 5;
/// What a disk here reads: never the limit of these designs.
const DISK_BYTES_PER_S: f64 = 1e9;

fn draw(number: u64, prng: &mut Prng) -> Design {
    let mut pick = |list: &[u64]| list[prng.below(list.len() as u64) as usize];
    let latency_ms = [5, 20, 55][number as usize % 3];
    let (bandwidth, ram, disk) = (pick(&[16, 32, 64]), pick(&[5, 25, 50, 75, 95]), pick(&[0, 25]));
    let (ranks, step_ms) = (pick(&[1, 2, 3]) as u32, pick(&[2, 10, 30]));
    Design {
        name: number.to_string(),
        latency_ms,
        bandwidth_mib_per_s: bandwidth,
        ram_percent: ram,
        disk_percent: disk,
        ranks,
        step_ms,
    }
}

impl Design {
    fn case(&self, scale: f64) -> Case {
        let samples = ((OBJECTS * scale) as u64).max(1);
        let part = samples * OBJECT_BYTES / u64::from(self.ranks);
        let world = World {
            samples,
            sample_bytes: OBJECT_BYTES,
            block_bytes: 8 << 20,
            batch_size: BATCH,
            ranks: self.ranks,
            epochs: EPOCHS + 1,
            sticky: true,
            shards: 1,
            connections_max: first_requests(CONNECTIONS, HEDGE_PERCENT),
            room_bytes: ROOM_BYTES - SCRATCH_BYTES,
            cache_bytes: part * self.ram_percent / 100,
            disk_bytes: part * self.disk_percent / 100,
            latency_s: self.latency_ms as f64 / 1e3,
            bytes_per_s: self.bandwidth_mib_per_s << 20,
            requests_per_s: 0,
            step_s: self.step_ms as f64 / 1e3,
        };
        Case { world, disk_bytes_per_s: DISK_BYTES_PER_S, cores: 1.0, core_s_per_byte: 0.0 }
    }

    fn predict(self, scale: f64, overhead_s: &[f64; RANKS_MAX]) -> fuelrail::Result<Predicted> {
        let case = self.case(scale);
        let with_overhead = |case: Case| {
            let step_s = case.world.step_s + overhead_s[self.ranks as usize - 1];
            Case { world: World { step_s, ..case.world }, ..case }
        };
        let Prediction { simulated_s, closed_form_s } = with_overhead(case).predict()?;
        let doubled = case.doubles().map(|(limit, case)| Ok((limit, with_overhead(case).predict()?.simulated_s[1])));
        let doubled = doubled.collect::<fuelrail::Result<Vec<_>>>()?;
        Ok(Predicted {
            limit: shortest(doubled.into_iter()),
            limit_closed_form: with_overhead(case).limit_closed_form(),
            design: self,
            simulated_s: simulated_s[1],
            closed_form_s: closed_form_s[1],
            case,
        })
    }
}

/// A run of a scenario: this case, called `name`.
fn run_text(name: &str, case: &Case) -> String {
    let World { samples, ranks, cache_bytes, disk_bytes, latency_s, bytes_per_s, step_s, .. } = case.world;
    let (memory, disk) = match disk_bytes {
        0 => (cache_bytes + ROOM_BYTES, String::new()),
        _ => (
            cache_bytes + ROOM_BYTES + DISK_BUFFERS,
            format!("spill_dirs = \"{{dir}}/{{process}}\"\nspill_limit_bytes = {disk_bytes}\nspill_floor_bytes = 1\n"),
        ),
    };
    format!(
        "[[runs]]\nname = \"{name}\"\n\
         bucket = {{ set = {{ kind = \"tokens\", seed = 3, count = {samples}, shard_bytes = {OBJECT_BYTES} }}, \
         script = \"latency=fixed:{}us,bandwidth_total={bytes_per_s}\" }}\n\
         read = {{ epochs = {EPOCHS}, ahead = true, processes = {ranks}, in_step = true, step_ms = {} }}\n\
         [runs.settings]\nbatch_size = {BATCH}\nseed = 1\nshards = 1\npin = false\norder = \"sticky\"\nworld = {ranks}\n\
         rank = \"{{process}}\"\nconnections_max = {CONNECTIONS}\nhedge_percent = {HEDGE_PERCENT}\ncache_limit_bytes = {cache_bytes}\nmemory_limit_bytes = {memory}\n{disk}",
        (latency_s * 1e6).round(),
        (step_s * 1e3).round(),
    )
}

/// A design as it is, and with twice as much of each resource.
fn variants(predicted: &Predicted) -> Vec<(String, Option<Limit>, Case)> {
    let name = &predicted.design.name;
    let doubled =
        predicted.case.doubles().map(|(limit, case)| (format!("{name}, twice the {limit}"), Some(limit), case));
    [(name.clone(), None, predicted.case)].into_iter().chain(doubled).collect()
}

pub(crate) fn run(args: &PlanArgs) -> Outcome {
    if !((1..=1000).contains(&args.designs) && args.scale > 0.0 && args.scale <= 100.0) {
        let cause = format!("{} designs at scale {}", args.designs, args.scale);
        return Err(usage(cause, "give 1 to 1000 designs, and a scale above 0, up to 100"));
    }
    let stop = stop_on_signals()?;
    let overhead_s = overhead_s(args.scale, &stop)?;
    let mut prng = Prng::new(args.seed);
    let designs = (0..args.designs).map(|number| draw(number, &mut prng).predict(args.scale, &overhead_s));
    let predicted = designs.collect::<fuelrail::Result<Vec<Predicted>>>()?;
    let written = Machine::here().date;
    let json = serde_json::to_string_pretty(&predicted).expect("a plain structure");
    WholeFile::of(&args.predictions, &format!("{json}\n"))?;
    note(&format!("{} written at {written}, before the first run", args.predictions.display()));
    let all: Vec<_> = predicted.iter().flat_map(variants).map(|(name, _, case)| (name, case)).collect();
    let measured = measure(&all, &stop)?;
    let report = report(args, predicted, written, overhead_s, &measured);
    JsonTo::asked(args.json.as_deref()).show(&report, || text(&report))?;
    Ok(ExitCode::SUCCESS)
}

/// The overhead of a step for each number of ranks, seconds: by epochs with everything in RAM.
fn overhead_s(scale: f64, stop: &Stop) -> Outcome<[f64; RANKS_MAX]> {
    let in_ram = |ranks: u32| Design {
        name: format!("all in RAM, {ranks} rank(s)"),
        latency_ms: 1,
        bandwidth_mib_per_s: 1024,
        ram_percent: 120,
        disk_percent: 0,
        ranks,
        step_ms: 10,
    };
    let designs = (1..=RANKS_MAX as u32).map(in_ram);
    let cases: Vec<_> = designs.map(|design| (design.name.clone(), design.case(scale))).collect();
    let measured = measure(&cases, stop)?;
    Ok(core::array::from_fn(|at| {
        let world = &cases[at].1.world;
        let steps = world.samples.div_ceil(u64::from(world.batch_size) * u64::from(world.ranks));
        (measured[at] / steps as f64 - world.step_s).max(0.0)
    }))
}

/// Seconds of a later epoch of each.
fn measure(all: &[(String, Case)], stop: &Stop) -> Outcome<Vec<f64>> {
    let mut scenario = "about = 'predicted'\nrounds = 1\nquick = 1.0\n\
                        columns = [{ title = 'epoch s', of = 'later.elapsed_s', digits = 3 }]\n"
        .to_owned();
    all.iter().for_each(|(name, case)| scenario.push_str(&run_text(name, case)));
    let bar = Bar::new(Some(all.len() as u64), "runs");
    let mut measured: Vec<f64> = Vec::new();
    let runner = Runner {
        scenario: Scenario::parse(&scenario)?,
        settings: Vec::new(),
        folder: std::env::temp_dir(),
        program: this_program()?,
        trainer: None,
        limit: std::time::Duration::ZERO,
        stop: stop.clone(),
    };
    runner.run("plan", &mut |ran: &RunResult| {
        measured.push(ran.figures.get("later.elapsed_s").copied().unwrap_or(f64::NAN));
        let done = measured.len();
        bar.at(done as u64, || format!("{}: {:.2} s", ran.run, measured[done - 1]));
        if bar.is_hidden() {
            note(&format!("{done} of {}, {}: {:.2} s", all.len(), ran.run, measured[done - 1]));
        }
    })?;
    Ok(measured)
}

/// Joins predictions and measurements, which are in the order of the designs and their variants.
fn report(
    args: &PlanArgs,
    predicted: Vec<Predicted>,
    written: String,
    overhead_s: [f64; RANKS_MAX],
    mut measured: &[f64],
) -> Report {
    let rows = predicted.into_iter().map(|predicted| {
        let variants = variants(&predicted);
        let (own, rest) = measured.split_at(variants.len());
        measured = rest;
        let doubled = variants.iter().zip(own).filter_map(|((_, limit, _), s)| Some(((*limit)?, *s)));
        let doubled_s: Vec<(Limit, f64)> = doubled.collect();
        Row {
            measured_s: own[0],
            error: predicted.simulated_s / own[0] - 1.0,
            error_closed_form: predicted.closed_form_s / own[0] - 1.0,
            limit_measured: shortest(doubled_s.iter().copied()),
            predicted,
            doubled_s,
        }
    });
    let rows: Vec<Row> = rows.collect();
    let spread = |of: fn(&Row) -> f64| Spread::of(rows.iter().map(|row| of(row).abs())).expect("there are designs");
    let named = |of: fn(&Row) -> Limit| rows.iter().filter(|row| of(row) == row.limit_measured).count();
    Report {
        schema: 1,
        question: "plan",
        machine: Machine::here(),
        seed: args.seed,
        scale: args.scale,
        predicted: written,
        overhead_s,
        error: spread(|row| row.error),
        error_closed_form: spread(|row| row.error_closed_form),
        limits_named: named(|row| row.predicted.limit),
        limits_named_closed_form: named(|row| row.predicted.limit_closed_form),
        rows,
    }
}

fn text(report: &Report) -> String {
    let mut table = Table::new(&[0, 1, 2, 3, 4, 5, 6, 7, 8, 9]);
    table.row([
        "latency (ms)",
        "bandwidth (MiB/s)",
        "RAM (%)",
        "disk (%)",
        "ranks",
        "step (ms)",
        "measured (s)",
        "predicted",
        "error (%)",
        "closed form (%)",
        "limit",
        "predicted",
        "closed form",
    ]);
    for row in &report.rows {
        let Design { latency_ms, bandwidth_mib_per_s, ram_percent, disk_percent, ranks, step_ms, .. } =
            &row.predicted.design;
        table.row([
            latency_ms.to_string(),
            bandwidth_mib_per_s.to_string(),
            ram_percent.to_string(),
            disk_percent.to_string(),
            ranks.to_string(),
            step_ms.to_string(),
            format!("{:.3}", row.measured_s),
            format!("{:.3}", row.predicted.simulated_s),
            format!("{:+.1}", row.error * 100.0),
            format!("{:+.1}", row.error_closed_form * 100.0),
            row.limit_measured.to_string(),
            row.predicted.limit.to_string(),
            row.predicted.limit_closed_form.to_string(),
        ]);
    }
    let spread = |spread: &Spread| format!("median {:.1} %, worst {:.1} %", spread.median * 100.0, spread.max * 100.0);
    let count = report.rows.len();
    format!(
        "{}\nsimulator: {}, limit named in {} of {count}\nclosed form: {}, limit named in {} of {count}\n{}\n",
        table.text(),
        spread(&report.error),
        report.limits_named,
        spread(&report.error_closed_form),
        report.limits_named_closed_form,
        report.machine.line()
    )
}
