//! `plan`: predictors, policies and scenarios, on files as they are published.

use std::fs;

use serde_json::Value;

use super::{bench_read, bucket_of, fuelrail, utf8};
use fuelrail_bucket::DataSet;

const DATA: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../engine/cost/tests/data");
const EXAMPLE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/examples/k80.toml");
const SPOT: [&str; 12] = [
    "plan",
    "spot",
    "--job-hours",
    "4",
    "--deadline-hours",
    "6",
    "--changeover-hours",
    "0.1",
    "--spot-price",
    "0.3",
    "--on-demand-price",
    "1",
];
const DELI: &str = "plan deli --samples 42000 --nodes 3 --batch 512 --compute-s-per-batch 0.68 --bucket-s 0.0545 --cache-s 0.0019 \
                    --fetch-fixed-s 7.2 --fetch-per-sample-s 0.0033";

fn number(value: &Value) -> f64 {
    value.as_f64().unwrap_or_else(|| panic!("{value} is no number"))
}

#[test]
fn fit_says_how_wrong_it_is() {
    let path = format!("{DATA}/k80_step_time.csv");
    let json = fuelrail(&["plan", "fit", &path, "--json"]).json();
    assert!(number(&json["leave_one_model_out_mape"]) <= 0.041 && number(&json["interval_coverage"]) >= 0.85, "{json}");
    assert!(json["form"].is_string() && json["rows"].as_array().unwrap().len() == 20);
    assert!(fuelrail(&["plan", "fit", &path]).done().contains("of models left out"));
    let asked = fuelrail(&["plan", "fit", &path, "--predict", "1.6587,104,1857722"]).done();
    assert!(asked.contains("prediction  0.2"), "{asked}");
    let json = fuelrail(&["plan", "fit", &format!("{DATA}/checkpoint_time.csv"), "--predict", "16", "--json"]).json();
    assert!((3.0..5.0).contains(&number(&json["prediction"]["predicted"])), "{json}");
    assert!(number(&json["leave_one_model_out_mape"]) <= 0.079, "{json}");
    let text = fuelrail(&["plan", "fit", &format!("{DATA}/k80_cluster_speed.csv")]).done();
    assert!(text.contains("steps/s at most"), "{text}");
    let missing = fuelrail(&["plan", "fit", "/nowhere.csv"]);
    assert!(missing.code == 1 && missing.err.contains("/nowhere.csv"), "{}", missing.err);
}

#[test]
fn spot_meets_every_deadline() {
    let dir = tempfile::tempdir().unwrap();
    let trace = dir.path().join("zone.json");
    let data: Vec<u32> = (0..600).map(|tick| u32::from(tick / 7 % 3 > 0)).collect();
    fs::write(&trace, format!("{{\"metadata\": {{\"gap_seconds\": 600, \"zone\": \"a\"}}, \"data\": {data:?}}}"))
        .unwrap();
    let args = |more: &[&str]| fuelrail(&[&SPOT[..], &["--trace", utf8(&trace), "--starts", "20"], more].concat());
    let json = args(&["--json"]).json();
    let policies = json["policies"].as_array().unwrap();
    assert_eq!(policies.len(), 3);
    for policy in policies {
        assert_eq!(policy["deadlines_met"], 20, "{policy}");
        assert!(number(&policy["cost"]) >= number(&json["bound_cost"]), "{json}");
        let hours = number(&policy["on_demand_hours"]) + number(&policy["spot_hours"]);
        assert!(hours >= 4.0, "{policy}");
    }
    let one = args(&["--policy", "ours", "--json"]).json();
    assert_eq!(one["policies"].as_array().unwrap()[..], policies[2..], "the same starts, whatever is compared");
    assert!(args(&[]).done().contains("with hindsight"));
    for (text, said) in [
        ("{\"metadata\": {\"gap_seconds\": 600}, \"data\": []}", "the trace is empty"),
        ("{\"data\": [1]}", "not a trace"),
        ("{\"metadata\": {\"gap_seconds\": 600}, \"data\": [1, 1]}", "give a longer trace"),
    ] {
        fs::write(&trace, text).unwrap();
        let refused = args(&["--policy", "greedy"]);
        assert!(refused.code == 2 && refused.err.contains(said) && refused.err.contains("hint:"), "{}", refused.err);
    }
    fs::write(&trace, "{\"metadata\": {\"gap_seconds\": 600}, \"data\": [1, 1]}").unwrap();
    let negative = SPOT.map(|word| if word == "0.3" { "-0.3" } else { word });
    let negative = fuelrail(&[&negative[..], &["--trace", utf8(&trace)]].concat());
    assert!(negative.code == 2 && negative.err.contains("the spot price is -0.3"), "{}", negative.err);
    let late = fuelrail(&[&SPOT[..], &["--trace", utf8(&trace), "--policy", "lucky"]].concat());
    assert!(late.code == 2 && late.err.contains("lucky"), "{}", late.err);
}

