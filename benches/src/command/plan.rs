//! `cargo x bench plan`: epochs predicted, written down, and then measured: how far off `fuelrail plan loader` is, and whether it names the
//! resource that limits.
//!
//! Each design is measured as it is and with twice as much of every resource it has. What shortens the measured epoch most is the limit.

use std::path::PathBuf;

use clap::Args;
use fuelrail_base::prng::Prng;
use fuelrail_cli::bench::this_program;
use fuelrail_cli::failure::{Outcome, Stop, usage};
use fuelrail_cli::machine::Machine;
use fuelrail_cli::plan::loader::{Case, Limit, Prediction, World, shortest};
use fuelrail_cli::screen::{Bar, JsonTo, Table, note};
use fuelrail_cli::signals::stop_on_signals;
use fuelrail_cli::whole::WholeFile;
use fuelrail_plan::hedge::first_requests;
use fuelrail_sim::forecast::ORDERS;
use serde::Serialize;

use crate::harness::Spread;
use crate::scenario::{RunResult, Runner, Scenario};

const EXAMPLES: &str = "Examples:
  cargo x bench plan --json plan.json
  cargo x bench plan --designs 2 --scale 0.25

Designs are drawn: latency 5, 20 or 55 ms, bandwidth, RAM for 5 to 95 % of a rank's samples, a disk or none, 1 to 3 ranks, the trainer's \
step. The bucket runs in this process, ranks are processes of their own that keep in step, as trainers do. The overhead of a step, \
with everything in RAM, is measured first, for each number of ranks, and each loader is asked what memory its batches have. Predictions \
are written to --predictions before anything else runs. A design runs once by each of the orders that are predicted, one with twice as \
much of a resource once.";

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
}

/// A design as it is, or with twice as much of one resource.
struct Variant {
    name: String,
    doubled: Option<Limit>,
    case: Case,
}

/// A prediction beside what was measured.
#[derive(Serialize)]
struct Row {
    #[serde(flatten)]
    predicted: Predicted,
    /// Of a later epoch, mean over the orders.
    measured_s: f64,
    orders_s: Vec<f64>,
    error: f64,
    error_closed_form: f64,
    limit_measured: Limit,
    /// Seconds of an epoch with twice as much of each.
    doubled_s: Vec<(Limit, f64)>,
}

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
/// Memory besides the cache: for batches, connections, hedged requests, and the index of what is cached.
const ROOM_BYTES: u64 = 4 << 20;
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
            // At most: a loader is asked for it.
            room_bytes: ROOM_BYTES,
            cache_bytes: part * self.ram_percent / 100,
            disk_bytes: part * self.disk_percent / 100,
            latency_s: self.latency_ms as f64 / 1e3,
            bytes_per_s: self.bandwidth_mib_per_s << 20,
            requests_per_s: 0,
            step_s: self.step_ms as f64 / 1e3,
        };
        Case { world, disk_bytes_per_s: DISK_BYTES_PER_S, cores: 1.0, core_s_per_byte: 0.0 }
    }

    /// As it is, and with twice as much of each resource.
    fn variants(&self, scale: f64) -> Vec<Variant> {
        let (name, case) = (&self.name, self.case(scale));
        let own = Variant { name: name.clone(), doubled: None, case };
        let doubled =
            |(limit, case)| Variant { name: format!("{name}, twice the {limit}"), doubled: Some(limit), case };
        [own].into_iter().chain(case.doubles().map(doubled)).collect()
    }
}

