//! A run that is killed goes on from its last checkpoint as if nothing had happened, on any number of ranks.

use crate::common::{Job, Step, assert_near, digits, steps, trainer, wait_for_steps, words};
use fuelrail_base::prng::mix64;
use rustix::process::Signal;
use std::collections::BTreeMap;
use std::path::Path;

const STEPS: u64 = 40;

fn arguments(uri: &str, folder: &Path, more: &str) -> Vec<String> {
    let (log, saved) = (folder.join("{rank}.jsonl"), folder.join("saved"));
    let text = format!(
        "{uri} --decode 28x28x1 --global-batch-size 64 --rate 0.02 --warm-up 0.2 --epochs 2 --step-log {} --timeout-s 30 --checkpoint {} {more}",
        log.display(),
        saved.display()
    );
    words(&text)
}

/// An undisturbed run.
fn reference(uri: &str) -> BTreeMap<u64, Step> {
    let folder = tempfile::tempdir().unwrap();
    Job::start(2, folder.path(), &arguments(uri, folder.path(), "")).done();
    let steps = steps(folder.path(), "{rank}.jsonl", 2);
    assert_eq!(steps.len() as u64, STEPS);
    steps
}

/// Kills one rank at a step drawn from `seed`, then goes on with another number of ranks.
fn kill_and_go_on(uri: &str, expected: &BTreeMap<u64, Step>, seed: u64) {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let (at, victim, then) =
        (1 + mix64(seed) % (STEPS - 2), (mix64(seed + 1) % 2) as usize, [1, 2, 4][seed as usize % 3]);
    // Slowed down, so that the kill lands in the middle of things and not after the end.
    let every = 1 + mix64(seed + 2) % 9;
    let job = Job::start(2, folder, &arguments(uri, folder, &format!("--checkpoint-every {every} --slow 0=3")));
    wait_for_steps(&folder.join(format!("{victim}.jsonl")), at);
    job.signal(victim, Signal::KILL);
    let ended = job.wait();
    if ended.iter().all(|rank| rank.status.success()) {
        // The machine stood still, and the job had ended when the signal came.
        return kill_and_go_on(uri, expected, seed);
    }
    let survivor = &ended[1 - victim];
    assert!(!survivor.status.success(), "seed {seed}: {}", survivor.output);
    assert!(survivor.output.contains("another rank has died"), "seed {seed}: {}", survivor.output);
    let before = steps(folder, "{rank}.jsonl", 2);
    for rank in 0..4 {
        let log = folder.join(format!("{rank}.jsonl"));
        let _ = std::fs::remove_file(log);
    }
    let ended = Job::start(then, folder, &arguments(uri, folder, "")).done();
    let after = steps(folder, "{rank}.jsonl", then);
    let first = *after.keys().next().unwrap();
    assert!(first <= before.keys().max().unwrap() + 1, "seed {seed}: nothing is skipped");
    assert!(first == 1 || ended[0].output.contains(&format!("goes on from step {}", first - 1)), "{}", ended[0].output);
    assert_eq!(*after.keys().last().unwrap(), STEPS, "seed {seed}");
    for (number, step) in &after {
        assert_eq!(step.ids, expected[number].ids, "seed {seed}, step {number}, then {then} ranks");
        assert_near(*number, step.loss, expected[number].loss);
    }
}

fn five_kills(from: u64) {
    let bucket = digits(1240, 3);
    let uri = bucket.url("training/");
    let expected = reference(&uri);
    (from..from + 5).for_each(|seed| kill_and_go_on(&uri, &expected, seed));
}

#[test]
fn killed_at_random_steps_first_five() {
    five_kills(0);
}

#[test]
fn killed_at_random_steps_second_five() {
    five_kills(5);
}

#[test]
fn killed_at_random_steps_third_five() {
    five_kills(10);
}

#[test]
fn killed_at_random_steps_last_five() {
    five_kills(15);
}

#[test]
fn a_signal_to_one_rank_stops_all_with_a_checkpoint() {
    let bucket = digits(1240, 3);
    let uri = bucket.url("training/");
    let expected = reference(&uri);
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    std::fs::write(folder.join("secret"), "0123456789abcdef").unwrap();
    let peers =
        format!("--slow 0=4 --set peers=auto --set peer_secret_file={}/secret --set cache_limit=4MB", folder.display());
    let job = Job::start(2, folder, &arguments(&uri, folder, &peers));
    wait_for_steps(&folder.join("1.jsonl"), 5);
    job.signal(1, Signal::TERM);
    let ended = job.wait();
    for (rank, one) in ended.iter().enumerate() {
        assert_eq!(one.status.code(), Some(4), "rank {rank}: {}", one.output);
    }
    let handed = |rank: usize| ended[rank].output.contains("handed over ");
    assert!(handed(1) && !handed(0) && !ended[1].output.contains("handed over 0 blocks"), "{}", ended[1].output);
    let stopped = *steps(folder, "{rank}.jsonl", 2).keys().last().unwrap();
    assert!(stopped < STEPS);
    let ended = Job::start(1, folder, &arguments(&uri, folder, "")).done();
    assert!(ended[0].output.contains(&format!("goes on from step {stopped}")), "{}", ended[0].output);
    let all = steps(folder, "{rank}.jsonl", 1);
    for (number, step) in all.iter().filter(|(number, _)| **number > stopped) {
        assert_eq!(step.ids, expected[number].ids, "step {number}");
        assert_near(*number, step.loss, expected[number].loss);
    }
}

