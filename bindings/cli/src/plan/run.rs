//! `fuelrail plan SCENARIO.toml`: time, cost and limits of the clusters of a scenario.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Args;
use fuelrail::{Error, Kind, Result};
use fuelrail_cost::compare::{Outcome as OfCluster, Plan, Spread, plan};
use fuelrail_cost::lives::curves;
use fuelrail_cost::scenario::{Machine, Scenario};
use fuelrail_cost::table::Table as Lives;
use time::OffsetDateTime;

use super::input::{percent, read};
use crate::failure::Outcome;
use crate::report::chart::{Axis, Hue, Lane, Point, lanes, points};
use crate::report::{FactsPage, write_page};
use crate::screen::{JsonTo, Table, note};

#[derive(Args, Debug)]
pub(super) struct Options {
    /// Runs of each cluster, with revocations drawn anew
    #[arg(long, value_name = "N", default_value_t = 1000)]
    runs: u32,
    /// Seed of the revocations
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// Print the result as one JSON document, or write it to FILE beside the table
    #[arg(long, value_name = "FILE", num_args = 0..=1, default_missing_value = "-")]
    json: Option<String>,
    /// Write the result as a page with charts
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
}

pub(super) fn run(path: &Path, options: &Options) -> Outcome {
    let scenario = read(path, |text| parse(text, path.parent().unwrap_or(Path::new(""))))?;
    let today = OffsetDateTime::now_utc().date();
    let a_year_ago = format!("{:04}-{:02}-{:02}", today.year() - 1, u8::from(today.month()), today.day());
    for fact in scenario.facts().filter(|fact| fact.date < a_year_ago) {
        let (value, unit, date, source) = (fact.value, &fact.unit, &fact.date, &fact.source);
        note(&format!("the price {value} {unit} is of {date} ({source}): look whether it still holds"));
    }
    let plan = plan(&scenario, options.runs, options.seed)?;
    JsonTo::asked(options.json.as_deref()).show(&plan, || text(&plan))?;
    write_page(options.html.as_deref(), || page(&plan))?;
    Ok(ExitCode::SUCCESS)
}

/// Reads and checks a scenario and the lives that it names, from `folder`; every error names its line.
fn parse(text: &str, folder: &Path) -> Result<Scenario> {
    let line = |offset: usize| text.bytes().take(offset).filter(|byte| *byte == b'\n').count() + 1;
    let mut scenario: Scenario = toml::from_str(text).map_err(|error| {
        let start = error.span().map_or(0, |span| span.start);
        let cause = format!("line {}: {}", line(start), error.message().replace('\n', ", "));
        Error::new(Kind::Usage, cause).with_hint(
            "correct it as engine/docs/PLAN.md describes: every price has value, unit, date, region and source",
        )
    })?;
    let lives = scenario.machines.iter_mut().try_for_each(|machine| take_lives(machine, folder));
    lives.and_then(|()| scenario.validate()).map_err(|error| {
        let (object, lines) = (error.object().unwrap_or_default(), text.lines().collect::<Vec<_>>());
        let named = format!("\"{object}\"");
        // A name where it is given, any other text where it stands last.
        let place = lines.iter().rposition(|line| line.trim_start().starts_with("name") && line.contains(&named));
        let place = place.or_else(|| lines.iter().rposition(|line| line.contains(object))).unwrap_or(0);
        let refused = Error::new(error.kind(), format!("line {}: {}", place + 1, error.cause()));
        error.hint().into_iter().fold(refused, Error::with_hint)
    })?;
    Ok(scenario)
}

/// Reads the lives that a machine names.
fn take_lives(machine: &mut Machine, folder: &Path) -> Result<()> {
    let Some(file) = machine.lives.clone() else { return Ok(()) };
    let text = std::fs::read_to_string(folder.join(&file));
    let text = text.map_err(|error| {
        let hint = "name a CSV file, from the scenario's folder: fuelrail plan lives FILE reads it";
        Error::new(Kind::Usage, format!("lives: reading {file}: {error}")).with_hint(hint).with_object(file.clone())
    })?;
    let curves = Lives::read(&text).and_then(|table| curves(&table));
    machine.take_lives(&curves.map_err(|error| error.within(&file).with_object(file))?)
}

