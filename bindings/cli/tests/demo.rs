//! `fuelrail demo` from outside: the files it writes, the names in them, and its exit codes.

use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value;

const ROWS: [&str; 11] = [
    "local_disk",
    "bucket",
    "demand_fifo_25",
    "demand_fifo_50",
    "demand_fifo_75",
    "demand_unlimited",
    "deli_full_fetch",
    "deli_50_50",
    "deli_full_fetch_wide",
    "deli_50_50_wide",
    "fuelrail",
];

fn demo(folder: &Path, args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_fuelrail")).arg("demo").args(args).current_dir(folder).output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[test]
fn the_documents_have_the_names_others_rely_on() {
    let folder = tempfile::tempdir().unwrap();
    let output = demo(folder.path(), &["--quick", "--seed", "3"]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let json = std::fs::read(folder.path().join("target/demo/report.json")).unwrap();
    let report: Value = serde_json::from_slice(&json).unwrap();
    assert_eq!((&report["schema"], &report["verified_bytes"]), (&Value::from(1), &Value::from(true)));
    assert!(report["machine"]["cpu"].is_string() && report["config"]["scale"]["get_latency_us"].is_u64());
    let rows = report["rows"].as_array().unwrap();
    assert!(rows.iter().map(|row| row["name"].as_str().unwrap()).eq(ROWS));
    for row in rows {
        let numbers =
            ["data_wait_s", "wait_reduction", "epoch_s", "first_batch_ms", "miss_rate", "batch_wait_p99_ms", "cpu_s"];
        for number in numbers {
            assert!(row[number].is_f64(), "{number} of {row}");
        }
        assert!(report["columns"].as_object().unwrap().keys().all(|name| row[name].is_number()), "{row}");
        assert!(row["peak_rss_bytes"].as_u64().unwrap() > 1 << 20, "{row}");
        assert_eq!(row["epochs"].as_array().unwrap().len(), 2, "{row}");
    }
    let page = std::fs::read_to_string(folder.path().join("target/demo/report.html")).unwrap();
    assert!(page.contains("prefers-color-scheme") && page.contains("</html>"));
    let report = "target/demo/report.json";
    let shown =
        Command::new(env!("CARGO_BIN_EXE_fuelrail")).args(["inspect", report]).current_dir(folder.path()).output();
    assert!(text(&shown.unwrap().stdout).contains("every byte verified"));
    let said = text(&output.stdout);
    assert!(ROWS.iter().all(|row| said.contains(row)) && said.contains("report: target/demo/report.html"), "{said}");
}

#[test]
fn json_alone_fills_standard_output_and_paths_are_obeyed() {
    let folder = tempfile::tempdir().unwrap();
    let output = demo(folder.path(), &["--quick", "--json", "--html", "a/b/page.html"]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert_eq!(serde_json::from_slice::<Value>(&output.stdout).unwrap()["schema"], 1);
    assert!(folder.path().join("a/b/page.html").exists() && !folder.path().join("target").exists());
}

#[test]
fn wrong_usage_is_told_before_the_minutes_pass() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("file"), "").unwrap();
    for args in [&["--full", "--quick"][..], &["--seed", "x"], &["--lots"]] {
        assert_eq!(demo(folder.path(), args).status.code(), Some(2), "{args:?}");
    }
    let output = demo(folder.path(), &["--html", "file/page.html"]);
    assert_eq!(output.status.code(), Some(1), "{}", text(&output.stderr));
}
