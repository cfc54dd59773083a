//! Scenarios: what a loader or a trainer comes to beside a bucket that is far, slow, refuses, fails or is down.
//!
//! Each is a file in `benches/scenarios`: runs, in order, and columns of the table made of them. Runs take what they do not say from the
//! table `all`. A run with `each`, lists of tables, stands for one run per combination of them: its `{name}`s are replaced by their values,
//! and numbers are figures of the run. Owns the shape of those files.

mod between;
mod figures;
mod processes;
mod runner;

pub(crate) use figures::value;
pub(crate) use processes::{Task, read};
pub(crate) use runner::{Report, RunResult, Runner};

use std::collections::BTreeMap;

use fuelrail::{Error, Kind, Result};
use fuelrail_bucket::DataSet;
use serde::{Deserialize, Serialize};
use toml::{Table, Value};

pub(crate) const SCENARIOS: [(&str, &str); 9] = [
    ("tail", include_str!("../../scenarios/tail.toml")),
    ("throttle", include_str!("../../scenarios/throttle.toml")),
    ("outage", include_str!("../../scenarios/outage.toml")),
    ("tiers", include_str!("../../scenarios/tiers.toml")),
    ("spill-reads", include_str!("../../scenarios/spill-reads.toml")),
    ("caches", include_str!("../../scenarios/caches.toml")),
    ("peers", include_str!("../../scenarios/peers.toml")),
    ("importance", include_str!("../../scenarios/importance.toml")),
    ("switch", include_str!("../../scenarios/switch.toml")),
];

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Scenario {
    /// What it shows, in one sentence.
    pub(crate) about: String,
    /// How often every run is repeated, in turn.
    pub(crate) rounds: u32,
    /// What a quick run multiplies counts of objects and times of phases by.
    pub(crate) quick: f64,
    #[serde(default)]
    rotate: bool,
    /// Ends of names of figures that the result keeps beside those of the columns.
    #[serde(default)]
    keep: Vec<String>,
    pub(crate) columns: Vec<Column>,
    pub(crate) runs: Vec<Run>,
}

/// A column of the table: a value of every run, median and range over the rounds.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Column {
    /// Quantity and unit.
    pub(crate) title: String,
    /// Products and sums of figures and numbers, without brackets: `a / b * 100 - 100`. A run that lacks a figure has no value.
    pub(crate) of: String,
    /// Set against the baseline of the run in the same round.
    against: Option<Against>,
    /// What of the baseline, when it is not `of`.
    base: Option<String>,
    /// Decimal places.
    #[serde(default)]
    pub(crate) digits: usize,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Against {
    Ratio,
    Difference,
}

/// A bucket and what reads it: loaders alone, or a trainer. Its texts may name the `{round}`, from 1, and two folders: `{dir}` is its
/// own, with a file `secret` for `peers`, `{common}` that of the round.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Run {
    pub(crate) name: String,
    against: Option<String>,
    bucket: BucketPlan,
    /// Settings of its loaders. A size may have shares of the set in it: `25% * 0.2 + 20MiB`. `{process}` counts loaders from 0.
    #[serde(default)]
    settings: BTreeMap<String, Value>,
    read: Option<ReadPlan>,
    pub(crate) train: Option<TrainPlan>,
    /// With phases, reading ends when they are over.
    #[serde(default)]
    phases: Vec<Phase>,
    /// The numbers of `each`.
    #[serde(default)]
    facts: BTreeMap<String, f64>,
}

#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct BucketPlan {
    set: DataSet,
    #[serde(default)]
    prefix: String,
    /// How it answers, as `fuelrail serve --script` has it.
    #[serde(default)]
    script: String,
    threads: Option<usize>,
    /// Of digits: the share of samples that each of the upper five classes lacks.
    #[serde(default)]
    missing: f64,
    /// Of digits: the share of wrong labels.
    #[serde(default)]
    wrong: f64,
}

/// Loaders, each a process.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct ReadPlan {
    epochs: u64,
    /// The loader is configured for one epoch more than is read, so that it looks ahead in the last one, too.
    #[serde(default)]
    ahead: bool,
    #[serde(default = "one")]
    processes: u32,
    #[serde(default)]
    step_ms: u64,
    /// No process is a step ahead of another, as ranks that sum their gradients.
    #[serde(default)]
    in_step: bool,
    /// The process that is stopped (SIGSTOP) once all have had a second, and is in no figure.
    stopped: Option<u32>,
    /// A proxy between two processes, whose fault begins then.
    between: Option<between::Between>,
}

/// `fuelrail-train`, with options of its own.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct TrainPlan {
    #[serde(default = "one")]
    ranks: u32,
    test: DataSet,
    options: String,
}

