//! What one contestant came to, as results hold it.
//!
//! Owns the way from a score to figures. Cold and warm passes are never mixed.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::contestant::Pass;
use super::metric::Metric;
use super::spread::Spread;

/// What one contestant came to.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Scored {
    pub name: String,
    pub settings: String,
    /// How its processor time was counted; empty when it never ran.
    pub accounting: String,
    /// The hash it came to when its bytes were proved; none when it cannot hash.
    pub hash: Option<String>,
    /// Figures over the warm passes; empty until [`Scored::figured`], as are the cold ones.
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
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub absence: Option<String>,
}

impl Scored {
    pub fn figured(self) -> Scored {
        Scored { warm: figures(&self.passes), cold: figures(&self.cold_passes), ..self }
    }
}

fn figures(passes: &[Pass]) -> BTreeMap<Metric, Spread> {
    let spread = |metric: &Metric| Some((*metric, Spread::of(passes.iter().filter_map(|pass| metric.of(pass)))?));
    Metric::ALL.iter().filter_map(spread).collect()
}
