//! `fuelrail-sim`: plays one seed or a swarm of them. Called through `cargo x sim`.
#![forbid(unsafe_code)]

use std::fmt::Write as _;
use std::io::Write as _;
use std::process::ExitCode;

use clap::{Args, Parser, Subcommand};
use fuelrail_base::{Error, Kind, Result};
use fuelrail_plan::order::quality::Quality;
use fuelrail_sim::orders::{OrderAnswer, OrdersRun, compare};
use fuelrail_sim::{Canary, Scenario, SimReport, run, run_with_canary};
use serde_json::{Value, json};

/// Plays Fuelrail in virtual time and checks every batch.
///
/// Exit codes: 0 every check passed (with --canary: the canary was caught), 1 a check failed (with --canary: it was
/// missed), 2 wrong usage.
#[derive(Parser)]
#[command(name = "fuelrail-sim", version, args_conflicts_with_subcommands = true)]
#[command(after_help = "Examples:\n  cargo x sim -- --seed 42\n  cargo x sim -- --seeds 200 --from 1000\n  \
                        cargo x sim -- --seed 1 --canary lost-completion\n  \
                        cargo x sim -- orders --world 3")]
struct Arguments {
    #[command(subcommand)]
    question: Option<Question>,
    /// Play this seed and print its report
    #[arg(long, conflicts_with_all = ["seeds", "from"])]
    seed: Option<u64>,
    /// Play so many seeds, each with its own mix of faults
    #[arg(long, value_name = "COUNT", default_value_t = 100)]
    seeds: u64,
    /// First seed of the swarm
    #[arg(long, value_name = "N", default_value_t = 0)]
    from: u64,
    /// Plant this bug; the checks must catch it
    #[arg(long, value_name = "NAME")]
    canary: Option<Canary>,
    /// Print reports as JSON, one a line
    #[arg(long)]
    json: bool,
}

#[derive(Subcommand)]
enum Question {
    Orders(Orders),
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    if let Some(Question::Orders(orders)) = &arguments.question {
        return compare_orders(orders);
    }
    let seeds = match arguments.seed {
        Some(seed) => seed..seed.saturating_add(1),
        None => arguments.from..arguments.from.saturating_add(arguments.seeds),
    };
    let count = seeds.end - seeds.start;
    let mut failed = 0u64;
    let (mut virtual_s, mut samples) = (0.0, 0);
    for seed in seeds {
        let report = play(seed, arguments.canary);
        virtual_s += report.virtual_s;
        samples += report.samples;
        let good = report.is_sound() != arguments.canary.is_some();
        failed += u64::from(!good);
        let told = tell(&report, &arguments, good, count == 1);
        if told.is_err() {
            // Standard output is closed.
            return ExitCode::FAILURE;
        }
    }
    if count > 1 {
        eprintln!("{count} seeds, {failed} failed; {samples} samples checked in {virtual_s:.0} virtual seconds");
    }
    if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn play(seed: u64, canary: Option<Canary>) -> SimReport {
    let scenario = Scenario::draw(seed);
    canary.map_or_else(|| run(&scenario), |canary| run_with_canary(&scenario, canary))
}

fn tell(report: &SimReport, arguments: &Arguments, good: bool, alone: bool) -> std::io::Result<()> {
    let mut out = std::io::stdout().lock();
    if arguments.json {
        serde_json::to_writer(&mut out, report)?;
        writeln!(out)?;
    } else if alone || !good {
        writeln!(out, "{report}")?;
        writeln!(out, "  replay: {}", report.replay_command())?;
    } else {
        writeln!(out, "seed {} {} {} events", report.seed, report.content_hash, report.events)?;
    }
    if arguments.canary.is_some() && !arguments.json {
        writeln!(out, "  canary {}", if good { "caught" } else { "MISSED" })?;
    }
    out.flush()
}

/// Compare the orders: how well each shuffles, and what ranks hit in caches of their own
#[derive(Args)]
#[command(after_help = "Examples:\n  cargo x sim -- orders --world 3 --cache-share 0.5\n  \
                        cargo x sim -- orders --samples 60000 --world 8 --batch-size 32 --json")]
pub(crate) struct Orders {
    #[command(flatten)]
    run: OrdersRun,
    /// Print one JSON document
    #[arg(long)]
    json: bool,
}

fn compare_orders(args: &Orders) -> ExitCode {
    match answer(args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("fuelrail-sim: {error}");
            ExitCode::from(error.kind().exit_code())
        }
    }
}

fn answer(args: &Orders) -> Result<()> {
    let question = &args.run;
    let orders = compare(question)?;
    let text = if args.json {
        let orders: Vec<Value> = orders.iter().map(document).collect();
        format!("{:#}\n", json!({ "schema": 1, "question": question, "orders": orders }))
    } else {
        table(question, &orders)
    };
    let written = std::io::stdout().lock().write_all(text.as_bytes());
    written.map_err(|error| Error::from_io(Kind::File, "writing to standard output", error))
}

type Number = fn(&Quality) -> f64;

/// One measure of a shuffle: name in documents, heading, number and decimal places.
const NUMBERS: [(&str, &str, Number, usize); 7] = [
    ("serial_sigmas", "positions of two epochs, correlation, sigmas", |q| q.serial_sigmas, 1),
    ("neighbours", "neighbours apart in the next epoch, 1 by chance", |q| q.neighbours, 3),
    ("step_sigmas", "make-up of steps, sigmas from chance", |q| q.step_sigmas, 1),
    ("batch_sigmas", "make-up of ranks' batches, sigmas", |q| q.batch_sigmas, 1),
    ("step_mates", "different mates in a step, 1 by chance", |q| q.step_mates, 3),
    ("batch_mates", "different mates in a rank's batch", |q| q.batch_mates, 3),
    ("kept", "back at the same rank in the next epoch", |q| q.kept, 3),
];

fn document(order: &OrderAnswer) -> Value {
    let mut document = json!({ "name": order.name, "hit_ratio": order.hit_ratio });
    for (name, _, number, _) in NUMBERS {
        document[name] = number(&order.quality).into();
    }
    document
}

/// A line for each number, a column for each order.
fn table(question: &OrdersRun, orders: &[OrderAnswer]) -> String {
    let OrdersRun { samples, world, batch_size, epochs, cache_share, .. } = question;
    let mut text = format!("{samples} samples over {world} ranks x {batch_size}, {epochs} epochs\n");
    let mut line = |name: &str, cell: &dyn Fn(&OrderAnswer) -> String| {
        let cells: String = orders.iter().map(|order| format!("{:>18}", cell(order))).collect();
        let _ = writeln!(text, "{name:<50}{cells}");
    };
    line("", &|order| order.name.clone());
    for (_, name, number, places) in NUMBERS {
        line(name, &|order| format!("{:.places$}", number(&order.quality)));
    }
    let hits = |order: &OrderAnswer| order.hit_ratio.map_or("-".into(), |ratio| format!("{ratio:.3}"));
    line(&format!("hits in own caches of {:.0} % of a part", cache_share * 100.0), &hits);
    text
}
