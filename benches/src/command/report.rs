//! `cargo x bench report`: results as one page with charts.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;

use crate::report::results_html;
use fuelrail_cli::failure::{Outcome, file, usage};
use fuelrail_cli::screen::note;
use fuelrail_cli::whole::WholeFile;

const EXAMPLES: &str = "Examples:
  cargo x bench report line.json
  cargo x bench report netns.json loopback.json rivals.json soak.json -o report.html

The page needs nothing but itself: no scripts, no fonts, no network.";

/// Draw results as one self-contained HTML page
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Report {
    /// JSON results of any benchmark
    #[arg(value_name = "FILE", required = true)]
    files: Vec<PathBuf>,
    /// Where the page is written
    #[arg(long, short, value_name = "FILE", default_value = "report.html")]
    output: PathBuf,
}

pub(crate) fn run(args: &Report) -> Outcome {
    let mut results = Vec::new();
    for path in &args.files {
        let bytes = std::fs::read(path).map_err(|error| file("reading", path, &error))?;
        let not_json = |error| usage(format!("{}: {error}", path.display()), "give JSON results of the benchmarks");
        results.push((path.display().to_string(), serde_json::from_slice(&bytes).map_err(not_json)?));
    }
    WholeFile::of(&args.output, &results_html(&results)?)?;
    note(&format!("{} results drawn to {}", results.len(), args.output.display()));
    Ok(ExitCode::SUCCESS)
}
