//! `cargo x bench tail`: what a heavy tail costs, and what hedging gives back.

use std::process::ExitCode;
use std::time::Duration;

use crate::harness::Spread;
use crate::tail::{TAIL_LIVES, Tail, TailLife, TailReport, tail};
use clap::Args;

use fuelrail_cli::failure::{Outcome, usage};
use fuelrail_cli::screen::{Bar, JsonTo, Table, telling};
use fuelrail_cli::stop::stop_on_signals;

const EXAMPLES: &str = "Examples:
  cargo x bench tail
  cargo x bench tail --rounds 5 --latency-ms 30 --json tail.json

Three lives take turns: a bucket without a tail; one where 1 % of answers take 50 times as long and 0.1 % never end; and the same with
hedging. A consumer takes a step after every batch. The bucket runs in this process: what is told are times, not costs.";

/// Measure what a heavy tail costs and what hedging gives back
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(crate) struct TailArgs {
    /// Objects
    #[arg(long, value_name = "N", default_value_t = Tail::default().objects)]
    objects: u64,
    /// Bytes of each
    #[arg(long, value_name = "N", default_value_t = Tail::default().object_bytes)]
    object_bytes: u64,
    /// Samples per batch
    #[arg(long, value_name = "N", default_value_t = Tail::default().batch_size)]
    batch_size: u32,
    /// Epochs of each life
    #[arg(long, value_name = "N", default_value_t = Tail::default().epochs)]
    epochs: u64,
    /// What an answer takes at least; half as much again at most
    #[arg(long, value_name = "MS", default_value_t = 20.0)]
    latency_ms: f64,
    /// What the consumer takes for a batch
    #[arg(long, value_name = "MS", default_value_t = 60.0)]
    step_ms: f64,
    /// Most requests sent twice, in per cent of all
    #[arg(long, value_name = "PERCENT", default_value_t = Tail::default().hedge_percent)]
    hedge_percent: u32,
    /// Rounds
    #[arg(long, value_name = "N", default_value_t = Tail::default().rounds)]
    rounds: u32,
    /// Print the result as one JSON document, or write it to FILE beside the table
    #[arg(long, value_name = "FILE", num_args = 0..=1, default_missing_value = "-")]
    json: Option<String>,
}

pub(crate) fn run(args: &TailArgs) -> Outcome {
    let asked = Tail {
        objects: args.objects,
        object_bytes: args.object_bytes,
        batch_size: args.batch_size,
        epochs: args.epochs,
        latency: ms("--latency-ms", args.latency_ms)?,
        step: ms("--step-ms", args.step_ms)?,
        hedge_percent: args.hedge_percent,
        rounds: args.rounds,
        stop: stop_on_signals()?,
        ..Tail::default()
    };
    let total = u64::from(asked.rounds) * TAIL_LIVES.len() as u64;
    let bar = Bar::new(Some(total), "lives");
    let report = tail(&asked, &mut telling(&bar, total, line))?;
    drop(bar);
    JsonTo::asked(args.json.as_deref()).show(&report, || text(&report))?;
    Ok(ExitCode::SUCCESS)
}

fn ms(option: &str, value: f64) -> Outcome<Duration> {
    let time = Duration::try_from_secs_f64(value / 1e3).ok();
    time.ok_or_else(|| usage(format!("{option} {value}"), "give a number of milliseconds, zero or more"))
}

fn line(life: &TailLife) -> String {
    let wait_ms = life.wait_us_p999 as f64 / 1e3;
    format!("round {}, {}: an epoch in {:.2} s, p99.9 of waits {wait_ms:.1} ms", life.round, life.life, life.epoch_s)
}

fn text(report: &TailReport) -> String {
    let mut table = Table::new(&[1, 2, 3, 4]);
    table.row(["", "epoch s", "against no tail", "wait p99.9 ms", "extra requests %"]);
    for row in &report.rows {
        table.row([
            row.life.clone(),
            range(&row.epoch_s, 2),
            range(&row.epoch_ratio, 3),
            range(&row.wait_ms_p999, 1),
            range(&row.extra_percent, 2),
        ]);
    }
    format!(
        "{} objects of {} bytes, batches of {}, answers in {} ms and more, {} ms a step\n{}{}\n",
        report.objects,
        report.object_bytes,
        report.batch_size,
        report.latency_ms,
        report.step_ms,
        table.text(),
        report.machine.line()
    )
}

fn range(spread: &Spread, digits: usize) -> String {
    format!("{:.digits$} ({:.digits$}–{:.digits$})", spread.median, spread.min, spread.max)
}
