//! `cargo x bench cores`: what more shards on more cores bring, and what each core does for it.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use crate::cores::{CoresReport, Coring, Origin, cores};
use clap::Args;
use fuelrail::{ByteSize, Config};

use fuelrail_cli::bench::shard_text;
use fuelrail_cli::failure::{Outcome, usage};
use fuelrail_cli::screen::{Bar, JsonTo, Table};

const EXAMPLES: &str = "Examples:
  cargo x bench cores
  cargo x bench cores --object-size 110KiB --batch-size 64 --shards 1,2 --seconds 5 --json cores.json
  cargo x bench cores http://10.0.0.2:9000/bucket/training/ --shards 1,2,4,8

Without a URI nginx serves on this machine, held together with the shards to as many cores as there are
shards: `scaling` is then what one more core, with its shard and its share of the server, brings on the wall clock. `per core`
is what the shards deliver per second of their own processor time; when that stays the same, they scale with their cores
wherever the server runs elsewhere (`of work`).";

/// Measure what more shards on more cores bring
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Cores {
    /// A bucket on another machine; without it, nginx on this one
    uri: Option<String>,
    /// The objects as key<TAB>size or JSON lines, for servers that cannot list
    #[arg(long, value_name = "FILE", requires = "uri")]
    manifest: Option<PathBuf>,
    /// Length of the objects that nginx serves
    #[arg(long, value_name = "SIZE", default_value = "64MiB", conflicts_with = "uri")]
    object_size: ByteSize,
    /// Samples per batch
    #[arg(long, value_name = "N", default_value_t = 1)]
    batch_size: u32,
    /// Counts of shards to compare; the first is compared to [default: 1 and all cores]
    #[arg(long, value_name = "N,N", value_delimiter = ',')]
    shards: Vec<u16>,
    /// Memory of each shard
    #[arg(long, value_name = "SIZE", default_value = "512MiB")]
    shard_memory: ByteSize,
    /// Most connections per shard
    #[arg(long, value_name = "N", default_value_t = 8)]
    connections: usize,
    /// Back-end of the ring: auto, uring, poll, tokio-uring or glommio
    #[arg(long, value_name = "NAME", default_value = "auto")]
    ring: String,
    /// Time of each run, after a quarter of it for warmth
    #[arg(long, value_name = "SECONDS", default_value_t = 3.0)]
    seconds: f64,
    /// Runs of each count, interleaved
    #[arg(long, value_name = "N", default_value_t = 5)]
    rounds: u32,
    /// Count processor cycles, where the kernel allows
    #[arg(long)]
    cycles: bool,
    /// Print the result as one JSON document, or write it to FILE beside the table
    #[arg(long, value_name = "FILE", num_args = 0..=1, default_missing_value = "-")]
    json: Option<String>,
}

pub(crate) fn run(args: &Cores) -> Outcome {
    let time = Duration::try_from_secs_f64(args.seconds).ok().filter(|time| !time.is_zero());
    let time = time.ok_or_else(|| usage(format!("--seconds {}", args.seconds), "give a positive number"))?;
    let mut config = Config {
        batch_size: args.batch_size,
        connections_max: args.connections,
        ring: args.ring.clone(),
        cycles: args.cycles,
        ..Config::default()
    };
    let origin = match &args.uri {
        Some(uri) => {
            config.uri.clone_from(uri);
            Origin::Elsewhere(match &args.manifest {
                Some(path) => fuelrail::read_manifest(path)?,
                None => fuelrail::list(uri, |_| {})?,
            })
        }
        None => Origin::Here(args.object_size.0),
    };
    let coring = Coring {
        config,
        shard_memory_bytes: args.shard_memory.0,
        origin,
        shards: counts(&args.shards),
        time,
        rounds: args.rounds,
    };
    let bar = Bar::new(Some(coring.shards.len() as u64 * u64::from(coring.rounds)), "runs");
    let mut done = 0;
    let report = cores(&coring, &mut |run| {
        done += 1;
        bar.at(done, || format!("{} shard(s): {:.2} GB/s", run.shards, run.gb_per_s));
    })?;
    drop(bar);
    JsonTo::asked(args.json.as_deref()).show(&report, || text(&report))?;
    Ok(ExitCode::SUCCESS)
}

fn counts(asked: &[u16]) -> Vec<u16> {
    if !asked.is_empty() {
        return asked.to_vec();
    }
    let cores = std::thread::available_parallelism().map_or(1, |cores| u16::try_from(cores.get()).unwrap_or(u16::MAX));
    if cores == 1 { vec![1] } else { vec![1, cores] }
}

fn text(report: &CoresReport) -> String {
    let mut table = Table::new(&[0, 1, 2, 3, 4, 5, 6]);
    table.row(["shards", "GB/s", "GB/s per core", "scaling", "work per core", "of work", "server CPU-s/GB"]);
    for row in &report.rows {
        let server = row.server_cpu_s_per_gb.map_or_else(|| "-".to_owned(), |cost| format!("{cost:.3}"));
        table.row([
            row.shards.to_string(),
            format!("{:.3} ({:.3} to {:.3})", row.gb_per_s.median, row.gb_per_s.min, row.gb_per_s.max),
            format!("{:.3}", row.gb_per_core_s.median),
            format!("{:.2} ({:.2} to {:.2})", row.scaling.median, row.scaling.min, row.scaling.max),
            format!("{:.3} ({:.3} to {:.3})", row.work_per_core.median, row.work_per_core.min, row.work_per_core.max),
            format!("{:.2}", row.scaling_of_work),
            server,
        ]);
    }
    let mut text = table.text();
    for row in &report.rows {
        let last = report.runs.iter().rev().find(|run| run.shards == row.shards);
        for (number, shard) in last.into_iter().flat_map(|run| &run.per_shard).enumerate() {
            text.push_str(&format!("\n{} shard(s), shard {number}: {}", row.shards, shard_text(shard)));
        }
    }
    let size = ByteSize(report.object_bytes_mean);
    text.push_str(&format!("\n\nobjects of {size}, server {}; {}\n", report.origin, report.machine.line()));
    text
}
