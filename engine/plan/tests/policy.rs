//! Cache policies: the conformance suite, and the theory of caching uniform epochs, measured.

use fuelrail_base::{BlockId, Kind, SampleId};
use fuelrail_plan::order::Order;
use fuelrail_plan::policy::{PolicyName, build, conformance};
use fuelrail_plan::schedule::UseTime;
use proptest::prelude::*;
use std::collections::BTreeMap;

#[test]
fn every_policy_conforms() {
    PolicyName::ALL.into_iter().for_each(conformance::all);
}

#[test]
fn names_parse_and_print() {
    for name in PolicyName::ALL {
        assert_eq!(name.to_string().parse::<PolicyName>().unwrap(), name);
        assert_eq!(build(name, 1).name(), name);
    }
    let error = "arc".parse::<PolicyName>().unwrap_err();
    assert_eq!((error.kind(), error.to_string().contains("next-use")), (Kind::Usage, true));
}

fn block(sample: u64) -> BlockId {
    BlockId { sample: SampleId(sample), index: 0 }
}

/// Each access of a trace with the time of the next access to the same sample.
fn with_next_uses(trace: &[u64]) -> Vec<(u64, Option<UseTime>)> {
    let mut later = BTreeMap::new();
    let mut uses: Vec<_> = trace
        .iter()
        .enumerate()
        .rev()
        .map(|(time, sample)| (*sample, later.insert(*sample, UseTime(time as u64))))
        .collect();
    uses.reverse();
    uses
}

/// Hits of each access when every block has one byte and every miss is offered.
fn replay(name: PolicyName, capacity: u64, trace: &[u64]) -> Vec<bool> {
    let mut policy = build(name, capacity);
    let mut evicted = Vec::new();
    let use_one = |(sample, next_use): (u64, Option<UseTime>)| {
        let hit = policy.hit(block(sample), next_use, &mut evicted);
        if !hit {
            policy.offer(block(sample), 1, next_use, &mut evicted);
        }
        evicted.clear();
        hit
    };
    with_next_uses(trace).into_iter().map(use_one).collect()
}

fn hits(name: PolicyName, capacity: u64, trace: &[u64]) -> usize {
    replay(name, capacity, trace).into_iter().filter(|hit| *hit).count()
}

fn epochs(samples: u64, epochs: u64, seed: u64) -> Vec<u64> {
    let order = Order::new(samples, seed, true);
    (0..epochs).flat_map(|epoch| (0..samples).map(move |position| order.sample_at(epoch, position).0)).collect()
}

/// The most hits any policy can have, by trying every choice after every miss: what to drop, or nothing. Memoised over
/// the set held (a bit per sample), step by step.
fn most_hits(capacity: usize, trace: &[u64]) -> usize {
    let mut best: BTreeMap<u64, usize> = BTreeMap::from([(0, 0)]);
    for sample in trace {
        let bit = 1u64 << sample;
        let mut next: BTreeMap<u64, usize> = BTreeMap::new();
        for (held, hits) in best {
            let mut reach = |held: u64, hits: usize| {
                let most = next.entry(held).or_default();
                *most = (*most).max(hits);
            };
            if held & bit != 0 {
                reach(held, hits + 1);
                continue;
            }
            reach(held, hits);
            if (held.count_ones() as usize) < capacity {
                reach(held | bit, hits);
            } else {
                (0..32)
                    .filter(|other| held >> other & 1 == 1)
                    .for_each(|other| reach(held & !(1 << other) | bit, hits));
            }
        }
        best = next;
    }
    best.into_values().max().unwrap_or(0)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(ProptestConfig::default().cases.div_ceil(3)))]
    /// Whatever is accessed, nothing beats next-use; and no schedule of drops at all does.
    #[test]
    fn next_use_is_optimal_on_any_trace(trace in prop::collection::vec(0u64..9, 0..60), capacity in 0u64..7) {
        let ours = hits(PolicyName::NextUse, capacity, &trace);
        prop_assert_eq!(ours, most_hits(capacity as usize, &trace));
    }

    /// When each sample is used once per epoch, at every capacity.
    #[test]
    fn next_use_is_never_beaten_over_epochs(samples in 1u64..200, share in 0u64..=100, seed: u64) {
        let (trace, capacity) = (epochs(samples, 5, seed), samples * share / 100);
        let ours = hits(PolicyName::NextUse, capacity, &trace);
        for rival in PolicyName::ALL {
            prop_assert!(hits(rival, capacity, &trace) <= ours, "{rival} beats next-use");
        }
        prop_assert_eq!(ours as u64, 4 * capacity, "every block held crosses every edge");
    }
}

