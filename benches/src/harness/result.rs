//! The shape of result files: one for every question that contestants answer.
//!
//! Owns the shape and the way from scores to it. Cold and warm passes are never mixed. Never writes a file.

use std::collections::BTreeMap;

use fuelrail::{Error, Kind, Result};
use serde::{Deserialize, Serialize};

use super::bar::{Bar, Judged};
use super::scored::Scored;
use super::shape::{Laid, Shape};
use super::venue::{Transport, VenueFacts};
use fuelrail_cli::bench::latency::LatencyResult;
use fuelrail_cli::machine::Machine;

pub const SCHEMA: u32 = 1;

#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Findings {
    /// [`SCHEMA`].
    pub schema: u32,
    /// The question's name: `line`, `floor`, `latency`, `rivals`, …
    pub question: String,
    /// Where and when it was measured, and the commit of the harness.
    pub machine: Machine,
    pub venue: VenueFacts,
    /// How it was asked: every option of the question that changes figures, by name.
    pub config: BTreeMap<String, String>,
    /// What contestants came to, shape by shape.
    pub contests: Vec<Contested>,
    /// Latencies, run by run.
    #[serde(default)]
    pub latencies: Vec<LatencyResult>,
    /// What the reader must know: what was left out, what fell back, and why.
    pub notices: Vec<String>,
    /// The whole question, s.
    pub wall_s: f64,
}

/// A set of objects in a result.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SetFacts {
    /// The shape's name; `external` for a bucket that was there already.
    pub name: String,
    /// The shape's scale; none for an external bucket.
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
            name: shape.name.word().to_owned(),
            scale: Some(shape.scale),
            objects: laid.objects,
            bytes: laid.bytes,
            batch_size: shape.batch_size,
            arena_bytes: shape.arena_bytes,
            hash: Some(laid.hash.clone()),
        }
    }
}

/// One contest: a set of objects, a transport, and what everybody came to.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
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
        let contestants: Vec<Scored> = scores.into_iter().map(Scored::figured).collect();
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

impl Findings {
    pub fn from_json(text: &str) -> Result<Findings> {
        #[derive(Deserialize)]
        struct Version {
            schema: u32,
        }
        let bad = |why: String| {
            Error::new(Kind::Usage, why).cure("give a JSON result of bench line, floor, latency, rings or rivals")
        };
        let version: Version =
            serde_json::from_str(text).map_err(|error| bad(format!("not a result file: {error}")))?;
        if version.schema != SCHEMA {
            return Err(bad(format!("a result of version {}, and this program knows {SCHEMA}", version.schema)));
        }
        serde_json::from_str(text).map_err(|error| bad(format!("not a sound result file: {error}")))
    }
}
