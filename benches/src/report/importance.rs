//! The page of importance: accuracy against samples trained on and against bytes read, a line for every run and a strong one for the mean;
//! the table with hit ratio beside coverage.
//!
//! Owns the layout of its charts.

use core::fmt::Write;

use crate::importance::{ImportanceReport, ImportanceRow, ImportanceRun, Mark};
use crate::switch::Figure;
use fuelrail_cli::report::page::{self, figure, page, wide};
use fuelrail_cli::report::svg::{Drawing, escape, seconds};

const WIDTH: f64 = 460.0;
const HEIGHT: f64 = 280.0;
const LEFT: f64 = 56.0;
const RIGHT: f64 = 14.0;
const TOP: f64 = 14.0;
const FLOOR: f64 = HEIGHT - 34.0;
/// Parts of an axis between its marks.
const PARTS: u32 = 4;

/// One file that needs nothing but itself.
#[must_use]
pub fn importance_html(report: &ImportanceReport) -> String {
    let mut modes: Vec<&str> = report.rows.iter().map(|row| row.mode.as_str()).collect();
    modes.sort_unstable();
    modes.dedup();
    let keys: String =
        modes.iter().map(|mode| format!("<span class=\"key {}\"></span>{}", hue(mode), escape(mode))).collect();
    let mut sets: Vec<&str> = report.rows.iter().map(|row| row.set.as_str()).collect();
    sets.dedup();
    let mut charts = String::new();
    for set in sets {
        let words = format!("A point for every run and epoch, a line through their means. Up is better. {keys}");
        let samples = chart(report, set, |mark| mark.samples as f64, |x| format!("{:.0} k", x / 1e3));
        charts += &figure(&format!("{set}: accuracy against samples trained on"), &words, &samples);
        let bytes = chart(report, set, |mark| mark.bytes_read as f64, |x| format!("{:.1} MB", x / 1e6));
        charts += &figure(&format!("{set}: accuracy against bytes read"), &words, &bytes);
    }
    let body =
        [headline(report), format!("<section class=\"charts\">\n{charts}</section>\n"), table(report), place(report)];
    page("Fuelrail: importance", &body.concat())
}

/// The class that colours a setting.
fn hue(mode: &str) -> &'static str {
    match mode {
        "on" => "rail",
        "shade" => "deli",
        "shade-corrected" => "disk",
        _ => "plain",
    }
}

fn headline(report: &ImportanceReport) -> String {
    let told: Vec<String> = report
        .rows
        .iter()
        .filter(|row| row.mode == "on")
        .map(|row| {
            format!(
                "On {}, ours is {:+.2} points from uniform at {:.0} % of its bytes",
                escape(&row.set),
                row.accuracy_difference.mean * 100.0,
                row.bytes_ratio.mean * 100.0
            )
        })
        .collect();
    format!(
        "<header>\n<div class=\"kicker\">Fuelrail bench importance · SHADE (FAST 2023)</div>\n<h1>{}.</h1>\n<p>LeNet on {} digits, {} \
         epochs, {} seed(s), a cache of {:.0} % of the set. Harder: half of the classes keep {:.0} % of their samples, {:.0} % of the labels \
         are wrong.</p>\n</header>\n",
        told.join(". "),
        report.count,
        report.epochs,
        report.seeds,
        report.cache_share * 100.0,
        report.rare_share * 100.0,
        report.noise_share * 100.0,
    )
}

