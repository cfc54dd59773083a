//! `inspect`: recognises what this project writes, and says no to what it does not.

use std::fs;
use std::path::Path;

use fuelrail_bucket::DataSet;

use super::{bench_read, bucket_of, fuelrail, utf8};

#[test]
fn a_state_a_result_and_a_log_are_recognised_and_shown() {
    let bucket = bucket_of(&DataSet::digits(64, 13), "");
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| utf8(&dir.path().join(name)).to_owned();
    let (state, result, log) = (path("a.state"), path("a.json"), path("a.log"));
    let args = ["--seed", "5", "--state", &state, "--json", &result, "--audit", &log];
    bench_read(&bucket.url(""), &args).done();

    let shown = fuelrail(&["inspect", &state, &result, &log]).done();
    for says in
        ["the state of a loader", "shuffled by seed 5", "epoch 1, position 0", "a result of bench read", "CPU per GB"]
    {
        assert!(shown.contains(says), "'{says}' in {shown}");
    }
    assert!(shown.contains("exactly once: yes"), "{shown}");
    let json = fuelrail(&["inspect", "--json", &state, &result, &log]).json();
    let kinds: Vec<_> = json["files"].as_array().unwrap().iter().map(|file| file["kind"].clone()).collect();
    assert_eq!(kinds, ["state", "bench read", "audit log"]);
    assert_eq!((&json["files"][0]["state"]["seed"], &json["files"][1]["report"]["samples"]), (&5.into(), &64.into()));
}

#[test]
fn a_log_that_delivers_a_batch_twice_proves_the_opposite() {
    let bucket = bucket_of(&DataSet::digits(20, 14), "");
    let dir = tempfile::tempdir().unwrap();
    let log = utf8(&dir.path().join("a.log")).to_owned();
    bench_read(&bucket.url(""), &["--audit", &log]).done();
    let text = fs::read_to_string(&log).unwrap();
    let batch = text.lines().last().unwrap();
    fs::write(&log, format!("{text}{batch}\n")).unwrap();
    let ended = fuelrail(&["inspect", &log]);
    assert!(ended.code == 1 && ended.out.contains("exactly once: no"), "{}", ended.out);
    let json: serde_json::Value = serde_json::from_str(&fuelrail(&["inspect", "--json", &log]).out).unwrap();
    assert_eq!((&json["audit"]["exactly_once"], &json["audit"]["epochs"][0]["repeated"]), (&false.into(), &20.into()));
    // What a crash leaves: a torn last line, and samples that were never logged.
    fs::write(&log, &text[..text.len() - 5]).unwrap();
    let ended = fuelrail(&["inspect", &log]);
    assert!(ended.code == 1 && ended.out.contains("not proved"), "{}", ended.out);
}

#[test]
fn what_is_broken_or_foreign_is_said_to_be() {
    let dir = tempfile::tempdir().unwrap();
    for (text, code, says) in [
        (&b"hello"[..], 1, "unrecognised file type"),
        (b"", 1, "unrecognised file type"),
        (b"\xFF\xD8\xFF\tbinary", 1, "unrecognised file type"),
        (b"{\"a\": 1}", 1, "unrecognised file type"),
        (b"[1, 2]", 1, "unrecognised file type"),
        (b"a.png\tten\n", 2, "line 1"),
        (b"{\"version\":9,\"epoch\":0,\"position\":0}", 2, "not a loader state"),
        (b"{\"schema\":1,\"batch_wait_us\":{}}", 1, "not a valid result"),
        (b"{\"schema\":1,\"rows\":[]}", 1, "missing field `machine`"),
        (b"{\"schema\":2,\"rows\":[]}", 1, "its schema is 2"),
        (b"{\"fuelrail_audit\":7}\n", 2, "audit log"),
    ] {
        let file = dir.path().join("file");
        fs::write(&file, text).unwrap();
        let ended = fuelrail(&["inspect", utf8(&file)]);
        let shown = String::from_utf8_lossy(text);
        assert_eq!(ended.code, code, "{shown}: {}", ended.err);
        assert!(ended.err.starts_with("error: ") && ended.err.contains(says), "{shown}: {}", ended.err);
    }
}

