//! `report.html`: one page that needs nothing else, in light and dark, on a desk and on a phone.
//!
//! Owns the page's order: the answer, the figures, the charts, the table, what is simulated, where it ran.

use core::fmt::Write;

use fuelrail_base::ByteSize;

use super::Report;
use super::bars::{cost, data_wait, epoch_time, miss_rates};
use super::page::{figure, page};
use super::svg::{escape, find, hue, percent, seconds};
use super::timeline::timeline;
use crate::deli::{Row, RowName};

/// Standard deviation of the unlimited cache's miss rate, mean of three ranks, times the square root of a rank's samples:
/// the three overlaps of two random divisions into thirds vary by two thirds of the samples.
const SCATTER: f64 = 0.272;

/// The page.
#[must_use]
pub fn html(report: &Report) -> String {
    let body = [
        headline(report),
        tiles(report),
        claims(report),
        charts(report),
        table(report),
        simulated(report),
        place(report),
    ];
    page("Fuelrail beside DELI: data wait from a bucket", &body.concat())
}

fn headline(report: &Report) -> String {
    let cut = |name| find(&report.rows, name).map_or_else(String::new, |row| percent(row.wait_reduction));
    let scale = &report.config.scale;
    format!(
        "<header>\n<div class=\"kicker\">Fuelrail demo · DELI’s experiment (IC2E 2021), {} scale</div>\n\
         <h1>DELI cuts the wait for a bucket’s data by <span class=\"deli\">{}</span>. Fuelrail cuts it by \
         <span class=\"rail\">{}</span>, with the same cache bytes.</h1>\n\
         <p>{} trainers share {} objects ({}) of a bucket that takes {} to answer, over {} epochs. Every delivered byte was \
         compared with what the generator says it is.</p>\n</header>\n",
        escape(&report.config.mode),
        cut(RowName::Deli5050),
        cut(RowName::Fuelrail),
        scale.ranks,
        thousands(report.config.objects),
        ByteSize(report.config.object_bytes),
        seconds(scale.get_latency().as_secs_f64()),
        scale.epochs,
    )
}

fn tiles(report: &Report) -> String {
    let (Some(rail), Some(deli), Some(disk)) =
        (report.row(RowName::Fuelrail), report.row(RowName::Deli5050), report.row(RowName::LocalDisk))
    else {
        return String::new();
    };
    let tile = |what: &str, big: String, beside: String| {
        format!(
            "<div class=\"tile\"><div class=\"what\">{what}</div><div class=\"big\">{big}</div>\
             <div class=\"beside\">{beside}</div></div>\n"
        )
    };
    let ratio = |row: &Row| row.epoch_s / disk.epoch_s.max(f64::MIN_POSITIVE);
    let ms = |ms: f64| seconds(ms / 1e3);
    let tiles = [
        tile("Data wait per epoch", seconds(rail.data_wait_s), format!("DELI 50/50: {}", seconds(deli.data_wait_s))),
        tile("Epoch against local disk", format!("×{:.3}", ratio(rail)), format!("DELI 50/50: ×{:.1}", ratio(deli))),
        tile("Time to first batch", ms(rail.first_batch_ms), format!("DELI 50/50: {}", ms(deli.first_batch_ms))),
        tile(
            "99 % of batches wait less than",
            ms(rail.batch_wait_p99_ms),
            format!("DELI 50/50: {}", ms(deli.batch_wait_p99_ms)),
        ),
    ];
    format!("<div class=\"tiles\">\n{}</div>\n", tiles.concat())
}

fn claims(report: &Report) -> String {
    if report.verdicts.is_empty() {
        return "<section><p>A quick run shows that everything works. Its times mean nothing, so nothing is judged.</p></section>\n".into();
    }
    let mut list = String::new();
    for verdict in &report.verdicts {
        let (class, mark) = if verdict.holds { ("yes", "✓") } else { ("no", "✗") };
        // Writing to a String cannot fail, here and below.
        let _ = writeln!(list, "<li><span class=\"{class}\">{mark}</span>{}</li>", escape(&verdict.text));
    }
    format!("<section>\n<ul class=\"claims\">\n{list}</ul>\n</section>\n")
}

fn charts(report: &Report) -> String {
    let figures = [
        figure(
            "Data wait",
            "Time inside <code>next()</code> per epoch, and how much less that is than the bucket’s. Logarithmic. \
             <span class=\"key tickmark\"></span>the paper’s share of its own bucket wait",
            &data_wait(report),
        ),
        figure(
            "Epoch time against local disk",
            "<span class=\"key step\"></span>simulated step <span class=\"key rail\"></span><span class=\"key deli\"></span>\
             <span class=\"key disk\"></span>data wait. Bars that leave the picture are cut.",
            &epoch_time(report),
        ),
        figure(
            "Where the trainers stood still",
            "Data wait of every step, mean of the ranks, logarithmic. DELI stops whenever its fetch has not landed.",
            &timeline(report),
        ),
        figure(
            "Miss rates in epoch 2",
            &format!(
                "Every epoch is reshuffled over the nodes, so most of what a node keeps, another needs. From seed to seed the \
                 rates scatter by about {:.3} (standard deviation) at this size. <span class=\"key ringmark\"></span>published",
                SCATTER / (report.config.scale.samples_per_rank as f64).sqrt()
            ),
            &miss_rates(report),
        ),
        figure(
            "What it costs",
            "Processor time of all trainers, threads and shards over the whole row, the bucket’s left out; and the memory the \
             row held for samples.",
            &cost(report),
        ),
    ];
    format!("<section class=\"charts\">\n{}</section>\n", figures.concat())
}