/// Predicts a design from its variants, of which the first is the design as it is.
fn predict(design: Design, variants: &[Variant], overhead_s: &[f64; RANKS_MAX]) -> fuelrail::Result<Predicted> {
    let with_overhead = |case: Case| {
        let step_s = case.world.step_s + overhead_s[design.ranks as usize - 1];
        Case { world: World { step_s, ..case.world }, ..case }
    };
    let own = with_overhead(variants[0].case);
    let Prediction { simulated_s, closed_form_s } = own.predict()?;
    let doubled = variants.iter().filter_map(|variant| {
        let predicted = |limit| Ok((limit, with_overhead(variant.case).predict()?.simulated_s[1]));
        variant.doubled.map(predicted)
    });
    let doubled = doubled.collect::<fuelrail::Result<Vec<_>>>()?;
    Ok(Predicted {
        limit: shortest(doubled.into_iter()),
        limit_closed_form: own.limit_closed_form(),
        design,
        simulated_s: simulated_s[1],
        closed_form_s: closed_form_s[1],
    })
}

/// A run of a scenario, of so many epochs.
fn run_text(Variant { name, case, .. }: &Variant, epochs: u64) -> String {
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
         read = {{ epochs = {epochs}, ahead = true, processes = {ranks}, in_step = true, step_ms = {} }}\n\
         [runs.settings]\nbatch_size = {BATCH}\nseed = \"{{round}}\"\nshards = 1\npin = false\norder = \"sticky\"\nworld = {ranks}\n\
         rank = \"{{process}}\"\nconnections_max = {CONNECTIONS}\nhedge_percent = {HEDGE_PERCENT}\ncache_limit_bytes = {cache_bytes}\nmemory_limit_bytes = {memory}\n{disk}",
        (latency_s * 1e6).round(),
        (step_s * 1e3).round(),
    )
}

pub(crate) fn run(args: &PlanArgs) -> Outcome {
    if !((1..=1000).contains(&args.designs) && args.scale > 0.0 && args.scale <= 100.0) {
        let cause = format!("{} designs at scale {}", args.designs, args.scale);
        return Err(usage(cause, "give 1 to 1000 designs, and a scale above 0, up to 100"));
    }
    let stop = stop_on_signals()?;
    let overhead_s = overhead_s(args.scale, &stop)?;
    let mut prng = Prng::new(args.seed);
    let designs: Vec<Design> = (0..args.designs).map(|number| draw(number, &mut prng)).collect();
    let mut variants: Vec<Vec<Variant>> = designs.iter().map(|design| design.variants(args.scale)).collect();
    let rooms = measure(variants.iter().flatten(), &ROOM, &stop)?;
    for (variant, room) in variants.iter_mut().flatten().zip(rooms) {
        variant.case.world.room_bytes = room[0] as u64;
    }
    let predicted = designs.into_iter().zip(&variants).map(|(design, variants)| predict(design, variants, &overhead_s));
    let predicted = predicted.collect::<fuelrail::Result<Vec<Predicted>>>()?;
    let written = Machine::here().date;
    let json = serde_json::to_string_pretty(&predicted).expect("a plain structure");
    WholeFile::of(&args.predictions, &format!("{json}\n"))?;
    note(&format!("{} written at {written}, before the first run", args.predictions.display()));
    let own = measure(variants.iter().map(|variants| &variants[0]), &BY_ALL_ORDERS, &stop)?;
    let doubled = measure(variants.iter().flat_map(|variants| &variants[1..]), &EPOCH, &stop)?;
    let mut doubled = doubled.into_iter();
    let rows = predicted.into_iter().zip(variants).zip(own).map(|((predicted, variants), own)| {
        let limits = variants.into_iter().filter_map(|variant| variant.doubled);
        Row::new(predicted, own, limits.zip(doubled.by_ref()).map(|(limit, s)| (limit, s[0])).collect())
    });
    let report = report(args, written, overhead_s, rows.collect());
    JsonTo::asked(args.json.as_deref()).show(&report, || text(&report))
}