#[test]
fn shards_are_shown_with_their_fields() {
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../engine/format/tests/data");
    let file = |name: &str| utf8(&golden.join(name)).to_owned();
    let files = ["webdataset.tar", "mds/index.json", "examples.tfrecord"].map(file);
    let set = DataSet::digits(30, 13);
    let bucket = bucket_of(&set, "");
    fuelrail(&["put", &files[0], &bucket.url("shards/a.tar")]).done();
    let json = fuelrail(&["inspect", "--json", &files[0], &files[1], &files[2], &bucket.url("shards/")]).json();
    let shards: Vec<_> = json["files"].as_array().unwrap().iter().map(|file| &file["shards"]).collect();
    assert_eq!([0, 1, 2].map(|at| shards[at]["format"].clone()), ["webdataset", "mds", "tfrecord"]);
    assert_eq!([0, 1, 2].map(|at| shards[at]["records"].clone()), [5, 6, 4]);
    assert_eq!(shards[0]["first_keys"], serde_json::json!(["train/0000", "train/0001", "train/0002"]));
    assert_eq!(shards[0], shards[3], "in a bucket as in a file");
    let jpg = shards[0]["fields"].as_array().unwrap().iter().find(|field| field["name"] == "jpg").unwrap();
    assert_eq!((&jpg["records"], &jpg["bytes"], &jpg["largest_bytes"]), (&5.into(), &3500.into(), &1300.into()));
    let shown = fuelrail(&["inspect", &files[0]]).done();
    assert!(shown.contains("webdataset, 5 records") && shown.contains("first train/0000, "), "{shown}");
    for (name, says) in [(bucket.url("training/"), "unrecognised file type"), (file("no.tar"), "no file or folder")] {
        let refused = fuelrail(&["inspect", &name]);
        assert!(refused.code != 0 && refused.err.contains(says) && refused.err.contains("hint: "), "{}", refused.err);
    }
    let packed = ["rows-snappy.parquet", "mds-zstd/index.json"].map(file);
    let json = fuelrail(&["inspect", "--json", &packed[0], &packed[1]]).json();
    let shown = |at: usize| &json["files"][at]["shards"];
    assert_eq!(
        [0, 1].map(|at| (&shown(at)["format"], &shown(at)["records"])),
        [(&"parquet".into(), &10.into()), (&"mds".into(), &6.into())]
    );
    let fields = shown(0)["fields"].as_array().unwrap();
    let text = fields.iter().find(|field| field["name"] == "text").unwrap();
    assert_eq!((fields.len(), &text["records"], &text["bytes"]), (12, &9.into(), &80.into()));
    let dir = tempfile::tempdir().unwrap();
    let damaged = dir.path().join("damaged.tfrecord");
    let mut bytes = fs::read(&files[2]).unwrap();
    bytes[20] ^= 1;
    fs::write(&damaged, bytes).unwrap();
    let refused = fuelrail(&["inspect", utf8(&damaged)]);
    assert!(refused.code != 0 && refused.err.contains("checksum"), "{}", refused.err);
    let (cut, whole) = (dir.path().join("cut.tar"), fs::read(&files[0]).unwrap());
    let members = (whole.iter().rposition(|byte| *byte != 0).unwrap() + 1).next_multiple_of(512);
    fs::write(&cut, &whole[..members]).unwrap();
    let refused = fuelrail(&["inspect", utf8(&cut)]);
    assert!(refused.code != 0 && refused.err.contains("no end-of-archive mark"), "{}", refused.err);
    fs::write(&cut, &whole[..members + 512]).unwrap();
    fuelrail(&["inspect", utf8(&cut)]).done();
}
