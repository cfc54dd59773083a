//! Emulated accelerators on a small bucket: they are fed when they are slow, and starve when they are not.

use fuelrail::{ByteSize, Kind, Loader};
use fuelrail_bucket::{Bucket, BucketConfig, DataSet, Source};
use fuelrail_cli::bench::accelerators::{Emulation, FeedReport, STEPS_MIN, Workload, emulate};
use std::time::Duration;

fn bucket(script: &str) -> Bucket {
    let source = Source::Generated(DataSet::tokens(40, 3, 20_000));
    Bucket::start(BucketConfig { source, script: script.parse().unwrap(), ..BucketConfig::default() }).unwrap()
}

fn emulation(bucket: &Bucket, step_s: f64) -> Emulation {
    let uri = bucket.url("");
    let listing = fuelrail::list(&uri, |_| {}).unwrap();
    let workload = Workload { batch_size: 4, step_s, ..Workload::named("cosmoflow", None).unwrap() };
    let config = Loader::builder(uri).shards(1).pin(false).memory_limit(ByteSize(64 << 20)).config().clone();
    let source = "a bucket of this test".to_owned();
    Emulation { workload, config, listing, source, time: Duration::from_millis(50), accelerators: Some(2) }
}

#[test]
fn slow_accelerators_are_fed_better_than_fast_ones() {
    let bucket = bucket("");
    let mut heard = 0;
    let report = emulate(&emulation(&bucket, 0.05), &mut |_| heard += 1).unwrap();
    let [run] = &report.runs[..] else { panic!("one run: {report:?}") };
    assert_eq!((heard, run.accelerators, run.steps, report.accelerators_max), (1, 2, STEPS_MIN, None));
    assert!(run.au <= 1.0 && run.au_least <= run.au, "{run:?}");
    let starved = starving();
    assert!(run.au > starved.runs.iter().map(|run| run.au).fold(0.0, f64::max), "{run:?} {starved:?}");
    assert!(
        run.gb_per_s > 0.0 && report.full_speed.gb_per_s > 0.0 && report.full_speed.gb_per_core_s > 0.0,
        "{report:?}"
    );
    assert_eq!(report.full_speed.shards.len(), 1);
    assert!(
        report.accelerators_fed > 0.0 && report.notes.iter().any(|note| note.contains("not its shape")),
        "{report:?}"
    );
    let back = serde_json::from_str(&serde_json::to_string(&report).unwrap()).unwrap();
    assert_eq!(report, back, "a result reads back as it was written");
}

/// Each answer takes 20 ms on each of four connections; 4 objects a step of 1 ms cannot be had.
fn starving() -> FeedReport {
    let bucket = bucket("latency=fixed:20ms");
    let mut emulation = emulation(&bucket, 0.001);
    (emulation.config.network.connections_max, emulation.accelerators) = (4, None);
    emulate(&emulation, &mut |_| {}).unwrap()
}

#[test]
fn accelerators_too_fast_for_the_bucket_starve_and_fail() {
    let report = starving();
    assert_eq!(report.accelerators_max, Some(0), "{report:?}");
    assert!(report.runs.iter().all(|run| !run.passed && run.au < 0.7), "{report:?}");
}

#[test]
fn nothing_to_read_and_nobody_to_feed_are_refused() {
    let bucket = bucket("");
    let empty = Emulation { listing: Vec::new(), ..emulation(&bucket, 0.01) };
    assert_eq!(emulate(&empty, &mut |_| {}).unwrap_err().kind(), Kind::Usage);
    let idle = Emulation { accelerators: Some(0), ..emulation(&bucket, 0.01) };
    assert_eq!(emulate(&idle, &mut |_| {}).unwrap_err().kind(), Kind::Usage);
}
