//! `line` and `report`, run small end to end, so that they never rot.

use serde_json::Value;

use super::{fuelrail, utf8};

/// Options that keep a benchmark small: the embedded bucket, few objects, two rounds.
const SMALL: [&str; 9] = ["--venue", "embedded", "--scale", "0.002", "--rounds", "2", "--repeats", "2", "--no-pin"];

#[test]
fn a_line_is_measured_and_drawn() {
    let dir = tempfile::tempdir().unwrap();
    let (result, page) = (dir.path().join("line.json"), dir.path().join("line.html"));
    let args = ["line", "--shapes", "tiny,first", "--set", "shards=1", "--set", "pin=false", "--json", utf8(&result)];
    let ended = fuelrail(&[&args[..], &SMALL].concat());
    // Whether bars hold says nothing here: a debug build beside other tests.
    assert!(ended.code == 0 || ended.code == 1, "{}", ended.err);
    assert!(ended.out.contains("floor-epoll") && ended.out.contains("CPU µs/object"), "{}", ended.out);
    // No terminal watches: a line for every pass that has ended.
    for line in ["tiny, proof, floor-recv (1 of 12): ", "tiny, round 2, fuelrail (12 of 12): ", "first, cold round 1, "]
    {
        assert_eq!(ended.err.matches(line).count(), if line.starts_with("first") { 2 } else { 1 }, "{}", ended.err);
    }
    let json: Value = serde_json::from_str(&std::fs::read_to_string(&result).unwrap()).unwrap();
    let contest = &json["contests"][0];
    let names: Vec<&str> =
        contest["contestants"].as_array().unwrap().iter().map(|scored| scored["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["floor-recv", "floor-epoll", "fuelrail"]);
    for scored in contest["contestants"].as_array().unwrap() {
        assert_eq!(scored["failure"], Value::Null, "{scored}");
        assert_eq!((scored["passes"].as_array().unwrap().len(), &scored["hash"]), (2, &contest["set"]["hash"]));
        assert_eq!(scored["passes"][0]["objects"], contest["set"]["objects"]);
    }
    assert!(contest["entitlement_gb_per_s"].as_f64().unwrap() > 0.0);
    assert_eq!(contest["bars"].as_array().unwrap().len(), 2);
    let first = &json["contests"][1]["contestants"][1];
    assert_eq!((first["name"].as_str(), first["cold_passes"].as_array().unwrap().len()), (Some("fuelrail"), 2));
    assert_eq!(
        (&json["machine"]["optimised"], &json["venue"]["kind"]),
        (&cfg!(not(debug_assertions)).into(), &"embedded".into())
    );

    fuelrail(&["report", utf8(&result), "-o", utf8(&page)]).done();
    assert!(std::fs::read_to_string(&page).unwrap().contains("<svg"));
    let unlike = dir.path().join("unlike.json");
    std::fs::write(&unlike, "{}").unwrap();
    assert_eq!(fuelrail(&["report", utf8(&unlike), "-o", utf8(&page)]).code, 2);
}

#[test]
fn questions_that_cannot_be_asked_are_refused() {
    for (args, word) in [
        (&["line", "--rounds", "0"][..], "0 rounds"),
        (&["line", "--shapes", "huge"], "invalid value 'huge'"),
        (&["line", "--link", "1gbit"], "--venue netns"),
        (&["line", "--venue", "embedded", "--transport", "tls"], "no TLS"),
        (&["line", "--scale", "99"], "scale"),
        (
            &[
                "contestant",
                "floor-epoll",
                "--connections",
                "0",
                "--uri",
                "http://127.0.0.1:9/",
                "--manifest",
                "x",
                "--batch-size",
                "1",
                "--arena",
                "1",
                "--seed",
                "0",
            ],
            "connections",
        ),
    ] {
        let ended = fuelrail(args);
        assert!(ended.code == 2 && ended.err.contains(word), "{args:?}: {} {}", ended.code, ended.err);
    }
}