/// A time in which the bucket answers in one way.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Phase {
    name: String,
    seconds: f64,
    script: Option<String>,
    /// Requests a second that are to be found and held.
    holds: Option<f64>,
    /// Requests a second that are to be reached, as a column has values.
    reaches: Option<String>,
}

fn one() -> u32 {
    1
}

impl Scenario {
    /// The scenario of this name, or in the file of this name.
    pub(crate) fn find(name: &str) -> Result<Scenario> {
        if let Some((_, text)) = SCENARIOS.iter().find(|(known, _)| *known == name) {
            return Scenario::parse(text);
        }
        if !name.ends_with(".toml") {
            let names = SCENARIOS.map(|(name, _)| name).join(", ");
            return Err(Error::new(Kind::Usage, format!("there is no scenario `{name}`"))
                .with_hint(format!("name one of {names}, or a file that ends in .toml")));
        }
        let text = std::fs::read_to_string(name);
        Scenario::parse(&text.map_err(|error| Error::new(Kind::File, format!("reading {name}: {error}")))?)
    }

    pub(crate) fn parse(text: &str) -> Result<Scenario> {
        let strange = |error: toml::de::Error| Error::new(Kind::Usage, format!("not a scenario: {error}"));
        let mut file: Table = text.parse().map_err(strange)?;
        let all = file.remove("all").unwrap_or_else(|| Value::Table(Table::new()));
        if let Some(Value::Array(runs)) = file.get_mut("runs") {
            *runs = runs.drain(..).flat_map(|run| multiplied(merged(all.clone(), run))).collect();
        }
        let scenario: Scenario = file.try_into().map_err(strange)?;
        if scenario.runs.is_empty() || scenario.columns.is_empty() {
            return Err(Error::new(Kind::Usage, "not a scenario: it has no runs or no columns"));
        }
        let known = |name: &String| scenario.runs.iter().any(|run| run.name == *name);
        for run in &scenario.runs {
            if run.read.is_some() == run.train.is_some() || !run.against.as_ref().is_none_or(known) {
                let cause = format!("run `{}` needs either `read` or `train`, and a baseline that is a run", run.name);
                return Err(Error::new(Kind::Usage, cause));
            }
        }
        Ok(scenario)
    }

    /// The same with counts of objects and times of phases multiplied.
    pub(crate) fn scaled(mut self, by: f64) -> Scenario {
        let scale = |set: &mut DataSet| set.count = ((set.count as f64 * by) as u64).max(1);
        for run in &mut self.runs {
            scale(&mut run.bucket.set);
            run.train.iter_mut().for_each(|train| scale(&mut train.test));
            run.phases.iter_mut().for_each(|phase| phase.seconds *= by);
        }
        self
    }
}

/// What `over` says, and for the rest what `base` says.
fn merged(base: Value, over: Value) -> Value {
    match (base, over) {
        (Value::Table(mut base), Value::Table(over)) => {
            for (name, value) in over {
                let value = match base.remove(&name) {
                    Some(old) => merged(old, value),
                    None => value,
                };
                base.insert(name, value);
            }
            Value::Table(base)
        }
        (_, over) => over,
    }
}

/// A run for every combination of the tables in the lists of its `each`.
fn multiplied(mut run: Value) -> Vec<Value> {
    let each = run.as_table_mut().and_then(|run| run.remove("each"));
    let lists = each.as_ref().and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_array);
    lists.fold(vec![run], |runs, list| {
        let tables = || list.iter().filter_map(Value::as_table);
        runs.iter().flat_map(|run| tables().map(|table| replaced(run.clone(), table))).collect()
    })
}

fn replaced(run: Value, table: &Table) -> Value {
    let numbers = table.iter().filter(|(_, value)| value.is_integer() || value.is_float());
    let facts: Table = numbers.map(|(name, value)| (name.clone(), value.clone())).collect();
    let run = merged(run, Value::Table([("facts".to_owned(), Value::Table(facts))].into_iter().collect()));
    let names: Vec<(&str, String)> = table.iter().map(|(name, value)| (name.as_str(), text_of(value))).collect();
    filled_within(run, &names)
}

fn filled_within(value: Value, names: &[(&str, String)]) -> Value {
    match value {
        Value::String(text) => Value::String(filled(&text, names)),
        Value::Array(list) => Value::Array(list.into_iter().map(|value| filled_within(value, names)).collect()),
        Value::Table(table) => {
            Value::Table(table.into_iter().map(|(name, value)| (name, filled_within(value, names))).collect())
        }
        other => other,
    }
}

/// The text with every `{name}` replaced.
fn filled(text: &str, names: &[(&str, String)]) -> String {
    names.iter().fold(text.to_owned(), |text, (name, value)| text.replace(&format!("{{{name}}}"), value))
}

fn text_of(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

#[cfg(test)]
mod tests;
