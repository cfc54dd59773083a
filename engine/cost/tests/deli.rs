//! DELI's published settings, predicted from its baselines and two of its fetch sizes.

use fuelrail_base::Kind;
use fuelrail_cost::deli::{Report, Setting, Setup, Wait, predict};
use fuelrail_cost::table::Table;

/// From the baselines: a read of the bucket, one of the cache, a batch. From the rows of fetch sizes 1024 and 2048: the fetch.
const SETUP: Setup = Setup {
    samples: 42_000,
    nodes: 3,
    batch: 512,
    compute_s_per_batch: 0.68,
    bucket_s: 0.0545,
    cache_s: 0.0019,
    fetch_fixed_s: 7.21,
    fetch_per_sample_s: 0.00328,
    fetch_size: 1024,
    seed: 1,
};

const FILES: [&str; 4] = [
    include_str!("data/mnist_fetch_size.csv"),
    include_str!("data/mnist_cache_size.csv"),
    include_str!("data/mnist_prefetch_threshold.csv"),
    include_str!("data/mnist_fifty_fifty_full_fetch.csv"),
];

fn report(text: &str) -> Report {
    predict(&SETUP, &Table::read(text).unwrap()).unwrap()
}

fn waits(setting: Setting) -> Vec<Wait> {
    SETUP.predict(setting, 14_000, 2).unwrap()
}

#[test]
fn waits_of_settings_that_gave_no_constant() {
    let settings = FILES.iter().flat_map(|text| report(text).settings);
    // The two that the fetch's constants come from.
    let scored = settings
        .filter(|summary| !matches!(summary.setting, Setting::Prefetch { cache: None, fetch: 1024 | 2048, .. }));
    let mut errors: Vec<f64> = scored.map(|summary| summary.wait_error.unwrap()).collect();
    errors.sort_by(f64::total_cmp);
    assert!(errors.len() > 50 && errors[errors.len() / 2] <= 0.1, "{errors:?}");
}

#[test]
fn miss_rates_of_the_demand_cache() {
    let report = report(include_str!("data/mnist_baseline_from_cache.csv"));
    assert_eq!((report.rows.len(), report.settings.len()), (144, 8));
    for summary in &report.settings {
        assert!(summary.miss_rate_points.unwrap() <= 0.5, "{summary:?}");
    }
    assert!(report.median_wait_error.unwrap() <= 0.1);
}

#[test]
fn what_follows_from_the_rules_alone() {
    let near = |value: f64, wanted: f64| (value / wanted - 1.0).abs() < 1e-9;
    for wait in waits(Setting::Bucket) {
        assert!(near(wait.wait_s, 14_000.0 * SETUP.bucket_s) && wait.miss_rate == 1.0);
    }
    let unlimited = waits(Setting::Demand { cache: None });
    assert_eq!(unlimited[0].miss_rate, 1.0);
    assert!((unlimited[1].miss_rate - 2.0 / 3.0).abs() < 0.01, "two of three samples were another node's");
    assert_eq!(
        waits(Setting::Demand { cache: Some(14_000 * 3) }),
        unlimited,
        "a cache that is never full has no limit"
    );
    // A fetch that never lands is a bucket.
    let never = Setup { fetch_fixed_s: 1e9, ..SETUP };
    let prefetch = Setting::Prefetch { cache: None, fetch: 1024, threshold: 0 };
    assert_eq!(never.predict(prefetch, 14_000, 1).unwrap(), waits(Setting::Bucket)[..1]);
    // One that lands at once is a cache.
    let at_once = Setup { fetch_fixed_s: 0.0, fetch_per_sample_s: 0.0, ..SETUP };
    assert!(near(at_once.predict(prefetch, 14_000, 1).unwrap()[0].wait_s, 14_000.0 * SETUP.cache_s));
    // A fetch of nothing is one of a sample.
    let [none, one] =
        [0, 1].map(|fetch| SETUP.predict(Setting::Prefetch { cache: Some(64), fetch, threshold: 8 }, 600, 1));
    assert_eq!(none.unwrap(), one.unwrap());
    let wait = |threshold| waits(Setting::Prefetch { cache: Some(4096), fetch: 1024, threshold })[0].wait_s;
    assert!(wait(1024) < wait(512) && wait(512) < wait(0), "to ask earlier is to wait less");
}

#[test]
fn tables_and_setups_that_make_no_sense_say_what_to_do() {
    let refused = |setup: Setup, text: &str| {
        let error = predict(&setup, &Table::read(text).unwrap()).unwrap_err();
        assert!(error.kind() == Kind::Usage && error.hint().is_some(), "{error}");
        error.to_string()
    };
    let row = "Cache Size,Epoch\n512,1\n";
    assert!(refused(Setup { nodes: 0, ..SETUP }, row).contains("nodes is 0"));
    assert!(refused(Setup { cache_s: -1.0, ..SETUP }, row).contains("-1 seconds"));
    assert!(refused(SETUP, "Cache Size,Epoch\n512,1\nmany,1\n").starts_with("line 3: Cache Size is 'many'"));
    assert!(refused(SETUP, "Cache Size,Epoch\n512,1.5\n").starts_with("line 2: Epoch is '1.5'"));
    assert!(refused(SETUP, "Epoch,Miss Rate\n1,often\n").starts_with("line 2: Miss Rate is 'often'"));
    assert!(refused(SETUP, "Epoch,Disk Loading Time (s)\n1,2\n").contains("Disk Loading"));
    assert!(refused(SETUP, "Cache Size,Epoch\n512,1000\n").contains("1000 epochs"));
    assert!(refused(SETUP, "Epoch,Number of Accesses\n1,90000000\n").contains("samples an epoch"));
}

/// What is measured over rows that read more and less is compared with what is predicted over the same rows.
#[test]
fn a_setting_is_the_mean_of_its_rows() {
    let report = report("Epoch,Number of Accesses,Data Loading Time (s)\n1,100,5.45\n1,300,16.35\n1,200,0\n");
    let [summary] = &report.settings[..] else { panic!("one setting and epoch") };
    assert!((summary.predicted.wait_s - 200.0 * SETUP.bucket_s).abs() < 1e-9, "{summary:?}");
    assert_eq!(report.rows[2].wait_error, None, "a wait of nothing has no relative error");
}