#[test]
fn next_use_keeps_what_it_has_when_the_newcomer_is_no_sooner() {
    let mut policy = build(PolicyName::NextUse, 2);
    let mut evicted = Vec::new();
    let span = |index| BlockId { sample: SampleId(7), index };
    let at = |time| Some(UseTime(time));
    assert!(policy.offer(span(0), 1, at(50), &mut evicted) && policy.offer(span(1), 1, at(50), &mut evicted));
    assert!(!policy.offer(span(2), 1, at(50), &mut evicted), "equally soon: moving bytes gains nothing");
    assert!(!policy.offer(block(1), 1, at(51), &mut evicted), "later");
    assert!(evicted.is_empty());
    assert!(!policy.offer(block(2), 1, None, &mut evicted), "never again within the horizon");
    assert!(policy.offer(block(3), 1, at(49), &mut evicted), "sooner");
    assert_eq!(evicted, [span(1)]);
    assert!(policy.hit(block(3), None, &mut evicted), "its last use is a hit, and then it leaves");
    assert_eq!((evicted.as_slice(), policy.len()), ([span(1), block(3)].as_slice(), 1));
}

/// Hit ratio of the last of several epochs: the first is all misses, and some policies take a while to settle.
fn settled_ratio(name: PolicyName, share: f64) -> f64 {
    let (samples, runs) = (10_000, 8);
    let hits = replay(name, (samples as f64 * share) as u64, &epochs(samples, runs, 23));
    let last = &hits[hits.len() - samples as usize..];
    last.iter().filter(|hit| **hit).count() as f64 / samples as f64
}

#[test]
fn next_use_and_pinned_reach_the_limit() {
    for percent in (5..=95).step_by(5) {
        let share = f64::from(percent) / 100.0;
        for name in [PolicyName::NextUse, PolicyName::Pinned] {
            let ratio = settled_ratio(name, share);
            assert!((ratio - share).abs() < 0.005, "{name} at {percent} %: {ratio}");
        }
    }
}

/// A sample comes again after `p` of this epoch and before `q` of the next, uniform both: LRU of share `c` holds it when
/// no more than `c` of the data set came between, so its hit ratio is `c + (1 - c) ln (1 - c)`: 15.3 % for a half.
#[test]
fn lru_and_fifo_miss_it_badly() {
    for percent in [25, 50, 75] {
        let share = f64::from(percent) / 100.0;
        let ratio = settled_ratio(PolicyName::Lru, share);
        let theory = share + (1.0 - share) * (1.0 - share).ln();
        assert!((ratio - theory).abs() < 0.01, "lru at {percent} %: {ratio}, in theory {theory}");
    }
    // What is inserted stays for `c / (1 - h)` epochs, so `h` is the chance that two uniform stretches are shorter than
    // that in sum: h = (c / (1 - h))^2 / 2 = 0.191 for a half.
    let fifo = settled_ratio(PolicyName::Fifo, 0.5);
    assert!((fifo - 0.191).abs() < 0.015, "fifo at 50 %: {fifo}");
}

/// DELI's demand cache on three nodes that share each epoch, at a share of a node's part: the published miss rates of
/// the second epoch.
#[test]
fn fifo_misses_as_deli_published() {
    let (per_node, nodes) = (14_000u64, 3);
    let order = Order::new(per_node * nodes, 1, true);
    let node = |epoch, rank| (0..per_node).map(move |at| order.sample_at(epoch, rank * per_node + at).0);
    for (share, published) in [(0.25, 0.989), (0.5, 0.953), (0.75, 0.888), (f64::INFINITY, 0.667)] {
        let capacity = (per_node as f64 * share) as u64;
        let mut misses = 0;
        for rank in 0..nodes {
            let trace: Vec<u64> = node(0, rank).chain(node(1, rank)).collect();
            let hits = replay(PolicyName::Fifo, capacity, &trace);
            misses += hits[per_node as usize..].iter().filter(|hit| !**hit).count();
        }
        let miss_rate = misses as f64 / (per_node * nodes) as f64;
        assert!((miss_rate - published).abs() < 0.01, "capacity {share}: missed {miss_rate}, published {published}");
    }
}
