//! The format of result files, for every benchmark of contestants: passes become figures, figures are held against bars. Cold
//! and warm passes are never mixed. A bar without a measurement to compare with is listed with the reason.

use std::collections::BTreeMap;

use fuelrail::Result;
use serde::{Deserialize, Serialize};

use super::contestant::Pass;
use super::shape::{Laid, Shape};
use super::venue::{Transport, VenueFacts};
use fuelrail_cli::machine::Machine;

pub const SCHEMA: u32 = 1;

#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Findings {
    /// [`SCHEMA`].
    pub schema: u32,
    /// The benchmark's name: `line`, `rings` or `rivals`.
    pub question: String,
    /// Where and when it was measured, and the commit of the harness.
    pub machine: Machine,
    pub venue: VenueFacts,
    /// Every option of the benchmark that changes figures, by name.
    pub config: BTreeMap<String, String>,
    /// What contestants came to, shape by shape.
    pub contests: Vec<Contested>,
    /// What the reader must know: what was skipped, what fell back, and why.
    pub notices: Vec<String>,
    /// The whole benchmark, s.
    pub wall_s: f64,
}

#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct SetFacts {
    /// The shape's name.
    pub name: String,
    /// The shape's scale.
    pub scale: Option<f64>,
    pub objects: u64,
    pub bytes: u64,
    pub batch_size: u32,
    pub arena_bytes: u64,
    /// The hash over all objects, where it is known.
    pub hash: Option<String>,
}

impl SetFacts {
    pub fn of(shape: &Shape, laid: &Laid) -> SetFacts {
        SetFacts {
            name: shape.name.word(),
            scale: Some(shape.scale),
            objects: laid.objects,
            bytes: laid.bytes,
            batch_size: shape.batch_size,
            arena_bytes: shape.arena_bytes,
            hash: Some(laid.hash.clone()),
        }
    }
}

/// One contest: a set of objects, a transport, and the results of all contestants.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Contested {
    pub set: SetFacts,
    pub transport: Transport,
    /// What the server gives to a client that drops everything, GB/s, where it was asked: no contestant can be faster.
    pub entitlement_gb_per_s: Option<f64>,
    /// Who took part, in the order of turns.
    pub contestants: Vec<Scored>,
    /// What was promised, and whether it held.
    pub bars: Vec<Judged>,
}

impl Contested {
    /// From the scores of a contest, judged by these bars.
    pub fn new(set: SetFacts, transport: Transport, scores: Vec<Scored>, bars: &[Bar]) -> Contested {
        let figured = |of: Scored| Scored { warm: figures(&of.passes), cold: figures(&of.cold_passes), ..of };
        let contestants: Vec<Scored> = scores.into_iter().map(figured).collect();
        let bars = bars.iter().map(|bar| bar.judge(&contestants)).collect();
        Contested { set, transport, entitlement_gb_per_s: None, contestants, bars }
    }

    /// `large`, or `large, tls`.
    pub fn title(&self) -> String {
        match self.transport {
            Transport::Plain => self.set.name.clone(),
            Transport::Tls => format!("{}, tls", self.set.name),
        }
    }

    pub fn contestant(&self, name: &str) -> Option<&Scored> {
        self.contestants.iter().find(|scored| scored.name == name)
    }
}

#[derive(Clone, PartialEq, Debug, Default, Serialize)]
pub struct Scored {
    pub name: String,
    pub settings: String,
    /// How its processor time was counted; empty when it never ran.
    pub accounting: String,
    /// The hash it came to when its bytes were proved; none when it cannot hash.
    pub hash: Option<String>,
    /// Figures over the warm passes; empty until the contest is over, as are the cold ones.
    pub warm: BTreeMap<Metric, Spread>,
    /// Figures over the passes from the start of a process.
    pub cold: BTreeMap<Metric, Spread>,
    /// The pass before the first round, which is in no figure.
    pub warm_up: Option<Pass>,
    /// The warm passes, one a round.
    pub passes: Vec<Pass>,
    /// The cold passes, one a round.
    pub cold_passes: Vec<Pass>,
    /// Why it left, with the error's words. Its passes up to then stay.
    pub failure: Option<String>,
    /// Of one that never took part, what it is, in two or three words: `not installed`. Its failure tells the reason.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub absence: Option<String>,
}

