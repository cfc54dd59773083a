//! `cargo x bench tiers`: what RAM and disk hit together, and what writes cost the reads beside them.

use std::path::PathBuf;
use std::process::ExitCode;

use crate::tiers::{LaneRound, TIERS_POLICIES, TierRow, TierStep, Tiering, TiersReport, tiers};
use clap::Args;

use fuelrail_cli::failure::Outcome;
use fuelrail_cli::screen::{Bar, JsonTo, Table, micros, telling};
use fuelrail_cli::stop::stop_on_signals;

const EXAMPLES: &str = "Examples:
  cargo x bench tiers /mnt/nvme
  cargo x bench tiers /mnt/nvme --photos 40000 --json tiers.json
  cargo x bench tiers . --photos 1000 --percents 50 --rounds 1

A bucket of photos inside the process, and the real engine over it with a fifth of every capacity in RAM and the rest on disk. First,
hit ratios of next-use, LRU and FIFO at each capacity; the limit of all is the capacity over the data set. Then reads from disk
while half of the set is being written, as fast as it goes, beside reads of a run that writes nothing. FOLDER needs room for the set
and a quarter; what is written there is removed.";

/// Measure what RAM and disk hit together, and what writing costs reads
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(crate) struct TiersArgs {
    /// A folder on the disk
    #[arg(value_name = "FOLDER")]
    folder: PathBuf,
    /// Photos in the bucket, about 110 KiB each
    #[arg(long, value_name = "N", default_value_t = Tiering::default().photos)]
    photos: u64,
    /// Capacities of RAM and disk together, percent of the set, with commas
    #[arg(long, value_name = "PERCENTS", value_delimiter = ',', default_values_t = Tiering::default().percents)]
    percents: Vec<u32>,
    /// Rounds of reads beside writes
    #[arg(long, value_name = "N", default_value_t = Tiering::default().rounds)]
    rounds: u32,
    /// Print the result as one JSON document, or write it to FILE beside the table
    #[arg(long, value_name = "FILE", num_args = 0..=1, default_missing_value = "-")]
    json: Option<String>,
}

pub(crate) fn run(args: &TiersArgs) -> Outcome {
    let tiering = Tiering {
        folder: args.folder.clone(),
        photos: args.photos,
        percents: args.percents.clone(),
        rounds: args.rounds,
        stop: stop_on_signals()?,
    };
    let total = (TIERS_POLICIES.len() * tiering.percents.len()) as u64 + u64::from(tiering.rounds);
    let bar = Bar::new(Some(total), "runs");
    let report = tiers(&tiering, &mut telling(&bar, total, line))?;
    drop(bar);
    JsonTo::asked(args.json.as_deref()).show(&report, || text(&report))?;
    Ok(ExitCode::SUCCESS)
}

fn line(step: &TierStep) -> String {
    match step {
        TierStep::Row(row) => format!("{}, {:.0} %: hits {:.4}", row.policy, row.capacity_share * 100.0, row.hit_ratio),
        TierStep::Lanes(round) => format!("reads beside writes: p99 {:.2} × of that without", round.p99_ratio),
    }
}

fn text(report: &TiersReport) -> String {
    let mut table = Table::new(&[1, 2, 3, 4, 5, 6]);
    table.row(["policy", "capacity", "hit ratio", "of it RAM", "disk", "written an epoch", "segments trimmed"]);
    for TierRow { policy, capacity_share, hit_ratio, ram_hit_ratio, disk_hit_ratio, written_share, trims } in
        &report.rows
    {
        let share = |share: f64| format!("{share:.4}");
        let [capacity, hit, ram, disk, written] =
            [*capacity_share, *hit_ratio, *ram_hit_ratio, *disk_hit_ratio, *written_share].map(share);
        table.row([policy.clone(), capacity, hit, ram, disk, written, trims.to_string()]);
    }
    let mut lanes = Table::new(&[0, 1, 2, 3, 4, 5, 6]);
    lanes.row(["p50 beside writes", "p99", "p50 alone", "p99", "p99 ratio", "written GB/s", "read GB/s (CPU-s/GB)"]);
    for LaneRound {
        beside_writes_us, alone_us, p99_ratio, written_gb_per_s, read_gb_per_s, read_cpu_s_per_gb, ..
    } in &report.lanes
    {
        lanes.row([
            micros(beside_writes_us.p50),
            micros(beside_writes_us.p99),
            micros(alone_us.p50),
            micros(alone_us.p99),
            format!("{p99_ratio:.2}"),
            format!("{written_gb_per_s:.3}"),
            format!("{read_gb_per_s:.3} ({read_cpu_s_per_gb:.3})"),
        ]);
    }
    format!(
        "{}\n{}\n{} photos, {}; {:.0} % of each capacity is RAM; next-use is at most {:.4} short of its limit\n{}\n",
        table.text(),
        lanes.text(),
        report.photos,
        fuelrail::ByteSize(report.set_bytes),
        report.ram_share * 100.0,
        report.next_use_short_max,
        report.machine.line(),
    )
}
