//! `bench spill` and `bench rings`, small: every ring of the command comes through, and the result says so.

use crate::skip::skip_or_fail;
use std::process::Command;

const RINGS: [&str; 4] = ["uring", "poll", "tokio-uring", "glommio"];

/// The result of a question; panics with what it printed when it fails.
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
fn blocks_go_to_a_disk_and_back_on_every_ring() {
    let folder = tempfile::tempdir().unwrap();
    let disk = folder.path().to_str().unwrap();
    let rings = RINGS.join(",");
    let result = ask(&[
        "spill",
        disk,
        "--rings",
        &rings,
        "--bytes",
        "2MiB",
        "--block-size",
        "64KiB",
        "--depth",
        "4",
        "--direct",
        "false",
        "--rounds",
        "1",
        "--fio",
        "false",
        "--json",
    ]);
    let everybody: Vec<String> = RINGS.map(str::to_owned).to_vec();
    let expected = [("disk-write".to_owned(), everybody.clone()), ("disk-read".to_owned(), everybody)];
    assert_eq!(came_through(&result), expected);
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0, "the contestants' files are gone");
}

#[test]
fn every_ring_reads_a_shape_and_moves_blocks() {
    if Command::new("nginx").arg("-v").output().is_err() {
        skip_or_fail("nginx", "it is not installed");
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let disk = folder.path().to_str().unwrap();
    let result = ask(&[
        "rings",
        "--no-pin",
        "--shapes",
        "mid",
        "--scale",
        "0.001",
        "--repeats",
        "1",
        "--rounds",
        "1",
        "--disk",
        disk,
        "--bytes",
        "1MiB",
        "--block-size",
        "64KiB",
        "--json",
    ]);
    let through = came_through(&result);
    let names: Vec<&str> = through.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(names, ["mid", "disk-write", "disk-read"]);
    for (name, who) in &through {
        assert!(RINGS.iter().all(|ring| who.iter().any(|one| one == ring)), "{name}: {who:?}");
    }
}