fn figures(passes: &[Pass]) -> BTreeMap<Metric, Spread> {
    let spread = |metric: &Metric| Some((*metric, Spread::of(passes.iter().filter_map(|pass| metric.of(pass)))?));
    Metric::ALL.iter().filter_map(spread).collect()
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Metric {
    /// Processor time of the process tree per payload, s/GB.
    CpuSPerGb,
    /// Processor time of the process tree per object, µs.
    CpuUsPerObject,
    /// Payload per wall time, GB/s. More is better; of all others, less.
    GbPerS,
    /// Time to the first batch, µs.
    FirstBatchUs,
    /// Peak memory of the process tree, MB.
    PeakMemoryMb,
    /// Payload bytes that the loader's own code copied, per byte delivered.
    CopiedBytesPerByte,
}

impl Metric {
    /// All figures, in the order of tables.
    pub const ALL: [Metric; 6] = [
        Metric::CpuSPerGb,
        Metric::CpuUsPerObject,
        Metric::GbPerS,
        Metric::FirstBatchUs,
        Metric::PeakMemoryMb,
        Metric::CopiedBytesPerByte,
    ];

    /// The figure of a pass, where the pass has it.
    pub fn of(self, pass: &Pass) -> Option<f64> {
        match self {
            Metric::CpuSPerGb => pass.cpu_s_per_gb(),
            Metric::CpuUsPerObject => pass.cpu_us_per_object(),
            Metric::GbPerS => pass.gb_per_s(),
            Metric::FirstBatchUs => pass.first_batch_us.map(|us| us as f64),
            Metric::PeakMemoryMb => Some(pass.peak_memory_bytes as f64 / 1e6),
            Metric::CopiedBytesPerByte => pass.facts.get("copied_bytes_per_byte").copied(),
        }
    }

    /// Its name for people, with its unit, and as many decimal places as it deserves.
    fn shown(self) -> (&'static str, usize) {
        match self {
            Metric::CpuSPerGb => ("CPU-s/GB", 3),
            Metric::CpuUsPerObject => ("CPU µs/object", 2),
            Metric::GbPerS => ("GB/s", 3),
            Metric::FirstBatchUs => ("first batch, µs", 0),
            Metric::PeakMemoryMb => ("peak memory, MB", 0),
            Metric::CopiedBytesPerByte => ("copied bytes/byte", 4),
        }
    }

    pub fn title(self) -> &'static str {
        self.shown().0
    }

    pub fn text(self, value: f64) -> String {
        format!("{value:.*}", self.shown().1)
    }
}

#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Spread {
    /// The middle one; the mean of the two in the middle of an even number.
    pub median: f64,
    pub min: f64,
    pub max: f64,
    pub count: usize,
}

impl Spread {
    /// Of these values; none when there are none or one is not a number.
    pub fn of(values: impl IntoIterator<Item = f64>) -> Option<Spread> {
        let mut sorted: Vec<f64> = values.into_iter().collect();
        if sorted.is_empty() || sorted.iter().any(|value| value.is_nan()) {
            return None;
        }
        sorted.sort_by(f64::total_cmp);
        let count = sorted.len();
        let median = f64::midpoint(sorted[(count - 1) / 2], sorted[count / 2]);
        Some(Spread { median, min: sorted[0], max: sorted[count - 1], count })
    }