#[test]
fn deli_predicts_published_settings() {
    let run = |file: &str, more: &[&str]| {
        let path = format!("{DATA}/{file}");
        fuelrail(&[&DELI.split_whitespace().collect::<Vec<_>>()[..], &["--rows", &path], more].concat())
    };
    let json = run("mnist_fetch_size.csv", &["--json"]).json();
    assert!(number(&json["median_wait_error"]) <= 0.1 && json["rows"].as_array().unwrap().len() == 216, "{json}");
    let json = run("mnist_baseline_from_cache.csv", &["--json"]).json();
    assert!(json["settings"].as_array().unwrap().iter().all(|row| number(&row["miss_rate_points"]) <= 0.5), "{json}");
    assert!(run("mnist_cache_size.csv", &[]).done().contains("median error of the wait"));
    let refused = run("k80_step_time.csv", &[]);
    assert!(refused.code == 2 && refused.err.contains("k80_step_time.csv: nothing is predicted"), "{}", refused.err);
}

#[test]
fn a_scenario_is_compared_at_equal_accuracy() {
    let json = fuelrail(&["plan", EXAMPLE, "--runs", "200", "--json"]).json();
    assert_eq!(json, fuelrail(&["plan", "run", EXAMPLE, "--runs", "200", "--json"]).json());
    assert_eq!(json["verdict"], "one spot", "{json}");
    let cluster = |name: &str| json["clusters"].as_array().unwrap().iter().find(|c| c["cluster"] == name).unwrap();
    let hours = |name: &str| number(&cluster(name)["hours"]["mean"]);
    // 64 000 steps of 0.218 s, and what 8 workers published.
    assert!((3.8..4.1).contains(&hours("one on demand")), "{json}");
    assert!((7.0..8.0).contains(&(hours("one on demand") / hours("8 spot, asynchronous"))), "{json}");
    assert_eq!(cluster("8 spot, asynchronous")["equal_accuracy"], false);
    assert!(cluster("one on demand")["checkpoint_interval_s"].is_null());
    let text = fuelrail(&["plan", EXAMPLE, "--runs", "50"]).done();
    for word in ["not equal", "'one spot'", "why not cheaper", "limited by compute"] {
        assert!(text.contains(word), "{word}: {text}");
    }
}

/// Every fault is found in the line that has it, counted from the example's text.
#[test]
fn a_bad_scenario_names_the_line_and_what_to_do() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("bad.toml");
    let example = fs::read_to_string(EXAMPLE).unwrap();
    let changed = |from: &str, to: &str| {
        assert!(example.contains(from), "{from}");
        fs::write(&path, example.replacen(from, to, 1)).unwrap();
        let line = example[..example.find(from).unwrap()].matches('\n').count() + 1;
        (fuelrail(&["plan", utf8(&path), "--runs", "10"]), line)
    };
    for (from, to, said) in [
        ("on_demand = { value = 1.0,", "on_demand = { value = -1.0,", "-1 is not 0 or more"),
        ("on_demand = { value = 1.0,", "on_demand = {", "missing field `value`"),
        ("unit = \"USD/GB-month\"", "unit = \"USD/hour\"", "not CURRENCY/GB-month"),
        ("step_s = 0.2179", "step_s = 0", "0 is not above 0"),
        ("block_bytes = 1048576", "block_byte = 1048576", "unknown field `block_byte`"),
        ("step_s_interval = [0.198, 0.240]", "step_s_interval = [0.240, 0.198]", "not within its interval"),
        ("revoked_within_24h = 0.47", "revoked_within_24h = 1.47", "1.47 is not a share"),
        ("date = \"2026-11-01\"", "date = \"November\"", "not a date"),
        ("date = \"2026-11-01\"", "date = \"2026-13-01\"", "not a date"),
        ("source = \"made up for this example\"", "source = \"\"", "needs its source"),
    ] {
        let (refused, line) = changed(from, to);
        assert_eq!(refused.code, 2, "{to}: {}", refused.err);
        for word in [&format!("bad.toml: line {line}: ")[..], said, "hint:"] {
            assert!(refused.err.contains(word), "{to}: no '{word}' in {}", refused.err);
        }
    }
    for (from, to, said) in [
        ("\nspot = { value = 0.3,", "\n# { value = 0.3,", "has no spot price"),
        ("machine = \"K80\"\nworkers = 8", "machine = \"P100\"\nworkers = 8", "there is no machine 'P100'"),
        ("currency = \"USD\"", "currency = \"EUR\"", "the scenario in EUR"),
        ("server_machine = \"K80\"\n", "", "servers of no kind"),
        (
            "[[machine]]\nname = \"K80\"\non_demand",
            "[[machine]]\nname = \"K80\"\n# on_demand",
            "missing field `on_demand`",
        ),
    ] {
        let (refused, _) = changed(from, to);
        assert!(refused.code == 2 && refused.err.contains("bad.toml: line "), "{to}: {}", refused.err);
        assert!(refused.err.contains(said) && refused.err.contains("hint:"), "{to}: {}", refused.err);
    }
    // A name that is part of other texts is found where it is given.
    let (refused, line) = changed("name = \"one spot\"\nmachine = \"K80\"", "name = \"8\"\nmachine = \"P100\"");
    assert!(refused.err.contains(&format!("line {line}: there is no machine 'P100'")), "{}", refused.err);
    let (old, _) = changed("date = \"2026-11-01\"", "date = \"2019-11-01\"");
    assert!(old.code == 0 && old.err.contains("is of 2019-11-01"), "{}", old.err);
}