/// Two ranks train on 1 260 samples an epoch, in 7 steps, four on 1 080, in 3.
#[test]
fn where_the_last_step_is_dropped_a_run_ends_with_its_order_on_another_number_of_ranks() {
    let bucket = digits(1400, 3);
    let (uri, folder) = (bucket.url("training/"), tempfile::tempdir().unwrap());
    let folder = folder.path();
    let of_all = format!(
        "{uri} --decode 28x28x1 --batch-size 90 --set drop_last=true --epochs 4 --checkpoint {}/saved --step-log {}/{{rank}}.jsonl",
        folder.display(),
        folder.display()
    );
    let job = Job::start(2, folder, &words(&format!("{of_all} --checkpoint-every 21 --slow 0=4")));
    wait_for_steps(&folder.join("1.jsonl"), 22);
    job.signal(1, Signal::KILL);
    if job.wait().iter().all(|rank| rank.status.success()) {
        // The machine stood still, and the job had ended when the signal came.
        return where_the_last_step_is_dropped_a_run_ends_with_its_order_on_another_number_of_ranks();
    }
    let judged = format!("{of_all} --eval-uri {uri} --eval-every-epoch --json {}/out.json", folder.display());
    let ended = Job::start(4, folder, &words(&judged)).done();
    assert!(ended[0].output.contains("goes on from step 21, epoch 3, position 0"), "{}", ended[0].output);
    let report: serde_json::Value = serde_json::from_slice(&std::fs::read(folder.join("out.json")).unwrap()).unwrap();
    assert_eq!(report["outcome"]["steps"], 24, "{report}");
    assert_eq!(
        report["epochs"].as_array().unwrap().len(),
        2,
        "the third, which may not have been, and the last: {report}"
    );
}

#[test]
fn another_model_seed_or_optimiser_is_refused_with_words() {
    let bucket = digits(128, 3);
    let folder = tempfile::tempdir().unwrap();
    let uri = bucket.url("training/");
    let saved = format!("{uri} --decode 28x28x1 --checkpoint {}", folder.path().display());
    assert!(trainer(&words(&saved)).status().unwrap().success());
    for (more, word) in [("--seed 5", "seed"), ("--optimiser adamw", "optimiser"), ("--model resnet18", "model.")] {
        let output = trainer(&words(&format!("{saved} {more}"))).output().unwrap();
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.code() == Some(2) && text.contains(word), "{more}: {text}");
    }
    // What is finished stays finished.
    let again = trainer(&words(&saved)).output().unwrap();
    assert!(again.status.success() && String::from_utf8_lossy(&again.stdout).contains("done: 2 steps"));
}

#[test]
fn a_run_that_diverges_ends_and_leaves_its_good_checkpoints() {
    let bucket = digits(1280, 3);
    let (uri, folder) = (bucket.url("training/"), tempfile::tempdir().unwrap());
    let folder = folder.path();
    let good = format!(
        "{uri} --decode 28x28x1 --batch-size 32 --timeout-s 60 --checkpoint {}",
        folder.join("saved").display()
    );
    Job::start(2, folder, &words(&good)).done();
    // The first such step is too long for the products of the second.
    let bad = format!("{good} --rate 1e30 --checkpoint-every 5 --epochs");
    for (epochs, says) in [(2, "parameters are infinite or NaN"), (3, "20 steps in a row")] {
        let ended = Job::start(2, folder, &words(&format!("{bad} {epochs}"))).wait();
        for (rank, one) in ended.iter().enumerate() {
            assert_eq!(one.status.code(), Some(1), "rank {rank}: {}", one.output);
            assert_eq!(one.output.matches("samples of this rank").count(), 1, "rank {rank}: {}", one.output);
            assert!(one.output.contains(" and 24 more"), "rank {rank}: {}", one.output);
        }
        let said = &ended[0].output;
        assert!(said.contains(says) && said.contains("lower the learning rate"), "{said}");
        assert!(said.contains("goes on from the checkpoint of step 20"), "{said}");
        let names = std::fs::read_dir(folder.join("saved")).unwrap().map(|entry| entry.unwrap().file_name());
        assert_eq!(names.collect::<Vec<_>>(), ["step-000000000020.safetensors"]);
    }
}
