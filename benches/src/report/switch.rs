//! The page of Sync-Switch: accuracy against time with a point for every run, loss over time, the table.
//!
//! Owns the layout of its charts.

use core::fmt::Write;

use crate::switch::{Figure, Row, Run, SwitchReport, setting_name};
use fuelrail_cli::report::page::{self, figure, line, page, wide};
use fuelrail_cli::report::svg::{Drawing, LogScale, escape, seconds};

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
pub fn switch_html(report: &SwitchReport) -> String {
    let keys: String = report
        .rows
        .iter()
        .map(|row| format!("<span class=\"key {}\"></span>{}", hue(row.share), escape(&setting_name(row.share))))
        .collect();
    let charts = format!(
        "<section class=\"charts\">\n{}{}</section>\n",
        figure(
            "Accuracy against time",
            &format!("A point for every run; a ring where the setting’s mean is. Left and up is better. {keys}"),
            &accuracies(report),
        ),
        figure(
            "Loss over time",
            &format!("Training loss as rank 0 sees it, logarithmic, a line for every run. {keys}"),
            &losses(report),
        ),
    );
    let body = [headline(report), charts, table(report), every_run(report), place(report)];
    page("Fuelrail: Sync-Switch", &body.concat())
}

/// The class that colours a setting.
fn hue(share: f64) -> &'static str {
    match share {
        share if share >= 1.0 => "plain",
        share if share <= 0.0 => "deli",
        share if share < 0.1 => "rail",
        _ => "disk",
    }
}

fn headline(report: &SwitchReport) -> String {
    let switched = report.rows.iter().filter(|row| row.share > 0.0 && row.share < 1.0);
    let best = switched.max_by(|a, b| a.speed.mean.total_cmp(&b.speed.mean));
    let claim = best.map_or_else(String::new, |row| {
        format!(
            "{}, training is <span class=\"rail\">{:.1} ×</span> as fast as in lockstep with a slow rank, at {:+.2} points of accuracy.",
            capital(&setting_name(row.share)),
            row.speed.mean,
            row.accuracy_difference.mean * 100.0,
        )
    });
    let asynchronous = report.rows.iter().find(|row| row.share <= 0.0).map_or_else(String::new, |row| {
        let (speed, points) = (row.speed.mean, row.accuracy_difference.mean * 100.0);
        format!("Asynchronous from the first step: {speed:.1} ×, {points:+.2} points. ")
    });
    let published = report.published;
    format!(
        "<header>\n<div class=\"kicker\">Fuelrail bench switch · Sync-Switch (ICDCS 2021)</div>\n<h1>{claim}</h1>\n\
         <p>{asynchronous}{} ranks, the last one {} times slower; LeNet on {} digits, {} epochs, {} seed(s). Published, on 8 K80 {}: {} × the \
         speed ({} × with its restart of {:.0} s), accuracy {:.3} against {:.3}.</p>\n</header>\n",
        report.ranks,
        report.slow,
        report.count,
        report.epochs,
        report.seeds,
        setting_name(published.share),
        published.speed,
        published.speed_with_restart,
        published.switch_s,
        published.accuracy,
        published.accuracy_synchronous,
    )
}

fn capital(words: &str) -> String {
    let mut letters = words.chars();
    letters.next().map_or_else(String::new, |first| first.to_uppercase().chain(letters).collect())
}

fn accuracies(report: &SwitchReport) -> String {
    let mut drawing = Drawing::new(WIDTH, HEIGHT, "test accuracy over time of training");
    let longest = report.runs.iter().map(|run| run.train_s).fold(f64::MIN_POSITIVE, f64::max) * 1.05;
    let bounds =
        Figure::of(report.runs.iter().map(|run| run.accuracy)).unwrap_or(Figure { mean: 1.0, min: 1.0, max: 1.0 });
    // Some room on both sides; nobody is right more often than always.
    let room = ((bounds.max - bounds.min) * 0.15).max(0.001);
    let (low, high) = ((bounds.min - room).max(0.0), (bounds.max + room).min(1.0));
    let at =
        |time: f64, accuracy: f64| (across(time, longest), FLOOR - (accuracy - low) / (high - low) * (FLOOR - TOP));
    time_axis(&mut drawing, longest);
    for part in 0..=PARTS {
        let accuracy = low + (high - low) * f64::from(part) / f64::from(PARTS);
        mark(&mut drawing, at(0.0, accuracy).1, &format!("{:.2} %", accuracy * 100.0));
    }
    for row in &report.rows {
        for run in report.runs.iter().filter(|run| run.share == row.share) {
            let (x, y) = at(run.train_s, run.accuracy);
            drawing.dot(x, y, 4.5, hue(row.share));
        }
        let (x, y) = at(row.train_s.mean, row.accuracy.mean);
        drawing.dot(x, y, 8.0, "ring");
    }
    drawing.finish()
}

