//! `fuelrail plan spot`: policies for spot machines under a deadline, played on traces of availability.

use std::path::PathBuf;

use clap::Args;
use fuelrail::{Error, Kind, Result};
use fuelrail_cost::spot::{Job, Player, Policy, Run, Trace};
use serde::{Deserialize, Serialize};

use super::input::{percent, read};
use crate::failure::Outcome;
use crate::screen::{JsonTo, Table};

const EXAMPLES: &str = "Examples:
  fuelrail plan spot --job-hours 48 --deadline-hours 60 --changeover-hours 0.2 --spot-price 0.3 --on-demand-price 1 --trace zone-a.json
  fuelrail plan spot --job-hours 8 --deadline-hours 12 --changeover-hours 0.1 --spot-price 0.9 --on-demand-price 3.06 \\
    --policy ours --policy greedy --trace zone-a.json zone-b.json --starts 1000 --seed 7 --json

A trace is JSON: under 'data' the number of machines that could be had at each tick, under 'metadata' 'gap_seconds', the tick. The bound is \
what the cheapest schedule costs for one who knows the trace beforehand; no policy does.";

/// Compare policies for spot machines under a deadline
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES, allow_negative_numbers = true)]
pub(crate) struct Spot {
    /// Work, hours on one machine
    #[arg(long, value_name = "H")]
    job_hours: f64,
    /// From the start to the deadline
    #[arg(long, value_name = "H")]
    deadline_hours: f64,
    /// From the start of a machine to its first work
    #[arg(long, value_name = "H")]
    changeover_hours: f64,
    /// Price of a spot machine, an hour
    #[arg(long, value_name = "P")]
    spot_price: f64,
    /// Price of an on-demand machine, an hour
    #[arg(long, value_name = "P")]
    on_demand_price: f64,
    /// greedy, uniform-progress or ours; may be repeated [default: all]
    #[arg(long, value_name = "POLICY")]
    policy: Vec<Policy>,
    /// Traces of availability
    #[arg(long, value_name = "FILE", num_args = 1.., required = true)]
    trace: Vec<PathBuf>,
    /// Random starts on each trace
    #[arg(long, value_name = "N", default_value_t = 300)]
    starts: u32,
    /// Seed of the starts
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// Print the result as one JSON document, or write it to FILE beside the table
    #[arg(long, value_name = "FILE", num_args = 0..=1, default_missing_value = "-")]
    json: Option<String>,
}

#[derive(Serialize)]
struct Document {
    job: Job,
    starts: u32,
    seed: u64,
    /// Over all traces.
    policies: Vec<Summary>,
    /// Least cost with hindsight, mean over all traces.
    bound_cost: f64,
    traces: Vec<OfTrace>,
}

#[derive(Serialize)]
struct OfTrace {
    file: String,
    hours: f64,
    /// Share of ticks at which a machine could be had.
    available: f64,
}

/// What a policy came to, means over starts.
#[derive(Serialize)]
struct Summary {
    policy: Policy,
    starts: usize,
    deadlines_met: usize,
    on_demand_hours: f64,
    spot_hours: f64,
    /// From the start to the end of the work.
    hours: f64,
    cost: f64,
    /// Of 90 % of the starts: from and to.
    cost_interval: [f64; 2],
}

pub(crate) fn run(args: &Spot) -> Outcome {
    let Spot { job_hours, deadline_hours, changeover_hours, spot_price, on_demand_price, starts, seed, .. } = *args;
    let job = Job { job_hours, deadline_hours, changeover_hours, spot_price, on_demand_price };
    let policies = match &args.policy[..] {
        [] => Policy::ALL.to_vec(),
        chosen => chosen.to_vec(),
    };
    // What is wrong with a file shows before anything is computed.
    let traces = args.trace.iter().map(|path| Ok((path, read(path, trace)?))).collect::<Outcome<Vec<_>>>()?;
    let player = Player::new(job, &policies)?;
    let mut all: Vec<Vec<Run>> = vec![Vec::new(); policies.len()];
    let mut bounds = Vec::new();
    for (path, trace) in &traces {
        let played = player.play(trace, starts, seed).map_err(|error| error.within(path.display()))?;
        all.iter_mut().zip(played.runs).for_each(|(all, runs)| all.extend(runs));
        bounds.extend(played.bounds);
    }
    let of_trace = |(path, trace): &(&PathBuf, Trace)| OfTrace {
        file: path.display().to_string(),
        hours: trace.hours(),
        available: trace.share(),
    };
    let traces = traces.iter().map(of_trace).collect();
    let policies = policies.iter().zip(&all).map(|(policy, runs)| summary(*policy, runs)).collect();
    let bound_cost = mean(bounds.iter().copied());
    let document = Document { job, starts, seed, policies, bound_cost, traces };
    JsonTo::asked(args.json.as_deref()).show(&document, || text(&document))
}

/// A trace as it is published.
fn trace(text: &str) -> Result<Trace> {
    #[derive(Deserialize)]
    struct File {
        metadata: Metadata,
        data: Vec<f64>,
    }
    #[derive(Deserialize)]
    struct Metadata {
        gap_seconds: f64,
    }
    let file: File = serde_json::from_str(text).map_err(|error| {
        Error::new(Kind::Usage, format!("not a trace of availability: {error}"))
            .with_hint("give JSON with 'data', a list of numbers, and 'gap_seconds' under 'metadata'")
    })?;
    Trace::new(file.metadata.gap_seconds, &file.data)
}

fn mean(values: impl ExactSizeIterator<Item = f64>) -> f64 {
    let count = values.len() as f64;
    values.sum::<f64>() / count
}

fn summary(policy: Policy, runs: &[Run]) -> Summary {
    let of = |field: fn(&Run) -> f64| mean(runs.iter().map(field));
    let mut costs: Vec<f64> = runs.iter().map(|run| run.cost).collect();
    costs.sort_by(f64::total_cmp);
    let at = |share: f64| costs[((costs.len() - 1) as f64 * share).round() as usize];
    Summary {
        policy,
        starts: runs.len(),
        deadlines_met: runs.iter().filter(|run| run.deadline_met).count(),
        on_demand_hours: of(|run| run.on_demand_hours),
        spot_hours: of(|run| run.spot_hours),
        hours: of(|run| run.hours),
        cost: of(|run| run.cost),
        cost_interval: [at(0.05), at(0.95)],
    }
}

fn text(document: &Document) -> String {
    let mut table = Table::new(&[1, 2, 3, 4, 5, 6]);
    table.row(["policy", "on demand (h)", "spot (h)", "to the end (h)", "cost", "90 % of starts", "deadlines met"]);
    for summary in &document.policies {
        let [low, high] = summary.cost_interval;
        table.row([
            summary.policy.to_string(),
            format!("{:.2}", summary.on_demand_hours),
            format!("{:.2}", summary.spot_hours),
            format!("{:.2}", summary.hours),
            format!("{:.2}", summary.cost),
            format!("{low:.2} to {high:.2}"),
            format!("{} of {}", summary.deadlines_met, summary.starts),
        ]);
    }
    table.row(["with hindsight", "", "", "", &format!("{:.2}", document.bound_cost)]);
    let mut traces = Table::new(&[1, 2]);
    traces.row(["trace", "hours", "available"]);
    for trace in &document.traces {
        traces.row([trace.file.clone(), format!("{:.1}", trace.hours), percent(trace.available)]);
    }
    format!("{}\n{}", table.text(), traces.text())
}
