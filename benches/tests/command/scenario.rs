//! Scenarios run small end to end, so that they never rot. Nothing here is about how long something takes.

use serde_json::Value;

use super::{fuelrail, utf8};

/// The rows of a scenario: names and values by title, whose medians are read. Every row has the value of the last column named.
fn rows(args: &[&str]) -> Vec<(String, Value)> {
    let report = fuelrail(&[&["scenario"], args, &["--json"]].concat()).json();
    assert_eq!((&report["question"], &report["name"]), (&"scenario".into(), &args[0].into()));
    assert_eq!(report["runs"].as_array().unwrap().len(), report["rows"].as_array().unwrap().len(), "one round");
    let rows = report["rows"].as_array().unwrap().iter();
    rows.map(|row| (row["run"].as_str().unwrap().to_owned(), row["values"].clone())).collect()
}

fn median(row: &(String, Value), title: &str) -> f64 {
    row.1[title]["median"].as_f64().unwrap_or_else(|| panic!("{title}: {row:?}"))
}

fn names(rows: &[(String, Value)]) -> Vec<&str> {
    rows.iter().map(|(name, _)| name.as_str()).collect()
}

#[test]
fn a_heavy_tail_is_read_three_ways() {
    let rows = rows(&["tail", "--quick", "--set", "stall_after_ms=500", "--set", "batch_size=16"]);
    assert_eq!(names(&rows), ["no tail", "tail", "tail, hedged"]);
    let ratios: Vec<f64> = rows.iter().map(|row| median(row, "epoch, × no tail")).collect();
    assert!(ratios[0] == 1.0 && ratios.iter().all(|ratio| *ratio > 0.0), "{ratios:?}");
    assert!(rows.iter().all(|row| median(row, "epoch s") > 0.0), "{rows:?}");
}

#[test]
fn tiers_are_filled_under_three_policies_and_reads_stand_beside_writes() {
    // Which policy hits more, and what is written, is told where no other program keeps the disk busy: in memory.
    let memory = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap();
    let tiers = rows(&["tiers", "--quick", "--only", "50 %", "--dir", utf8(memory.path())]);
    assert_eq!(names(&tiers), ["next-use, 50 %", "lru, 50 %", "fifo, 50 %"]);
    let hits: Vec<f64> = tiers.iter().map(|row| median(row, "hit ratio")).collect();
    assert!(hits[0] > 0.0 && hits.iter().all(|hit| *hit <= hits[0] + 0.05), "{hits:?}");
    for row in &tiers {
        let [hit, ram, disk] = ["hit ratio", "RAM", "disk"].map(|title| median(row, title));
        assert!((0.0..0.9).contains(&hit) && (ram + disk - hit).abs() < 1e-9 && median(row, "limit") == 0.5, "{row:?}");
    }
    let reads = rows(&["spill-reads", "--quick", "--dir", utf8(memory.path())]);
    assert_eq!(names(&reads), ["fill half", "read half, write half", "fill", "read all"]);
    // Whether a read of so short a run meets a write is for the machine to say.
    assert!(median(&reads[1], "p99, × reading alone") >= 0.0 && median(&reads[3], "read GB/s") > 0.0, "{reads:?}");
    assert!(median(&reads[1], "written GB/s") > 0.0 && median(&reads[3], "p50 alone µs") > 0.0, "{reads:?}");
    assert!(median(&reads[3], "written GB/s") < median(&reads[1], "written GB/s"), "a folder is read again: {reads:?}");
    let left: Vec<_> = std::fs::read_dir(memory.path()).unwrap().collect();
    assert!(left.is_empty(), "what is written is removed: {left:?}");
}

#[test]
fn ranks_with_peers_finish_when_one_of_them_is_stopped() {
    let rows = rows(&["peers", "--quick"]);
    assert_eq!(names(&rows), ["all well", "one stopped", "one cut off", "one corrupt", "one slow"]);
    let requests: Vec<f64> = rows.iter().map(|row| median(row, "requests to the bucket, × set")).collect();
    assert!(requests[0] >= 1.0 && requests.iter().all(|requests| *requests < 3.0), "{requests:?}");
    assert!(rows.iter().all(|row| median(row, "wait p99 ms") >= 0.0 && median(row, "epoch s") > 0.0), "{rows:?}");
    assert!(rows.iter().all(|row| median(row, "samples, × share of the set") == 1.0), "{rows:?}");
}

#[test]
fn a_rate_limit_is_met_alone_together_and_apart() {
    let rows = rows(&["throttle", "--quick"]);
    assert_eq!(names(&rows), ["one", "two, share_dir", "two, apart"]);
    for (number, row) in rows.iter().enumerate() {
        assert!(median(row, "rejected before settled") + median(row, "rejected %") > 0.0, "{row:?}");
        let shares = ["share of reader 0", "share of reader 1"].map(|title| row.1[title]["median"].as_f64());
        let shares: Vec<f64> = shares.into_iter().flatten().collect();
        assert_eq!(shares.len(), if number == 0 { 1 } else { 2 });
        assert!(shares.iter().all(|share| *share > 0.0) && (shares.iter().sum::<f64>() - 1.0).abs() < 1e-9, "{row:?}");
    }
}

