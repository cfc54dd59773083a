//! `fuelrail demo`: DELI's experiment in one process, a table, a page and a document of what came out.
//!
//! Owns the command line and what is printed. The experiment and the report are the benchmark harness's.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use clap::Args;
use fuelrail::ByteSize;

use crate::deli::{self, Row, RowName, Scale, Watch};
use crate::failure::{Outcome, file};
use crate::machine::Machine;
use crate::report::{Report, html};
use crate::screen::{Bar, JsonTo, Table, micros, note};
use crate::whole::WholeFile;

const EXAMPLES: &str = "Examples:
  fuelrail demo
  fuelrail demo --json report.json --html report.html
  fuelrail demo --full
  fuelrail demo --quick --json | jq '.rows[] | {name, miss_rate}'

Eleven rows on one bucket inside the process: local disk; the bucket, one GET at a time; DELI's demand cache of three sizes and \
without limit; DELI's full fetch and 50/50, each with its own number of connections and with Fuelrail's; and Fuelrail with the same cache bytes. Three trainers share every epoch. The \
trainer's step is simulated by waiting; every delivered byte is compared with the generator. The report says what else is \
simulated. Takes about two minutes; --full, at the published scale, about half an hour.";

/// The default folder of the reports.
const JSON_PATH: &str = "target/demo/report.json";
const HTML_PATH: &str = "target/demo/report.html";

/// Run DELI's experiment with Fuelrail beside it, and write a report
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Demo {
    /// The published scale: 42 000 objects, 55 ms per GET, 0.68 s per batch of 512
    #[arg(long, conflicts_with = "quick")]
    full: bool,
    /// A few seconds, to see that it works: the times mean nothing
    #[arg(long)]
    quick: bool,
    /// Seed of the data set and of the order of samples
    #[arg(long, value_name = "N", default_value_t = 0)]
    seed: u64,
    /// Print the report as one JSON document, or write it to FILE [default: target/demo/report.json]
    #[arg(long, value_name = "FILE", num_args = 0..=1, default_missing_value = "-")]
    json: Option<String>,
    /// Where to write the report as a page [default: target/demo/report.html]
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
}

pub(crate) fn run(args: &Demo) -> Outcome {
    let (mode, scale) = match (args.full, args.quick) {
        (true, _) => ("full", Scale::full(args.seed)),
        (_, true) => ("quick", Scale::quick(args.seed)),
        _ => ("short", Scale::short(args.seed)),
    };
    let json = match args.json.as_deref() {
        Some("-") => JsonTo::Output,
        path => JsonTo::File(PathBuf::from(path.unwrap_or(JSON_PATH))),
    };
    let page = args.html.clone().unwrap_or_else(|| PathBuf::from(HTML_PATH));
    // Before the minutes pass, not after: a report that cannot be written is worth knowing at once.
    if let JsonTo::File(path) = &json {
        make_folder_of(path)?;
    }
    make_folder_of(&page)?;
    drop(WholeFile::create(&page)?);
    let machine = Machine::here();
    note(&format!("demo, {mode} scale, on {}", machine.line()));
    machine.busy().iter().for_each(|busy| note(busy));
    let began = Instant::now();
    let findings = deli::run(&scale, &Onlooker::default())?;
    let report = Report::new(findings, machine, mode, began.elapsed().as_secs_f64());
    report.notices.iter().for_each(|notice| note(notice));
    WholeFile::of(&page, &html(&report))?;
    let mut paths = vec![page.display().to_string()];
    if let JsonTo::File(path) = &json {
        paths.push(path.display().to_string());
    }
    json.show(&report, || text(&report, &paths))
}

fn make_folder_of(path: &Path) -> Outcome<()> {
    let Some(folder) = path.parent().filter(|folder| !folder.as_os_str().is_empty()) else { return Ok(()) };
    fs::create_dir_all(folder).map_err(|error| file("making the folder", folder, &error))
}

const HEAD: [&str; 11] = [
    "",
    "data wait",
    "reduction",
    "epoch",
    "first batch",
    "miss rate",
    "p99 wait",
    "connections",
    "CPU",
    "held",
    "peak memory",
];

