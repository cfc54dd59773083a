//! `cargo x bench switch`: training in lockstep with a slow rank, asynchronously, and switched from one to the other.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use crate::report::result_html;
use crate::switch::{Figure, Run, SwitchReport, Switching, setting_name, switch};
use clap::Args;
use fuelrail_cli::train::find_trainer;
use fuelrail_cli::train::folders;

use fuelrail_cli::bench::this_program;
use fuelrail_cli::failure::{Outcome, usage};
use fuelrail_cli::screen::{Bar, JsonTo, Table, telling};
use fuelrail_cli::stop::stop_on_signals;
use fuelrail_cli::whole::WholeFile;

const EXAMPLES: &str = "Examples:
  cargo x bench switch
  cargo x bench switch --slow 8 --seeds 5 --json switch.json --html switch.html
  cargo x bench switch --shares 1,0.25,0.1 --rate 0.03 --trainer target/release/fuelrail-train

Sync-Switch (ICDCS 2021): ranks train in lockstep at first, where a slow one holds up all, and asynchronously after a small share of the
work. The trainer is `fuelrail-train`, a program of its own because it needs libtorch: cargo build --release -p fuelrail-tch. Ranks are
processes of this machine and share its cores; the last one is slowed down on purpose. Samples come from an embedded bucket of generated
digits, accuracy is measured on digits of another seed. Settings take turns within a seed; speeds and differences are within a seed.";

/// Measure Sync-Switch: training with a slow rank, synchronous, asynchronous, and switched
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(crate) struct SwitchArgs {
    /// The trainer's program [default: fuelrail-train beside this one or in PATH]
    #[arg(long, value_name = "FILE")]
    trainer: Option<PathBuf>,
    /// Ranks, each a process
    #[arg(long, value_name = "N", default_value_t = Switching::default().ranks)]
    ranks: u32,
    /// The last rank takes so many times as long for its work
    #[arg(long, value_name = "FACTOR", default_value_t = Switching::default().slow)]
    slow: f64,
    /// Seeds of weights and order; every setting runs once with each
    #[arg(long, value_name = "N", default_value_t = Switching::default().seeds)]
    seeds: u32,
    /// Shares of the work after which training goes asynchronous: 1 never, 0 at once
    #[arg(long, value_name = "SHARE,SHARE", value_delimiter = ',', default_values_t = Switching::default().shares)]
    shares: Vec<f64>,
    /// Epochs
    #[arg(long, value_name = "N", default_value_t = Switching::default().epochs)]
    epochs: u64,
    /// Training samples
    #[arg(long, value_name = "N", default_value_t = Switching::default().count)]
    count: u64,
    /// Samples that accuracy is measured on
    #[arg(long, value_name = "N", default_value_t = Switching::default().test_count)]
    test_count: u64,
    /// Samples per batch and rank
    #[arg(long, value_name = "N", default_value_t = Switching::default().batch_size)]
    batch_size: u32,
    /// Learning rate for the batch of all ranks together
    #[arg(long, value_name = "RATE", default_value_t = Switching::default().rate)]
    rate: f64,
    /// Longest time of one run
    #[arg(long, value_name = "SECONDS", default_value_t = Switching::default().limit.as_secs_f64())]
    limit: f64,
    /// Draw accuracy and loss over time as one HTML page
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// Print the result as one JSON document, or write it to FILE beside the table
    #[arg(long, value_name = "FILE", num_args = 0..=1, default_missing_value = "-")]
    json: Option<String>,
}

pub(crate) fn run(args: &SwitchArgs) -> Outcome {
    let limit = Duration::try_from_secs_f64(args.limit).ok().filter(|limit| !limit.is_zero());
    let limit = limit.ok_or_else(|| usage(format!("--limit {}", args.limit), "give a positive number"))?;
    let path = folders(&std::env::var_os("PATH").unwrap_or_default());
    let switching = Switching {
        trainer: find_trainer(args.trainer.as_deref(), &this_program()?, &path)?,
        ranks: args.ranks,
        slow: args.slow,
        seeds: args.seeds,
        shares: args.shares.clone(),
        epochs: args.epochs,
        count: args.count,
        test_count: args.test_count,
        batch_size: args.batch_size,
        rate: args.rate,
        limit,
        stop: stop_on_signals()?,
    };
    let total = u64::from(switching.seeds) * switching.shares.len() as u64;
    let bar = Bar::new(Some(total), "runs");
    let report = switch(&switching, &mut telling(&bar, total, line))?;
    drop(bar);
    if let Some(path) = &args.html {
        WholeFile::of(path, &result_html("switch", &report))?;
    }
    JsonTo::asked(args.json.as_deref()).show(&report, || text(&report))?;
    Ok(ExitCode::SUCCESS)
}