fn table(report: &Report) -> String {
    let heads = ["", "Data wait", "Reduction", "Epoch", "First batch", "Miss rate", "p99 wait", "CPU", "Peak memory"];
    let heads: String = heads.iter().map(|head| format!("<th scope=\"col\">{head}</th>")).collect();
    let mut rows = String::new();
    for row in &report.rows {
        let shared = if row.side_by_side.is_empty() { "" } else { "≤ " };
        let cells = [
            seconds(row.data_wait_s),
            if row.name == RowName::Bucket { "–".to_owned() } else { percent(row.wait_reduction) },
            seconds(row.epoch_s),
            seconds(row.first_batch_ms / 1e3),
            format!("{:.3}", row.miss_rate),
            seconds(row.batch_wait_p99_ms / 1e3),
            seconds(row.cpu_s),
            format!("{shared}{}", ByteSize(row.peak_rss_bytes)),
        ];
        let cells: String = cells.iter().map(|cell| format!("<td>{cell}</td>")).collect();
        let title = escape(row.name.title());
        let _ = writeln!(rows, "<tr class=\"{}\"><th scope=\"row\">{title}</th>{cells}</tr>", hue(row.name));
    }
    let notes: String = report.columns.iter().map(|(name, text)| note(name, text)).collect();
    format!(
        "<section>\n<h2>All numbers</h2>\n<div class=\"wide\"><table>\n<thead><tr>{heads}</tr></thead>\n<tbody>\n{rows}</tbody>\n\
         </table></div>\n<dl>{notes}</dl>\n</section>\n"
    )
}

fn note(name: &str, text: &str) -> String {
    format!("<dt>{}</dt><dd>{}</dd>", escape(name), escape(text))
}

fn simulated(report: &Report) -> String {
    let list: String = report.simulated.iter().map(|line| format!("<li>{}</li>\n", escape(line))).collect();
    format!("<section>\n<h2>What is simulated, and what is not</h2>\n<ul>\n{list}</ul>\n</section>\n")
}

fn place(report: &Report) -> String {
    let scale = &report.config.scale;
    let machine = &report.machine;
    let facts = [
        ("machine", machine.line()),
        ("program", program(machine)),
        ("measured", format!("{}, in {}", machine.date, seconds(report.wall_s))),
        (
            "per rank and epoch",
            format!(
                "{} samples in batches of {}, step {}",
                thousands(scale.samples_per_rank),
                scale.batch_size,
                seconds(scale.step_of(scale.batch_size as usize).as_secs_f64())
            ),
        ),
        (
            "cache",
            format!(
                "{} samples = {} a rank; Fuelrail’s batches in flight come out of the same bytes, its receive scratch does not",
                scale.cache_samples,
                ByteSize(report.config.cache_bytes_per_rank)
            ),
        ),
        (
            "DELI’s fetches",
            format!(
                "listing pages of {} keys, {} connections for the threads of a fetch",
                scale.list_page_keys, scale.fetch_connections
            ),
        ),
        ("bytes", verified(report)),
    ];
    let facts: String = facts.iter().map(|(name, text)| note(name, text)).collect();
    let notices: String = report.notices.iter().map(|line| note("notice", line)).collect();
    format!(
        "<section>\n<h2>Where and how</h2>\n<dl>{facts}{notices}</dl>\n</section>\n\
         <footer>Paper: Krichevsky, St. Louis, Guo, “Quantifying and Improving Performance of Distributed Deep Learning with \
         Cloud Storage”, IC2E 2021; its numbers are means of the released data. Repeat with <code>fuelrail demo</code>; the \
         published scale with <code>fuelrail demo --full</code>.</footer>\n"
    )
}

fn program(machine: &crate::machine::Machine) -> String {
    let commit = machine.git_commit.as_deref().map_or(String::new(), |commit| format!(", commit {commit}"));
    let build = if machine.optimised { "" } else { ", unoptimised: speeds say nothing" };
    format!("fuelrail {}{commit}{build}", machine.version)
}

fn verified(report: &Report) -> String {
    let bytes: u64 = report.rows.iter().flat_map(|row| &row.epochs).map(|epoch| epoch.bytes).sum();
    let samples: u64 = report.rows.iter().flat_map(|row| &row.epochs).map(|epoch| epoch.samples).sum();
    let outcome = if report.verified_bytes { "all equal to the generator’s" } else { "not all checked" };
    format!("{} samples, {} delivered over all rows, {outcome}", thousands(samples), ByteSize(bytes))
}

/// A count with thin spaces between thousands.
fn thousands(count: u64) -> String {
    let digits = count.to_string();
    let mut out = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            out.push('\u{202f}');
        }
        out.push(digit);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_are_grouped() {
        assert_eq!(thousands(42), "42");
        assert_eq!(thousands(42_000), "42\u{202f}000");
        assert_eq!(thousands(1_234_567), "1\u{202f}234\u{202f}567");
    }
}
