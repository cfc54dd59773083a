//! Every byte right, no slot reused early, nothing left: over many seeds.
#![cfg(test)]

use std::collections::BTreeSet;

use fuelrail_cuda_driver::{Settings, on_device, under_any_driver};

use super::stand::{Trial, control, store, watching};
use crate::Device;

/// `FUELRAIL_SEEDS` asks for more.
const SEEDS: u64 = 500;

#[test]
fn every_byte_arrives_no_slot_is_reused_early_and_nothing_is_left_over_500_seeds() {
    let name = "tests::conformance::every_byte_arrives_no_slot_is_reused_early_and_nothing_is_left_over_500_seeds";
    if !under_any_driver(name, &Settings { delay_us: 0..=100, ..watching() }) {
        return;
    }
    // A device's context takes a while to make: one for all seeds.
    let _open = on_device().then(|| Device::open(0).unwrap());
    let seeds = std::env::var("FUELRAIL_SEEDS").ok().and_then(|n| n.parse().ok()).unwrap_or(SEEDS);
    let (store, mut samples, mut whole) = (store(), 0, 0);
    for seed in 0..seeds {
        let trial = Trial::random(seed);
        trial.set_driver();
        let (consumer, taken) = trial.run(store);
        assert!(consumer.wrong.is_empty(), "seed {seed}: {:#?}", consumer.wrong);
        assert_eq!(consumer.right.len() as u64, taken, "seed {seed}");
        let distinct: BTreeSet<u64> = consumer.right.iter().copied().collect();
        assert_eq!(distinct.len() as u64, taken, "seed {seed}: every sample once");
        if trial.stop_after.is_none() {
            assert_eq!(taken, store.set.len(), "seed {seed}: every sample");
            whole += 1;
        }
        samples += taken;
        drop(consumer);
        let (report, violations) = (control().report(), control().violations());
        assert!(report == Default::default() && violations.is_empty(), "seed {seed}: {report:?} {violations:#?}");
    }
    eprintln!("{seeds} seeds, {whole} of them to the end, {samples} samples compared on their way back");
    assert!(whole > seeds / 2);
}