fn page(plan: &Plan) -> FactsPage {
    let currency = &plan.currency;
    let best = plan.clusters.iter().find(|cluster| Some(&cluster.cluster) == plan.verdict.as_ref());
    let hue = |cluster: &OfCluster| match (Some(&cluster.cluster) == plan.verdict.as_ref(), cluster.on_pareto_front) {
        (true, _) => Hue::Rail,
        (_, true) => Hue::Disk,
        _ => Hue::Plain,
    };
    let range = |Spread { mean, low, high }: Spread| [low, mean, high];
    let point = |cluster: &OfCluster| Point {
        name: cluster.cluster.clone(),
        x: range(cluster.hours),
        y: range(cluster.cost),
        hue: hue(cluster),
    };
    let plain = Axis { log: false, tick: |value| format!("{value}") };
    let shown = best.or(plan.clusters.first());
    let mut rows: Vec<Lane> = Vec::new();
    for stay in shown.iter().flat_map(|cluster| &cluster.timeline).filter(|stay| stay.worker < WORKERS_SHOWN) {
        rows.resize_with(rows.len().max(stay.worker + 1), Lane::default);
        let hue = if stay.revoked { Hue::Deli } else { Hue::Rail };
        rows[stay.worker].spans.push((stay.from_hours, stay.to_hours, hue));
        rows[stay.worker].name = format!("worker {} of {}", stay.worker, shown.map_or("", |cluster| &cluster.cluster));
    }
    let charts = [
        (
            "Time and cost",
            "Hours across, cost upwards, with where nine of ten runs lie. Blue is the verdict; green is on the Pareto front: none of equal \
             accuracy is as fast and cheaper.",
            points(&plan.clusters.iter().map(point).collect::<Vec<_>>(), plain, plain),
        ),
        (
            "One sampled run",
            "Hours in which each worker's machine is there. Orange ends with a revocation, blue with the run.",
            lanes(&rows, plain),
        ),
    ];
    let of_cluster = |cluster: &OfCluster| {
        let OfCluster { hours, cost, revocations, deadline_met, limit, equal_accuracy, .. } = cluster;
        let equal = if *equal_accuracy { "" } else { ", accuracy not equal" };
        let text = format!(
            "{} h, {} {currency}, {revocations:.1} revocations, deadline met in {}, limited by {limit}{equal}",
            spread(*hours),
            spread(*cost),
            percent(*deadline_met)
        );
        (cluster.cluster.clone(), text)
    };
    let headline = best.map_or_else(
        || "No cluster will do".to_owned(),
        |best| format!("{}: {:.1} h, {:.2} {currency}", best.cluster, best.hours.mean, best.cost.mean),
    );
    let why = ("why not cheaper?".to_owned(), plan.why_not_cheaper.clone());
    FactsPage {
        kicker: "Fuelrail plan",
        headline,
        caption: format!("{}. {} runs of each cluster, revocations drawn anew.", plan.scenario, plan.runs),
        charts,
        facts: [why].into_iter().chain(plan.clusters.iter().map(of_cluster)).collect(),
    }
}

/// Workers that the timeline shows.
const WORKERS_SHOWN: usize = 16;

fn spread(Spread { mean, low, high }: Spread) -> String {
    format!("{mean:.2} ({low:.2} to {high:.2})")
}

fn text(plan: &Plan) -> String {
    let mut table = Table::new(&[1, 2, 3, 4, 5]);
    table.row(["cluster", "hours", "cost", "revocations", "deadline met", "accuracy", "limit"]);
    for outcome in &plan.clusters {
        let accuracy = match (outcome.accuracy, outcome.equal_accuracy) {
            (Some(accuracy), true) => accuracy.to_string(),
            (Some(accuracy), false) => format!("{accuracy}, not equal"),
            (None, equal) => if equal { "equal" } else { "not equal" }.to_owned(),
        };
        let front = if outcome.on_pareto_front { " *" } else { "" };
        table.row([
            format!("{}{front}", outcome.cluster),
            spread(outcome.hours),
            spread(outcome.cost),
            format!("{:.1}", outcome.revocations),
            percent(outcome.deadline_met),
            accuracy,
            outcome.limit.to_string(),
        ]);
    }
    let mut money = Table::new(&[1, 2, 3, 4, 5]);
    money.row(["cost of", "machines", "requests", "storage", "egress", "checkpoint every (s)"]);
    for OfCluster { cluster, machines_cost, requests_cost, storage_cost, egress_cost, checkpoint_interval_s, .. } in
        &plan.clusters
    {
        let costs = [machines_cost, requests_cost, storage_cost, egress_cost].map(|cost| format!("{cost:.2}"));
        let interval = checkpoint_interval_s.map_or_else(|| "end".to_owned(), |interval| format!("{interval:.0}"));
        money.row([cluster.clone()].into_iter().chain(costs).chain([interval]));
    }
    let verdict = plan.verdict.as_ref().map_or_else(|| "none".to_owned(), |cluster| format!("'{cluster}'"));
    let facts = Table::facts([
        ("cheapest at equal accuracy", verdict),
        ("why not cheaper", plan.why_not_cheaper.clone()),
        ("*", "on the Pareto front of time and cost at equal accuracy".to_owned()),
        ("costs", format!("{}, of {} runs each; in brackets where nine of ten lie", plan.currency, plan.runs)),
    ]);
    [table.text(), money.text(), facts.text()].join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use fuelrail_base::prng::Prng;

    /// Scenarios with random faults are played or refused with their line, and never panic.
    #[test]
    fn damaged_scenarios_are_played_or_refused() {
        let example = include_str!("../../examples/k80.toml");
        let values = ["-1", "0", "1e-300", "1e300", "nan", "inf", "99999999999", "\"é\"", "[]", "{}", "true", ""];
        let mut prng = Prng::new(1);
        let mut played = 0;
        for _ in 0..600 {
            let mut lines: Vec<String> = example.lines().map(str::to_owned).collect();
            let at = prng.below(lines.len() as u64) as usize;
            match (prng.below(3), lines[at].split_once('=')) {
                (0, _) => drop(lines.remove(at)),
                (1, Some((name, _))) => {
                    lines[at] = format!("{name} = {}", values[prng.below(values.len() as u64) as usize])
                }
                _ => lines[at] = lines[at].replace(|digit: char| digit.is_ascii_digit(), "9"),
            }
            match parse(&lines.join("\n"), Path::new("")) {
                Ok(scenario) => played += u32::from(plan(&scenario, 2, 0).is_ok()),
                Err(error) => assert!(error.cause().starts_with("line ") && error.hint().is_some(), "{error}"),
            }
        }
        assert!(played > 100, "most faults are of no consequence: {played}");
    }
}
