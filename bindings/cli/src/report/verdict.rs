//! The claims the demo is about, each judged by its numbers: what the paper found, what Fuelrail promises.
//!
//! Owns the bounds. A claim that does not hold is reported as such; nothing is hidden and nothing aborts.

use serde::{Deserialize, Serialize};

use super::published::Published;
use crate::deli::{Findings, Row, RowName};

/// How far a miss rate may be from the published one.
const MISS_RATE_TOLERANCE: f64 = 0.01;
/// What DELI's best setting must cut at least to count as reproduced.
const DELI_REDUCTION_MIN: f64 = 0.85;
/// What Fuelrail promises to cut at least.
const FUELRAIL_REDUCTION_MIN: f64 = 0.99;
/// Epoch time on Fuelrail over that on local disk, at most.
const EPOCH_RATIO_MAX: f64 = 1.02;

/// One claim and how it came out.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Verdict {
    /// One word or two, for programs.
    pub claim: String,
    /// What was measured; the worst case where there are several.
    pub measured: f64,
    /// What it is held against.
    pub bound: f64,
    /// What the paper has, where it has it.
    pub published: Option<f64>,
    /// Whether it holds.
    pub holds: bool,
    /// One sentence for people.
    pub text: String,
}

/// All claims, judged.
#[must_use]
pub fn verdicts(findings: &Findings, published: &[Published]) -> Vec<Verdict> {
    let row = |name| findings.rows.iter().find(|row| row.name == name);
    let paper = |name| published.iter().find(|row| row.name == name);
    let mut all = Vec::new();
    all.extend(miss_rates(&findings.rows, published));
    if let (Some(deli), Some(paper)) = (row(RowName::Deli5050), paper(RowName::Deli5050)) {
        all.push(deli_reproduced(deli, paper));
    }
    if let (Some(fuelrail), Some(disk)) = (row(RowName::Fuelrail), row(RowName::LocalDisk)) {
        all.push(wait_cut(fuelrail, findings.cache_bytes_per_rank));
        all.push(near_local_disk(fuelrail, disk));
    }
    all
}

fn miss_rates(rows: &[Row], published: &[Published]) -> Option<Verdict> {
    const DEMAND: [RowName; 4] =
        [RowName::DemandFifo25, RowName::DemandFifo50, RowName::DemandFifo75, RowName::DemandUnlimited];
    let pairs = DEMAND.iter().filter_map(|&name| {
        let ours = rows.iter().find(|row| row.name == name)?.epochs.get(1)?.miss_rate;
        Some((ours, published.iter().find(|row| row.name == name)?.miss_rate?))
    });
    let pairs: Vec<(f64, f64)> = pairs.collect();
    let off = pairs.iter().map(|(ours, theirs)| (ours - theirs).abs()).reduce(f64::max)?;
    let list = |of: fn(&(f64, f64)) -> f64| pairs.iter().map(|p| format!("{:.3}", of(p))).collect::<Vec<_>>().join("/");
    Some(Verdict {
        claim: "demand_miss_rates".to_owned(),
        measured: off,
        bound: MISS_RATE_TOLERANCE,
        published: Some(0.0),
        holds: off <= MISS_RATE_TOLERANCE,
        text: format!(
            "Demand caches miss in epoch 2 as published: {} here, {} in the paper; at most {off:.4} apart.",
            list(|pair| pair.0),
            list(|pair| pair.1),
        ),
    })
}

fn deli_reproduced(deli: &Row, paper: &Published) -> Verdict {
    let measured = deli.wait_reduction;
    Verdict {
        claim: "deli_50_50_wait_reduction".to_owned(),
        measured,
        bound: DELI_REDUCTION_MIN,
        published: Some(paper.wait_reduction),
        holds: measured >= DELI_REDUCTION_MIN,
        text: format!(
            "DELI's best setting, 50/50, cuts data wait by {:.1} %; the paper has {:.1} %.",
            measured * 100.0,
            paper.wait_reduction * 100.0
        ),
    }
}

fn wait_cut(fuelrail: &Row, cache_bytes: u64) -> Verdict {
    let measured = fuelrail.wait_reduction;
    Verdict {
        claim: "fuelrail_wait_reduction".to_owned(),
        measured,
        bound: FUELRAIL_REDUCTION_MIN,
        published: None,
        holds: measured >= FUELRAIL_REDUCTION_MIN,
        text: format!(
            "Fuelrail cuts it by {:.2} % with DELI's cache bytes ({} a rank) for look-ahead and cache together.",
            measured * 100.0,
            fuelrail_base::ByteSize(cache_bytes)
        ),
    }
}

fn near_local_disk(fuelrail: &Row, disk: &Row) -> Verdict {
    let measured = fuelrail.epoch_s / disk.epoch_s;
    let apart = (measured - 1.0) * 100.0;
    let side = if apart > 0.0 { "longer" } else { "shorter" };
    Verdict {
        claim: "fuelrail_epoch_over_local_disk".to_owned(),
        measured,
        bound: EPOCH_RATIO_MAX,
        published: None,
        holds: measured <= EPOCH_RATIO_MAX,
        text: format!("Its epoch is {:.1} % {side} than on local disk, first batch included.", apart.abs()),
    }
}
