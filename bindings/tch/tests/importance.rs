//! Epochs drawn by importance, through the trainer: ranks stay together, a stopped run goes on with the same draws.

use crate::common::{Job, Step, digits, steps, wait_for_steps, words};
use rustix::process::Signal;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

const SAMPLES: u64 = 640;
const EPOCH_STEPS: u64 = 20;
const EPOCHS: u64 = 4;

fn arguments(uri: &str, folder: &Path, more: &str) -> Vec<String> {
    let (log, saved) = (folder.join("{rank}.jsonl"), folder.join("saved"));
    words(&format!(
        "{uri} --decode 28x28x1 --global-batch-size 32 --rate 0.02 --epochs {EPOCHS} --importance on --timeout-s 60 \
         --step-log {} --checkpoint {} {more}",
        log.display(),
        saved.display()
    ))
}

fn distinct(steps: &BTreeMap<u64, Step>, epoch: u64) -> usize {
    let own = steps.range(epoch * EPOCH_STEPS + 1..=(epoch + 1) * EPOCH_STEPS);
    own.flat_map(|(_, step)| &step.ids).collect::<BTreeSet<_>>().len()
}

#[test]
fn ranks_draw_alike_and_a_stopped_run_goes_on_with_the_same_draws() {
    let bucket = digits(SAMPLES, 3);
    let uri = bucket.url("training/");
    let folder = tempfile::tempdir().unwrap();
    Job::start(2, folder.path(), &arguments(&uri, folder.path(), "")).done();
    let expected = steps(folder.path(), "{rank}.jsonl", 2);
    assert_eq!(expected.len() as u64, EPOCHS * EPOCH_STEPS);
    assert_eq!(distinct(&expected, 0) as u64, SAMPLES, "the first epoch is plain");
    for epoch in 1..EPOCHS {
        let distinct = distinct(&expected, epoch) as u64;
        assert!((SAMPLES / 2..SAMPLES).contains(&distinct), "epoch {epoch}: {distinct} of {SAMPLES}");
    }
    // Stopped in the middle of a drawn epoch.
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let job = Job::start(2, folder, &arguments(&uri, folder, "--slow 0=4"));
    wait_for_steps(&folder.join("1.jsonl"), EPOCH_STEPS + 5);
    job.signal(1, Signal::TERM);
    assert!(job.wait().iter().all(|one| one.status.code() == Some(4)));
    let stopped = *steps(folder, "{rank}.jsonl", 2).keys().last().unwrap();
    assert!(stopped < EPOCHS * EPOCH_STEPS);
    Job::start(2, folder, &arguments(&uri, folder, "")).done();
    let all = steps(folder, "{rank}.jsonl", 2);
    assert_eq!(*all.keys().last().unwrap(), EPOCHS * EPOCH_STEPS);
    for (number, step) in all.iter().filter(|(number, _)| **number > stopped) {
        assert_eq!(step.ids, expected[number].ids, "step {number}, stopped after {stopped}");
    }
}

#[test]
fn importance_and_asynchronous_steps_do_not_go_together() {
    let bucket = digits(128, 3);
    let folder = tempfile::tempdir().unwrap();
    let uri = bucket.url("training/");
    for one in Job::start(2, folder.path(), &arguments(&uri, folder.path(), "--straggler 2")).wait() {
        assert!(one.status.code() == Some(2) && one.output.contains("importance"), "{}", one.output);
    }
}
