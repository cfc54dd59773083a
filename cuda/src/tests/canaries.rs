//! The checks can see: a feed that leaves out one step that keeps order is caught, each by what that step protects.
#![cfg(test)]

use fuelrail_cuda_driver::{under_any_driver, under_driver};

use super::stand::{Trial, control, store, watching};
use crate::canary::{LEFT_OUT, Step};

/// What one seed of a broken feed came to.
struct Caught {
    wrong: usize,
    violations: Vec<String>,
    registrations: u64,
}

fn broken(step: Step, seed: u64) -> Caught {
    LEFT_OUT.set(Some(step));
    let trial = Trial { stop_after: None, move_chance: 0.0, decode: false, ..Trial::random(seed) };
    control().set("seed", &seed.to_string());
    control().set("delay_us", "100..=600");
    let (consumer, _) = trial.run(store());
    let wrong = consumer.wrong.len();
    drop(consumer);
    let caught = Caught { wrong, violations: control().violations(), registrations: control().report().registrations };
    control().forgive();
    caught
}

#[test]
fn a_host_slot_sent_home_early_is_seen_by_the_watch_over_sources() {
    let name = "tests::canaries::a_host_slot_sent_home_early_is_seen_by_the_watch_over_sources";
    if !under_driver(name, &watching()) {
        return;
    }
    let seen = |seed| broken(Step::HoldSlot, seed).violations.iter().any(|text| text.contains("source"));
    assert!((0..20).any(seen), "twenty seeds, and no slot was seen to change under its copy");
}

#[test]
fn a_buffer_written_before_its_consumer_is_done_brings_wrong_bytes() {
    let name = "tests::canaries::a_buffer_written_before_its_consumer_is_done_brings_wrong_bytes";
    if !under_any_driver(name, &watching()) {
        return;
    }
    assert!((0..20).any(|seed| broken(Step::AwaitConsumer, seed).wrong > 0), "twenty seeds, and every byte was right");
}

#[test]
fn a_consumer_that_does_not_wait_for_the_copy_reads_wrong_bytes() {
    let name = "tests::canaries::a_consumer_that_does_not_wait_for_the_copy_reads_wrong_bytes";
    if !under_driver(name, &watching()) {
        return;
    }
    assert!((0..20).any(|seed| broken(Step::AwaitCopy, seed).wrong > 0), "twenty seeds, and every byte was right");
}

#[test]
fn memory_left_registered_is_counted() {
    let name = "tests::canaries::memory_left_registered_is_counted";
    if !under_driver(name, &watching()) {
        return;
    }
    assert!(broken(Step::Unregister, 1).registrations > 0);
}