fn line(run: &Run) -> String {
    let (name, accuracy) = (setting_name(run.share), run.accuracy * 100.0);
    format!("seed {}, {name}: {:.1} s, accuracy {accuracy:.2} %", run.seed, run.train_s)
}

fn text(report: &SwitchReport) -> String {
    let mut table = Table::new(&[1, 2, 3, 4, 5, 6, 7]);
    table.row([
        "",
        "training s",
        "speed",
        "by arithmetic",
        "accuracy %",
        "against synchronous",
        "switch ms",
        "thrown away",
    ]);
    for row in &report.rows {
        let share = |figure: Figure| Figure { mean: figure.mean * 1e2, min: figure.min * 1e2, max: figure.max * 1e2 };
        let ms = |figure: Figure| Figure { mean: figure.mean * 1e3, min: figure.min * 1e3, max: figure.max * 1e3 };
        table.row([
            setting_name(row.share),
            row.train_s.range(|s| format!("{s:.1}")),
            row.speed.range(|speed| format!("{speed:.2}")),
            format!("{:.2}", row.speed_expected),
            share(row.accuracy).range(|percent| format!("{percent:.2}")),
            share(row.accuracy_difference).range(|points| format!("{points:+.2}")),
            row.switch_s.map_or_else(|| "-".to_owned(), |figure| ms(figure).range(|ms| format!("{ms:.1}"))),
            row.stale.to_string(),
        ]);
    }
    let published = &report.published;
    format!(
        "{}\n{} ranks, the last {} times slower; {} digits, {} epochs, rate {}, {} seed(s); torch {} on {}\n\
         published, on 8 K80, switched at {:.0} %: {} times the speed, accuracy {:.1} % against {:.1} %, a restart of {:.0} s\n{}\n",
        table.text(),
        report.ranks,
        report.slow,
        report.count,
        report.epochs,
        report.rate,
        report.seeds,
        report.torch,
        report.device,
        published.share * 100.0,
        published.speed,
        published.accuracy * 100.0,
        published.accuracy_synchronous * 100.0,
        published.switch_s,
        report.machine.line(),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::switch::{PUBLISHED, Row};
    use fuelrail_cli::machine::Machine;

    #[test]
    fn the_table_tells_settings_in_the_units_people_read() {
        let figure = |mean: f64, by: f64| Figure { mean, min: mean - by, max: mean + by };
        let row = Row {
            share: 0.05,
            train_s: figure(10.0, 1.0),
            total_s: figure(11.0, 1.0),
            accuracy: figure(0.99, 0.005),
            speed: figure(2.5, 0.25),
            speed_expected: 2.326,
            accuracy_difference: figure(-0.0025, 0.0),
            switch_s: Some(figure(0.002, 0.001)),
            stale: 7,
        };
        let report = SwitchReport {
            schema: 1,
            ranks: 2,
            slow: 4.0,
            seeds: 3,
            epochs: 12,
            count: 2_000,
            test_count: 500,
            batch_size: 64,
            rate: 0.05,
            rows: vec![row],
            runs: Vec::new(),
            published: PUBLISHED,
            torch: "2.11.0".into(),
            device: "Cpu".into(),
            wall_s: 60.0,
            machine: Machine::here(),
        };
        let text = text(&report);
        let line: Vec<&str> =
            text.lines().nth(1).unwrap().split("  ").filter(|cell| !cell.is_empty()).map(str::trim).collect();
        assert_eq!(
            line,
            [
                "switched at 5 %",
                "10.0 (9.0 to 11.0)",
                "2.50 (2.25 to 2.75)",
                "2.33",
                "99.00 (98.50 to 99.50)",
                "-0.25 (-0.25 to -0.25)",
                "2.0 (1.0 to 3.0)",
                "7"
            ],
            "{text}"
        );
        assert!(
            text.contains("published, on 8 K80, switched at 5 %: 5.1 times the speed, accuracy 91.7 % against 92.0 %"),
            "{text}"
        );
    }
}