#[test]
fn a_measured_run_is_predicted_again_and_changed() {
    let dir = tempfile::tempdir().unwrap();
    let set = DataSet::tokens(240, 3, 32 << 10);
    let bucket = bucket_of(&set, "latency=fixed:20ms");
    let (uri, run) = (bucket.url(""), dir.path().join("run.json"));
    let args =
        ["--epochs", "3", "--batch-size", "8", "--cache-limit", "2MiB", "--connections", "4", "--json", utf8(&run)];
    bench_read(&uri, &args).done();
    let json = fuelrail(&["plan", "loader", utf8(&run), "--json"]).json();
    let check = &json["check"];
    // How near they are depends on the machine; a fifth of the set a rank keeps, and each later epoch, no machine reads faster.
    for name in ["measured_s", "simulated_s", "closed_form_s"] {
        assert!(number(&check[name]) > 2.0 * 180.0 / 4.0 * 0.02, "{name}: {json}");
    }
    assert!(number(&json["case"]["latency_s"]) >= 0.014 && json["case"]["samples"] == 240, "{json}");
    let told: Value = serde_json::from_str(&fs::read_to_string(&run).unwrap()).unwrap();
    let limit = told["config"]["memory_limit_bytes"].as_u64().unwrap();
    let room = told["batch_memory_bytes"].as_u64().unwrap();
    assert!(json["case"]["room_bytes"] == room && room > limit / 2 && room < limit - (2 << 20), "{room} of {limit}");
    // Twice the RAM saves about as much as half the latency.
    let limit = json["limit"].as_str().unwrap();
    assert!(["latency", "ram"].contains(&limit) && json["cause"]["all"] == "bucket", "{json}");
    let changes = json["changes"].as_array().unwrap();
    let saved = |part: &str| {
        let of = |change: &&Value| change["change"].as_str().unwrap().contains(part);
        number(&changes.iter().find(of).unwrap_or_else(|| panic!("{part}: {json}"))["saved"])
    };
    assert!(saved("half the latency") > 0.3 && saved("RAM for 4.0 MiB") > 0.2 && saved("a disk") > 0.7, "{json}");
    // A result that tells neither that memory nor a limit is of a loader that had half of its own machine.
    let room = |memory_bytes: u64| {
        let mut told = told.clone();
        told["batch_memory_bytes"].take();
        told["config"].as_object_mut().unwrap().remove("memory_limit_bytes").unwrap();
        told["machine"]["memory_bytes"] = memory_bytes.into();
        let other = dir.path().join("other.json");
        fs::write(&other, told.to_string()).unwrap();
        fuelrail(&["plan", "loader", utf8(&other), "--json"]).json()["case"]["room_bytes"].clone()
    };
    assert_eq!([1 << 30, 3 << 30].map(room), [510_u64 << 20, 1534 << 20].map(Value::from));
    let given = ["plan", "loader", utf8(&run), "--latency-ms", "1", "--gb-per-s", "0.002"];
    let text = fuelrail(&given).done();
    assert!(text.contains("limit      bandwidth") && text.contains("100 Gbit/s"), "{text}");
    let set = ["--set", "batch_size=8", "--set", "shards=1", "--set", "pin=false", "--set", "memory_limit_bytes=64MiB"];
    let own = fuelrail(&[&["plan", "loader", &uri, "--step-ms", "1", "--json"], &set[..]].concat()).json();
    assert!(own["case"]["step_s"] == 0.001 && number(&own["check"]["measured_s"]) > 0.0, "{own}");
    for (text, args, said) in [
        ("{}", &[][..], "not a measured run: missing field"),
        ("{\"workload\": 1}", &[], "not a measured run"),
        ("{", &[], "line 1"),
        ("{}", &["--latency-ms", "-3"], "--latency-ms -3"),
        ("{}", &["--step-ms", "1", "--disk-gb-per-s", "0"], "--disk-gb-per-s 0"),
        ("{}", &["--requests-per-s", "0"], "--requests-per-s 0"),
    ] {
        fs::write(&run, text).unwrap();
        let refused = fuelrail(&[&["plan", "loader", utf8(&run)], args].concat());
        assert!(refused.code == 2 && refused.err.contains(said) && refused.err.contains("hint:"), "{}", refused.err);
    }
}