fn losses(report: &SwitchReport) -> String {
    let mut drawing = Drawing::new(WIDTH, HEIGHT, "training loss over time");
    let longest = report.runs.iter().filter_map(|run| run.curve.at_s.last().copied()).fold(f64::MIN_POSITIVE, f64::max);
    // Below a thousandth there is nothing left to learn, and logarithms have no end.
    let heard = report.runs.iter().flat_map(|run| run.curve.loss.iter().map(|loss| loss.max(1e-3)));
    let scale = LogScale::around(heard, FLOOR, TOP - FLOOR);
    time_axis(&mut drawing, longest);
    for tick in scale.ticks() {
        mark(&mut drawing, scale.at(tick), &format!("{tick}"));
    }
    for run in &report.runs {
        let mut path = String::new();
        for (number, (time, loss)) in run.curve.at_s.iter().zip(&run.curve.loss).enumerate() {
            let (x, y) = (across(*time, longest), scale.at(*loss));
            let command = if number == 0 { 'M' } else { 'L' };
            // Writing to a String cannot fail, here and below.
            let _ = write!(path, "{command}{x:.1} {y:.1}");
        }
        drawing.add(&format!(r#"<path d="{path}" class="curve {}"/>"#, hue(run.share)));
    }
    drawing.finish()
}

fn across(time: f64, longest: f64) -> f64 {
    LEFT + time / longest * (WIDTH - LEFT - RIGHT)
}

fn time_axis(drawing: &mut Drawing, longest: f64) {
    for part in 0..=PARTS {
        let time = longest * f64::from(part) / f64::from(PARTS);
        drawing.text(across(time, longest), HEIGHT - 14.0, "tick middle", &seconds(time));
    }
}

fn mark(drawing: &mut Drawing, y: f64, words: &str) {
    drawing.line((LEFT, y), (WIDTH - RIGHT, y), "grid");
    drawing.text(LEFT - 5.0, y + 4.0, "tick end", words);
}

fn table(report: &SwitchReport) -> String {
    let heads = [
        "",
        "Training",
        "Speed",
        "by arithmetic",
        "Accuracy",
        "Against synchronous",
        "The switch",
        "Thrown away",
        "With start and test",
    ];
    let rows: String = report.rows.iter().map(row).collect();
    format!(
        "<section>\n<h2>Settings</h2>\n{}<p>Means over the seeds, in brackets the least and the most; speeds and differences are taken within a \
         seed. By arithmetic: if steps took nothing but work and the slow rank’s delay.</p>\n</section>\n",
        wide(&heads, &rows)
    )
}

fn row(row: &Row) -> String {
    let cells = [
        row.train_s.range(seconds),
        row.speed.range(|speed| format!("{speed:.2} ×")),
        format!("{:.2} ×", row.speed_expected),
        row.accuracy.range(|share| format!("{:.2} %", share * 100.0)),
        row.accuracy_difference.range(|share| format!("{:+.2}", share * 100.0)),
        row.switch_s.map_or_else(|| "–".to_owned(), |figure| figure.range(seconds)),
        row.stale.to_string(),
        row.total_s.range(seconds),
    ];
    line(hue(row.share), &setting_name(row.share), &cells)
}

fn every_run(report: &SwitchReport) -> String {
    let heads = [
        "",
        "Seed",
        "Training",
        "Accuracy",
        "Test loss",
        "Steps of each rank",
        "The switch",
        "Thrown away",
        "Load before",
    ];
    let cells = |run: &Run| {
        let steps: Vec<String> = run.steps.iter().map(u64::to_string).collect();
        [
            run.seed.to_string(),
            seconds(run.train_s),
            format!("{:.2} %", run.accuracy * 100.0),
            run.test_loss.map_or_else(|| "–".to_owned(), |loss| format!("{loss:.4}")),
            steps.join(" + "),
            run.switch_s.map_or_else(|| "–".to_owned(), seconds),
            run.stale.to_string(),
            run.load.map_or_else(|| "–".to_owned(), |load| format!("{load:.1}")),
        ]
    };
    let rows: String =
        report.runs.iter().map(|run| line(hue(run.share), &setting_name(run.share), &cells(run))).collect();
    format!("<section>\n<h2>Every run, in order</h2>\n{}</section>\n", wide(&heads, &rows))
}

fn place(report: &SwitchReport) -> String {
    let machine = &report.machine;
    let facts = [
        ("machine", machine.line()),
        ("trainer", format!("fuelrail-train, torch {} on {}", report.torch, report.device)),
        ("measured", format!("{}, in {}", machine.date, seconds(report.wall_s))),
        (
            "training",
            format!(
                "batches of {} per rank, rate {}, momentum 0.9; judged by {} digits of another seed",
                report.batch_size, report.rate, report.test_count
            ),
        ),
    ];
    page::place(&facts)
}
