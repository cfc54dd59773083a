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
/// What ranks must hit at least of what their own caches can hold, under the sticky order.
const OWN_CACHES_MIN: f64 = 0.95;
/// What RAM and disk together must hit at least of what they can hold.
const TIERS_MIN: f64 = 0.95;
/// Of each epoch drawn our way, the share that must be distinct.
const COVERAGE_MIN: f64 = 0.9;
/// How far next-use caching may stay below (or be above) its limit.
const HIT_RATIO_TOLERANCE: f64 = 0.005;

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
    all.extend(next_use(findings));
    all.extend(own_caches(findings));
    all.extend(ram_and_disk(findings));
    all.extend(importance(findings));
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

/// Of the limit, what RAM and disk reach together at every capacity, with LRU and FIFO beside it.
fn ram_and_disk(findings: &Findings) -> Option<Verdict> {
    let under = |policy: &'static str| findings.tiers.iter().filter(move |row| row.policy == policy);
    let measured = under("next-use").map(|row| row.hit_ratio / row.capacity_share).reduce(f64::min)?;
    let list = |policy| under(policy).map(|row| format!("{:.3}", row.hit_ratio)).collect::<Vec<_>>().join("/");
    let limits = under("next-use").map(|row| format!("{:.2}", row.capacity_share)).collect::<Vec<_>>().join("/");
    Some(Verdict {
        claim: "ram_and_disk_hit_ratio".to_owned(),
        measured,
        bound: TIERS_MIN,
        published: None,
        holds: measured >= TIERS_MIN,
        text: format!(
            "RAM and disk together hit {} where they can hold {limits} of the set; under LRU {}, under FIFO {}.",
            list("next-use"),
            list("lru"),
            list("fifo"),
        ),
    })
}

/// What drawing by importance does to coverage: ours beside SHADE's.
fn importance(findings: &Findings) -> Option<Verdict> {
    let of = |mode: &str| findings.drawn.iter().find(|hit| hit.mode == mode);
    let (ours, shade, uniform) = (of("on")?, of("shade-corrected")?, of("uniform")?);
    Some(Verdict {
        claim: "importance_coverage".to_owned(),
        measured: ours.coverage,
        bound: COVERAGE_MIN,
        published: None,
        holds: ours.coverage >= COVERAGE_MIN,
        text: format!(
            "Epochs drawn by importance our way show {:.0} % of the set each, with {:.2} of it hit in a cache of {:.2}; as SHADE draws              them {:.0} %, with {:.2} hit; uniformly all of it, with {:.2} hit.",
            ours.coverage * 100.0,
            ours.hit_ratio,
            ours.cache_share,
            shade.coverage * 100.0,
            shade.hit_ratio,
            uniform.hit_ratio,
        ),
    })
}

/// Of the limit, what is reached at every size: under the sticky order, with the global one and DELI's scheme beside it.
fn own_caches(findings: &Findings) -> Option<Verdict> {
    let reached = |order: &'static str| findings.own_caches.iter().filter(move |hit| hit.order == order);
    let measured = reached("sticky").map(|hit| hit.hit_ratio / hit.limit).reduce(f64::min)?;
    let list = |order| reached(order).map(|hit| format!("{:.3}", hit.hit_ratio)).collect::<Vec<_>>().join("/");
    let limits = reached("sticky").map(|hit| format!("{:.2}", hit.limit)).collect::<Vec<_>>().join("/");
    Some(Verdict {
        claim: "own_caches_sticky_order".to_owned(),
        measured,
        bound: OWN_CACHES_MIN,
        published: None,
        holds: measured >= OWN_CACHES_MIN,
        text: format!(
            "{} ranks hit {} in caches of their own that can hold {limits}, under the sticky order; {} under the global one.",
            findings.scale.ranks,
            list("sticky"),
            list("global"),
        ),
    })
}

fn next_use(findings: &Findings) -> Option<Verdict> {
    let off = findings.next_use.iter().map(|hit| (hit.hit_ratio - hit.limit).abs()).reduce(f64::max)?;
    Some(Verdict {
        claim: "next_use_hit_ratio".to_owned(),
        measured: off,
        bound: HIT_RATIO_TOLERANCE,
        published: None,
        holds: off <= HIT_RATIO_TOLERANCE,
        text: format!("Next-use caching is at most {off:.4} from the limit no policy can pass, at every size tried."),
    })
}
