//! The order: golden vectors, bijection, inverse, and how well it shuffles. All seeded: a pass is a pass for ever.

use fuelrail_base::{SampleId, limits, prng::mix64};
use fuelrail_plan::order::Order;
use proptest::prelude::*;
use std::collections::BTreeMap;

fn head(order: &Order, epoch: u64, count: u64) -> Vec<u64> {
    (0..count).map(|position| order.sample_at(epoch, position).0).collect()
}

fn digest(order: &Order, epoch: u64) -> u64 {
    let epoch = order.epoch(epoch);
    (0..order.samples()).fold(0, |hash, position| mix64(hash ^ epoch.sample_at(position).0))
}

/// These pin the order for ever. When one fails, the code is wrong, not the vector: saved states depend on it.
#[test]
fn golden_vectors() {
    let digits = Order::new(10, 0, true);
    assert_eq!(head(&digits, 0, 10), GOLDEN_10);
    let mnist = Order::new(60_000, 42, true);
    assert_eq!([0, 1, u64::MAX].map(|epoch| head(&mnist, epoch, 4)), GOLDEN_60K);
    assert_eq!([0, 1].map(|epoch| digest(&mnist, epoch)), GOLDEN_60K_DIGESTS);
    let most = Order::new(u64::from(u32::MAX), u64::MAX, true);
    assert_eq!(head(&most, 3, 4), GOLDEN_MOST);
}

const GOLDEN_10: [u64; 10] = [8, 5, 2, 6, 7, 0, 9, 3, 1, 4];
const GOLDEN_60K: [[u64; 4]; 3] =
    [[24483, 49451, 53315, 32572], [10162, 8742, 7696, 47012], [53604, 57943, 21800, 39000]];
const GOLDEN_60K_DIGESTS: [u64; 2] = [0x20A6_42BB_6870_0D47, 0x7428_4EE5_98DD_1DFE];
const GOLDEN_MOST: [u64; 4] = [3138800724, 3718840226, 1823282634, 2176538878];

fn assert_bijection(order: &Order, epoch: u64) {
    let fixed = order.epoch(epoch);
    let mut seen = vec![false; order.samples() as usize];
    for position in 0..order.samples() {
        let sample = fixed.sample_at(position);
        assert!(!core::mem::replace(&mut seen[sample.0 as usize], true), "{sample:?} twice of {}", order.samples());
        assert_eq!(fixed.position_of(sample), position, "inverse of {}", order.samples());
    }
}

#[test]
fn every_size_is_a_bijection_with_its_inverse() {
    for samples in 1..=2_000 {
        assert_bijection(&Order::new(samples, samples * 7, true), samples % 5);
    }
    for samples in [4_095, 4_096, 4_097, 65_535, 65_536, 65_537, 300_007] {
        assert_bijection(&Order::new(samples, 1, true), 1);
    }
}

/// Of any order: the sample at a position is at that position, and the other way round.
pub(crate) fn check_inverse(order: &Order, epoch: u64, at: u64) -> Result<(), TestCaseError> {
    let samples = order.samples();
    let position = at % samples;
    let sample = order.sample_at(epoch, position);
    prop_assert!(sample.0 < samples);
    prop_assert_eq!(order.position_of(epoch, sample), position);
    let id = SampleId(mix64(at) % samples);
    prop_assert_eq!(order.sample_at(epoch, order.position_of(epoch, id)), id);
    Ok(())
}

proptest! {
    #[test]
    fn position_of_inverts_sample_at(samples in 1..=limits::SAMPLES_MAX, seed: u64, epoch: u64, at: u64) {
        check_inverse(&Order::new(samples, seed, true), epoch, at)?;
    }
}

#[test]
fn without_shuffle_every_epoch_is_the_listing() {
    let order = Order::new(1_000, 9, false);
    for epoch in [0, 1, 99] {
        assert!((0..1_000).all(|p| order.sample_at(epoch, p) == SampleId(p)));
        assert!((0..1_000).all(|p| order.position_of(epoch, SampleId(p)) == p));
    }
}

#[test]
fn epochs_and_seeds_differ() {
    let heads: std::collections::BTreeSet<_> =
        (0..100).flat_map(|seed| (0..100).map(move |epoch| head(&Order::new(1_000, seed, true), epoch, 8))).collect();
    assert_eq!(heads.len(), 10_000, "no two of 100 seeds x 100 epochs begin alike");
}

/// Chi-square of equally likely cells, as standard deviations from its mean: within ±4 for anything uniform.
fn chi_square_sigmas(counts: &[u64]) -> f64 {
    let cells = counts.len() as f64;
    let expected = counts.iter().sum::<u64>() as f64 / cells;
    let chi: f64 = counts.iter().map(|&c| (c as f64 - expected).powi(2) / expected).sum();
    (chi - (cells - 1.0)) / (2.0 * (cells - 1.0)).sqrt()
}

/// Tiny data sets are the hard case of a Feistel network: every permutation must come up, equally often.
#[test]
fn all_permutations_of_small_sets_are_equally_likely() {
    for (samples, permutations) in [(2, 2), (3, 6), (4, 24), (5, 120), (6, 720)] {
        let mut counts: BTreeMap<Vec<u64>, u64> = BTreeMap::new();
        for draw in 0..400 * permutations as u64 {
            *counts.entry(head(&Order::new(samples, draw / 64, true), draw % 64, samples)).or_default() += 1;
        }
        assert_eq!(counts.len(), permutations, "permutations of {samples}");
        let sigmas = chi_square_sigmas(&counts.into_values().collect::<Vec<_>>());
        assert!(sigmas.abs() < 4.0, "{samples} samples: {sigmas} sigmas");
    }
}

/// Neighbours in one epoch, and the same sample in two epochs, fall into 16 x 16 cells evenly.
#[test]
fn pairs_are_serially_independent() {
    for samples in [10_000u64, 16_384, 100_000] {
        for epoch in 0..4 {
            let order = Order::new(samples, 3, true);
            let (now, next) = (order.epoch(epoch), order.epoch(epoch + 1));
            let cell = |value: u64| (value * 16 / samples) as usize;
            let (mut neighbours, mut epochs) = ([0u64; 256], [0u64; 256]);
            for position in 0..samples - 1 {
                let sample = now.sample_at(position);
                let neighbour = now.sample_at(position + 1);
                neighbours[cell(sample.0) * 16 + cell(neighbour.0)] += 1;
                epochs[cell(position) * 16 + cell(next.position_of(sample))] += 1;
            }
            let sigmas = [chi_square_sigmas(&neighbours), chi_square_sigmas(&epochs)];
            // Both margins are fixed by the permutation: 225 degrees of freedom instead of 255, 1.3 sigmas lower.
            assert!(sigmas.iter().all(|s| (s + 1.3).abs() < 4.5), "{samples} samples epoch {epoch}: {sigmas:?}");
        }
    }
}

#[test]
#[should_panic(expected = "position 10 of 10 samples")]
fn a_position_outside_is_a_broken_invariant() {
    let _ = Order::new(10, 0, true).sample_at(0, 10);
}
