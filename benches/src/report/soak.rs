//! The page of a soak: its verdict, memory and rate over time.
//!
//! Owns the layout of the two charts.

use core::fmt::Write;

use crate::soak::{Moment, SoakReport};
use fuelrail_cli::report::page::{figure, page};
use fuelrail_cli::report::svg::{Drawing, escape};

const WIDTH: f64 = 460.0;
const HEIGHT: f64 = 240.0;
const LEFT: f64 = 56.0;
const TOP: f64 = 14.0;
const RIGHT: f64 = 12.0;
const BELOW: f64 = 34.0;
const MIB: f64 = (1u64 << 20) as f64;

/// One file that needs nothing but itself.
#[must_use]
pub fn soak_html(report: &SoakReport) -> String {
    let verdict = if report.holds() { "holds" } else { "does not hold" };
    let totals = &report.totals;
    let head = format!(
        "<header>\n<div class=\"kicker\">Fuelrail soak · seed {}</div>\n<h1>{:.0} s under faults: it {verdict}.</h1>\n\
         <p>{} samples, {:.1} GB, {} whole epochs; {} faults and {} absences of the bucket; opened anew {} times; {}.</p>\n</header>\n",
        report.seed,
        report.wall_s,
        totals.samples,
        totals.bytes as f64 / 1e9,
        totals.epochs,
        totals.faults.values().sum::<u64>(),
        totals.absences,
        totals.reopened,
        escape(&report.ring),
    );
    let memory: Vec<(f64, f64)> =
        report.moments.iter().map(|moment| (moment.at_s, moment.gauge.rss_bytes() as f64 / MIB)).collect();
    let charts = format!(
        "<section class=\"charts\">\n{}{}</section>\n",
        figure("Memory", "Resident, MiB; it falls when the loader is closed and opened anew.", &chart("MiB", &memory)),
        figure("Rate", "Payload delivered between two moments, MB/s.", &chart("MB/s", &rates(&report.moments))),
    );
    let body = format!("{head}{}{charts}{}", criteria(report), place(report));
    page("Fuelrail soak", &body)
}

fn criteria(report: &SoakReport) -> String {
    let mut list = String::new();
    for criterion in &report.criteria {
        let (class, mark) = match criterion.holds {
            Some(true) => ("yes", "✓"),
            Some(false) => ("no", "✗"),
            None => ("", "–"),
        };
        let (name, text) = (escape(&criterion.name), escape(&criterion.text));
        // Writing to a String cannot fail.
        let _ = writeln!(list, "<li><span class=\"{class}\">{mark}</span>{name}: {text}</li>");
    }
    format!("<section>\n<ul class=\"claims\">\n{list}</ul>\n</section>\n")
}

fn place(report: &SoakReport) -> String {
    let notes: String = report.notices.iter().map(|text| format!("<li>{}</li>\n", escape(text))).collect();
    let (machine, date) = (escape(&report.machine.line()), escape(&report.machine.date));
    format!(
        "<section>\n<p>{machine}; {date}; fuelrail {}</p>\n<ul>\n{notes}</ul>\n</section>\n",
        report.machine.version
    )
}

fn rates(moments: &[Moment]) -> Vec<(f64, f64)> {
    let rate = |pair: &[Moment]| {
        let seconds = pair[1].at_s - pair[0].at_s;
        (pair[1].at_s, if seconds > 0.0 { (pair[1].gb - pair[0].gb) * 1e3 / seconds } else { 0.0 })
    };
    moments.windows(2).map(rate).collect()
}

/// A curve from nothing to its greatest value over time.
fn chart(unit: &str, points: &[(f64, f64)]) -> String {
    let mut drawing = Drawing::new(WIDTH, HEIGHT, &format!("{unit} over time"));
    let end = points.last().map_or(1.0, |point| point.0).max(f64::MIN_POSITIVE);
    let most = points.iter().map(|point| point.1).fold(1.0, f64::max);
    let floor = HEIGHT - BELOW;
    let at = |(x, y): (f64, f64)| (LEFT + x / end * (WIDTH - LEFT - RIGHT), floor - y / most * (floor - TOP));
    for part in [0.0, 0.25, 0.5, 0.75, 1.0] {
        let (y, x) = (at((0.0, part * most)).1, at((part * end, 0.0)).0);
        drawing.line((LEFT, y), (WIDTH - RIGHT, y), "grid");
        drawing.text(LEFT - 5.0, y + 4.0, "tick end", &format!("{:.0}", part * most));
        drawing.text(x, HEIGHT - 14.0, "tick middle", &format!("{:.0} s", part * end));
    }
    let mut path = String::new();
    for (number, point) in points.iter().enumerate() {
        let (x, y) = at(*point);
        let command = if number == 0 { 'M' } else { 'L' };
        let _ = write!(path, "{command}{x:.1} {y:.1}");
    }
    drawing.add(&format!(r#"<path d="{path}" class="curve rail"/>"#));
    drawing.finish()
}
