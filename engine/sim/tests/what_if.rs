//! The command `what-if`: from a result file to a table, a picture and a document.

use std::fs;
use std::process::Command;

const CORES: &str = r#"{"object_bytes_mean": 8388608, "rows": [
    {"shards": 1, "gb_per_core_s": {"median": 5.0}, "scaling": {"median": 1.0}, "scaling_of_work": 1.0,
     "work_per_core": {"median": 1.0}},
    {"shards": 2, "gb_per_core_s": {"median": 4.9}, "scaling": {"median": 1.94}, "scaling_of_work": 1.96,
     "work_per_core": {"median": 0.98}}]}"#;

fn what_if(args: &[&str]) -> (i32, String, String) {
    let output = Command::new(env!("CARGO_BIN_EXE_fuelrail-sim")).arg("what-if").args(args).output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (output.status.code().unwrap(), text(output.stdout), text(output.stderr))
}

#[test]
fn a_result_becomes_a_table_a_document_and_a_picture() {
    let folder = std::env::temp_dir().join(format!("fuelrail-what-if-{}", std::process::id()));
    fs::create_dir_all(&folder).unwrap();
    let (measured, svg) = (folder.join("cores.json"), folder.join("limits.svg"));
    fs::write(&measured, CORES).unwrap();
    let path = |path: &std::path::Path| path.to_str().unwrap().to_owned();
    let common = ["--measured", &path(&measured), "--cores", "4", "--nic", "10gbit", "--nic", "400gbit"];
    let (code, text, error) = what_if(&[&common[..], &["--latency-ms", "1", "--svg", &path(&svg)]].concat());
    assert_eq!(code, 0, "{error}");
    for said in ["2 shard(s): predicted 1.96", "4 cores, 10 Gbit/s", "<- first", "virtual time"] {
        assert!(text.contains(said), "{said}: {text}");
    }
    assert!(fs::read_to_string(&svg).unwrap().contains("4 cores, 400 Gbit/s"));
    let (code, json, error) = what_if(&[&common[..], &["--no-logic", "--json"]].concat());
    assert_eq!(code, 0, "{error}");
    let answer: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!(answer["forecasts"][0]["ceilings"][0]["name"], "network card");
    assert_eq!(answer["forecasts"].as_array().unwrap().len(), 2);
    fs::write(&measured, "{}").unwrap();
    let (code, _, error) = what_if(&common);
    assert!(code == 2 && error.contains("bench cores"), "{error}");
    fs::remove_dir_all(&folder).unwrap();
}
