//! The read harness, run small, so that it never rots: what it delivers, what it counts, how it resumes.
use fuelrail::{ByteSize, Kind, Loader};
use fuelrail_bucket::{Bucket, BucketConfig, DataSet, Source};
use fuelrail_cli::bench::reading::{Event, Reading, SCHEMA, read};
use xxhash_rust::xxh3::Xxh3;

const SAMPLES: u64 = 100;

fn bucket() -> (Bucket, DataSet) {
    let set = DataSet::digits(SAMPLES, 3);
    let config = BucketConfig { source: Source::Generated(set.clone()), ..BucketConfig::default() };
    (Bucket::start(config).unwrap(), set)
}

fn reading(bucket: &Bucket) -> Reading {
    let builder = Loader::builder(bucket.url("training/")).batch_size(16).memory_limit(ByteSize(32 << 20));
    let config = builder.shards(1).pin(false).config().clone();
    Reading { config, hash: true, ..Reading::default() }
}

/// XXH3-128 over all objects in key order, as often as asked.
fn expected_hash(set: &DataSet, epochs: usize) -> String {
    let mut hash = Xxh3::new();
    for index in (0..set.len()).cycle().take(set.len() as usize * epochs) {
        hash.update(&set.content(index));
    }
    format!("{:032x}", hash.digest128())
}

#[test]
fn counts_and_hashes_what_was_delivered() {
    let (bucket, set) = bucket();
    let mut reading = reading(&bucket);
    reading.config.order.shuffle = false;
    reading.config.epochs = 2;
    reading.config.network.hedge_percent = 0;
    let (mut opened, mut last) = (0, None);
    let report = read(&reading, &mut |event| match event {
        Event::Opened(loader) => opened = loader.batches(),
        Event::Batch(progress) => last = Some(progress),
    })
    .unwrap();
    let last = last.unwrap();
    assert_eq!((opened, last.batches, last.samples), (14, 14, 2 * SAMPLES));
    assert_eq!((report.schema, report.samples, report.batches), (SCHEMA, 2 * SAMPLES, 14));
    assert_eq!(report.bytes, 2 * set.total_bytes());
    assert_eq!(report.content_hash.as_deref(), Some(expected_hash(&set, 2).as_str()));
    assert_eq!(report.requests, bucket.counters().get_requests);
    assert_eq!((report.left_out, report.retries), (0, 0));
    assert!((report.gb_per_s - report.bytes as f64 / 1e9 / report.wall_s).abs() < 1e-9, "{report:?}");
    assert!(report.epoch_first_batch_us.max >= report.batch_wait_us.p50, "{report:?}");
    assert!(report.first_batch_us > 0 && report.peak_rss_bytes > 0, "{report:?}");
    assert_eq!(report.config.shards, Some(1));
    let [shard] = &report.shards[..] else { panic!("one shard: {report:?}") };
    assert!((1..=report.bytes).contains(&shard.landed_bytes) && shard.cpu_s() > 0.0, "{shard:?}");
    assert!(report.syscalls_per_mib > 0.0 && report.completions_per_syscall > 0.0, "{report:?}");
    assert!(report.gates.iter().all(|gate| gate.passed > 0) && !report.gates.is_empty(), "{report:?}");
    let back = serde_json::from_str(&serde_json::to_string(&report).unwrap()).unwrap();
    assert_eq!(report, back, "a result reads back as it was written");
}

#[test]
fn an_interrupted_reading_goes_on_behind_its_last_batch() {
    let (bucket, _) = bucket();
    let dir = tempfile::tempdir().unwrap();
    let mut part = reading(&bucket);
    part.state = Some(dir.path().join("run.state"));
    // A panic in the observer is as sudden as a kill: nothing below it gets to tidy up its files.
    let cut = std::panic::catch_unwind(|| {
        read(&part, &mut |event| match event {
            Event::Batch(progress) if progress.batches == 3 => panic!("cut"),
            _ => {}
        })
    });
    assert!(cut.is_err());
    let rest = read(&part, &mut |_| {}).unwrap();
    assert_eq!((rest.batches, rest.samples), (4, SAMPLES - 3 * 16));
    let nothing = read(&part, &mut |_| {}).unwrap();
    assert_eq!((nothing.batches, nothing.cpu_s_per_gb, nothing.cpu_us_per_sample), (0, None, None));

    part.config.order.seed = 9;
    let error = read(&part, &mut |_| {}).unwrap_err();
    assert_eq!(error.kind(), Kind::Usage);
    std::fs::write(part.state.as_ref().unwrap(), "{}").unwrap();
    let error = read(&part, &mut |_| {}).unwrap_err();
    assert!(error.kind() == Kind::Usage && error.to_string().contains("run.state"), "{error}");
}

#[test]
fn without_the_hash_there_is_none_and_it_costs_nothing() {
    let (bucket, _) = bucket();
    let report = read(&Reading { hash: false, ..reading(&bucket) }, &mut |_| {}).unwrap();
    assert_eq!((report.content_hash, report.hash_cpu_s), (None, 0.0));
}
