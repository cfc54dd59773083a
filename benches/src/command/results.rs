//! Results with contestants as text for people, and `cargo x bench report`.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use fuelrail::ByteSize;

use crate::harness::{Contested, Findings, Metric, Scored, Spread};
use crate::report::{column_svg, results_html};
use fuelrail_cli::failure::{Outcome, file, usage};
use fuelrail_cli::screen::{Table, note};
use fuelrail_cli::whole::WholeFile;

const REPORT_EXAMPLES: &str = "Examples:
  cargo x bench report line.json
  cargo x bench report netns.json loopback.json rivals.json soak.json -o report.html
  cargo x bench report demo.json --chart rows.data_wait_s -o data-wait.svg

The page needs nothing but itself: no scripts, no fonts, no network.";

/// Draw results as one self-contained HTML page
#[derive(Args, Debug)]
#[command(after_help = REPORT_EXAMPLES)]
pub(crate) struct Report {
    /// JSON results of any benchmark
    #[arg(value_name = "FILE", required = true)]
    files: Vec<PathBuf>,
    /// Draw one column of one result as an SVG, in the place of the page
    #[arg(long, value_name = "LIST.COLUMN")]
    chart: Option<String>,
    /// Where the page or the chart is written
    #[arg(long, short, value_name = "FILE", default_value = "report.html")]
    output: PathBuf,
}

pub(super) fn draw(args: &Report) -> Outcome {
    let mut results = Vec::new();
    for path in &args.files {
        let bytes = std::fs::read(path).map_err(|error| file("reading", path, &error))?;
        let not_json = |error| usage(format!("{}: {error}", path.display()), "give JSON results of the benchmarks");
        results.push((path.display().to_string(), serde_json::from_slice(&bytes).map_err(not_json)?));
    }
    let drawing = match (&args.chart, results.as_slice()) {
        (Some(column), [(_, result)]) => column_svg(result, column)?,
        (Some(_), _) => return Err(usage("--chart draws one result", "give one FILE")),
        (None, results) => results_html(results)?,
    };
    WholeFile::of(&args.output, &drawing)?;
    note(&format!("{} results drawn to {}", results.len(), args.output.display()));
    Ok(ExitCode::SUCCESS)
}

/// The whole result.
pub(super) fn text(findings: &Findings) -> String {
    let mut text = String::new();
    for contest in &findings.contests {
        text.push_str(&contest_text(contest, &findings.notices));
        text.push('\n');
    }
    for notice in &findings.notices {
        text.push_str(&format!("note: {notice}\n"));
    }
    text.push_str(&format!("{}; {}\n", findings.machine.line(), venue(findings)));
    text
}

fn venue(findings: &Findings) -> String {
    let facts = &findings.venue;
    let mtu = facts.mtu.map_or_else(String::new, |mtu| format!(", MTU {mtu}"));
    let link = facts.link_bits_per_s.map_or_else(String::new, |rate| format!(", {} Mbit/s", rate / 1_000_000));
    format!("{} ({:?}{mtu}{link})", facts.server, facts.kind).to_lowercase()
}

fn contest_text(contest: &Contested, notices: &[String]) -> String {
    let set = &contest.set;
    let mut text = format!(
        "{}: {} objects, {}; batches of {} in {}",
        contest.title(),
        set.objects,
        ByteSize(set.bytes),
        set.batch_size,
        ByteSize(set.arena_bytes)
    );
    if let Some(limit) = contest.entitlement_gb_per_s {
        text.push_str(&format!("; the server gives {limit:.2} GB/s at most"));
    }
    text.push('\n');
    let mut table = Table::new(&[1, 2, 3, 4, 5]);
    let shown = [Metric::CpuSPerGb, Metric::CpuUsPerObject, Metric::GbPerS, Metric::FirstBatchUs, Metric::PeakMemoryMb];
    table.row(std::iter::once("").chain(shown.iter().map(|metric| metric.title())));
    for scored in &contest.contestants {
        rows(&mut table, &shown, scored);
    }
    text.push_str(&table.text());
    for scored in &contest.contestants {
        // What a notice tells already is below all tables, once.
        let told = |failure: &String| notices.iter().any(|notice| notice.contains(failure.as_str()));
        if let Some(failure) = scored.failure.as_ref().filter(|failure| !told(failure)) {
            text.push_str(&format!("  {}: {failure}\n", scored.name));
        }
    }
    for bar in &contest.bars {
        text.push_str(&format!("  {}\n", bar.text()));
    }
    text
}

fn rows(table: &mut Table, shown: &[Metric], scored: &Scored) {
    for (heat, figures) in [("", &scored.warm), (" (cold)", &scored.cold)] {
        if !figures.is_empty() {
            let cells =
                shown.iter().map(|metric| figures.get(metric).map_or_else(|| "-".into(), |s| spread(*metric, s)));
            table.row(std::iter::once(format!("  {}{heat}", scored.name)).chain(cells));
        }
    }
    // Its passes up to then may stand above: that it did not come through stands beside its name all the same.
    if scored.failure.is_some() {
        table.row([format!("  {}", scored.name), scored.absence.clone().unwrap_or_else(|| "failed".to_owned())]);
    }
}

fn spread(metric: Metric, spread: &Spread) -> String {
    let Spread { median, min, max, .. } = *spread;
    if metric == Metric::PeakMemoryMb {
        return metric.text(max);
    }
    format!("{} ({}–{})", metric.text(median), metric.text(min), metric.text(max))
}
