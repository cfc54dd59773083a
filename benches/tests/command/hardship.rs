//! The questions about a bucket on a bad day, and about what a machine has room for: asked small, so that they never rot. Nothing here
//! is about how long something takes.

use std::path::PathBuf;

use fuelrail_benches::throttle::{Throttle, throttle};
use serde_json::Value;

use super::{PROGRAM, fuelrail, utf8};

/// The entries of a list whose field `name` is text, as text.
fn names(list: &Value, name: &str) -> Vec<String> {
    list.as_array().unwrap().iter().map(|entry| entry[name].as_str().unwrap().to_owned()).collect()
}

#[test]
fn a_heavy_tail_is_read_three_ways() {
    let small = ["--objects", "300", "--object-bytes", "20000", "--batch-size", "16", "--epochs", "1", "--rounds", "1"];
    let quick = ["--latency-ms", "2", "--step-ms", "1", "--json"];
    let report = fuelrail(&[&["tail"], &small[..], &quick].concat()).json();
    assert_eq!(names(&report["rows"], "life"), ["no tail", "tail", "tail, hedged"]);
    assert_eq!(report["objects"], 300);
    let ratios: Vec<f64> =
        report["rows"].as_array().unwrap().iter().map(|row| row["epoch_ratio"]["median"].as_f64().unwrap()).collect();
    assert!(ratios[0] == 1.0 && ratios.iter().all(|ratio| *ratio > 0.0), "{ratios:?}");
}

#[test]
fn tiers_are_filled_under_three_policies() {
    let folder = tempfile::tempdir().unwrap();
    let args = ["tiers", utf8(folder.path()), "--photos", "400", "--percents", "50", "--rounds", "1", "--json"];
    let report = fuelrail(&args).json();
    assert_eq!(names(&report["rows"], "policy"), ["next-use", "lru", "fifo"]);
    let hits = |at: usize| report["rows"][at]["hit_ratio"].as_f64().unwrap();
    assert!(hits(0) > 0.0 && (0..3).all(|at| hits(at) <= hits(0) + 0.05), "{report}");
    assert!(report["p99_ratio"]["median"].as_f64().unwrap() > 0.0);
    let left: Vec<_> = std::fs::read_dir(folder.path()).unwrap().collect();
    assert!(left.is_empty(), "what is written is removed: {left:?}");
}

#[test]
fn a_rate_limit_is_met_alone_together_and_apart_and_an_outage_is_survived() {
    let question = Throttle {
        objects: 20_000,
        requests_per_s: 500,
        limited_s: 3,
        lifted_s: 1,
        outage_s: 2,
        program: PathBuf::from(PROGRAM),
        ..Throttle::default()
    };
    let mut said = Vec::new();
    let report = throttle(&question, &mut |line| said.push(line.to_owned())).unwrap();
    let who: Vec<_> = report.runs.iter().map(|run| (run.processes, run.shared, run.shares.len())).collect();
    assert_eq!((who, said.len()), (vec![(1, false, 1), (2, true, 2), (2, false, 2)], 5));
    for run in &report.runs {
        let refused = run.refused_before as f64 + run.refused;
        assert!(refused > 0.0 && run.shares.iter().all(|share| *share > 0.0), "{run:?}");
    }
    for run in &report.outages {
        assert!(run.went_on && run.before_per_s > 0.0 && (1..200).contains(&run.requests), "{run:?}");
    }
    let refused = fuelrail(&["throttle", "--seconds", "5"]);
    assert!(refused.code == 2 && refused.err.contains("at least 13"), "{}", refused.err);
}
