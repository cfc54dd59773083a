//! Figures by name, what is computed from them, and those of a bucket's phases.
//!
//! Owns the arithmetic. Never measures.

use std::collections::BTreeMap;

use serde::Serialize;
use serde_json::Value;

use super::Phase;

/// Numbers by the paths of the documents they come from, joined by dots.
pub(super) type Figures = BTreeMap<String, f64>;

pub(super) const TICKS_PER_S: f64 = 10.0;
/// Ticks of the means that say whether a rate holds: two seconds.
const MEAN_TICKS: usize = 20;
/// Ticks for which a rate has to be reached.
const REACHED_TICKS: usize = 5;
/// How far from the rate to hold a mean may lie.
const NEAR: f64 = 0.1;
/// The part of a phase that is for finding the rate.
const SETTLING: f64 = 1.0 / 3.0;

pub(super) fn add(figures: &mut Figures, path: &str, document: &impl Serialize) {
    flatten(figures, path, &serde_json::to_value(document).expect("a plain structure"));
}

fn flatten(figures: &mut Figures, path: &str, value: &Value) {
    let below = |name: &str| if path.is_empty() { name.to_owned() } else { format!("{path}.{name}") };
    match value {
        Value::Number(number) => figures.extend(number.as_f64().map(|number| (path.to_owned(), number))),
        Value::Object(fields) => fields.iter().for_each(|(name, value)| flatten(figures, &below(name), value)),
        Value::Array(list) => {
            list.iter().enumerate().for_each(|(at, value)| flatten(figures, &below(&at.to_string()), value));
        }
        _ => {}
    }
}

/// Sums of products of words that `number` knows; none when it does not know one.
pub(super) fn evaluate(text: &str, number: impl Fn(&str) -> Option<f64>) -> Option<f64> {
    let mut words = text.split_whitespace();
    let (mut sum, mut product) = (0.0, number(words.next()?)?);
    while let Some(operator) = words.next() {
        let operand = number(words.next()?)?;
        match operator {
            "*" => product *= operand,
            "/" => product /= operand,
            "+" | "-" => {
                sum += product;
                product = if operator == "+" { operand } else { -operand };
            }
            _ => return None,
        }
    }
    Some(sum + product).filter(|value| value.is_finite())
}

/// The value of a column's text; none when a figure is missing.
pub(crate) fn value(text: &str, figures: &Figures) -> Option<f64> {
    evaluate(text, |word| word.parse().ok().or_else(|| figures.get(word).copied()))
}

/// The means of several processes; what one of them lacks is left out.
pub(super) fn means(all: &[Figures]) -> Figures {
    let of = |name: &String| all.iter().map(|figures| figures.get(name)).sum::<Option<f64>>();
    let Some(first) = all.first() else { return Figures::new() };
    first.keys().filter_map(|name| Some((name.clone(), of(name)? / all.len() as f64))).collect()
}

/// The sums at one tick: requests the bucket served and refused, and those each reader was served.
#[derive(Clone, Debug, Default)]
pub(super) struct Tick {
    pub(super) served: f64,
    pub(super) refused: f64,
    pub(super) readers: Vec<f64>,
}

/// Ticks of a time, at least one.
pub(super) fn ticks(seconds: f64) -> usize {
    (seconds * TICKS_PER_S).round().max(1.0) as usize
}

/// Adds the figures of the phases of a run: rates are requests served a second; what is settled begins after a third of the phase.
pub(super) fn add_phases(figures: &mut Figures, phases: &[Phase], sums: &[Tick]) {
    let rate = |from: usize, to: usize| (sums[to].served - sums[from].served) / (to - from) as f64 * TICKS_PER_S;
    let mut from = 0;
    for phase in phases {
        let length = ticks(phase.seconds);
        let to = from + length;
        let window = MEAN_TICKS.min(length / 2).max(1);
        let settled = (from + (length as f64 * SETTLING) as usize).min(to - window);
        let mut put = |name: &str, value: f64| figures.insert(format!("{}.{name}", phase.name), value);
        put("refused", sums[to].refused - sums[from].refused);
        put("settled_per_s", rate(settled, to));
        put("settled_served", sums[to].served - sums[settled].served);
        put("settled_refused", sums[to].refused - sums[settled].refused);
        let means = |from: usize| (from..=to - window).map(|at| (at, rate(at, at + window)));
        put("lowest_per_s", means(settled).map(|(_, mean)| mean).fold(f64::INFINITY, f64::min));
        let readers = sums[to].readers.iter().zip(&sums[settled].readers).map(|(to, from)| to - from);
        let readers: Vec<f64> = readers.collect();
        for (number, served) in readers.iter().enumerate() {
            put(&format!("share.{number}"), served / readers.iter().sum::<f64>().max(1.0));
        }
        if let Some(holds) = phase.holds {
            let off = means(from).rfind(|(_, mean)| (mean / holds - 1.0).abs() > NEAR);
            let found = off.map_or(from, |(at, _)| at + 1);
            if found + window <= to {
                put("converged_s", (found - from) as f64 / TICKS_PER_S);
            }
        }
        let reached = phase.reaches.as_ref().and_then(|reaches| value(reaches, figures)).and_then(|rate_to_reach| {
            (from + REACHED_TICKS..=to).find(|&at| rate(at - REACHED_TICKS, at) >= rate_to_reach)
        });
        if let Some(at) = reached {
            figures.insert(format!("{}.reached_s", phase.name), (at - from) as f64 / TICKS_PER_S);
        }
        from = to;
    }
}
