//! The charts of contests and latencies: a bar per contestant with its range, a percentile curve per run.
//!
//! Owns their layout.

use core::fmt::Write;
use fuelrail_cli::bench::latency::{LatencyResult, LatencySummary};

use crate::harness::{Contested, Metric, Spread};
use crate::line::LOADER;
use fuelrail_cli::report::svg::{Drawing, LogScale, tick_seconds};

/// Drawing units; the page scales them.
const WIDTH: f64 = 460.0;
/// Height of one row with its words; from its top to the words' base line and to the bar.
const ROW: f64 = 38.0;
const WORDS: f64 = 14.0;
const BAR: f64 = 21.0;
const THICK: f64 = 9.0;
const BELOW: f64 = 24.0;

/// The figure a contest is about, and whether it is of cold passes.
pub(super) fn subject(contest: &Contested) -> (Metric, bool) {
    match contest.set.name.as_str() {
        "tiny" => (Metric::CpuUsPerObject, false),
        "first" => (Metric::FirstBatchUs, true),
        _ => (Metric::CpuSPerGb, false),
    }
}

/// What a contestant is drawn in: the loader, a floor, anybody else.
pub(super) fn hue_of(name: &str) -> &'static str {
    match name {
        _ if name == LOADER || name.starts_with("fuelrail") => "rail",
        _ if name.starts_with("floor") => "disk",
        _ => "deli",
    }
}

/// One bar per contestant, from nothing to its median, with a whisker from least to most.
pub(super) fn bars(contest: &Contested) -> String {
    let (metric, cold) = subject(contest);
    let rows: Vec<(&str, Option<Spread>)> = contest
        .contestants
        .iter()
        .map(|scored| (scored.name.as_str(), if cold { &scored.cold } else { &scored.warm }.get(&metric).copied()))
        .collect();
    let height = rows.len() as f64 * ROW + BELOW;
    let label = format!("{} of every contestant of {}", metric.title(), contest.title());
    let mut drawing = Drawing::new(WIDTH, height, &label);
    let most = rows.iter().filter_map(|(_, spread)| Some((*spread)?.max)).fold(f64::MIN_POSITIVE, f64::max);
    let step = round_step(most);
    let at = |value: f64| 4.0 + value / most * (WIDTH - 8.0);
    for tick in (0..).map(|number| f64::from(number) * step).take_while(|tick| *tick <= most) {
        drawing.line((at(tick), 2.0), (at(tick), height - BELOW), "grid");
        let class = if tick == 0.0 { "tick" } else { "tick middle" };
        drawing.text(at(tick).min(WIDTH - 14.0), height - 8.0, class, &short(tick));
    }
    for (index, (name, spread)) in rows.into_iter().enumerate() {
        let top = index as f64 * ROW;
        drawing.text(4.0, top + WORDS, "name", name);
        let Some(Spread { median, min, max, .. }) = spread else {
            drawing.text(WIDTH - 4.0, top + WORDS, "number end", "did not come through");
            continue;
        };
        let number = format!("{} ({}–{})", metric.text(median), metric.text(min), metric.text(max));
        drawing.text(WIDTH - 4.0, top + WORDS, "number end", &number);
        drawing.bar(4.0, top + BAR, at(median) - 4.0, THICK, hue_of(name));
        let middle = top + BAR + THICK / 2.0;
        drawing.line((at(min), middle), (at(max), middle), "whisker");
        for end in [min, max] {
            drawing.line((at(end), middle - 3.5), (at(end), middle + 3.5), "whisker");
        }
    }
    drawing.finish()
}

/// A round step that divides an axis into three to seven.
fn round_step(most: f64) -> f64 {
    let power = 10f64.powf((most / 3.0).log10().floor());
    [5.0, 2.0, 1.0].into_iter().map(|digit| digit * power).find(|step| most / step > 3.0 - 1e-9).unwrap_or(power)
}

/// A tick's value without needless digits.
fn short(value: f64) -> String {
    let text = format!("{value:.3}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

const HEIGHT: f64 = 270.0;
const LEFT: f64 = 52.0;
const RIGHT: f64 = 16.0;
const TOP: f64 = 10.0;
/// Room under the curve for the axis and its name.
const FOOT: f64 = 34.0;

/// Latency over percentile, both logarithmic: every halving of what is left is as wide as the one before.
pub(super) fn percentiles(latency: &LatencyResult) -> String {
    let mut drawing =
        Drawing::new(WIDTH, HEIGHT, &format!("Latency percentiles of {}, {}", latency.name, latency.load));
    let floor = HEIGHT - FOOT;
    let curves = [(&latency.service, "plain"), (&latency.response, "rail")];
    let values = curves.iter().flat_map(|(summary, _)| summary.curve.iter().map(|(_, us)| us / 1e6));
    let y = LogScale::around(values, floor, TOP - floor);
    // As far as there are values to tell one from another.
    let nines = (latency.response.count.max(10) as f64).log10();
    let x = |quantile: f64| {
        let left = (1.0 - quantile).max(10f64.powf(-nines));
        LEFT + -left.log10() / nines * (WIDTH - LEFT - RIGHT)
    };
    for tick in y.ticks() {
        drawing.line((LEFT, y.at(tick)), (WIDTH - RIGHT, y.at(tick)), "grid");
        drawing.text(LEFT - 6.0, y.at(tick) + 4.0, "tick end", &tick_seconds(tick));
    }
    let marks: [(f64, &str); 6] =
        [(0.0, "0"), (0.9, "90 %"), (0.99, "99 %"), (0.999, "99.9 %"), (0.9999, "99.99 %"), (0.99999, "99.999 %")];
    for (quantile, words) in marks.into_iter().filter(|(quantile, _)| -(1.0 - quantile).log10() <= nines + 1e-9) {
        drawing.line((x(quantile), TOP), (x(quantile), floor), "grid");
        drawing.text(x(quantile).min(WIDTH - 24.0), HEIGHT - 16.0, "tick middle", words);
    }
    for (summary, class) in curves {
        drawing.add(&format!(r#"<path d="{}" class="curve {class}"/>"#, path(summary, &x, &y)));
    }
    drawing.finish()
}

fn path(summary: &LatencySummary, x: &dyn Fn(f64) -> f64, y: &LogScale) -> String {
    let mut path = String::new();
    for (index, (quantile, us)) in summary.curve.iter().enumerate() {
        let command = if index == 0 { 'M' } else { 'L' };
        // Writing to a String cannot fail.
        let _ = write!(path, "{command}{:.1} {:.1}", x(*quantile), y.at(us / 1e6));
    }
    path
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn axes_have_round_ticks() {
        for (most, step) in [(1.0, 0.2), (0.3, 0.1), (9.0, 2.0), (17.0, 5.0), (100.0, 20.0)] {
            assert!((round_step(most) - step).abs() < 1e-9, "{most}: {}", round_step(most));
            assert!((2.999..7.501).contains(&(most / round_step(most))), "{most}");
        }
        assert_eq!((short(0.25), short(20.0), short(0.0)), ("0.25".into(), "20".into(), "0".into()));
    }
}
