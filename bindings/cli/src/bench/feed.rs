//! `fuelrail bench feed`: the shapes of MLPerf Storage with emulated accelerators.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use super::accelerators::{Emulation, FeedReport, Run, Workload, emulate};
use clap::Args;
use fuelrail::{ByteSize, Loader};
use fuelrail_bucket::{Bucket, BucketConfig, DataSet, Source};

use crate::failure::{Outcome, usage};
use crate::report::chart::{Axis, Bar as Bars, Hue, bars};
use crate::report::{FactsPage, write_page};
use crate::screen::{Bar, JsonTo, Table, note};

const EXAMPLES: &str = "Examples:
  fuelrail bench feed unet3d --accelerator b200
  fuelrail bench feed resnet50 --shards 1 --json resnet50.json
  fuelrail bench feed cosmoflow --uri http://10.0.0.2:9000/bucket/cosmoflow/ --accelerators 4

Workloads, batches, compute times and thresholds are those of MLCommons' repository `storage`; accelerator utilisation (AU) is \
compute time over running time, the first step's input left out, as its rules have it. First the loader runs at full speed; \
then accelerators are added until AU falls below the workload's threshold. Without --uri the embedded bucket runs in \
this process and takes its share of the cores: GB/s per core of the shards is then the figure to compare. It is no MLPerf result.";

/// Feed emulated accelerators in the shapes of MLPerf Storage
#[derive(Args, Debug)]
#[command(alias = "mlperf", after_help = EXAMPLES)]
pub(crate) struct Feed {
    /// unet3d, resnet50, retinanet or cosmoflow
    workload: String,
    /// The accelerator to emulate: a100, h100 or b200 [default: the first known]
    #[arg(long, value_name = "NAME")]
    accelerator: Option<String>,
    /// How many accelerators [default: as many as can be fed]
    #[arg(long, value_name = "N")]
    accelerators: Option<u32>,
    /// The objects, one sample each; without it, generated ones of the workload's mean length
    #[arg(long)]
    uri: Option<String>,
    /// The objects as key<TAB>size or JSON lines, for servers that cannot list
    #[arg(long, value_name = "FILE", requires = "uri")]
    manifest: Option<PathBuf>,
    /// Shards; 0 chooses
    #[arg(long, value_name = "N", default_value_t = 0)]
    shards: u16,
    /// Memory of the loader [default: four batches of the largest samples and 256 MiB, at least 1 GiB]
    #[arg(long, value_name = "SIZE")]
    memory_limit: Option<ByteSize>,
    /// Most connections per shard
    #[arg(long, value_name = "N", default_value_t = 16)]
    connections: usize,
    /// Time of each run, at least
    #[arg(long, value_name = "SECONDS", default_value_t = 10.0)]
    seconds: f64,
    /// Print the result as one JSON document, or write it to FILE beside the table
    #[arg(long, value_name = "FILE", num_args = 0..=1, default_missing_value = "-")]
    json: Option<String>,
    /// Write the result as a page with charts
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
}

/// Generated objects are so many bytes together: more than any look-ahead.
const MADE_BYTES: u64 = 64 << 30;
const MADE_OBJECTS: std::ops::RangeInclusive<u64> = 64..=50_000;

pub(crate) fn run(args: &Feed) -> Outcome {
    let workload = Workload::named(&args.workload, args.accelerator.as_deref())?;
    let time = Duration::try_from_secs_f64(args.seconds).ok().filter(|time| !time.is_zero());
    let time = time.ok_or_else(|| usage(format!("--seconds {}", args.seconds), "give a positive number"))?;
    // Held until the end: dropping it ends the server.
    let server = match &args.uri {
        Some(_) => None,
        None => {
            let count = (MADE_BYTES / workload.sample_bytes).clamp(*MADE_OBJECTS.start(), *MADE_OBJECTS.end());
            let source = Source::Generated(DataSet::tokens(count, 0, workload.sample_bytes & !1));
            Some(Bucket::start(BucketConfig { source, ..BucketConfig::default() })?)
        }
    };
    let own = "the embedded bucket in this process, every object of the mean length";
    let uri = server.as_ref().map(|bucket| bucket.url("")).or(args.uri.clone()).unwrap_or_default();
    let source = args.uri.clone().unwrap_or_else(|| own.to_owned());
    let listing = match &args.manifest {
        Some(path) => fuelrail::read_manifest(path)?,
        None => fuelrail::list(&uri, |_| {})?,
    };
    let largest = listing.iter().map(|object| object.size).max().unwrap_or(0);
    let room = largest.saturating_mul(u64::from(workload.batch_size)).saturating_mul(4).saturating_add(256 << 20);
    let memory = args.memory_limit.unwrap_or(ByteSize(room.max(1 << 30)));
    let builder = Loader::builder(uri).connections_max(args.connections).memory_limit(memory);
    let config = builder.shards(Some(args.shards).filter(|shards| *shards > 0)).config().clone();
    let emulation = Emulation { workload, config, listing, source, time, accelerators: args.accelerators };
    let bar = Bar::new(None, "runs");
    let mut done = 0;
    let report = emulate(&emulation, &mut |run| {
        done += 1;
        bar.at(done, || format!("{} accelerator(s): AU {:.1} %", run.accelerators, run.au * 100.0));
    })?;
    drop((bar, server));
    report.notes.iter().for_each(|line| note(line));
    JsonTo::asked(args.json.as_deref()).show(&report, || Table::facts(facts(&report)).text())?;
    write_page(args.html.as_deref(), || page(&report))?;
    Ok(ExitCode::SUCCESS)
}

