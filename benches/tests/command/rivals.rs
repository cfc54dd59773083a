//! `bench line --rivals`: who is there takes part and proves its bytes, who is not is listed with the reason and the cure, and wrong
//! asking is refused.

use crate::skip::skip_or_fail;
use std::path::{Path, PathBuf};

use serde_json::Value;

use super::{Ended, PROGRAM, fuelrail};

/// A run small enough for a test. Figures and bars are those of a busy machine: nothing is asserted about them, and whether
/// they hold decides the exit code alone.
fn small(names: &[&str], more: &[&str]) -> Ended {
    let shape = ["--venue", "embedded", "--shapes", "mid", "--scale", "0.002", "--rounds", "1", "--no-pin"];
    let settings = ["--set", "shards=1", "--set", "pin=false"];
    fuelrail(&[&["line", "--rivals"], names, &shape, more, &settings].concat())
}

fn contest(ended: Ended) -> (Value, Value) {
    assert!([0, 1].contains(&ended.code), "{}", ended.err);
    let found: Value = serde_json::from_str(&ended.out).unwrap_or_else(|e| panic!("{e}: {} {}", ended.out, ended.err));
    (found["contests"][0].clone(), found)
}

fn scored<'a>(contest: &'a Value, name: &str) -> &'a Value {
    let all = contest["contestants"].as_array().unwrap();
    all.iter().find(|scored| scored["name"] == name).unwrap_or_else(|| panic!("{name} in {contest}"))
}

#[test]
fn whoever_is_absent_is_listed_with_reason_and_cure() {
    let folder = tempfile::tempdir().unwrap();
    let nowhere = folder.path().join("fuelrail-rival");
    let more = ["--python-dir", folder.path().to_str().unwrap(), "--rival-program", nowhere.to_str().unwrap()];
    let result = folder.path().join("rivals.json");
    let file = ["--json", result.to_str().unwrap()];
    let ended = small(&["hyper", "s3dlio"], &[&more[..], &file].concat());
    for name in ["hyper", "s3dlio"] {
        let row = ended.out.lines().find(|line| line.trim_start().starts_with(name)).expect("a row of the table");
        assert!(row.ends_with("not installed") && row.len() < 60, "one short cell: {row}");
        assert_eq!(ended.out.matches(&format!("{name} is not in the figures")).count(), 1, "{}", ended.out);
    }
    let out = std::fs::read_to_string(&result).unwrap();
    let (contest, found) = contest(Ended { out, ..ended });
    assert_eq!(found["question"], "rivals");
    for (name, cure) in [("hyper", "cargo build --release -p fuelrail-rivals"), ("s3dlio", "--python installs it")] {
        let why = scored(&contest, name)["failure"].as_str().unwrap();
        assert!(why.contains(cure) && scored(&contest, name)["absence"] == "not installed", "{why}");
        let noted = |note: &Value| note.as_str().unwrap() == format!("{name} is not in the figures: {why}");
        assert!(found["notices"].as_array().unwrap().iter().any(noted), "{found}");
    }
    // The floor and the loader always take part, on the same bytes.
    for name in ["floor-epoll", "fuelrail"] {
        let scored = scored(&contest, name);
        assert!(scored["failure"].is_null() && scored["hash"] == contest["set"]["hash"], "{scored}");
        assert_eq!(scored["passes"][0]["bytes"], contest["set"]["bytes"], "{scored}");
    }
    let bars = contest["bars"].as_array().unwrap();
    let bar =
        bars.iter().find(|judged| judged["bar"]["to"][0] == "s3dlio").expect("a promise stands without its rival");
    assert!(bar["holds"].is_null() && bar["not_judged"] == "s3dlio is not installed", "{bar}");
}

#[test]
fn native_rivals_take_part_and_prove_their_bytes() {
    let rival: PathBuf = Path::new(PROGRAM).with_file_name("fuelrail-rival");
    if !rival.is_file() {
        skip_or_fail("rivals", format_args!("{} is not built: cargo build -p fuelrail-rivals", rival.display()));
        return;
    }
    let (contest, _) = contest(small(&["hyper", "object-store", "hyper-drop"], &["--repeats", "2", "--json"]));
    for name in ["hyper", "object-store", "hyper-drop"] {
        let scored = scored(&contest, name);
        assert!(scored["failure"].is_null(), "{scored}");
        assert_eq!(scored["passes"].as_array().unwrap().len(), 1, "{scored}");
        assert_eq!(scored["passes"][0]["objects"], contest["set"]["objects"], "{scored}");
        let settings = scored["settings"].as_str().unwrap();
        let tried = [1, 8, 32].map(|count| format!("one thread, {count} connections"));
        assert!(tried.iter().any(|tried| settings.contains(tried)), "{scored}");
    }
    for name in ["hyper", "object-store"] {
        assert_eq!(scored(&contest, name)["hash"], contest["set"]["hash"], "{name}");
    }
    assert!(scored(&contest, "hyper-drop")["settings"].as_str().unwrap().ends_with("drops the bytes"));
    let judged = contest["bars"].as_array().unwrap().iter().filter(|judged| judged["holds"].is_boolean());
    let against: Vec<&str> = judged.filter_map(|judged| judged["against"].as_str()).collect();
    assert!(against.contains(&"hyper") && against.contains(&"object-store"), "{contest}");
}

#[test]
fn wrong_asking_is_refused() {
    for (args, told) in [
        (&["htop"][..], "unknown rival `htop`"),
        (&["hyper", "--rounds", "0"], "0 rounds"),
        (&["hyper", "--shapes", "huge"], "invalid value 'huge'"),
    ] {
        let ended = fuelrail(&[&["line", "--rivals"], args].concat());
        assert!(ended.code == 2 && ended.err.contains(told), "{args:?}: {} {}", ended.code, ended.err);
    }
}
