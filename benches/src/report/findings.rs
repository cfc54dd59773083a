//! Results with contestants and latencies as one page that needs nothing else.
//!
//! Owns the page's order: what was promised and whether it holds, then result by result the charts, the figures, the
//! settings, the place.

use core::fmt::Write;
use fuelrail_cli::bench::latency::LatencyResult;

use fuelrail_base::ByteSize;

use super::contest::{bars, hue_of, percentiles, subject};
use crate::harness::{Contested, Findings, Judged, Metric, Scored, Spread};
use fuelrail_cli::report::page::{figure, page};
use fuelrail_cli::report::svg::escape;

/// The page.
#[must_use]
pub fn findings_html(results: &[Findings]) -> String {
    let mut body = headline(results);
    for findings in results {
        body.push_str(&section(findings));
    }
    body.push_str(
        "<footer>Medians with their range from least to most. Ratios are taken within rounds: what one contestant cost over what \
         another cost next to it in time. Processor time is that of the whole process tree.</footer>\n",
    );
    page("Fuelrail bench", &body)
}

fn headline(results: &[Findings]) -> String {
    let all = || results.iter().flat_map(|findings| &findings.contests).flat_map(|contest| &contest.bars);
    let (holding, total) = (all().filter(|bar| bar.holds == Some(true)).count(), all().count());
    let title = match total {
        0 => "What reading costs".to_owned(),
        _ => format!("<span class=\"rail\">{holding}</span> of {total} bars hold"),
    };
    let places: Vec<String> = results.iter().map(|findings| escape(&findings.machine.line())).collect();
    let mut places: Vec<&str> = places.iter().map(String::as_str).collect();
    places.dedup();
    format!(
        "<header>\n<div class=\"kicker\">Fuelrail bench</div>\n<h1>{title}</h1>\n<p>{}</p>\n</header>\n",
        places.join("; ")
    )
}

fn section(findings: &Findings) -> String {
    let mut text = format!("<section>\n<h2>{}</h2>\n", escape(&title(findings)));
    if findings.contests.iter().any(|contest| !contest.bars.is_empty()) {
        text.push_str("<ul class=\"claims\">\n");
        for contest in &findings.contests {
            contest.bars.iter().for_each(|bar| text.push_str(&claim(contest, bar)));
        }
        text.push_str("</ul>\n");
    }
    text.push_str("</section>\n<section class=\"charts\">\n");
    for contest in &findings.contests {
        text.push_str(&figure(&escape(&contest_title(contest)), &caption(contest), &bars(contest)));
    }
    for latency in &findings.latencies {
        let caption = "<span class=\"key rail\"></span>from the moment a request was meant to be sent \
                       <span class=\"key\"></span>from the moment it was sent";
        let words = escape(&format!("{}, {}", latency.name, latency.load));
        text.push_str(&figure(&words, caption, &percentiles(latency)));
    }
    text.push_str("</section>\n");
    findings.contests.iter().for_each(|contest| text.push_str(&table(contest)));
    if !findings.latencies.is_empty() {
        text.push_str(&latency_table(&findings.latencies));
    }
    text.push_str(&place(findings));
    text
}

fn title(findings: &Findings) -> String {
    let facts = &findings.venue;
    let mtu = facts.mtu.map_or_else(String::new, |mtu| format!(", MTU {mtu}"));
    let link = facts.link_bits_per_s.map_or_else(String::new, |rate| format!(", link of {} Mbit/s", rate / 1_000_000));
    format!("bench {}: {}{mtu}{link}, {}", findings.question, facts.server, findings.machine.date)
}

fn contest_title(contest: &Contested) -> String {
    let (metric, cold) = subject(contest);
    format!("{}: {}{}", contest.title(), if cold { "cold, " } else { "" }, metric.title())
}

fn caption(contest: &Contested) -> String {
    let set = &contest.set;
    let limit = contest
        .entitlement_gb_per_s
        .map_or_else(String::new, |limit| format!("; the server gives {limit:.2} GB/s at most"));
    format!(
        "{} objects, {}, batches of {} in {}{limit}. <span class=\"key rail\"></span>Fuelrail <span class=\"key disk\"></span>floor \
         <span class=\"key deli\"></span>others",
        set.objects,
        ByteSize(set.bytes),
        set.batch_size,
        ByteSize(set.arena_bytes)
    )
}

