//! Data wait step by step: where each row's trainer stood still.
//!
//! Owns the layout of the one chart that has time on its axis.

use core::fmt::Write;

use super::Report;
use super::svg::{Drawing, LogScale, find, hue, tick_seconds};
use crate::deli::RowName;

const WIDTH: f64 = 460.0;
const HEIGHT: f64 = 300.0;
const LEFT: f64 = 50.0;
const TOP: f64 = 14.0;
/// Room on the right for the rows' names, and below for the steps.
const RIGHT: f64 = 78.0;
const BELOW: f64 = 40.0;
/// Names stand at least this far apart.
const APART: f64 = 14.0;
/// What is shorter stands on the floor: below it nobody waits.
const FLOOR_MS: f64 = 0.01;

/// Rows that say something different, and their short names.
const SHOWN: [(RowName, &str); 5] = [
    (RowName::Bucket, "bucket"),
    (RowName::DeliFullFetch, "full fetch"),
    (RowName::Deli5050, "50/50"),
    (RowName::LocalDisk, "local disk"),
    (RowName::Fuelrail, "Fuelrail"),
];

/// Data wait of every step of all epochs, logarithmic.
pub(super) fn timeline(report: &Report) -> String {
    let mut drawing = Drawing::new(WIDTH, HEIGHT, "Data wait of every training step, logarithmic");
    let rows: Vec<_> = SHOWN.iter().filter_map(|(name, short)| Some((find(&report.rows, *name)?, *short))).collect();
    let waits = |row: &crate::deli::Row| -> Vec<f64> {
        row.epochs.iter().flat_map(|epoch| &epoch.step_wait_ms).map(|wait| wait.max(FLOOR_MS)).collect()
    };
    let steps = rows.iter().map(|(row, _)| waits(row).len()).max().unwrap_or(0).max(2);
    let floor = HEIGHT - BELOW;
    let y = LogScale::around(rows.iter().flat_map(|(row, _)| waits(row)).chain([FLOOR_MS]), floor, TOP - floor);
    let x = |step: usize| LEFT + step as f64 / (steps - 1) as f64 * (WIDTH - LEFT - RIGHT);
    for tick in y.ticks() {
        drawing.line((LEFT, y.at(tick)), (WIDTH - RIGHT, y.at(tick)), "grid");
        drawing.text(LEFT - 5.0, y.at(tick) + 4.0, "tick end", &tick_seconds(tick / 1e3));
    }
    let mut before = 0;
    if let Some((row, _)) = rows.first() {
        for epoch in &row.epochs {
            let count = epoch.step_wait_ms.len();
            if before > 0 {
                let edge = (x(before - 1) + x(before)) / 2.0;
                drawing.line((edge, TOP), (edge, floor), "mark");
            }
            let middle = (x(before) + x(before + count.saturating_sub(1))) / 2.0;
            drawing.text(middle, HEIGHT - 20.0, "tick middle", &format!("epoch {}", epoch.epoch));
            before += count;
        }
    }
    let mut names: Vec<(f64, &str, &str)> = Vec::new();
    for (row, short) in &rows {
        let waits = waits(row);
        let mut path = String::new();
        for (step, wait) in waits.iter().enumerate() {
            let command = if step == 0 { 'M' } else { 'L' };
            let _ = write!(path, "{command}{:.1} {:.1}", x(step), y.at(*wait));
        }
        drawing.add(&format!(r#"<path d="{path}" class="curve {} {}"/>"#, hue(row.name), row.name.word()));
        let last = waits.iter().rev().take(8).map(|wait| y.at(*wait)).sum::<f64>() / waits.len().clamp(1, 8) as f64;
        names.push((last, short, hue(row.name)));
    }
    names.sort_by(|a, b| a.0.total_cmp(&b.0));
    let mut lowest = f64::NEG_INFINITY;
    for (at, short, hue) in names {
        let at = at.max(lowest + APART);
        lowest = at;
        drawing.text(WIDTH - RIGHT + 6.0, at + 4.0, &format!("name {hue}"), short);
    }
    drawing.finish()
}