fn chart(report: &ImportanceReport, set: &str, what: fn(&Mark) -> f64, words: fn(f64) -> String) -> String {
    let mut drawing = Drawing::new(WIDTH, HEIGHT, "test accuracy");
    let runs: Vec<&ImportanceRun> = report.runs.iter().filter(|run| run.set == set).collect();
    let marks = || runs.iter().flat_map(|run| &run.marks);
    let longest = marks().map(what).fold(f64::MIN_POSITIVE, f64::max) * 1.02;
    // The first epochs are far below what tells settings apart.
    let mut heard: Vec<f64> = marks().map(|mark| mark.accuracy).collect();
    heard.sort_unstable_by(f64::total_cmp);
    let low = heard.get(heard.len() / 8).map_or(0.0, |low| (low - 0.02).max(0.0));
    let high = heard.last().map_or(1.0, |high| (high + 0.01).min(1.0)).max(low + 0.01);
    let across = |x: f64| LEFT + x / longest * (WIDTH - LEFT - RIGHT);
    let up = |accuracy: f64| FLOOR - (accuracy.max(low) - low) / (high - low) * (FLOOR - TOP);
    for part in 0..=PARTS {
        let share = f64::from(part) / f64::from(PARTS);
        drawing.text(across(longest * share), HEIGHT - 14.0, "tick middle", &words(longest * share));
        let y = up(low + (high - low) * share);
        drawing.line((LEFT, y), (WIDTH - RIGHT, y), "grid");
        drawing.text(LEFT - 5.0, y + 4.0, "tick end", &format!("{:.1} %", (low + (high - low) * share) * 100.0));
    }
    for row in report.rows.iter().filter(|row| row.set == set) {
        let own: Vec<&&ImportanceRun> = runs.iter().filter(|run| run.mode == row.mode).collect();
        let epochs = own.iter().map(|run| run.marks.len()).min().unwrap_or(0);
        let mut path = String::new();
        for epoch in 0..epochs {
            let here = || own.iter().map(|run| &run.marks[epoch]);
            here().for_each(|mark| drawing.dot(across(what(mark)), up(mark.accuracy), 2.2, hue(&row.mode)));
            let mean = |of: &dyn Fn(&Mark) -> f64| here().map(of).sum::<f64>() / own.len() as f64;
            let (x, y) = (across(mean(&what)), up(mean(&|mark: &Mark| mark.accuracy)));
            // Writing to a String cannot fail.
            let _ = write!(path, "{}{x:.1} {y:.1}", if epoch == 0 { 'M' } else { 'L' });
        }
        drawing.add(&format!(r#"<path d="{path}" class="curve {}"/>"#, hue(&row.mode)));
    }
    drawing.finish()
}

fn table(report: &ImportanceReport) -> String {
    let heads = [
        "",
        "Set",
        "Accuracy",
        "Against uniform, points",
        "Half-way",
        "Bytes read, of uniform's",
        "Hit ratio",
        "Coverage",
    ];
    let rows: String = report.rows.iter().map(line).collect();
    format!(
        "<section>\n<h2>Settings</h2>\n{}<p>Means over the seeds, in brackets the least and the most; differences are taken within a seed. Coverage: of the samples an epoch \
         takes, the share that is distinct. A hit ratio without it says little: a cache that is asked for the same samples again hits.</p>\n\
         </section>\n",
        wide(&heads, &rows)
    )
}

fn line(row: &ImportanceRow) -> String {
    let percent = |figure: Figure| figure.range(|share| format!("{:.2} %", share * 100.0));
    let cells = [
        row.set.clone(),
        percent(row.accuracy),
        row.accuracy_difference.range(|share| format!("{:+.2}", share * 100.0)),
        percent(row.accuracy_half),
        row.bytes_ratio.range(|ratio| format!("{ratio:.3}")),
        row.hit_ratio.range(|ratio| format!("{ratio:.3}")),
        row.coverage.range(|ratio| format!("{ratio:.3}")),
    ];
    page::line(hue(&row.mode), &row.mode, &cells)
}

fn place(report: &ImportanceReport) -> String {
    let machine = &report.machine;
    let facts = [
        ("machine", machine.line()),
        ("trainer", format!("fuelrail-train, torch {} on {}", report.torch, report.device)),
        ("measured", format!("{}, in {}", machine.date, seconds(report.wall_s))),
        (
            "training",
            format!(
                "batches of {}, rate {}, momentum 0.9; judged by {} digits of another seed behind every epoch",
                report.batch_size, report.rate, report.test_count
            ),
        ),
    ];
    page::place(&facts)
}
