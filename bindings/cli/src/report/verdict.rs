//! The demo's claims, each judged by its numbers: what the paper found, and what Fuelrail promises.
//!
//! Owns the bounds. A claim that does not hold is reported as such and aborts nothing.

use serde::{Deserialize, Serialize};

use super::published::Published;
use crate::deli::{Findings, RowName};

/// Largest difference of a miss rate from the published one.
const MISS_RATE_TOLERANCE: f64 = 0.01;
/// Least reduction by DELI's best setting that counts as reproduced.
const DELI_REDUCTION_MIN: f64 = 0.85;
/// Least reduction that Fuelrail promises.
const FUELRAIL_REDUCTION_MIN: f64 = 0.99;
/// Largest ratio of the epoch time on Fuelrail to that on local disk.
const EPOCH_RATIO_MAX: f64 = 1.02;

/// One claim and whether it holds.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Verdict {
    /// A short name, for programs.
    pub claim: String,
    /// The measured value; the worst where there are several.
    pub measured: f64,
    /// The bound it is compared with.
    pub bound: f64,
    /// The paper's value, if it has one.
    pub published: Option<f64>,
    /// Whether it holds.
    pub holds: bool,
    /// One sentence for readers.
    pub text: String,
}

/// Judges all claims.
#[must_use]
pub fn verdicts(findings: &Findings, published: &[Published]) -> Vec<Verdict> {
    const DEMAND: [RowName; 4] =
        [RowName::DemandFifo25, RowName::DemandFifo50, RowName::DemandFifo75, RowName::DemandUnlimited];
    let row = |name| findings.rows.iter().find(|row| row.name == name);
    let paper = |name| published.iter().find(|row| row.name == name);
    let mut all = Vec::new();
    let mut judge = |claim: &str, measured, bound, holds, published, text| {
        all.push(Verdict { claim: claim.to_owned(), measured, bound, published, holds, text });
    };
    // In epoch 2, here and in the paper.
    let misses = |names: &[RowName]| -> (Vec<f64>, Vec<f64>) {
        let pair = |&name: &RowName| Some((row(name)?.epochs.get(1)?.miss_rate, paper(name)?.miss_rate?));
        names.iter().filter_map(pair).unzip()
    };
    let (ours, theirs) = misses(&DEMAND);
    let list = |rates: &[f64]| rates.iter().map(|rate| format!("{rate:.3}")).collect::<Vec<_>>().join("/");
    if let Some(off) = ours.iter().zip(&theirs).map(|(ours, theirs)| (ours - theirs).abs()).reduce(f64::max) {
        let text = format!(
            "Demand caches miss in epoch 2 as published: {} here, {} in the paper; at most {off:.4} apart.",
            list(&ours),
            list(&theirs),
        );
        let holds = off <= MISS_RATE_TOLERANCE;
        judge("demand_miss_rates", off, MISS_RATE_TOLERANCE, holds, Some(0.0), text);
    }
    if let (Some(deli), Some(paper)) = (row(RowName::Deli5050), paper(RowName::Deli5050)) {
        let (cut, theirs) = (deli.wait_reduction, paper.wait_reduction);
        let text = format!(
            "DELI's best setting, 50/50, cuts data wait by {:.1} %; the paper has {:.1} %.",
            cut * 100.0,
            theirs * 100.0
        );
        let holds = cut >= DELI_REDUCTION_MIN;
        judge("deli_50_50_wait_reduction", cut, DELI_REDUCTION_MIN, holds, Some(theirs), text);
    }
    let (ours, theirs) = misses(&[RowName::DeliFullFetch, RowName::Deli5050]);
    if let Some(more) = ours.iter().zip(&theirs).map(|(ours, theirs)| ours - theirs).reduce(f64::max) {
        let text = format!(
            "DELI's prefetch misses no more than published: {} here, {} in the paper. Its threads and listing are faster here.",
            list(&ours),
            list(&theirs),
        );
        let holds = more <= MISS_RATE_TOLERANCE;
        judge("deli_miss_rates", more, MISS_RATE_TOLERANCE, holds, Some(0.0), text);
    }
    if let (Some(fuelrail), Some(disk)) = (row(RowName::Fuelrail), row(RowName::LocalDisk)) {
        let (cut, cache) = (fuelrail.wait_reduction, fuelrail_base::ByteSize(findings.cache_bytes_per_rank));
        let text = format!(
            "Fuelrail cuts it by {:.2} % with DELI's cache bytes ({cache} a rank) for look-ahead and cache together, and {} a rank in all.",
            cut * 100.0,
            fuelrail_base::ByteSize(fuelrail.held_bytes_max / u64::from(findings.scale.ranks))
        );
        judge("fuelrail_wait_reduction", cut, FUELRAIL_REDUCTION_MIN, cut >= FUELRAIL_REDUCTION_MIN, None, text);
        let ratio = fuelrail.epoch_s / disk.epoch_s;
        let apart = (ratio - 1.0) * 100.0;
        let side = if apart > 0.0 { "longer" } else { "shorter" };
        let text = format!("Its epoch is {:.1} % {side} than on local disk, first batch included.", apart.abs());
        judge("fuelrail_epoch_over_local_disk", ratio, EPOCH_RATIO_MAX, ratio <= EPOCH_RATIO_MAX, None, text);
    }
    all
}
