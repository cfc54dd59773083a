//! From synchronous to asynchronous steps in place: what is exact then, and what is not.

use crate::common::{Job, digits, lines, steps, words};
use fuelrail_tch::{Slow, TrainConfig};
use std::collections::BTreeSet;

/// Trains two ranks of which the second is slow, switching after a fifth.
fn train(folder: &std::path::Path, uri: &str) -> (String, u64) {
    let text = format!(
        "{uri} --decode 28x28x1 --batch-size 32 --epochs 3 --rate 0.02 --switch-after 0.2 --slow 1=4 --timeout-s 60 --step-log {} --checkpoint {}",
        folder.join("{rank}.jsonl").display(),
        folder.join("saved").display()
    );
    let ended = Job::start(2, folder, &words(&text)).done();
    let said = ended[0].output.clone();
    let samples = said.split(" samples, ").next().and_then(|before| before.rsplit(' ').next()?.parse().ok());
    (said, samples.expect("the last line counts samples"))
}

#[test]
fn the_budget_is_counted_over_all_ranks_and_each_keeps_to_its_share() {
    const SAMPLES: u64 = 640;
    let bucket = digits(SAMPLES, 3);
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let (said, samples) = train(folder, &bucket.url("training/"));
    assert!(said.contains("asynchronous from here: the synchronous share of the work is done"), "{said}");
    assert!((3 * SAMPLES..3 * SAMPLES + 2 * 32).contains(&samples), "{said}");

    // Synchronous steps are exact: together the ranks take every sample once.
    let both = steps(folder, "{rank}.jsonl", 2);
    let first: Vec<u64> = both.values().take(6).flat_map(|step| step.ids.clone()).collect();
    assert_eq!(first.len(), 6 * 64);
    assert_eq!(first.iter().collect::<BTreeSet<_>>().len(), first.len());

    // Then the slow rank does fewer steps, and within an epoch no rank takes a sample twice, nor one of the other's share.
    let epochs = |rank: usize| {
        let mut epochs: Vec<Vec<u64>> = Vec::new();
        for line in lines(&folder.join(format!("{rank}.jsonl"))) {
            let epoch = line["epoch"].as_u64().unwrap() as usize;
            epochs.resize(epochs.len().max(epoch + 1), Vec::new());
            epochs[epoch].extend(line["ids"].as_array().unwrap().iter().map(|id| id.as_u64().unwrap()));
        }
        epochs
    };
    let (fast, slow) = (epochs(0), epochs(1));
    let count = |epochs: &[Vec<u64>]| epochs.iter().map(Vec::len).sum::<usize>();
    assert!(count(&fast) > count(&slow), "{} and {}", count(&fast), count(&slow));
    for epoch in 0..fast.len().max(slow.len()) {
        let of = |all: &[Vec<u64>]| all.get(epoch).cloned().unwrap_or_default();
        let taken = [of(&fast), of(&slow)].concat();
        assert_eq!(taken.iter().collect::<BTreeSet<_>>().len(), taken.len(), "epoch {epoch}");
    }
}

#[test]
fn a_rank_that_lags_for_a_while_holds_up_none_and_a_resumption_begins_where_all_are() {
    let bucket = digits(640, 3);
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let text = |epochs| {
        format!(
            "{} --decode 28x28x1 --batch-size 16 --epochs {epochs} --rate 0.02 --straggler 6 --slow 1=25@0.1..0.2 --timeout-s 60 --step-log {} --checkpoint {}",
            bucket.url("training/"),
            folder.join("{rank}.jsonl").display(),
            folder.join("saved").display()
        )
    };
    let said = Job::start(2, folder, &words(&text(15))).done()[0].output.clone();
    let (lags, gone) =
        (said.find("asynchronous from here: rank 1 lags behind"), said.find("synchronous again: no rank lags"));
    assert!(lags.is_some() && lags < gone, "{said}");
    let modes: Vec<String> = steps(folder, "{rank}.jsonl", 2).into_values().map(|step| step.mode).collect();
    let back = modes.iter().skip_while(|mode| *mode == "synchronous").skip_while(|mode| *mode == "asynchronous");
    assert!(modes[0] == "synchronous" && back.count() > 0, "{modes:?}");
    // All ranks go on at one place, with the epochs that are left.
    let said = Job::start(2, folder, &words(&text(16))).done()[0].output.clone();
    assert!(said.contains("goes on from step") && said.contains(", epoch 15, position "), "{said}");
}

#[test]
fn a_delay_that_cannot_be_waited_for_is_refused() {
    let refused = |factor| {
        let slow = [1.5, factor].map(|factor| Slow { rank: 0, factor, during: 0.0..1.0 }).to_vec();
        TrainConfig { epoch_samples: 1, slow, ..TrainConfig::default() }.validate().is_err()
    };
    assert!([0.5, f64::NAN, f64::INFINITY].into_iter().all(refused) && !refused(1.0));
}
