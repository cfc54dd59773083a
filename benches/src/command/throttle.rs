//! `cargo x bench throttle`: how a loader keeps to the rate that a bucket allows, alone and with another, and what it asks of a
//! bucket that is down.

use std::io::{stdin, stdout};
use std::path::PathBuf;
use std::process::ExitCode;

use crate::throttle::{LIMITED_LEAST, OutageRun, Throttle, ThrottleReport, ThrottleRun, read_throttled, throttle};
use clap::Args;

use fuelrail_cli::bench::this_program;
use fuelrail_cli::failure::{Outcome, usage};
use fuelrail_cli::screen::{JsonTo, Table, note};
use fuelrail_cli::stop::stop_on_signals;

const EXAMPLES: &str = "Examples:
  cargo x bench throttle
  cargo x bench throttle --rps 2000 --latency-us 20000 --seconds 30 --outage 0 --json throttle.json

An embedded bucket answers 503 above a rate. One process reads from it, then two with a directory in common (share_dir), then two
that know nothing of each other; for the last seconds of each run the limit is lifted. Then the bucket serves nothing for a minute in
the middle of an epoch, once with 503 and once with 500. Figures are from the bucket's own books, shares from what readers tell.";

/// Measure how a rate limit is found, held, shared and left behind, and an outage survived
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(crate) struct ThrottleArgs {
    /// Requests a second that the bucket allows
    #[arg(long, value_name = "N", default_value_t = Throttle::default().requests_per_s, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    rps: u32,
    /// Wait before every answer, µs
    #[arg(long, value_name = "N", default_value_t = Throttle::default().latency_us)]
    latency_us: u64,
    /// How long the limit holds, s
    #[arg(long, value_name = "N", default_value_t = Throttle::default().limited_s)]
    seconds: u64,
    /// How long is read after it is lifted or an outage is over, s
    #[arg(long, value_name = "N", default_value_t = Throttle::default().lifted_s)]
    lifted: u64,
    /// How long an outage lasts, s; 0 leaves outages out
    #[arg(long, value_name = "N", default_value_t = Throttle::default().outage_s)]
    outage: u64,
    /// Print the result as one JSON document, or write it to FILE beside the table
    #[arg(long, value_name = "FILE", num_args = 0..=1, default_missing_value = "-")]
    json: Option<String>,
}

pub(crate) fn run(args: &ThrottleArgs) -> Outcome {
    if args.seconds < LIMITED_LEAST.as_secs() {
        let least = LIMITED_LEAST.as_secs();
        let cure = format!("give at least {least}: the first ten are for finding the rate");
        return Err(usage(format!("--seconds {}", args.seconds), &cure));
    }
    let question = Throttle {
        requests_per_s: args.rps,
        latency_us: args.latency_us,
        limited_s: args.seconds,
        lifted_s: args.lifted,
        outage_s: args.outage,
        program: this_program()?,
        stop: stop_on_signals()?,
        ..Throttle::default()
    };
    let report = throttle(&question, &mut note)?;
    JsonTo::asked(args.json.as_deref()).show(&report, || text(&report))?;
    Ok(ExitCode::SUCCESS)
}

fn text(report: &ThrottleReport) -> String {
    let mut limited = Table::new(&[1, 2, 3, 4, 5, 6]);
    limited.row(["readers", "within 10 % after", "held", "least", "refused", "shares", "recovered after"]);
    for run in &report.runs {
        limited.row(limited_row(run));
    }
    let mut text = format!(
        "a limit of {} requests a second, answers after {} µs\n{}",
        report.requests_per_s,
        report.latency_us,
        limited.text()
    );
    if !report.outages.is_empty() {
        let mut outages = Table::new(&[1, 2, 3, 4]);
        outages.row(["outage", "s", "requests/s before", "requests in it", "recovered after"]);
        for run in &report.outages {
            outages.row(outage_row(run));
        }
        text += &outages.text();
    }
    text + &report.machine.line() + "\n"
}

fn limited_row(run: &ThrottleRun) -> Vec<String> {
    let who = match (run.processes, run.shared) {
        (1, _) => "one",
        (_, true) => "two, sharing",
        _ => "two, apart",
    };
    let shares: Vec<String> = run.shares.iter().map(|share| format!("{share:.2}")).collect();
    let percent = |share: f64| format!("{:.1} %", share * 100.0);
    vec![
        who.to_owned(),
        time(run.converged_s),
        percent(run.held),
        percent(run.least),
        percent(run.refused),
        shares.join(" "),
        time(run.recovered_s),
    ]
}

fn outage_row(run: &OutageRun) -> Vec<String> {
    let recovered = if run.went_on { time(run.recovered_s) } else { "ended with an error".to_owned() };
    vec![
        run.answers.clone(),
        run.outage_s.to_string(),
        format!("{:.0}", run.before_per_s),
        run.requests.to_string(),
        recovered,
    ]
}

fn time(seconds: Option<f64>) -> String {
    seconds.map_or_else(|| "never".to_owned(), |seconds| format!("{seconds:.1} s"))
}

const READER_EXAMPLES: &str = "Examples:
  cargo x bench throttle-reader http://127.0.0.1:9000/bucket/ --seed 1

It lists, says that it is ready, begins at a line on its input, and says how many requests were served, again and again.";

/// Read until killed, as one of the readers of `bench throttle` (started by it)
#[derive(Args, Debug)]
#[command(after_help = READER_EXAMPLES)]
pub(crate) struct ThrottleReaderArgs {
    /// The bucket
    uri: String,
    /// Seed of the order
    #[arg(long)]
    seed: u64,
    /// What it shares its pace through
    #[arg(long)]
    share_dir: Option<PathBuf>,
}

pub(crate) fn run_reader(args: &ThrottleReaderArgs) -> Outcome {
    read_throttled(&args.uri, args.seed, args.share_dir.clone(), &mut stdin().lock(), &mut stdout().lock())?;
    Ok(ExitCode::SUCCESS)
}
