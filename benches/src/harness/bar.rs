//! Bars: what one contestant must not cost against another in the same run, and how it came out.
//!
//! Owns the rule and the judgement: the median over rounds of what is taken within each round. A bar that nobody could be
//! held to says so; it is never left out.

use serde::{Deserialize, Serialize};

use super::contestant::Pass;
use super::metric::Metric;
use super::scored::Scored;
use super::spread::Spread;

/// How two figures are held against each other.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Relation {
    /// The first over the second, at most the bound.
    Ratio,
    /// The first less the second, at most the bound.
    Difference,
    /// The first alone, at most the bound.
    Alone,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Heat {
    Warm,
    Cold,
}

#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
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
        let mut why = "nobody to hold it against".to_owned();
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

/// A bar and how it came out.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
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