fn claim(contest: &Contested, bar: &Judged) -> String {
    let (class, mark) = if bar.holds == Some(true) { ("yes", "✓") } else { ("no", "✗") };
    format!("<li><span class=\"{class}\">{mark}</span>{}: {}</li>\n", escape(&contest.title()), escape(&bar.text()))
}

fn table(contest: &Contested) -> String {
    let mut rows = String::new();
    for scored in &contest.contestants {
        for (heat, figures) in [("", &scored.warm), (" (cold)", &scored.cold)] {
            if figures.is_empty() {
                continue;
            }
            let cell =
                |metric: &Metric| figures.get(metric).map_or_else(|| "–".to_owned(), |spread| range(*metric, spread));
            let cells: String = Metric::ALL.iter().map(|metric| format!("<td>{}</td>", cell(metric))).collect();
            let name = escape(&scored.name);
            // Writing to a String cannot fail.
            let _ = writeln!(
                rows,
                "<tr class=\"{}\"><th scope=\"row\">{name}{heat}</th>{cells}</tr>",
                hue_of(&scored.name)
            );
        }
    }
    let heads: String = Metric::ALL.iter().map(|metric| format!("<th scope=\"col\">{}</th>", metric.title())).collect();
    let notes: String = contest.contestants.iter().map(note).collect();
    format!(
        "<section>\n<h2>{}</h2>\n<div class=\"wide\"><table>\n<thead><tr><th></th>{heads}</tr></thead>\n<tbody>\n{rows}</tbody>\n\
         </table></div>\n<dl>{notes}</dl>\n</section>\n",
        escape(&contest.title())
    )
}

fn range(metric: Metric, spread: &Spread) -> String {
    format!("{} ({}–{})", metric.text(spread.median), metric.text(spread.min), metric.text(spread.max))
}

fn note(scored: &Scored) -> String {
    let hash = scored.hash.as_deref().map_or_else(String::new, |hash| format!("; bytes proved, hash {hash}"));
    let words = match &scored.failure {
        Some(failure) => format!("{}: {failure}", scored.absence.as_deref().unwrap_or("failed")),
        None => format!("{}{hash}; CPU from {}", scored.settings, scored.accounting),
    };
    format!("<dt>{}</dt><dd>{}</dd>", escape(&scored.name), escape(&words))
}

fn latency_table(all: &[LatencyResult]) -> String {
    let mut rows = String::new();
    for latency in all {
        for (what, summary) in [("from the meant moment", &latency.response), ("from the sending", &latency.service)] {
            let figures = [summary.p50_us, summary.p90_us, summary.p99_us, summary.p999_us, summary.max_us];
            let cells: String = figures.iter().map(|us| format!("<td>{us:.0}</td>")).collect();
            let name = escape(&format!("{}, {}", latency.name, latency.load));
            let rate = latency.achieved_per_s;
            let _ = writeln!(rows, "<tr><th scope=\"row\">{name}</th><td>{what}</td><td>{rate:.0}</td>{cells}</tr>");
        }
    }
    let heads: String = ["", "", "answers/s", "p50 µs", "p90", "p99", "p99.9", "max"]
        .map(|head| format!("<th scope=\"col\">{head}</th>"))
        .concat();
    format!(
        "<section>\n<h2>Latencies</h2>\n<div class=\"wide\"><table>\n<thead><tr>{heads}</tr></thead>\n<tbody>\n{rows}</tbody>\n\
         </table></div>\n</section>\n"
    )
}

fn place(findings: &Findings) -> String {
    let machine = &findings.machine;
    let commit = machine.git_commit.as_deref().unwrap_or("unknown");
    let options: Vec<String> = findings.config.iter().map(|(name, value)| format!("{name} = {value}")).collect();
    let mut facts = vec![
        ("machine", machine.line()),
        ("program", format!("fuelrail {}, commit {commit}", machine.version)),
        ("measured", format!("{}, in {:.0} s", machine.date, findings.wall_s)),
        ("options", options.join(", ")),
    ];
    facts.extend(findings.notices.iter().map(|notice| ("note", notice.clone())));
    let facts: String = facts.iter().map(|(name, text)| format!("<dt>{name}</dt><dd>{}</dd>", escape(text))).collect();
    format!("<section>\n<h2>Where and how</h2>\n<dl>{facts}</dl>\n</section>\n")
}
