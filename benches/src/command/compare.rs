//! `cargo x bench compare`: two results side by side.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use crate::harness::Findings;
use crate::harness::compare::{Change, Comparison, Verdict, compare};
use clap::Args;

use fuelrail_cli::failure::{Outcome, file};
use fuelrail_cli::screen::{JsonTo, Table};

const EXAMPLES: &str = "Examples:
  cargo x bench compare before.json after.json
  cargo x bench compare benches/results/machine/line.json line.json --json
  cargo x bench compare here.json there.json --force

Figures are medians with their range. Where the two ranges meet, chance may explain the difference, and the verdict says so. Results
from unlike machines, venues, sets or options are refused with the list of what differs (exit code 1); commits and dates may differ.";

/// Compare two results of bench line, floor, rivals or rings
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Compare {
    /// The earlier result
    first: PathBuf,
    /// The later result
    second: PathBuf,
    /// Compare unlike results all the same, and list what differs
    #[arg(long)]
    force: bool,
    /// Print the comparison as one JSON document, or write it to FILE beside the table
    #[arg(long, value_name = "FILE", num_args = 0..=1, default_missing_value = "-")]
    json: Option<String>,
}

pub(crate) fn run(args: &Compare) -> Outcome {
    let comparison = compare(&read(&args.first)?, &read(&args.second)?, args.force)?;
    JsonTo::asked(args.json.as_deref()).show(&comparison, || text(&comparison))?;
    Ok(ExitCode::SUCCESS)
}

/// A result file.
pub(super) fn read(path: &Path) -> Outcome<Findings> {
    let text = std::fs::read_to_string(path).map_err(|error| file("reading", path, &error))?;
    Findings::from_json(&text).map_err(|error| {
        let named = fuelrail::Error::new(error.kind(), format!("{}: {}", path.display(), error.cause()));
        named.cure("give a JSON result of bench line, floor, latency, rings or rivals").into()
    })
}

fn text(comparison: &Comparison) -> String {
    let mut text = String::new();
    for difference in &comparison.differences {
        text.push_str(&format!("UNLIKE {difference}\n"));
    }
    let mut table = Table::new(&[3, 4, 5]);
    table.row(["", "", "", "first", "second", "ratio", ""]);
    for Change { contest, contestant, metric, first, second, ratio, verdict } in &comparison.changes {
        let figure = |spread: &crate::harness::Spread| {
            format!("{} ({}–{})", metric.text(spread.median), metric.text(spread.min), metric.text(spread.max))
        };
        let verdict = match verdict {
            Verdict::Better => "better",
            Verdict::Worse => "WORSE",
            Verdict::Overlap => "ranges overlap",
        };
        let ratio = ratio.map_or_else(|| "-".to_owned(), |ratio| format!("{ratio:.3}"));
        let names = [contest.clone(), contestant.clone(), metric.title().to_owned()];
        table.row(names.into_iter().chain([figure(first), figure(second), ratio, verdict.to_owned()]));
    }
    text.push_str(&table.text());
    for unmatched in &comparison.unmatched {
        text.push_str(&format!("not in both: {unmatched}\n"));
    }
    text
}
