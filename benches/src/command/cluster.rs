//! `cargo x bench cluster`: jobs of one to a thousand ranks that keep blocks for each other, in virtual time. What planning a sample costs, how
//! much memory the planners take, what the bucket is asked, and who waits when a rack is lost or a region is slow.

use std::process::{Command, Stdio};

use clap::Args;
use fuelrail::internal::{memory_use, thread_cpu};
use fuelrail::{Error, Kind, Result};
use fuelrail_cli::bench::this_program;
use fuelrail_cli::failure::Outcome;
use fuelrail_cli::machine::Machine;
use fuelrail_cli::screen::{Bar, JsonTo, Table};
use fuelrail_sim::cluster::{Cluster, Played, Recording, play};
use serde::{Deserialize, Serialize};

use crate::harness::result::Spread;

const EXAMPLES: &str = "Examples:
  cargo x bench cluster --json cluster.json
  cargo x bench cluster --steps 16 --ranks 1,64";

/// Play jobs of many ranks in virtual time
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(crate) struct ClusterArgs {
    /// Numbers of ranks
    #[arg(long, value_delimiter = ',', default_value = "1,8,64,1024", value_parser = clap::value_parser!(u16).range(1..))]
    ranks: Vec<u16>,
    /// Samples of the data sets
    #[arg(long, value_delimiter = ',', default_value = "1000000,1000000000,1000000000000", value_parser = clap::value_parser!(u64).range(1..))]
    samples: Vec<u64>,
    /// Steps that are played
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = clap::value_parser!(u64).range(4..))]
    steps: u64,
    /// Play this one of the jobs only
    #[arg(long, value_name = "N", hide = true)]
    only: Option<usize>,
    /// Print the result as one JSON document, or write it to FILE beside the table
    #[arg(long, value_name = "FILE", num_args = 0..=1, default_missing_value = "-")]
    json: Option<String>,
}

#[derive(Serialize, Deserialize)]
struct Row {
    name: String,
    ranks: u16,
    samples: u64,
    played: Played,
    /// Waits after the first quarter of the steps, seconds.
    wait_s: Waits,
    /// Processor time for a sample, microseconds: one rank's planner alone.
    plan_us: Spread,
    /// Most memory that the process had, with all planners and what plays them, bytes.
    process_bytes: u64,
}

#[derive(Serialize, Deserialize)]
struct Waits {
    median: f64,
    p99: f64,
    longest: f64,
}

#[derive(Serialize)]
struct Report {
    schema: u32,
    question: &'static str,
    machine: Machine,
    /// What all have in common.
    cluster: Cluster,
    rows: Vec<Row>,
}

/// So often a planner is told all again.
const REPLAYS: usize = 25;

/// A machine of 10 Gbit/s and a bucket 20 ms away.
const CLUSTER: Cluster = Cluster {
    ranks: 1,
    samples: 1_000_000,
    sample_bytes: 110_000,
    batch_size: 32,
    sticky: false,
    epochs: 1_000,
    steps_max: 0,
    disk_blocks: 2_048,
    step_s: 0.1,
    bucket_s: 0.02,
    hop_s: 0.000_1,
    bytes_per_s: 1.25e9,
    far_ranks: 0,
    far_bucket_s: 0.2,
    far_hop_s: 0.03,
    lost_ranks: 0,
    lost_at_step: 0,
    steps_without: 0,
    new_ranks: 0,
};

