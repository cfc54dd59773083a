//! The charts that have one line per row: data wait, epoch time, miss rates, next-use caching.
//!
//! Owns their layout. A row's name and number stand above its bar, so that a chart is readable on a narrow screen.

use fuelrail_base::ByteSize;

use super::Report;
use super::svg::{Drawing, LogScale, find, hue, percent, seconds, tick_seconds};
use crate::deli::RowName;

/// Drawing units; the page scales them.
const WIDTH: f64 = 460.0;
/// Height of one row with its words.
const ROW: f64 = 36.0;
/// From a row's top to its words' base line, and to its bar.
const WORDS: f64 = 14.0;
const BAR: f64 = 20.0;
const THICK: f64 = 9.0;
/// Height below the last row, for the axis.
const AXIS: f64 = 22.0;

/// Data wait per row on a logarithmic axis, the paper's share of its bucket wait beside it.
pub(super) fn data_wait(report: &Report) -> String {
    let rows = &report.rows;
    let height = rows.len() as f64 * ROW + AXIS;
    let mut drawing = Drawing::new(WIDTH, height, "Data wait per epoch of every row, logarithmic");
    let scale = LogScale::around(rows.iter().map(|row| row.data_wait_s), 4.0, WIDTH - 8.0);
    for tick in scale.ticks() {
        drawing.line((scale.at(tick), 2.0), (scale.at(tick), height - AXIS), "grid");
        let class = if tick == scale.ticks().next().unwrap_or(tick) { "tick" } else { "tick end" };
        drawing.text(scale.at(tick), height - 6.0, class, &tick_seconds(tick));
    }
    let bucket_s = find(rows, RowName::Bucket).map_or(0.0, |row| row.data_wait_s);
    for (index, row) in rows.iter().enumerate() {
        let top = index as f64 * ROW;
        let gone = match row.name {
            RowName::Bucket => String::new(),
            _ if row.wait_reduction < 0.0 => format!(" · +{}", percent(-row.wait_reduction)),
            _ => format!(" · −{}", percent(row.wait_reduction)),
        };
        drawing.text(4.0, top + WORDS, "name", row.name.title());
        drawing.text(WIDTH - 4.0, top + WORDS, "number end", &format!("{}{gone}", seconds(row.data_wait_s)));
        let end = scale.at(row.data_wait_s);
        drawing.bar(4.0, top + BAR, end - 4.0, THICK, hue(row.name));
        let paper = report.published.iter().find(|paper| paper.name == row.name);
        if let Some(paper) = paper.filter(|paper| paper.name != RowName::Bucket) {
            let x = scale.at((1.0 - paper.wait_reduction) * bucket_s);
            drawing.line((x, top + BAR - 2.0), (x, top + BAR + THICK + 2.0), "paper");
        }
    }
    drawing.finish()
}

/// Time per epoch in step and wait, cut off where it leaves the picture, with local disk as the mark.
pub(super) fn epoch_time(report: &Report) -> String {
    let rows = &report.rows;
    let height = rows.len() as f64 * ROW + AXIS;
    let mut drawing = Drawing::new(WIDTH, height, "Time per epoch of every row against local disk");
    let disk_s = find(rows, RowName::LocalDisk).map_or(0.0, |row| row.epoch_s);
    // What comes near local disk sets the axis; the bucket rows are tens of times longer and are cut.
    let near = [RowName::LocalDisk, RowName::Deli5050, RowName::DeliFullFetch, RowName::Fuelrail];
    let near_s = near.iter().filter_map(|name| find(rows, *name)).map(|row| row.epoch_s).fold(disk_s, f64::max);
    let unit = (WIDTH - 40.0) / near_s.max(f64::MIN_POSITIVE);
    let at_disk = 4.0 + disk_s * unit;
    drawing.line((at_disk, 2.0), (at_disk, height - AXIS), "mark");
    drawing.text(at_disk, height - 6.0, "tick middle", &format!("local disk, {}", seconds(disk_s)));
    for (index, row) in rows.iter().enumerate() {
        let top = index as f64 * ROW;
        let times = row.epoch_s / disk_s.max(f64::MIN_POSITIVE);
        drawing.text(4.0, top + WORDS, "name", row.name.title());
        let digits = if times < 1.995 { 3 } else { 1 };
        let number = format!("{} · ×{times:.digits$}", seconds(row.epoch_s));
        drawing.text(WIDTH - 4.0, top + WORDS, "number end", &number);
        let step_s = row.epochs.iter().map(|epoch| epoch.step_s).sum::<f64>() / row.epochs.len().max(1) as f64;
        let full = row.epoch_s * unit;
        let most = WIDTH - 8.0;
        let step = (step_s * unit).min(most);
        drawing.bar(4.0, top + BAR, step, THICK, "step");
        drawing.bar(4.0 + step, top + BAR, full.min(most) - step, THICK, hue(row.name));
        if full > most {
            let x = most - 18.0;
            let (low, high) = (top + BAR + THICK + 2.0, top + BAR - 2.0);
            for shift in [0.0, 6.0] {
                drawing.line((x + shift, low), (x + shift + 5.0, high), "cut");
            }
        }
    }
    drawing.finish()
}

/// Miss rates in epoch 2 beside the published ones.
pub(super) fn miss_rates(report: &Report) -> String {
    let rows: Vec<_> =
        report.published.iter().filter_map(|paper| Some((find(&report.rows, paper.name)?, paper.miss_rate?))).collect();
    let height = rows.len() as f64 * ROW + AXIS;
    let mut drawing = Drawing::new(WIDTH, height, "Miss rates in epoch 2, measured and published");
    let at = |rate: f64| 8.0 + rate * (WIDTH - 16.0);
    for tick in [0.0, 0.25, 0.5, 0.75, 1.0] {
        drawing.line((at(tick), 2.0), (at(tick), height - AXIS), "grid");
        let class = match tick {
            0.0 => "tick",
            1.0 => "tick end",
            _ => "tick middle",
        };
        drawing.text(at(tick), height - 6.0, class, &format!("{tick}"));
    }
    for (index, (row, published)) in rows.into_iter().enumerate() {
        let top = index as f64 * ROW;
        let middle = top + BAR + THICK / 2.0;
        drawing.text(4.0, top + WORDS, "name", row.name.title());
        let number = format!("{:.3} · paper {published:.3}", row.miss_rate);
        drawing.text(WIDTH - 4.0, top + WORDS, "number end", &number);
        drawing.line((at(0.0), middle), (at(row.miss_rate), middle), &format!("stem {}", hue(row.name)));
        drawing.dot(at(row.miss_rate), middle, 4.5, hue(row.name));
        drawing.dot(at(published), middle, 6.5, "ring");
    }
    drawing.finish()
}

/// Processor time of every row, and how much memory it held for samples.
pub(super) fn cost(report: &Report) -> String {
    let rows = &report.rows;
    let mut drawing =
        Drawing::new(WIDTH, rows.len() as f64 * ROW + 4.0, "Processor time and sample memory of every row");
    let most = rows.iter().map(|row| row.cpu_s).fold(f64::MIN_POSITIVE, f64::max);
    for (index, row) in rows.iter().enumerate() {
        let top = index as f64 * ROW;
        drawing.text(4.0, top + WORDS, "name", row.name.title());
        let number = format!("{} · {}", seconds(row.cpu_s), ByteSize(row.held_bytes_max));
        drawing.text(WIDTH - 4.0, top + WORDS, "number end", &number);
        drawing.bar(4.0, top + BAR, row.cpu_s / most * (WIDTH - 8.0), THICK, hue(row.name));
    }
    drawing.finish()
}
