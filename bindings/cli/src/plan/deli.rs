//! `fuelrail plan deli`: data wait and misses of DELI's loader, predicted for published settings.

use std::path::PathBuf;

use clap::Args;
use fuelrail_cost::deli::{Report, Setting, Setup, predict};
use fuelrail_cost::table::Table as Rows;

use super::input::{percent, read};
use crate::failure::Outcome;
use crate::screen::{JsonTo, Table};

const EXAMPLES: &str = "Examples:
  fuelrail plan deli --samples 42000 --nodes 3 --batch 512 --compute-s-per-batch 0.68 --bucket-s 0.0545 --cache-s 0.0019 \\
    --fetch-fixed-s 7.2 --fetch-per-sample-s 0.0033 --rows mnist_fetch_size.csv

Columns as DELI's authors released them: Epoch, and of Cache Size, Fetch Size, Minimum Queue Size, Number of Accesses, Data Loading \
Time (s) and Miss Rate those that there are.";

/// Predict the data wait and misses of DELI's loader (IC2E 2021)
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES, allow_negative_numbers = true)]
pub(crate) struct Deli {
    /// Samples of an epoch, over all nodes
    #[arg(long, value_name = "N")]
    samples: u64,
    /// Nodes
    #[arg(long, value_name = "N")]
    nodes: u64,
    /// Samples per batch
    #[arg(long, value_name = "N")]
    batch: u64,
    /// Compute per batch
    #[arg(long, value_name = "S")]
    compute_s_per_batch: f64,
    /// Reading a sample from the bucket
    #[arg(long, value_name = "S")]
    bucket_s: f64,
    /// Reading a sample from the cache
    #[arg(long, value_name = "S")]
    cache_s: f64,
    /// A fetch, whatever its size: the listing
    #[arg(long, value_name = "S")]
    fetch_fixed_s: f64,
    /// Each sample of a fetch
    #[arg(long, value_name = "S")]
    fetch_per_sample_s: f64,
    /// Samples of a fetch, for rows that prefetch and have no Fetch Size
    #[arg(long, value_name = "N", default_value_t = 1024)]
    fetch_size: u64,
    /// Seed of the order
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// The settings, and what was measured
    #[arg(long, value_name = "FILE")]
    rows: PathBuf,
    /// Print the result as one JSON document, or write it to FILE beside the table
    #[arg(long, value_name = "FILE", num_args = 0..=1, default_missing_value = "-")]
    json: Option<String>,
}

pub(crate) fn run(args: &Deli) -> Outcome {
    let setup = Setup {
        samples: args.samples,
        nodes: args.nodes,
        batch: args.batch,
        compute_s_per_batch: args.compute_s_per_batch,
        bucket_s: args.bucket_s,
        cache_s: args.cache_s,
        fetch_fixed_s: args.fetch_fixed_s,
        fetch_per_sample_s: args.fetch_per_sample_s,
        fetch_size: args.fetch_size,
        seed: args.seed,
    };
    let report = read(&args.rows, |text| predict(&setup, &Rows::read(text)?))?;
    JsonTo::asked(args.json.as_deref()).show(&report, || text(&report))
}

fn text(report: &Report) -> String {
    let mut table = Table::new(&[1, 2, 3, 4, 5, 6]);
    table.row(["setting", "epoch", "wait (s)", "measured", "error", "misses", "measured"]);
    for row in &report.settings {
        let most = |cache: Option<u64>| cache.map_or_else(|| "without limit".to_owned(), |cache| cache.to_string());
        let setting = match row.setting {
            Setting::Bucket => "bucket".to_owned(),
            Setting::Demand { cache } => format!("demand cache {}", most(cache)),
            Setting::Prefetch { cache, fetch, threshold } => {
                format!("fetch {fetch} at {threshold}, cache {}", most(cache))
            }
        };
        let shown = |number: Option<f64>, text: &dyn Fn(f64) -> String| number.map(text).unwrap_or_default();
        table.row([
            setting,
            row.epoch.to_string(),
            format!("{:.1}", row.predicted.wait_s),
            shown(row.measured_wait_s, &|wait| format!("{wait:.1}")),
            shown(row.wait_error, &percent),
            percent(row.predicted.miss_rate),
            shown(row.measured_miss_rate, &percent),
        ]);
    }
    let median = report.median_wait_error.map(|error| format!("median error of the wait: {}\n", percent(error)));
    table.text() + &median.unwrap_or_default()
}
