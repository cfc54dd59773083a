//! `bench line --rings`, small: every ring comes through, and the result says so.

use crate::skip::skip_or_fail;
use std::process::Command;

const RINGS: [&str; 4] = ["uring", "poll", "tokio-uring", "glommio"];

/// The result of a benchmark; panics with what it printed when it fails.
fn ask(args: &[&str]) -> serde_json::Value {
    let run = Command::new(env!("CARGO_BIN_EXE_fuelrail-bench")).args(args).output().unwrap();
    let told = String::from_utf8_lossy(&run.stderr);
    assert!(run.status.success(), "{args:?}: {told}\n{}", String::from_utf8_lossy(&run.stdout));
    serde_json::from_slice(&run.stdout).unwrap()
}

/// Names of the contestants with a warm pass, contest by contest.
fn came_through(result: &serde_json::Value) -> Vec<(String, Vec<String>)> {
    let text = |value: &serde_json::Value| value.as_str().unwrap().to_owned();
    let contests = result["contests"].as_array().unwrap().iter();
    contests
        .map(|contest| {
            let all = contest["contestants"].as_array().unwrap().iter();
            let through = all.filter(|one| one["failure"].is_null() && !one["passes"].as_array().unwrap().is_empty());
            (text(&contest["set"]["name"]), through.map(|one| text(&one["name"])).collect())
        })
        .collect()
}

#[test]
fn every_ring_reads_a_shape() {
    if Command::new("nginx").arg("-v").output().is_err() {
        skip_or_fail("nginx", "it is not installed");
        return;
    }
    let result = ask(&[
        "line",
        "--rings",
        "--no-pin",
        "--shapes",
        "mid",
        "--scale",
        "0.001",
        "--repeats",
        "1",
        "--rounds",
        "1",
        "--json",
    ]);
    let through = came_through(&result);
    let names: Vec<&str> = through.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(names, ["mid"]);
    for (name, who) in &through {
        assert!(RINGS.iter().all(|ring| who.iter().any(|one| one == ring)), "{name}: {who:?}");
    }
}