/// The overhead of a step for each number of ranks, seconds: by epochs with everything in RAM.
fn overhead_s(scale: f64, stop: &Stop) -> Outcome<[f64; RANKS_MAX]> {
    let in_ram = |ranks: u32| {
        let name = format!("all in RAM, {ranks} rank(s)");
        let design = Design {
            name: name.clone(),
            latency_ms: 1,
            bandwidth_mib_per_s: 1024,
            ram_percent: 120,
            disk_percent: 0,
            ranks,
            step_ms: 10,
        };
        Variant { name, doubled: None, case: design.case(scale) }
    };
    let all: Vec<Variant> = (1..=RANKS_MAX as u32).map(in_ram).collect();
    let measured = measure(all.iter(), &EPOCH, stop)?;
    Ok(core::array::from_fn(|at| {
        let world = &all[at].case.world;
        let steps = world.samples.div_ceil(u64::from(world.batch_size) * u64::from(world.ranks));
        (measured[at][0] / steps as f64 - world.step_s).max(0.0)
    }))
}

/// A figure of runs.
struct Measurement {
    figure: &'static str,
    epochs: u64,
    /// Runs of each, every one by an order of its own.
    orders: u32,
}

const EPOCH: Measurement = Measurement { figure: "later.elapsed_s", epochs: EPOCHS, orders: 1 };
const BY_ALL_ORDERS: Measurement = Measurement { orders: ORDERS, ..EPOCH };
/// Memory for batches: nothing has to be read.
const ROOM: Measurement = Measurement { figure: "memory.batch_bytes", epochs: 0, orders: 1 };

/// Measures each by every order.
fn measure<'v>(
    all: impl Iterator<Item = &'v Variant>,
    &Measurement { figure, epochs, orders }: &Measurement,
    stop: &Stop,
) -> Outcome<Vec<Vec<f64>>> {
    let runs: Vec<String> = all.map(|variant| run_text(variant, epochs)).collect();
    let mut measured = vec![Vec::new(); runs.len()];
    let runner = Runner {
        scenario: Scenario::parse(&format!(
            "about = 'predicted'\nrounds = {orders}\nquick = 1.0\ncolumns = [{{ title = '{figure}', of = '{figure}', digits = 3 }}]\n{}",
            runs.concat()
        ))?,
        settings: Vec::new(),
        folder: std::env::temp_dir(),
        program: this_program()?,
        trainer: None,
        limit: std::time::Duration::ZERO,
        stop: stop.clone(),
    };
    let (mut done, in_all) = (0, runs.len() * orders as usize);
    let bar = Bar::new(Some(in_all as u64), "runs");
    runner.run("plan", &mut |ran: &RunResult| {
        let value = ran.figures.get(figure).copied().unwrap_or(f64::NAN);
        measured[done % runs.len()].push(value);
        done += 1;
        bar.at(done as u64, || format!("{}: {figure} {value:.2}", ran.run));
        if bar.is_hidden() {
            note(&format!("{done} of {in_all}, {}: {figure} {value:.2}", ran.run));
        }
    })?;
    Ok(measured)
}

impl Row {
    /// Of what was measured by each order, and of epochs with twice as much of each resource.
    fn new(predicted: Predicted, orders_s: Vec<f64>, doubled_s: Vec<(Limit, f64)>) -> Row {
        let measured_s = orders_s.iter().sum::<f64>() / orders_s.len() as f64;
        Row {
            measured_s,
            error: predicted.simulated_s / measured_s - 1.0,
            error_closed_form: predicted.closed_form_s / measured_s - 1.0,
            limit_measured: shortest(doubled_s.iter().copied()),
            predicted,
            orders_s,
            doubled_s,
        }
    }
}

fn report(args: &PlanArgs, predicted: String, overhead_s: [f64; RANKS_MAX], rows: Vec<Row>) -> Report {
    let spread = |of: fn(&Row) -> f64| Spread::of(rows.iter().map(|row| of(row).abs())).expect("there are designs");
    let named = |of: fn(&Row) -> Limit| rows.iter().filter(|row| of(row) == row.limit_measured).count();
    Report {
        schema: 1,
        question: "plan",
        machine: Machine::here(),
        seed: args.seed,
        scale: args.scale,
        predicted,
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
