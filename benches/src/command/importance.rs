//! `cargo x bench importance`: training from epochs drawn uniformly, as SHADE draws them, and as we do.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use crate::importance::{IMPORTANCE_MODES, ImportanceReport, ImportanceRun, Weighing, importance};
use crate::report::result_html;
use crate::switch::Figure;
use clap::Args;
use fuelrail_cli::train::find_trainer;
use fuelrail_cli::train::folders;

use fuelrail_cli::bench::this_program;
use fuelrail_cli::failure::{Outcome, usage};
use fuelrail_cli::screen::{Bar, JsonTo, Table, telling};
use fuelrail_cli::stop::stop_on_signals;
use fuelrail_cli::whole::WholeFile;

const EXAMPLES: &str = "Examples:
  cargo x bench importance
  cargo x bench importance --seeds 3 --epochs 6 --json importance.json --html importance.html
  cargo x bench importance --noise 0.2 --rare 0.05 --trainer target/release/fuelrail-train

SHADE (FAST 2023) draws samples by how hard they are. Four settings: uniform; SHADE as it was released, which writes its scores to the wrong
samples; SHADE put right; and ours, with a floor under coverage and weights that keep the mean unbiased. Two sets: generated digits, and
harder ones, of which some classes are rare and some labels wrong; accuracy is measured on clean digits of another seed, behind every epoch.
The trainer is `fuelrail-train`, a program of its own because it needs libtorch: cargo build --release -p fuelrail-tch. Settings take turns
within a seed; differences are within a seed.";

/// Measure importance: accuracy, bytes read, hit ratio and coverage of four ways to draw epochs
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(crate) struct ImportanceArgs {
    /// The trainer's program [default: fuelrail-train beside this one or in PATH]
    #[arg(long, value_name = "FILE")]
    trainer: Option<PathBuf>,
    /// Seeds of weights and order; every setting runs once with each
    #[arg(long, value_name = "N", default_value_t = Weighing::default().seeds)]
    seeds: u32,
    /// Epochs
    #[arg(long, value_name = "N", default_value_t = Weighing::default().epochs)]
    epochs: u64,
    /// Training samples of the clean set
    #[arg(long, value_name = "N", default_value_t = Weighing::default().count)]
    count: u64,
    /// Harder set: share of their samples that the rare classes keep
    #[arg(long, value_name = "SHARE", default_value_t = Weighing::default().rare_share)]
    rare: f64,
    /// Harder set: share of wrong labels
    #[arg(long, value_name = "SHARE", default_value_t = Weighing::default().noise_share)]
    noise: f64,
    /// Samples that accuracy is measured on
    #[arg(long, value_name = "N", default_value_t = Weighing::default().test_count)]
    test_count: u64,
    /// Samples per batch
    #[arg(long, value_name = "N", default_value_t = Weighing::default().batch_size)]
    batch_size: u32,
    /// Learning rate
    #[arg(long, value_name = "RATE", default_value_t = Weighing::default().rate)]
    rate: f64,
    /// RAM cache, as a share of the set
    #[arg(long, value_name = "SHARE", default_value_t = Weighing::default().cache_share)]
    cache: f64,
    /// Longest time of one run
    #[arg(long, value_name = "SECONDS", default_value_t = Weighing::default().limit.as_secs_f64())]
    limit: f64,
    /// Draw accuracy against samples and bytes as one HTML page
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// Print the result as one JSON document, or write it to FILE beside the table
    #[arg(long, value_name = "FILE", num_args = 0..=1, default_missing_value = "-")]
    json: Option<String>,
}

pub(crate) fn run(args: &ImportanceArgs) -> Outcome {
    let limit = Duration::try_from_secs_f64(args.limit).ok().filter(|limit| !limit.is_zero());
    let limit = limit.ok_or_else(|| usage(format!("--limit {}", args.limit), "give a positive number"))?;
    let path = folders(&std::env::var_os("PATH").unwrap_or_default());
    let weighing = Weighing {
        trainer: find_trainer(args.trainer.as_deref(), &this_program()?, &path)?,
        seeds: args.seeds,
        epochs: args.epochs,
        count: args.count,
        rare_share: args.rare,
        noise_share: args.noise,
        test_count: args.test_count,
        batch_size: args.batch_size,
        rate: args.rate,
        cache_share: args.cache,
        limit,
        stop: stop_on_signals()?,
    };
    let total = u64::from(weighing.seeds) * 2 * IMPORTANCE_MODES.len() as u64;
    let bar = Bar::new(Some(total), "runs");
    let report = importance(&weighing, &mut telling(&bar, total, line))?;
    drop(bar);
    if let Some(path) = &args.html {
        WholeFile::of(path, &result_html("importance", &report))?;
    }
    JsonTo::asked(args.json.as_deref()).show(&report, || text(&report))?;
    Ok(ExitCode::SUCCESS)
}

fn line(run: &ImportanceRun) -> String {
    let accuracy = run.marks.last().map_or(0.0, |mark| mark.accuracy * 100.0);
    format!("{}, seed {}, {}: accuracy {accuracy:.2} %, {:.1} s", run.set, run.seed, run.mode, run.total_s)
}

fn text(report: &ImportanceReport) -> String {
    let mut table = Table::new(&[2, 3, 4, 5, 6, 7]);
    table.row(["set", "epochs drawn", "accuracy %", "against uniform", "half-way %", "bytes", "hit ratio", "coverage"]);
    for row in &report.rows {
        let share = |figure: Figure| Figure { mean: figure.mean * 1e2, min: figure.min * 1e2, max: figure.max * 1e2 };
        table.row([
            row.set.clone(),
            row.mode.clone(),
            share(row.accuracy).range(|percent| format!("{percent:.2}")),
            share(row.accuracy_difference).range(|points| format!("{points:+.2}")),
            share(row.accuracy_half).range(|percent| format!("{percent:.2}")),
            row.bytes_ratio.range(|ratio| format!("{ratio:.3}")),
            row.hit_ratio.range(|ratio| format!("{ratio:.3}")),
            row.coverage.range(|ratio| format!("{ratio:.3}")),
        ]);
    }
    format!(
        "{}\nLeNet on {} digits, {} epochs, batches of {}, rate {}, a cache of {:.0} % of the set, {} seed(s); torch {} on {}\n{}\n",
        table.text(),
        report.count,
        report.epochs,
        report.batch_size,
        report.rate,
        report.cache_share * 100.0,
        report.seeds,
        report.torch,
        report.device,
        report.machine.line(),
    )
}
