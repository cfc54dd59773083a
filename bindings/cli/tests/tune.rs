//! Tuning a loader to a real bucket on this machine, in short.

use fuelrail::{ByteSize, Kind, Loader, RingChoice};
use fuelrail_bucket::{Bucket, BucketConfig, DataSet, Source};
use fuelrail_cli::tuning::{Tried, Tuning, tune};
use std::time::Duration;

fn bucket() -> Bucket {
    let set = DataSet::volumes(12, 3, 0.01);
    Bucket::start(BucketConfig { source: Source::Generated(set), ..BucketConfig::default() }).unwrap()
}

fn tuning(bucket: &Bucket) -> Tuning {
    let uri = bucket.url("");
    let listing = fuelrail::list(&uri, |_| {}).unwrap();
    let config = Loader::builder(uri).batch_size(2).memory_limit(ByteSize(64 << 20)).pin(false).config().clone();
    Tuning { config, listing, budget: Duration::from_secs(6), seed: 1, rings: vec![RingChoice::Auto] }
}

#[test]
fn finds_a_setting_no_slower_than_the_first_and_says_what_limits_it() {
    let bucket = bucket();
    let tuning = tuning(&bucket);
    let is_no_slower = || {
        let (mut trials, mut best) = (0, None);
        let report = tune(&tuning, &mut |progress| {
            trials += 1;
            assert_eq!(progress.trials, trials);
            best = Some(progress.best.clone());
        })
        .unwrap();
        assert_eq!((report.trials, report.schema, Some(&report.best)), (trials, 1, best.as_ref()));
        let tried = report.tried.iter().find(|tried| tried.setting == report.best).expect("the best was tried");
        assert!(!tried.gb_per_s.is_empty() && tried.gb_per_s.iter().all(|speed| *speed > 0.0), "{tried:?}");
        assert_eq!(
            report.tried.iter().map(|tried| tried.gb_per_s.len()).sum::<usize>() as u32,
            trials,
            "none was refused"
        );
        assert!(!report.limit.is_empty() && !report.explanation.is_empty(), "{report:?}");
        let outcome = report.outcome;
        assert!(outcome.predicted_low_gb_per_s < outcome.predicted_gb_per_s, "{outcome:?}");
        assert!(outcome.predicted_gb_per_s < outcome.predicted_high_gb_per_s, "{outcome:?}");
        assert!(outcome.achieved_gb_per_s > 0.0 && outcome.achieved_cpu_s_per_gb > 0.0, "{outcome:?}");
        assert_eq!(report.config, report.best.applied(&tuning.config));
        assert!(report.best.memory_limit_bytes <= 64 << 20, "never more memory than allowed");
        let back = serde_json::from_str(&serde_json::to_string(&report).unwrap()).unwrap();
        assert_eq!(report, back, "a result reads back as it was written");
        // Speed comes first, thrift decides between equals: what was chosen is not clearly slower than where the search began.
        let mean = |tried: &Tried| tried.gb_per_s.iter().sum::<f64>() / tried.gb_per_s.len() as f64;
        mean(tried) >= 0.8 * mean(&report.tried[0])
    };
    // Where the machine is busy, it may be slower when the one is tried than when the other is; not in every run.
    assert!((0..3).any(|_| is_no_slower()), "every run chooses a setting slower than the first");
}

#[test]
fn hopeless_tasks_are_refused_before_they_take_time() {
    let bucket = bucket();
    let hasty = Tuning { budget: Duration::from_secs(1), ..tuning(&bucket) };
    let error = tune(&hasty, &mut |_| {}).unwrap_err();
    assert!(error.kind() == Kind::Usage && error.to_string().contains("give at least"), "{error}");
    let empty = Tuning { listing: Vec::new(), ..tuning(&bucket) };
    assert_eq!(tune(&empty, &mut |_| {}).unwrap_err().kind(), Kind::Usage);
    let mut tiny = tuning(&bucket);
    tiny.config.memory.limit = Some(ByteSize(8 << 10));
    assert_eq!(tune(&tiny, &mut |_| {}).unwrap_err().kind(), Kind::Budget, "no setting fits");
}
