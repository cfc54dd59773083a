//! Whatever the server does above or below TLS, the same samples come in the same order with the same bytes; the loader
//! counts what the bucket injected, and idle connections that the server closed cost nothing.

use crate::common::secure::Secured;
use crate::common::{drain, listing, plain_run, planned, side_by_side};
use fuelrail::{Kind, LoaderBuilder, Stats};
use fuelrail_base::prng::Prng;
use fuelrail_bucket::{Counters, DataSet, FaultKind};
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
        assert!(script.starts_with("bandwidth") || injected > 0, "the script did nothing");
    });
}

#[test]
fn mixed_faults_deliver_the_same_bytes_over_tls() {
    side_by_side((0..12).collect(), |&seed: &u64| {
        let mut draw = Prng::new(seed ^ 0x7153);
        let mut script = format!("seed={seed}");
        let mut per_key = 1 + draw.below(3) as u32;
        for kind in FaultKind::reading() {
            if draw.below(5) < 2 {
                script += &format!(",{kind}=0.0{}", 1 + draw.below(6));
                per_key = per_key.min(per_key_max(kind));
            }
        }
        script += &format!(",per_key_max={per_key},latency=uniform:0ms..6ms");
        script += ["", ",close_after=9", ",drop_after=9"][draw.below(3) as usize];
        let set = &sets(seed)[usize::from(seed % 3 == 2)];
        let secured = Secured::start(set, &script);
        let builder = shaped(secured.loader(), set).shards(1 + (seed % 2) as u16);
        let mut loader = builder.build().unwrap_or_else(|e| panic!("{script}: {e}"));
        let delivered = drain(&mut loader, set).unwrap_or_else(|e| panic!("{script}: {e}"));
        assert_eq!(delivered.order, expected(set), "{script}");
    });
}

/// One run of one shard over small objects, long enough apart that no request stands behind another on a connection.
fn counted(script: &str, objects: u64) -> (Stats, Counters) {
    let set = DataSet::digits(objects, 5);
    let secured = Secured::start(&set, &format!("{script},latency=fixed:6ms"));
    let builder = secured.loader().listing(listing(&set)).batch_size(10).stall_after(Duration::from_millis(2000));
    let mut loader = builder.build().unwrap();
    drain(&mut loader, &set).unwrap();
    (loader.stats(), secured.bucket.counters())
}

#[test]
fn retries_over_tls_match_what_was_injected() {
    let kinds = [FaultKind::Reset, FaultKind::Truncate, FaultKind::Garbage, FaultKind::Slowdown, FaultKind::LengthLong];
    side_by_side(kinds.to_vec(), |&kind| {
        let (stats, counters) = counted(&format!("{kind}=0.15,per_key_max=2"), 100);
        let injected = counters.injected(kind);
        assert!(injected >= 5 && counters.faults_total() == injected, "{counters:?}");
        assert_eq!((stats.retries, stats.requests), (injected, 100 + injected), "{stats:?} {counters:?}");
        let broken = if kind == FaultKind::Slowdown { 0 } else { injected };
        assert_eq!((stats.connections_failed, stats.given_up), (broken, 0), "{stats:?}");
    });
}

#[test]
fn connections_the_server_ends_between_requests_are_no_failures_over_tls() {
    let (stats, counters) = counted("close_after=3", 250);
    assert!(counters.injected(FaultKind::CloseAfter) > 5, "{counters:?}");
    assert_eq!((stats.retries, stats.connections_failed), (0, 0), "{stats:?}");
    assert!(stats.tls_resumed > 0, "{stats:?}");
    let (stats, counters) = counted("drop_after=3", 250);
    let dropped = counters.injected(FaultKind::DropAfter);
    assert!(dropped > 5 && stats.retries <= dropped, "{stats:?} {counters:?}");
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

#[test]
fn a_server_that_goes_away_ends_the_run_over_tls() {
    let set = DataSet::digits(300, 5);
    let secured = Secured::start(&set, "latency=fixed:5ms");
    let builder = secured.loader().batch_size(10).connections_max(2).attempts_max(3).epochs(50).outage_limit(None);
    let mut loader = builder.build().unwrap();
    loader.next_batch().expect("a first batch").unwrap();
    drop(secured);
    let error = loader.find_map(Result::err).expect("the data set was not read whole");
    assert_eq!(error.kind(), Kind::Network, "{error}");
}