    /// Of one series over another, pair by pair. Pairs whose second value is not above zero are left out.
    pub fn of_ratios(values: &[f64], to: &[f64]) -> Option<Spread> {
        let pairs = values.iter().zip(to).filter(|(_, to)| **to > 0.0);
        Spread::of(pairs.map(|(value, to)| value / to))
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Relation {
    /// The first over the second, at most the bound.
    Ratio,
    /// The first less the second, at most the bound.
    Difference,
    /// The first alone, at most the bound.
    Alone,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Heat {
    Warm,
    Cold,
}

#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Bar {
    pub of: String,
    /// Against whose; the cheapest of them in the median where there are several; none for a figure alone.
    pub to: Vec<String>,
    pub metric: Metric,
    pub heat: Heat,
    pub relation: Relation,
    pub bound: f64,
}

impl Bar {
    /// At most `bound` times the figure of the cheapest of `to`, warm.
    pub fn ratio(of: &str, to: &[&str], metric: Metric, bound: f64) -> Bar {
        let to = to.iter().map(|name| (*name).to_owned()).collect();
        Bar { of: of.to_owned(), to, metric, heat: Heat::Warm, relation: Relation::Ratio, bound }
    }

    pub fn judge(&self, contestants: &[Scored]) -> Judged {
        let (against, spread) = match self.measure(contestants) {
            Ok((against, spread)) => (against, Ok(spread)),
            Err(why) => (None, Err(why)),
        };
        Judged {
            bar: self.clone(),
            against,
            holds: spread.as_ref().ok().map(|spread| spread.median <= self.bound),
            measured: spread.as_ref().ok().copied(),
            not_judged: spread.err(),
        }
    }

    fn measure(&self, contestants: &[Scored]) -> Result<(Option<String>, Spread), String> {
        let find = |name: &str| {
            let found = contestants.iter().find(|scored| scored.name == name);
            let scored = found.ok_or_else(|| format!("{name} took no part"))?;
            match (&scored.absence, &scored.failure) {
                (Some(absence), _) => Err(format!("{name} is {absence}")),
                (None, Some(_)) => Err(format!("{name} failed")),
                (None, None) => Ok(self.values(scored)),
            }
        };
        let ours = find(&self.of)?;
        let none = || format!("no {} of {}", self.metric.title(), self.of);
        if self.relation == Relation::Alone {
            return Ok((None, Spread::of(ours).ok_or_else(none)?));
        }
        let mut why = "no other contestant to compare with".to_owned();
        let mut cheapest: Option<(&str, Vec<f64>, f64)> = None;
        for name in &self.to {
            match find(name).map(|values| (Spread::of(values.iter().copied()), values)) {
                Ok((Some(spread), values)) if cheapest.as_ref().is_none_or(|(.., least)| spread.median < *least) => {
                    cheapest = Some((name, values, spread.median));
                }
                Ok(_) => {}
                Err(failure) => why = failure,
            }
        }
        let (name, theirs, _) = cheapest.ok_or(why)?;
        let spread = match self.relation {
            Relation::Difference => Spread::of(ours.iter().zip(&theirs).map(|(ours, theirs)| ours - theirs)),
            Relation::Ratio | Relation::Alone => Spread::of_ratios(&ours, &theirs),
        };
        Ok((Some(name.to_owned()), spread.ok_or_else(none)?))
    }

    fn values(&self, scored: &Scored) -> Vec<f64> {
        let passes: &[Pass] = match self.heat {
            Heat::Warm => &scored.passes,
            Heat::Cold => &scored.cold_passes,
        };
        passes.iter().filter_map(|pass| self.metric.of(pass)).collect()
    }
}

#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Judged {
    pub bar: Bar,
    /// Against whom it was held in the end.
    pub against: Option<String>,
    /// What was measured, round by round.
    pub measured: Option<Spread>,
    /// Whether the median holds; none when it could not be judged.
    pub holds: Option<bool>,
    pub not_judged: Option<String>,
}

impl Judged {
    /// One sentence: `fuelrail: CPU-s/GB 1.043 × floor-recv (1.031 to 1.060), at most 1.10: holds`.
    pub fn text(&self) -> String {
        let Bar { of, metric, relation, bound, heat, .. } = &self.bar;
        let cold = if *heat == Heat::Cold { "cold " } else { "" };
        let title = metric.title();
        let Some(Spread { median, min, max, .. }) = self.measured else {
            let why = self.not_judged.as_deref().unwrap_or("no figure");
            return format!("{of}: {cold}{title}, bar {bound}: NOT JUDGED, {why}");
        };
        let verdict = if self.holds == Some(true) { "holds" } else { "DOES NOT HOLD" };
        let against = self.against.as_deref().unwrap_or_default();
        match relation {
            Relation::Ratio => {
                format!(
                    "{of}: {cold}{title} {median:.3} × {against} ({min:.3} to {max:.3}), at most {bound}: {verdict}"
                )
            }
            Relation::Difference => format!(
                "{of}: {cold}{title} {median:+.0} against {against} ({min:+.0} to {max:+.0}), at most {bound:+}: {verdict}"
            ),
            Relation::Alone => {
                format!("{of}: {cold}{title} {median:.4} ({min:.4} to {max:.4}), at most {bound}: {verdict}")
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians_of_odd_and_even_counts() {
        let of = |values: &[f64]| Spread::of(values.iter().copied());
        assert_eq!(of(&[3.0, 1.0, 2.0]), Some(Spread { median: 2.0, min: 1.0, max: 3.0, count: 3 }));
        assert_eq!(of(&[4.0, 1.0, 2.0, 3.0]).unwrap().median, 2.5);
        assert_eq!((of(&[]), of(&[1.0, f64::NAN])), (None, None));
        assert_eq!(Spread::of_ratios(&[1.0, 5.0], &[0.0, 2.0]), of(&[2.5]));
    }
}