pub(crate) fn run(args: &ClusterArgs) -> Outcome {
    let all = Cluster { steps_max: args.steps, ..CLUSTER };
    let most = args.ranks.iter().copied().max().unwrap_or(1);
    let mut jobs = Vec::new();
    for &samples in &args.samples {
        jobs.extend(
            args.ranks
                .iter()
                .map(|&ranks| (format!("{ranks} ranks, {samples:e} samples"), Cluster { ranks, samples, ..all })),
        );
    }
    // Disks that hold the set with room to spare, read once before anything happens.
    let step = u64::from(most) * u64::from(all.batch_size);
    let held = Cluster { ranks: most, samples: args.steps / 4 * step, ..all };
    if most >= 64 {
        jobs.push(("held by the disks".to_owned(), held));
        let lost = Cluster { lost_ranks: 32, lost_at_step: args.steps / 2, steps_without: 8, ..held };
        jobs.push(("a rack of 32 lost".to_owned(), lost));
        let name = "a rack of 32 lost, the bucket 100 ms away";
        jobs.push((name.to_owned(), Cluster { bucket_s: 0.1, ..lost }));
        jobs.push(("a quarter in a slow region".to_owned(), Cluster { far_ranks: most / 4, ..held }));
    }
    if let Some((name, cluster)) = args.only.and_then(|only| jobs.get(only)) {
        return JsonTo::output(true).show(&measure(name, cluster)?, String::new);
    }
    let bar = Bar::new(Some(jobs.len() as u64), "jobs");
    let mut rows = Vec::new();
    for (at, (name, cluster)) in jobs.iter().enumerate() {
        bar.at(at as u64, || format!("{name}: {} ranks, {} samples", cluster.ranks, cluster.samples));
        rows.push(apart(args, at)?);
    }
    drop(bar);
    let report = Report { schema: 1, question: "cluster", machine: Machine::here(), cluster: all, rows };
    JsonTo::asked(args.json.as_deref()).show(&report, || text(&report))
}

/// Measures a job in a process of its own, whose peak of memory is the job's.
fn apart(args: &ClusterArgs, only: usize) -> Result<Row> {
    let (ranks, samples) = (list(&args.ranks), list(&args.samples));
    let mut command = Command::new(this_program()?);
    command.args(["cluster", "--ranks", &ranks, "--samples", &samples, "--steps", &args.steps.to_string()]);
    let ended = command.args(["--only", &only.to_string()]).stderr(Stdio::inherit()).output();
    let ended = ended.map_err(|error| Error::from_io(Kind::Environment, "starting this program again", error))?;
    let row = serde_json::from_slice(&ended.stdout);
    row.map_err(|error| Error::new(Kind::Environment, format!("job {only} failed ({}): {error}", ended.status)))
}

fn list(numbers: &[impl ToString]) -> String {
    numbers.iter().map(ToString::to_string).collect::<Vec<_>>().join(",")
}

fn measure(name: &str, cluster: &Cluster) -> Result<Row> {
    let (mut played, recording) = play(cluster)?;
    let mut waits = core::mem::take(&mut played.waits_s).split_off(cluster.steps_max as usize / 4);
    waits.sort_by(f64::total_cmp);
    let at = |share: f64| waits[((waits.len() - 1) as f64 * share).round() as usize];
    let (process_bytes, plan_us) = (memory_use().peak_rss_bytes, replay(&recording)?);
    let (ranks, samples) = (cluster.ranks, cluster.samples);
    Ok(Row {
        name: name.to_owned(),
        ranks,
        samples,
        wait_s: Waits { median: at(0.5), p99: at(0.99), longest: at(1.0) },
        played,
        plan_us,
        process_bytes,
    })
}

/// Processor time of one planner for a sample.
fn replay(recording: &Recording) -> Result<Spread> {
    let mut times = Vec::new();
    for _ in 0..REPLAYS {
        let tell_all = recording.replay()?;
        let begun = thread_cpu();
        tell_all();
        times.push((thread_cpu() - begun).as_secs_f64() * 1e6 / recording.samples as f64);
    }
    Spread::of(times).ok_or_else(|| Error::new(Kind::Environment, "nothing was planned"))
}

fn text(report: &Report) -> String {
    let mut table = Table::new(&[1, 2, 3, 4, 5, 6]);
    table.row(["job", "plan (µs)", "process", "requests", "queued", "serving", "waits (ms)"]);
    for row in &report.rows {
        let Waits { median, p99, longest } = row.wait_s;
        let waits = [median, p99, longest].map(|s| format!("{:.1}", s * 1e3));
        table.row([
            row.name.clone(),
            format!("{:.2}", row.plan_us.median),
            fuelrail::ByteSize(row.process_bytes).to_string(),
            row.played.requests.to_string(),
            row.played.queued_max.to_string(),
            row.played.serving_max.to_string(),
            waits.join(" / "),
        ]);
    }
    format!("{}{}\n", table.text(), report.machine.line())
}
