//! Results with contestants as text for people.
//!
//! Owns the tables' order: contests, each with its contestants, its bars, and what must be known about them.

use crate::harness::{Contested, Findings, Metric, Scored, Spread};
use fuelrail::ByteSize;

use fuelrail_cli::screen::Table;

/// The whole result.
pub(crate) fn text(findings: &Findings) -> String {
    let mut text = String::new();
    for contest in &findings.contests {
        text.push_str(&contest_text(contest, &findings.notices));
        text.push('\n');
    }
    if !findings.latencies.is_empty() {
        text.push_str(&fuelrail_cli::bench::latencies(&findings.latencies));
        text.push('\n');
    }
    for notice in &findings.notices {
        text.push_str(&format!("note: {notice}\n"));
    }
    text.push_str(&format!("{}; {}\n", findings.machine.line(), venue(findings)));
    text
}

fn venue(findings: &Findings) -> String {
    let facts = &findings.venue;
    let mtu = facts.mtu.map_or_else(String::new, |mtu| format!(", MTU {mtu}"));
    let link = facts.link_bits_per_s.map_or_else(String::new, |rate| format!(", {} Mbit/s", rate / 1_000_000));
    format!("{} ({:?}{mtu}{link})", facts.server, facts.kind).to_lowercase()
}

fn contest_text(contest: &Contested, notices: &[String]) -> String {
    let set = &contest.set;
    let mut text = format!(
        "{}: {} objects, {}; batches of {} in {}",
        contest.title(),
        set.objects,
        ByteSize(set.bytes),
        set.batch_size,
        ByteSize(set.arena_bytes)
    );
    if let Some(limit) = contest.entitlement_gb_per_s {
        text.push_str(&format!("; the server gives {limit:.2} GB/s at most"));
    }
    text.push('\n');
    let mut table = Table::new(&[1, 2, 3, 4, 5]);
    let shown = [Metric::CpuSPerGb, Metric::CpuUsPerObject, Metric::GbPerS, Metric::FirstBatchUs, Metric::PeakMemoryMb];
    table.row(std::iter::once("").chain(shown.iter().map(|metric| metric.title())));
    for scored in &contest.contestants {
        rows(&mut table, &shown, scored);
    }
    text.push_str(&table.text());
    for scored in &contest.contestants {
        // What a notice tells already is below all tables, once.
        let told = |failure: &String| notices.iter().any(|notice| notice.contains(failure.as_str()));
        if let Some(failure) = scored.failure.as_ref().filter(|failure| !told(failure)) {
            text.push_str(&format!("  {}: {failure}\n", scored.name));
        }
    }
    for bar in &contest.bars {
        text.push_str(&format!("  {}\n", bar.text()));
    }
    text
}

fn rows(table: &mut Table, shown: &[Metric], scored: &Scored) {
    for (heat, figures) in [("", &scored.warm), (" (cold)", &scored.cold)] {
        if !figures.is_empty() {
            let cells =
                shown.iter().map(|metric| figures.get(metric).map_or_else(|| "-".into(), |s| spread(*metric, s)));
            table.row(std::iter::once(format!("  {}{heat}", scored.name)).chain(cells));
        }
    }
    // Its passes up to then may stand above: that it did not come through stands beside its name all the same.
    if scored.failure.is_some() {
        table.row([format!("  {}", scored.name), scored.absence.clone().unwrap_or_else(|| "failed".to_owned())]);
    }
}

fn spread(metric: Metric, spread: &Spread) -> String {
    let Spread { median, min, max, .. } = *spread;
    if metric == Metric::PeakMemoryMb {
        return metric.text(max);
    }
    format!("{} ({}–{})", metric.text(median), metric.text(min), metric.text(max))
}
