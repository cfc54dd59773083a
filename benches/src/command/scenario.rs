//! `cargo x bench scenario`: a loader or a trainer beside a bucket that is far, slow, refuses, fails or is down.

use std::io::{stdin, stdout};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::Args;

use crate::harness::Spread;
use crate::scenario::{Column, Report, RunResult, Runner, SCENARIOS, Scenario, Task, read, value};
use fuelrail_cli::bench::{setting, this_program};
use fuelrail_cli::failure::{Outcome, usage};
use fuelrail_cli::screen::{Bar, JsonTo, Table, print, telling};
use fuelrail_cli::signals::stop_on_signals;
use fuelrail_cli::train::{find_trainer, folders};

const EXAMPLES: &str = "Examples:
  cargo x bench scenario --list
  cargo x bench scenario tail --rounds 5 --json tail.json
  cargo x bench scenario tiers --dir /mnt/nvme --scale 2
  cargo x bench scenario throttle --quick
  cargo x bench scenario tiers --only '50 %'
  cargo x bench scenario my.toml --set shards=2

Scenarios are files, see benches/scenarios. The bucket runs in this process, loaders are processes of their own, and so is the trainer, \
fuelrail-train, which needs libtorch (cargo build --release -p fuelrail-tch). Ratios and differences are taken within a round.";

/// Measure a scenario: tails, rate limits, outages, tiers, caches, importance, switching
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(crate) struct ScenarioArgs {
    /// The scenario, or a file that ends in .toml
    #[arg(value_name = "NAME|FILE", required_unless_present = "list")]
    name: Option<String>,
    /// List the scenarios
    #[arg(long)]
    list: bool,
    /// Rounds [default: the scenario's]
    #[arg(long, value_name = "N")]
    rounds: Option<u32>,
    /// Multiply counts of objects and times of phases
    #[arg(long, value_name = "FACTOR", default_value_t = 1.0)]
    scale: f64,
    /// One small round, at a scale that the scenario names: to see that it works
    #[arg(long, conflicts_with = "scale")]
    quick: bool,
    /// A setting of all loaders
    #[arg(long, value_name = "FIELD=VALUE", value_parser = setting)]
    set: Vec<(String, String)>,
    /// Where loaders write what they write; removed at the end [default: the system's folder for temporary files]
    #[arg(long, value_name = "FOLDER")]
    dir: Option<PathBuf>,
    /// The trainer's program [default: fuelrail-train beside this one or in PATH]
    #[arg(long, value_name = "FILE")]
    trainer: Option<PathBuf>,
    /// Longest time of one run of the trainer
    #[arg(long, value_name = "SECONDS", default_value_t = 300)]
    limit: u64,
    /// Run only those whose names contain this text
    #[arg(long, value_name = "TEXT")]
    only: Option<String>,
    /// Print the result as one JSON document, or write it to FILE beside the table
    #[arg(long, value_name = "FILE", num_args = 0..=1, default_missing_value = "-")]
    json: Option<String>,
}

pub(crate) fn run(args: &ScenarioArgs) -> Outcome {
    let Some(name) = args.name.as_ref().filter(|_| !args.list) else { return list() };
    if !(args.scale > 0.0 && args.scale <= 100.0) {
        return Err(usage(format!("--scale {}", args.scale), "give a factor above 0, up to 100"));
    }
    let scenario = Scenario::find(name)?;
    let (scale, rounds) = if args.quick { (scenario.quick, 1) } else { (args.scale, scenario.rounds) };
    let mut scenario = scenario.scaled(scale);
    scenario.rounds = args.rounds.unwrap_or(rounds);
    scenario.runs.retain(|run| args.only.as_ref().is_none_or(|only| run.name.contains(only)));
    let program = this_program()?;
    let trains = scenario.runs.iter().any(|run| run.train.is_some());
    let path = folders(&std::env::var_os("PATH").unwrap_or_default());
    let find = || find_trainer(args.trainer.as_deref(), &program, &path);
    let runner = Runner {
        settings: args.set.clone(),
        folder: args.dir.clone().unwrap_or_else(std::env::temp_dir),
        trainer: trains.then(find).transpose()?,
        limit: Duration::from_secs(args.limit),
        stop: stop_on_signals()?,
        program: program.clone(),
        scenario,
    };
    let total = u64::from(runner.scenario.rounds) * runner.scenario.runs.len() as u64;
    let bar = Bar::new(Some(total), "runs");
    let first = runner.scenario.columns[0].clone();
    let line = move |ran: &RunResult| {
        let first_value = value(&first.of, &ran.figures).map_or_else(|| "-".to_owned(), |value| digits(value, &first));
        format!("round {}, {}: {} {first_value}", ran.round, ran.run, first.title)
    };
    let report = runner.run(name, &mut telling(&bar, total, line))?;
    drop(bar);
    JsonTo::asked(args.json.as_deref()).show(&report, || text(&report))
}

fn list() -> Outcome {
    let mut table = Table::default();
    for (name, _) in SCENARIOS {
        table.row([name.to_owned(), Scenario::find(name)?.about]);
    }
    print(&table.text())?;
    Ok(ExitCode::SUCCESS)
}

fn text(report: &Report) -> String {
    let mut table = Table::new(&(1..=report.columns.len()).collect::<Vec<_>>());
    table.row(std::iter::once("").chain(report.columns.iter().map(|column| column.title.as_str())));
    for row in &report.rows {
        let cell = |column: &Column| row.values.get(&column.title).map_or_else(|| "-".to_owned(), |v| range(v, column));
        table.row(std::iter::once(row.run.clone()).chain(report.columns.iter().map(cell)));
    }
    let facts: String = report.facts.iter().map(|(name, value)| format!("{name} {value}; ")).collect();
    let (about, rounds) = (&report.config.about, report.config.rounds);
    format!("{about}\n{}{rounds} round(s); {facts}{}\n", table.text(), report.machine.line())
}

/// The median, and where there was more than one round the least and the most.
fn range(spread: &Spread, column: &Column) -> String {
    let text = |value: f64| digits(value, column);
    match spread.count {
        1 => text(spread.median),
        _ => format!("{} ({}–{})", text(spread.median), text(spread.min), text(spread.max)),
    }
}

fn digits(value: f64, column: &Column) -> String {
    format!("{value:.*}", column.digits)
}

/// Read a bucket for `scenario`, which starts it
#[derive(Args, Debug)]
pub(crate) struct ReaderArgs {
    /// What to read and how, as JSON
    task: String,
}

pub(crate) fn run_reader(args: &ReaderArgs) -> Outcome {
    let task: Task = serde_json::from_str(&args.task).map_err(|error| usage(error.to_string(), "see `scenario`"))?;
    read(&task, &mut stdin().lock(), &mut stdout().lock())?;
    Ok(ExitCode::SUCCESS)
}