#[test]
fn an_outage_is_survived() {
    let is_read_before = || {
        let rows = rows(&["outage", "--quick"]);
        let during = |row| median(row, "requests during it");
        for row in &rows {
            assert_eq!(median(row, "readers that failed"), 0.0, "{row:?}");
            // In three seconds: what was under way at its start, one on each of up to 256 connections of a reader, and probes.
            assert!(during(row) < 600.0, "{row:?}");
        }
        rows.iter().all(|row| median(row, "requests/s before") > 0.0 && during(row) > 0.0)
    };
    // A quarter of a second before it, and three for it, are short for a busy machine; not in every run.
    assert!((0..3).any(|_| is_read_before()), "nothing is asked for before the outage, or during it");
}

#[test]
fn a_rank_hits_more_when_its_samples_come_back_to_it() {
    let rows = rows(&["caches", "--quick", "--only", "next-use"]);
    assert_eq!(names(&rows), ["global, next-use", "sticky, next-use"]);
    let [global, sticky] = [0, 1].map(|at| median(&rows[at], "hit ratio"));
    assert!(sticky > global + 0.05 && sticky < 0.9, "{rows:?}");
}

#[test]
fn epochs_are_predicted_before_they_are_measured() {
    let folder = tempfile::tempdir().unwrap();
    let predictions = folder.path().join("predictions.json");
    let args = ["plan", "--designs", "2", "--scale", "0.1", "--predictions", utf8(&predictions), "--json"];
    let report = fuelrail(&args).json();
    let predicted: Value = serde_json::from_slice(&std::fs::read(&predictions).unwrap()).unwrap();
    let rows = report["rows"].as_array().unwrap();
    assert_eq!((rows.len(), &report["question"]), (2, &"plan".into()));
    for (row, predicted) in rows.iter().zip(predicted.as_array().unwrap()) {
        assert_eq!([&row["simulated_s"], &row["limit"]], [&predicted["simulated_s"], &predicted["limit"]]);
        let doubled = row["doubled_s"].as_array().unwrap();
        assert!(row["measured_s"].as_f64() > Some(0.0) && doubled.len() >= 4, "{row}");
        assert!(doubled.iter().any(|one| one[0] == row["limit_measured"]), "{row}");
    }
    for (option, value) in [("--designs", "0"), ("--scale", "-1")] {
        let refused = fuelrail(&["plan", option, value, "--predictions", utf8(&predictions)]);
        assert!(refused.code == 2, "{option}: {}", refused.err);
    }
}

#[test]
fn a_reader_that_fails_ends_the_run_with_its_error() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("gone.toml");
    let text = "about = 'x'\nrounds = 1\nquick = 1.0\ncolumns = [{ title = 's', of = 'elapsed_s' }]\n[[runs]]\nname = 'gone'\n\
                bucket = { set = { kind = 'digits', seed = 1, count = 20 }, script = 'missing_keys=*' }\nread.epochs = 1";
    std::fs::write(&file, text).unwrap();
    let ended = fuelrail(&["scenario", utf8(&file), "--set", "shards=1", "--set", "pin=false"]);
    let told = ended.err.contains("NoSuchKey") && ended.err.contains("gone, round 1: a reader failed");
    assert!(ended.code == 3 && told, "{} {}", ended.code, ended.err);
}

#[test]
fn scenarios_are_listed_and_what_cannot_be_run_is_refused() {
    let list = fuelrail(&["scenario", "--list"]).done();
    assert!(list.lines().count() == 9 && list.contains("spill-reads  What writing"), "{list}");
    let folder = tempfile::tempdir().unwrap();
    let strange = folder.path().join("strange.toml");
    std::fs::write(&strange, "about = 'x'\nrounds = 1\nsplines = 2").unwrap();
    for (args, told) in [
        (&["no-such"][..], "name one of tail, throttle"),
        (&[utf8(&strange)], "splines"),
        (&["tail", "--rounds", "0"], "0 rounds"),
        (&["tail", "--only", "tails"], "of 0 runs"),
        (&["tail", "--scale", "0"], "--scale 0"),
        (&["tail", "--quick", "--set", "batch_sise=1"], "batch_sise"),
        (&["switch", "--trainer", "/no/such/trainer"], "/no/such/trainer"),
    ] {
        let ended = fuelrail(&[&["scenario"], args].concat());
        assert!(ended.code != 0 && ended.out.is_empty() && ended.err.contains(told), "{args:?}: {}", ended.err);
        assert!(ended.code == 2 || args[0] == "switch", "{args:?}: {}", ended.code);
    }
}
