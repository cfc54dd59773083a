//! `bench read`: the shape of its result, what the content hash proves, faults, kills and ranks.

use std::fs;
use std::process::{Command, Stdio};
use std::time::Duration;

use fuelrail_bucket::{AccessKey, Bucket, BucketConfig, DataSet, Tls};
use serde_json::Value;

use super::{Ended, PROGRAM, SMALL, bench_read, bucket_of, cleared, fuelrail, key_order_hash, program, utf8};

/// The names others rely on.
const KEYS: [&str; 20] = [
    "schema",
    "wall_s",
    "bytes",
    "samples",
    "gb_per_s",
    "samples_per_s",
    "cpu_user_s",
    "cpu_sys_s",
    "cpu_s_per_gb",
    "cpu_us_per_sample",
    "peak_rss_bytes",
    "copied_bytes_per_byte",
    "batch_wait_us",
    "first_batch_us",
    "hit_ratio",
    "retries",
    "requests",
    "content_hash",
    "machine",
    "config",
];

#[test]
fn the_result_keeps_its_names_and_anyone_can_check_the_hash() {
    let set = DataSet::digits(300, 7);
    let bucket = bucket_of(&set, "");
    let read = bench_read(&bucket.url("training/"), &["--shuffle", "false", "--batch-size", "32", "--json"]).json();
    for key in KEYS {
        assert!(!read[key].is_null(), "{key} in {read}");
    }
    for quantile in ["p50", "p99", "p999", "max"] {
        assert!(read["batch_wait_us"][quantile].is_u64(), "{quantile} in {read}");
    }
    assert_eq!(
        (&read["schema"], &read["samples"], &read["bytes"]),
        (&2.into(), &300.into(), &set.total_bytes().into())
    );
    assert_eq!(read["content_hash"], key_order_hash(&set));
    assert_eq!((&read["config"]["batch_size"], &read["config"]["shuffle"]), (&32.into(), &false.into()));
    let host = fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let machine = read["machine"].to_string();
    assert!(host.trim().len() < 5 || !machine.contains(host.trim()), "no host names in results: {machine}");
}

#[test]
fn the_result_goes_where_it_was_asked_for() {
    let bucket = bucket_of(&DataSet::digits(50, 7), "");
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("run.json");
    let table = bench_read(&bucket.url(""), &["--hash", "false", "--json", utf8(&file)]).done();
    assert!(table.contains("CPU per GB") && table.contains("batch wait"), "{table}");
    let json: Value = serde_json::from_str(&fs::read_to_string(&file).unwrap()).unwrap();
    assert_eq!((&json["samples"], &json["content_hash"]), (&50.into(), &Value::Null));
    // The switch before the URI takes nothing away from it.
    let swapped = fuelrail(&[&["bench", "read", "--json", &bucket.url("")], &SMALL[..]].concat()).json();
    assert_eq!(swapped["samples"], 50);
}

#[test]
fn settings_come_from_argument_environment_and_file_in_that_order() {
    let bucket = bucket_of(&DataSet::digits(50, 7), "");
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("read.toml");
    let text = "batch_size = 5\nseed = 5\nepochs = 5\nshards = 1\npin = false\nmemory_limit_bytes = \"64 MiB\"\n";
    fs::write(&file, text).unwrap();
    let output = program()
        .args(["bench", "read", &bucket.url(""), "--config", utf8(&file), "--epochs", "2", "--json"])
        .envs([("FUELRAIL_SEED", "6"), ("FUELRAIL_EPOCHS", "6")])
        .output()
        .unwrap();
    let config = &super::Ended::new(output).json()["config"];
    let wanted = serde_json::json!([5, 6, 2]);
    assert_eq!(serde_json::json!([config["batch_size"], config["seed"], config["epochs"]]), wanted);
}

#[test]
fn a_read_tells_its_state_on_sigusr1_and_goes_on() {
    let bucket = bucket_of(&DataSet::digits(400, 9), "");
    let dir = tempfile::tempdir().unwrap();
    let log = utf8(&dir.path().join("log")).to_owned();
    let child = program()
        .args(["bench", "read", &bucket.url("")])
        .args(SMALL)
        .args(["--batch-size", "4", "--step-ms", "30", "--audit", &log])
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    wait_for_lines(&log, 10);
    assert!(Command::new("kill").args(["-USR1", &child.id().to_string()]).status().unwrap().success());
    let ended = child.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&ended.stderr);
    assert!(ended.status.success() && said.contains("warning: state of all stages (SIGUSR1)"), "{ended:?}");
}

#[test]
fn a_state_that_is_none_or_has_no_room_says_so_and_leaves_nothing() {
    let (bucket, dir) = (bucket_of(&DataSet::digits(8, 9), ""), tempfile::tempdir().unwrap());
    let (uri, state) = (bucket.url(""), dir.path().join("run.state"));
    fs::write(&state, [0xFF, 0xFE, 0]).unwrap();
    let ended = bench_read(&uri, &["--state", utf8(&state)]);
    assert!(ended.code == 2 && ended.err.contains("not a loader state"), "{}", ended.err);
    fs::remove_file(&state).unwrap();
    // No file may have a byte.
    let script = "trap '' XFSZ; ulimit -f 0; exec \"$0\" \"$@\"";
    let mut command = Command::new("sh");
    command.args(["-c", script, PROGRAM, "bench", "read", &uri, "--state", utf8(&state)]).args(SMALL);
    let ended = Ended::new(cleared(command).output().unwrap());
    assert!(ended.code == 1 && ended.err.contains("writing the state"), "{}", ended.err);
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
}

