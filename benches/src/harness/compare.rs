//! Two results side by side: the same contest, the same contestant, the same figure, then and now.
//!
//! Owns the rule what may be compared at all: results from unlike machines, venues, sets or options are refused with the list
//! of what differs. Never judges a difference that chance explains.

use core::fmt;

use fuelrail::{Error, Kind, Result};
use serde::Serialize;

use super::result::{Contested, Findings, Metric, Scored, Spread};

#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Difference {
    pub what: String,
    pub first: String,
    pub second: String,
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {} and {}", self.what, self.first, self.second)
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// The ranges from least to most do not meet, and the second is the better one.
    Better,
    /// The ranges do not meet, and the second is the worse one.
    Worse,
    /// The ranges meet: chance may explain it.
    Overlap,
}

#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Change {
    pub contest: String,
    /// Which contestant, with `(cold)` for its cold passes.
    pub contestant: String,
    pub metric: Metric,
    pub first: Spread,
    pub second: Spread,
    /// Median of the second over median of the first; none when the first is zero.
    pub ratio: Option<f64>,
    pub verdict: Verdict,
}

#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Comparison {
    /// Version of the comparison's shape.
    pub schema: u32,
    /// What makes the results unlike; empty unless the comparison was forced.
    pub differences: Vec<Difference>,
    pub changes: Vec<Change>,
    pub unmatched: Vec<String>,
}

/// Compares two results. `force` compares unlike ones all the same; the differences are then part of the comparison.
pub fn compare(first: &Findings, second: &Findings, force: bool) -> Result<Comparison> {
    if first.contests.is_empty() || second.contests.is_empty() {
        return Err(Error::new(Kind::Usage, "a result without contests has no ranges to compare")
            .with_hint("compare results of bench line, floor, rings or rivals"));
    }
    let differences = differences(first, second);
    if !differences.is_empty() && !force {
        let list: Vec<String> = differences.iter().map(ToString::to_string).collect();
        return Err(Error::new(Kind::Mismatch, format!("the results are of unlike runs: {}", list.join("; ")))
            .with_hint("measure both on one machine with the same options, or add --force and mind the differences"));
    }
    let (mut changes, mut unmatched) = (Vec::new(), Vec::new());
    for (contest, other) in paired(&first.contests, &second.contests, Contested::title, &mut unmatched) {
        let title = contest.title();
        let name = |scored: &Scored| format!("{} in {title}", scored.name);
        for (scored, twin) in paired(&contest.contestants, &other.contestants, name, &mut unmatched) {
            changes.extend(figures(&title, scored, twin));
        }
    }
    Ok(Comparison { schema: 1, differences, changes, unmatched })
}

/// What makes two results unlike. Versions, commits and dates may differ: that is what one compares.
fn differences(first: &Findings, second: &Findings) -> Vec<Difference> {
    let mut found = Vec::new();
    let mut same = |what: &str, first: String, second: String| {
        if first != second {
            found.push(Difference { what: what.to_owned(), first, second });
        }
    };
    same("question", first.question.clone(), second.question.clone());
    let (a, b) = (&first.machine, &second.machine);
    same("processor", a.cpu.clone(), b.cpu.clone());
    same("cores", a.cores.to_string(), b.cores.to_string());
    same("memory", a.memory_bytes.to_string(), b.memory_bytes.to_string());
    same("kernel", a.kernel.clone(), b.kernel.clone());
    same("frequency governor", json(&a.governor), json(&b.governor));
    same("huge pages", json(&a.huge_pages), json(&b.huge_pages));
    same("optimised build", a.optimised.to_string(), b.optimised.to_string());
    same("venue", json(&first.venue), json(&second.venue));
    for name in first.config.keys().chain(second.config.keys().filter(|name| !first.config.contains_key(*name))) {
        let of = |findings: &Findings| findings.config.get(name).cloned().unwrap_or_else(|| "not given".to_owned());
        same(&format!("option {name}"), of(first), of(second));
    }
    for contest in &first.contests {
        if let Some(other) = second.contests.iter().find(|other| other.title() == contest.title()) {
            same(&format!("objects of {}", contest.title()), json(&contest.set), json(&other.set));
            for scored in &contest.contestants {
                let Some(twin) = other.contestant(&scored.name) else { continue };
                let what = |what: &str| format!("{what} of {} in {}", scored.name, contest.title());
                same(&what("accounting"), scored.accounting.clone(), twin.accounting.clone());
            }
        }
    }
    found
}

fn json(value: &impl Serialize) -> String {
    serde_json::to_string(value).expect("results are plain structures")
}

/// The entries of both lists that have one name. The names of the others are unmatched.
fn paired<'a, T>(
    first: &'a [T],
    second: &'a [T],
    name: impl Fn(&T) -> String,
    unmatched: &mut Vec<String>,
) -> Vec<(&'a T, &'a T)> {
    let twin = |one: &T, all: &'a [T]| all.iter().find(|other| name(other) == name(one));
    for (these, others, word) in [(first, second, "first"), (second, first, "second")] {
        let alone = these.iter().filter(|one| twin(one, others).is_none());
        unmatched.extend(alone.map(|one| format!("{} ({word} only)", name(one))));
    }
    first.iter().filter_map(|one| Some((one, twin(one, second)?))).collect()
}

fn figures(contest: &str, first: &Scored, second: &Scored) -> Vec<Change> {
    let mut changes = Vec::new();
    for (suffix, ours, theirs) in [("", &first.warm, &second.warm), (" (cold)", &first.cold, &second.cold)] {
        for (metric, before) in ours {
            let Some(after) = theirs.get(metric) else { continue };
            changes.push(Change {
                contest: contest.to_owned(),
                contestant: format!("{}{suffix}", first.name),
                metric: *metric,
                first: *before,
                second: *after,
                ratio: (before.median > 0.0).then(|| after.median / before.median),
                verdict: verdict(*metric, before, after),
            });
        }
    }
    changes
}

fn verdict(metric: Metric, first: &Spread, second: &Spread) -> Verdict {
    if first.overlaps(second) {
        return Verdict::Overlap;
    }
    let more_is_better = metric == Metric::GbPerS;
    if (second.median > first.median) == more_is_better { Verdict::Better } else { Verdict::Worse }
}
