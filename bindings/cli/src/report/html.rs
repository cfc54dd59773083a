//! `report.html`: the demo's page, in light and dark, for wide and narrow screens.
//!
//! Owns the charts, and the figures that the template cannot take from the report directly.

use fuelrail_base::ByteSize;
use serde_json::json;

use super::chart::{Axis, Bar, Curve, Hue, bars, curves};
use super::{Published, Report, page, percent, seconds};
use crate::deli::{Row, RowName};

/// Standard deviation of the unlimited cache's miss rate, mean of three ranks, times the square root of a rank's samples:
/// the three overlaps of two random divisions into thirds vary by two thirds of the samples.
const SCATTER: f64 = 0.272;
/// Waits shorter than this are drawn at the lower edge of the chart, ms.
const FLOOR_MS: f64 = 0.01;
const SECONDS_LOG: Axis = Axis { log: true, tick: seconds };

/// Renders the page.
pub fn html(report: &Report) -> String {
    let scale = &report.config.scale;
    let epochs = || report.rows.iter().flat_map(|row| &row.epochs);
    let shown = json!({
        "report": report,
        "deli": report.row(RowName::Deli5050),
        "rail": report.row(RowName::Fuelrail),
        "titles": report.rows.iter().map(|row| row.name.title()).collect::<Vec<_>>(),
        "tiles": tiles(report),
        "charts": charts(report),
        "machine": report.machine.line(),
        "get_latency_s": scale.get_latency_us as f64 / 1e6,
        "step_s": scale.step_of(scale.batch_size as usize).as_secs_f64(),
        "samples": epochs().map(|epoch| epoch.samples).sum::<u64>(),
        "bytes": epochs().map(|epoch| epoch.bytes).sum::<u64>(),
    });
    page(include_str!("demo.html"), shown)
}

/// The page's key figures: title, value of Fuelrail, value of DELI's best setting.
fn tiles(report: &Report) -> [(&'static str, String, String); 4] {
    let (rail, deli) = (report.row(RowName::Fuelrail), report.row(RowName::Deli5050));
    let disk_s = report.row(RowName::LocalDisk).epoch_s.max(f64::MIN_POSITIVE);
    let tile = |what, of: fn(&Row) -> f64| (what, seconds(of(rail)), seconds(of(deli)));
    let epoch = |digits: usize, row: &Row| format!("×{:.digits$}", row.epoch_s / disk_s);
    [
        tile("Data wait per epoch", |row| row.data_wait_s),
        ("Epoch against local disk", epoch(3, rail), epoch(1, deli)),
        tile("Time to first batch", |row| row.first_batch_ms / 1e3),
        tile("99 % of batches wait less than", |row| row.batch_wait_p99_ms / 1e3),
    ]
}

/// Title, caption and SVG of every chart.
fn charts(report: &Report) -> [(&'static str, String, String); 5] {
    let scatter = SCATTER / (report.config.scale.samples_per_rank as f64).sqrt();
    let share = Axis { log: false, tick: |rate| format!("{rate:.1}") };
    let rows = |bar_of: &dyn Fn(&Row) -> Bar| report.rows.iter().map(bar_of).collect::<Vec<Bar>>();
    let cost = |row: &Row| {
        let text = format!("{} · {}", seconds(row.cpu_s), ByteSize(row.held_bytes_max));
        bar(row, row.cpu_s, text, None)
    };
    [
        (
            "Data wait",
            "Time inside next() per epoch, and how much less that is than the bucket’s. Logarithmic. The mark is the paper’s \
             share of its own bucket wait."
                .to_owned(),
            bars(&rows(&|row| data_wait(report, row)), SECONDS_LOG),
        ),
        (
            "Epoch time against local disk",
            "Simulated steps and data wait together. Logarithmic. The mark is the local disk’s.".to_owned(),
            bars(&rows(&|row| epoch_time(report, row)), SECONDS_LOG),
        ),
        (
            "Data wait of every step",
            "Mean of the ranks, step by step over all epochs. Logarithmic. Blue is Fuelrail, orange DELI 50/50, green \
             local disk, grey the bucket. DELI stops whenever its fetch has not landed."
                .to_owned(),
            timeline(report),
        ),
        (
            "Miss rates in epoch 2",
            format!(
                "Every epoch is reshuffled over the nodes, so most of what a node keeps, another needs. From seed to seed the \
                 rates scatter by about {scatter:.3} (standard deviation) at this size. The mark is the published rate."
            ),
            bars(&report.published.iter().filter_map(|paper| miss_rate(report, paper)).collect::<Vec<_>>(), share),
        ),
        (
            "What it costs",
            "Processor time of all trainers, threads and shards over the whole row, the bucket’s left out; and the memory the \
             row held: samples in DELI’s caches, and all that Fuelrail’s loaders take."
                .to_owned(),
            bars(&rows(&cost), Axis { log: false, tick: seconds }),
        ),
    ]
}

fn hue(name: RowName) -> Hue {
    match name {
        RowName::Fuelrail => Hue::Rail,
        RowName::DeliFullFetch | RowName::Deli5050 | RowName::DeliFullFetchWide | RowName::Deli5050Wide => Hue::Deli,
        RowName::LocalDisk => Hue::Disk,
        _ => Hue::Plain,
    }
}

fn bar(row: &Row, value: f64, text: String, mark: Option<f64>) -> Bar {
    Bar { name: row.name.title().to_owned(), text, value, marks: mark.into_iter().collect(), hue: hue(row.name) }
}

fn data_wait(report: &Report, row: &Row) -> Bar {
    let gone = match row.name {
        RowName::Bucket => String::new(),
        _ if row.wait_reduction < 0.0 => format!(" · +{}", percent(-row.wait_reduction)),
        _ => format!(" · −{}", percent(row.wait_reduction)),
    };
    let published = report.published.iter().find(|paper| paper.name == row.name && row.name != RowName::Bucket);
    let mark = published.map(|paper| (1.0 - paper.wait_reduction) * report.row(RowName::Bucket).data_wait_s);
    bar(row, row.data_wait_s, format!("{}{gone}", seconds(row.data_wait_s)), mark)
}

fn epoch_time(report: &Report, row: &Row) -> Bar {
    let disk_s = report.row(RowName::LocalDisk).epoch_s.max(f64::MIN_POSITIVE);
    let times = row.epoch_s / disk_s;
    let digits = if times < 1.995 { 3 } else { 1 };
    bar(row, row.epoch_s, format!("{} · ×{times:.digits$}", seconds(row.epoch_s)), Some(disk_s))
}

fn miss_rate(report: &Report, paper: &Published) -> Option<Bar> {
    let (row, published) = (report.row(paper.name), paper.miss_rate?);
    Some(bar(row, row.miss_rate, format!("{:.3} · paper {published:.3}", row.miss_rate), Some(published)))
}

/// The data wait of every step, for the rows that differ clearly.
fn timeline(report: &Report) -> String {
    let all = [RowName::Bucket, RowName::Deli5050, RowName::LocalDisk, RowName::Fuelrail].map(|name| {
        let waits = report.row(name).epochs.iter().flat_map(|epoch| &epoch.step_wait_ms);
        let points = (0u32..).map(f64::from).zip(waits.map(|wait| wait.max(FLOOR_MS) / 1e3)).collect();
        Curve { points, hue: hue(name) }
    });
    curves(&all, Axis { log: false, tick: |step| format!("{step:.0}") }, SECONDS_LOG)
}
