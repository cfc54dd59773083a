//! Whatever the server does above or below TLS, the same samples come in the same order with the same bytes.

use crate::common::secure::Secured;
use crate::common::{drain, listing, plain_run, planned, side_by_side};
use fuelrail::LoaderBuilder;
use fuelrail_bucket::{DataSet, FaultKind};
use std::time::Duration;

/// Small objects, and ones of several blocks and many records.
fn sets(seed: u64) -> [DataSet; 2] {
    [DataSet::digits(80, seed), DataSet::volumes(3, seed, 0.006)]
}

fn shaped(builder: LoaderBuilder, set: &DataSet) -> LoaderBuilder {
    let builder = builder.batch_size(batch_size(set)).epochs(2).seed(11).connections_max(16);
    builder.block_size("256KiB".parse().unwrap()).stall_after(Duration::from_millis(400))
}

fn batch_size(set: &DataSet) -> u32 {
    if set.len() > 10 { 16 } else { 2 }
}

fn expected(set: &DataSet) -> Vec<(u64, u64)> {
    planned(plain_run(set.len(), 11, batch_size(set), 2))
}

/// Most faults on one key that a loader must survive: a second stray ETag in a row means that an object did change.
fn per_key_max(kind: FaultKind) -> u32 {
    if matches!(kind, FaultKind::WrongEtag | FaultKind::Changed) { 1 } else { 2 }
}

#[test]
fn every_fault_alone_delivers_the_same_bytes_over_tls() {
    let mut cases: Vec<String> = Vec::new();
    for kind in FaultKind::reading() {
        cases.push(format!("seed=5,{kind}=0.2,per_key_max={}", per_key_max(kind)));
    }
    for other in ["stall=0.3/40ms", "slowdown_rps=100", "close_after=7", "drop_after=7", "bandwidth=6MiB"] {
        cases.push(other.to_owned());
    }
    side_by_side(cases, |script| {
        let mut injected = 0;
        for set in sets(3) {
            let secured = Secured::start(&set, script);
            let mut loader = shaped(secured.loader(), &set).build().unwrap();
            let delivered = drain(&mut loader, &set).unwrap_or_else(|e| panic!("{script}: {e}"));
            assert_eq!(delivered.order, expected(&set), "{set:?}");
            injected += secured.bucket.counters().faults_total();
        }
        // What depends on the machine's speed may not come up: a slow run stays below the rate that is throttled.
        let timed = script.starts_with("bandwidth") || script.starts_with("slowdown");
        assert!(timed || injected > 0, "the script did nothing");
    });
}

#[test]
fn a_body_cut_again_and_again_lands_whole_all_the_same() {
    // Each answer brings at least one record more than the one before, and is cut; what landed is kept.
    let set = DataSet::volumes(1, 9, 0.01);
    let secured = Secured::start(&set, "truncate=1.0@60000,per_key_max=8");
    let builder = secured.loader().listing(listing(&set)).batch_size(1).attempts_max(3);
    let mut loader = builder.build().unwrap();
    drain(&mut loader, &set).unwrap();
    let (stats, counters) = (loader.stats(), secured.bucket.counters());
    assert_eq!(counters.injected(FaultKind::Truncate), stats.retries, "{stats:?}");
    assert!(stats.retries > 3, "progress counts: {stats:?}");
    assert_eq!(stats.landed_bytes, set.total_bytes(), "no byte came twice");
}
