//! `tune`: what it says, and a file that the loader reads.

use std::fs;
use std::path::Path;

use fuelrail::Config;
use fuelrail_bucket::DataSet;

use super::{bucket_of, fuelrail, utf8};

/// A page with two charts that says this.
fn has_charts(page: &Path, words: &str) {
    let page = fs::read_to_string(page).unwrap();
    assert!(page.matches("<svg").count() == 2 && page.contains(words) && !page.contains("NaN"), "{words}: {page}");
}

#[test]
fn the_file_it_writes_is_one_the_loader_reads() {
    let bucket = bucket_of(&DataSet::volumes(12, 4, 0.005), "");
    let dir = tempfile::tempdir().unwrap();
    let (out, json) = (dir.path().join("node.toml"), dir.path().join("tuned.json"));
    let uri = bucket.url("");
    let args = ["tune", &uri, "--budget", "6s", "--batch-size", "2", "--memory-limit", "64MiB"];
    let page = dir.path().join("tuned.html");
    let files = ["--out", utf8(&out), "--json", utf8(&json), "--html", utf8(&page)];
    let ended = fuelrail(&[&args[..], &files].concat());
    let text = ended.done();
    for word in ["best", "limit", "predicted", "achieved", "untuned", "trials of"] {
        assert!(text.contains(word), "{word}: {text}");
    }
    let report: serde_json::Value = serde_json::from_str(&fs::read_to_string(&json).unwrap()).unwrap();
    let config = Config::load(Some(&out), [], &[]).unwrap();
    assert_eq!((config.uri.as_str(), config.batch_size), (uri.as_str(), 2));
    for (field, value) in [("shards", u64::from(config.shards.unwrap())), ("block_bytes", config.memory.block_size.0)] {
        assert_eq!(report["best"][field], value, "{field} in {report}");
    }
    let achieved = report["outcome"]["achieved_gb_per_s"].as_f64().unwrap();
    has_charts(&page, &format!("{achieved:.3} GB"));
    let read = ["bench", "read", "--config", utf8(&out), "--pin", "false", "--html", utf8(&page), "--json"];
    let read = fuelrail(&read).json();
    has_charts(&page, &format!("{:.3} GB", read["gb_per_s"].as_f64().unwrap()));
    assert_eq!(read["config"]["connections_max"], report["best"]["connections_max"]);
    assert_eq!(read["samples"], 12);
}

#[test]
fn what_cannot_be_tuned_is_refused_at_once() {
    let dir = tempfile::tempdir().unwrap();
    let own = dir.path().join("mine.toml");
    fs::write(&own, "seed = 3\n").unwrap();
    let foreign = fuelrail(&["tune", "http://127.0.0.1:1/b/", "--out", utf8(&own)]);
    assert!(
        foreign.code == 2 && foreign.err.contains("was not written by fuelrail tune") && foreign.err.contains("--out"),
        "{}",
        foreign.err
    );
    assert_eq!(fs::read_to_string(&own).unwrap(), "seed = 3\n");
    let bucket = bucket_of(&DataSet::digits(10, 4), "");
    let out = dir.path().join("new.toml");
    let hasty = fuelrail(&["tune", &bucket.url(""), "--budget", "1s", "--out", utf8(&out)]);
    assert!(hasty.code == 2 && hasty.err.contains("too short") && !out.exists(), "{}", hasty.err);
}