fn page(report: &FeedReport) -> FactsPage {
    let runs = |of: &dyn Fn(&Run) -> (String, f64, f64)| -> Vec<Bars> {
        let bar = |run: &Run| {
            let (text, value, mark) = of(run);
            let hue = if run.passed { Hue::Rail } else { Hue::Plain };
            Bars { name: format!("{} accelerator(s)", run.accelerators), text, value, marks: vec![mark], hue }
        };
        report.runs.iter().map(bar).collect()
    };
    let au = |run: &Run| (format!("{:.1} %", run.au * 100.0), run.au * 100.0, report.au_min * 100.0);
    let need = |run: &Run| f64::from(run.accelerators) * report.need_gb_per_s;
    let speed = |run: &Run| (format!("{:.3} GB/s", run.gb_per_s), run.gb_per_s, need(run));
    let fed = report.accelerators_max.unwrap_or_else(|| report.runs.iter().filter(|run| run.passed).count() as u32);
    let (name, accelerator) = (&report.workload, report.accelerator.to_uppercase());
    let charts = [
        (
            "Accelerator utilisation",
            "Compute time over running time. The mark is what passes; blue passed.",
            bars(&runs(&au), Axis { log: false, tick: |share| format!("{share:.0} %") }),
        ),
        (
            "Delivered, GB/s",
            "The mark is what so many accelerators take when they never wait.",
            bars(&runs(&speed), Axis { log: false, tick: |speed| format!("{speed:.1}") }),
        ),
    ];
    FactsPage {
        kicker: "Fuelrail bench feed",
        headline: format!(
            "{fed} × {accelerator} fed in the shape of {name}; at full speed it would be {:.2}",
            report.accelerators_fed
        ),
        caption: "Emulated accelerators; no MLPerf result.".to_owned(),
        charts,
        facts: facts(report),
    }
}

fn facts(report: &FeedReport) -> Vec<(String, String)> {
    let full = &report.full_speed;
    let mut facts: Vec<(String, String)> = Vec::new();
    let mut row = |name: &str, value: String| facts.push((name.to_owned(), value));
    let size = ByteSize(report.object_bytes_mean);
    row(
        "workload",
        format!(
            "{} on {}: {} x {size} every {} s",
            report.workload, report.accelerator, report.batch_size, report.step_s
        ),
    );
    row("one accelerator takes", format!("{:.3} GB/s", report.need_gb_per_s));
    row("full speed", format!("{:.3} GB/s, {:.0} samples/s", full.gb_per_s, full.samples_per_s));
    row("per core", format!("{:.3} GB/s ({:.3} CPU-s/GB)", full.gb_per_core_s, full.cpu_s_per_gb));
    row("that would feed", format!("{:.2} accelerators without a wait", report.accelerators_fed));
    for run in &report.runs {
        let verdict = if run.passed { "passes" } else { "fails" };
        let (au, least) = (run.au * 100.0, run.au_least * 100.0);
        row(
            &format!("{} accelerator(s)", run.accelerators),
            format!("AU {au:.1} % (least {least:.1} %) in {} steps, {:.3} GB/s: {verdict}", run.steps, run.gb_per_s),
        );
    }
    if let Some(most) = report.accelerators_max {
        row("max accelerators", format!("{most} (AU >= {:.0} %)", report.au_min * 100.0));
    }
    row("objects", report.source.clone());
    row("machine", report.machine.line());
    facts
}
