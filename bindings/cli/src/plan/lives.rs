//! `fuelrail plan lives`: how long spot machines live, from those that were seen.

use std::path::PathBuf;

use clap::Args;
use fuelrail_cost::lives::{Curve, curves};
use fuelrail_cost::table::Table as Lives;

use super::input::{percent, read};
use crate::failure::Outcome;
use crate::screen::{JsonTo, Table};

const EXAMPLES: &str = "Examples:
  fuelrail plan lives lives.csv
  fuelrail plan lives lives.csv --json

Columns: region,device,age_hours,ended, one machine a line; ended is 1 where it was taken away and 0 where it still lived. With \
started_hour, the hour of the day at which it was started, the hazard of each hour is estimated, too. A scenario takes the file with \
lives = \"lives.csv\" in a [[machine]].";

/// Estimate how long spot machines live (Kaplan-Meier), from machines that were seen
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(crate) struct LivesArgs {
    /// The lives, CSV with a header line
    file: PathBuf,
    /// Print the result as one JSON document, or write it to FILE beside the table
    #[arg(long, value_name = "FILE", num_args = 0..=1, default_missing_value = "-")]
    json: Option<String>,
}

/// Ages that the table shows.
const SHOWN_HOURS: [f64; 6] = [1.0, 3.0, 6.0, 12.0, 18.0, 24.0];

pub(crate) fn run(args: &LivesArgs) -> Outcome {
    let curves = read(&args.file, |text| curves(&Lives::read(text)?))?;
    JsonTo::asked(args.json.as_deref()).show(&curves, || text(&curves))
}

fn text(curves: &[Curve]) -> String {
    let mut table = Table::new(&[2, 3, 4, 5, 6, 7, 8, 9]);
    let ages = SHOWN_HOURS.map(|hours| format!("by {hours} h"));
    let head = ["region", "device", "lives", "ended"].map(str::to_owned);
    table.row(head.into_iter().chain(ages).chain(["worst hour".to_owned()]));
    for curve in curves {
        let by = |hours: f64| {
            // Beyond the highest age that was seen nothing is known.
            let last = curve.ages.last().filter(|age| age.hours >= hours)?;
            let known = curve.ages.iter().rev().find(|age| age.hours <= hours);
            Some(known.map_or(0.0, |age| age.ended).min(last.ended))
        };
        let shares = SHOWN_HOURS.map(|hours| by(hours).map_or_else(|| "-".to_owned(), percent));
        let worst = curve.hourly.and_then(|hours| (0..hours.len()).max_by(|a, b| hours[*a].total_cmp(&hours[*b])));
        let first = [curve.region.clone(), curve.device.clone(), curve.lives.to_string(), curve.ended.to_string()];
        let worst = worst.map_or_else(|| "-".to_owned(), |hour| format!("{hour}:00"));
        table.row(first.into_iter().chain(shares).chain([worst]));
    }
    table.text()
}