pub(crate) fn rows_text(rows: &[Row]) -> String {
    let mut table = Table::new(&[1, 2, 3, 4, 5, 6, 7, 8, 9, 10]);
    table.row(HEAD);
    for row in rows {
        table.row(cells(row));
    }
    table.text()
}

/// Everything printed at the end.
fn text(report: &Report, paths: &[String]) -> String {
    let mut text = format!("\n{}\n", rows_text(&report.rows));
    for verdict in &report.verdicts {
        let mark = if verdict.holds { "yes" } else { "NO " };
        text.push_str(&format!("{mark}  {}\n", verdict.text));
    }
    text.push_str(
        "\nTimes are per epoch, means over ranks and epochs; miss rates of the last epoch; CPU without the bucket's; connections of a \
         rank.\nHeld: samples in caches; for fuelrail all memory of its loaders. The trainer's step is simulated by waiting; every \
         delivered\nbyte was compared with the generator.\n",
    );
    for path in paths {
        text.push_str(&format!("report: {path}\n"));
    }
    text
}

fn cells(row: &Row) -> [String; HEAD.len()] {
    let time = |s: f64| micros((s * 1e6).round() as u64);
    let shared = if row.side_by_side.is_empty() { "" } else { "<= " };
    [
        row.name.word().to_owned(),
        time(row.data_wait_s),
        if row.name == RowName::Bucket { "-".to_owned() } else { format!("{:.2} %", row.wait_reduction * 100.0) },
        time(row.epoch_s),
        time(row.first_batch_ms / 1e3),
        format!("{:.4}", row.miss_rate),
        time(row.batch_wait_p99_ms / 1e3),
        row.connections.to_string(),
        time(row.cpu_s),
        ByteSize(row.held_bytes_max).to_string(),
        format!("{shared}{}", ByteSize(row.peak_rss_bytes)),
    ]
}

/// Without a terminal, rows say how far they are this many times.
const LINES: u64 = 4;

/// Shows the experiment as it goes.
#[derive(Debug, Default)]
struct Onlooker {
    running: Mutex<Option<Running>>,
    /// Rows that have begun.
    begun: AtomicUsize,
}

/// Rows that run side by side, and how many of their batches are done.
#[derive(Debug)]
struct Running {
    names: String,
    bar: Bar,
    done: u64,
    batches: u64,
}

impl Onlooker {
    fn running(&self) -> MutexGuard<'_, Option<Running>> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Watch for Onlooker {
    fn begin(&self, rows: &[RowName], batches: u64) {
        let names = rows.iter().map(|name| name.word()).collect::<Vec<_>>().join(", ");
        let batches = batches * rows.len() as u64;
        let bar = Bar::new(Some(batches), "batches");
        let before = self.begun.fetch_add(rows.len(), Ordering::Relaxed);
        if bar.is_hidden() {
            let all = RowName::ALL.len();
            note(&format!("rows {} to {} of {all}, side by side: {names}", before + 1, before + rows.len()));
        }
        *self.running() = Some(Running { names, bar, done: 0, batches });
    }

    fn batch(&self, row: RowName) {
        let mut running = self.running();
        let Some(Running { names, bar, done, batches }) = running.as_mut() else { return };
        *done += 1;
        bar.at(*done, || row.word().to_owned());
        let part = *done * LINES;
        if bar.is_hidden() && part / *batches > (part - LINES) / *batches && *done < *batches {
            note(&format!("{names} {} %", *done * 100 / *batches));
        }
    }

    fn end(&self, row: &Row) {
        // Rows that ran side by side end together: the bar makes room for their lines.
        drop(self.running().take());
        let [wait, epoch] = [row.data_wait_s, row.epoch_s].map(|s| micros((s * 1e6) as u64));
        let gone = match row.name {
            RowName::Bucket => String::new(),
            _ => format!(" ({:.1} % less than the bucket's)", row.wait_reduction * 100.0),
        };
        note(&format!("{:>18}  data wait {wait}{gone} in an epoch of {epoch}", row.name));
    }
}