#[test]
fn a_rate_of_requests_that_a_bucket_allows_is_seen_as_the_limit() {
    let dir = tempfile::tempdir().unwrap();
    let set = DataSet::digits(600, 3);
    let bucket = bucket_of(&set, "latency=fixed:5ms,slowdown_rps=300");
    let run = dir.path().join("run.json");
    bench_read(&bucket.url(""), &["--epochs", "3", "--batch-size", "8", "--json", utf8(&run)]).done();
    let json = fuelrail(&["plan", "loader", utf8(&run), "--json"]).json();
    let rate = number(&json["case"]["requests_per_s"]);
    assert!(rate > 150.0 && rate < 400.0 && json["limit"] == "requests", "{json}");
    let given = fuelrail(&["plan", "loader", utf8(&run), "--requests-per-s", "100"]).done();
    assert!(given.contains("100 requests a second") && given.contains("twice the rate of requests"), "{given}");
}

#[test]
fn a_plan_has_a_page_and_takes_lives_that_were_seen() {
    let dir = tempfile::tempdir().unwrap();
    let (path, page, lives) = (dir.path().join("s.toml"), dir.path().join("p.html"), dir.path().join("lives.csv"));
    let example = fs::read_to_string(EXAMPLE).unwrap();
    let seen = example.replace("revoked_within_24h = 0.47", "lives = \"lives.csv\"");
    fs::write(&path, &seen).unwrap();
    let rows = |region: &str| {
        let row = |n: u32| format!("{region},K80,{}.5,{}\n", n % 24, n & 1);
        format!("region,device,age_hours,ended\n{}", (0..200).map(row).collect::<String>())
    };
    fs::write(&lives, rows("us-east")).unwrap();
    fuelrail(&["plan", utf8(&path), "--runs", "50", "--html", utf8(&page)]).done();
    let html = fs::read_to_string(&page).unwrap();
    assert_eq!(html.matches("<svg").count(), 2, "two charts");
    for word in ["why not cheaper?", "8 spot, asynchronous", "Pareto front", "worker 0 of"] {
        assert!(html.contains(word), "{word}");
    }
    let curves = fuelrail(&["plan", "lives", utf8(&lives), "--json"]).json();
    assert_eq!((&curves[0]["lives"], &curves[0]["ended"]), (&200.into(), &100.into()));
    assert!(fuelrail(&["plan", "lives", utf8(&lives)]).done().contains("by 24 h"));
    let line = seen[..seen.find("lives = ").unwrap()].matches('\n').count() + 1;
    for (table, said) in [
        (rows("us-west"), "no lives of K80 in 'us-east'"),
        ("region,device\na,b".to_owned(), "lives.csv: lives need the columns"),
        (rows("us-east").replace(",1\n", ",2\n"), "lives.csv: line 3: ended is '2'"),
    ] {
        fs::write(&lives, table).unwrap();
        let refused = fuelrail(&["plan", utf8(&path), "--runs", "5"]);
        let named = refused.err.contains(&format!("s.toml: line {line}: ")) && refused.err.contains("hint:");
        assert!(refused.code == 2 && named && refused.err.contains(said), "{said}: {}", refused.err);
    }
    fs::remove_file(&lives).unwrap();
    let refused = fuelrail(&["plan", utf8(&path), "--runs", "5"]);
    assert!(refused.code == 2 && refused.err.contains("reading lives.csv"), "{}", refused.err);
}