#[test]
fn a_killed_run_goes_on_and_the_joined_logs_prove_every_sample_once() {
    let bucket = bucket_of(&DataSet::digits(400, 9), "");
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| utf8(&dir.path().join(name)).to_owned();
    let (state, uri) = (path("run.state"), bucket.url(""));
    let read = ["--batch-size", "4", "--epochs", "2", "--state", &state];
    let logs = [path("1.log"), path("2.log"), path("3.log")];
    for log in &logs[..2] {
        let mut child = program()
            .args(["bench", "read", &uri])
            .args(SMALL)
            .args(read)
            // Both epochs take seconds: on a busy machine, too, the kill comes before their end.
            .args(["--step-ms", "20", "--audit", log])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        wait_for_lines(log, 40);
        child.kill().unwrap();
        child.wait().unwrap();
    }
    let rest = bench_read(&uri, &[&read[..], &["--audit", &logs[2], "--json"]].concat()).json();
    assert!(rest["samples"].as_u64().unwrap() < 800, "{rest}");
    let [first, second, third] = logs.each_ref().map(String::as_str);
    let joined = fuelrail(&["inspect", first, second, third]).done();
    assert!(joined.contains("exactly once: yes"), "{joined}");
    let json = fuelrail(&["inspect", "--json", first, second, third]).json();
    assert_eq!((&json["audit"]["exactly_once"], &json["audit"]["epochs"][1]["once"]), (&true.into(), &400.into()));

    let again = bench_read(&uri, &[&read[..], &["--audit", &logs[2]]].concat());
    assert_eq!(again.code, 2, "a log that the proof needs is not written over: {}", again.err);
}

/// Waits until the log holds so many lines; gives up after a minute.
fn wait_for_lines(log: &str, lines: usize) {
    for _ in 0..6_000 {
        if fs::read_to_string(log).is_ok_and(|text| text.lines().count() >= lines) {
            return;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    panic!("{log} does not grow to {lines} lines");
}

#[test]
fn latencies_are_written_as_histograms() {
    let bucket = bucket_of(&DataSet::digits(100, 3), "");
    let dir = tempfile::tempdir().unwrap();
    let prefix = utf8(&dir.path().join("gets")).to_owned();
    let args = ["--size", "256,512", "--rate", "2000", "--arrivals", "random", "--requests", "200", "--warm-up", "10"];
    let question = ["bench", "latency", &bucket.url(""), "--hgrm", &prefix, "--json"];
    let json = fuelrail(&[&question[..], &args].concat()).json();
    assert_eq!(json["latencies"].as_array().unwrap().len(), 2);
    assert_eq!(json["latencies"][1]["response"]["count"], 200);
    let text = std::fs::read_to_string(format!("{prefix}-2-response.hgrm")).unwrap();
    assert!(text.contains("Percentile") && text.contains("Total count    =          200"), "{text}");
    let loader =
        ["--through", "loader", "--requests", "50", "--warm-up", "5", "--set", "shards=1", "--set", "pin=false"];
    let table = fuelrail(&[&["bench", "latency", &bucket.url("")][..], &loader].concat()).done();
    assert!(table.contains("sample from the loader"), "{table}");
}

#[test]
fn latencies_are_those_of_private_buckets_over_tls_too() {
    let key = AccessKey { id: "AKIAEXAMPLE".into(), secret: "secret".into() };
    let config = BucketConfig { tls: Some(Tls::SelfSigned), key: Some(key), ..BucketConfig::default() };
    let bucket = Bucket::start(config).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let ca = dir.path().join("ca.pem");
    fs::write(&ca, bucket.authority().unwrap()).unwrap();
    let url = bucket.url("training/");
    let ended = |args: &[&str], id: &str| {
        let question = ["bench", "latency", &url, "--ca-file", utf8(&ca), "--requests", "40", "--warm-up", "8"];
        let keys = [("AWS_ACCESS_KEY_ID", id), ("AWS_SECRET_ACCESS_KEY", "secret")];
        super::Ended::new(program().args(question).args(args).envs(keys).output().unwrap())
    };
    for through in [&["--size", "100"][..], &["--through", "loader", "--set", "shards=1", "--set", "pin=false"]] {
        let json = ended(&[&["--anonymous", "false", "--json"], through].concat(), "AKIAEXAMPLE").json();
        assert_eq!(json["latencies"][0]["response"]["count"], 40, "{json}");
    }
    assert!(bucket.counters().body_bytes > 48 * 100 && bucket.counters().tls_full > 0);
    let refused = ended(&["--anonymous", "false"], "AKIAOTHER");
    assert!(refused.code != 0 && refused.err.contains("403"), "{}", refused.err);
}

#[test]
fn latencies_that_cannot_be_measured_are_refused() {
    for (args, word) in
        [(&["--through", "loader", "--size", "1KiB"][..], "whole samples"), (&["--arrivals", "even"], "--rate")]
    {
        let ended = fuelrail(&[&["bench", "latency", "http://127.0.0.1:9/"], args].concat());
        assert!(ended.code == 2 && ended.err.contains(word), "{args:?}: {} {}", ended.code, ended.err);
    }
}
