//! `cargo x bench report`: results as one page with charts.

use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

use crate::report::findings_html;
use clap::Args;
use serde::Serialize;

use super::compare::read;
use fuelrail_cli::failure::{Outcome, file};
use fuelrail_cli::screen::{JsonTo, note};
use fuelrail_cli::whole::WholeFile;

const EXAMPLES: &str = "Examples:
  cargo x bench report line.json
  cargo x bench report netns.json loopback.json rivals.json latency.json -o report.html

The page needs nothing but itself: no scripts, no fonts, no network.";

/// Draw results as one self-contained HTML page
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Report {
    /// Results of bench line, floor, latency, rivals or rings
    #[arg(value_name = "FILE", required = true)]
    files: Vec<PathBuf>,
    /// Where the page is written
    #[arg(long, short, value_name = "FILE", default_value = "report.html")]
    output: PathBuf,
    /// Print what was done as one JSON document
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Drawn {
    schema: u32,
    file: String,
    results: usize,
    bytes: usize,
}

pub(crate) fn run(args: &Report) -> Outcome {
    let mut results = Vec::new();
    for path in &args.files {
        results.push(read(path)?);
    }
    let page = findings_html(&results);
    let mut whole = WholeFile::create(&args.output)?;
    whole.write_all(page.as_bytes()).map_err(|error| file("writing", &args.output, &error))?;
    whole.finish()?;
    let drawn = Drawn { schema: 1, file: args.output.display().to_string(), results: results.len(), bytes: page.len() };
    if args.json {
        JsonTo::Output.show(&drawn, String::new)?;
    } else {
        note(&format!("{} results drawn to {}", drawn.results, drawn.file));
    }
    Ok(ExitCode::SUCCESS)
}
