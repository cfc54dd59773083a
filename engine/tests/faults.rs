//! Whatever the server does, the same samples come in the same order with the same bytes, or a typed error names the
//! object and the cause; and what the loader counts is what the bucket injected.

use crate::common::{PATIENCE, bare_listing, bucket, drain, listing, loader, plain_run, planned, side_by_side};
use crate::peers;
use fuelrail::{Backend, Error, Kind, LoaderBuilder, Result, Stats};
use fuelrail_base::prng::Prng;
use fuelrail_bucket::{Bucket, Counters, DataSet, FaultKind, Script};
use std::io::Write;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, mpsc};
use std::time::Duration;

/// Small objects, and ones of several blocks.
fn sets(seed: u64) -> [DataSet; 2] {
    [DataSet::digits(100, seed), DataSet::volumes(4, seed, 0.004)]
}

/// Every case on every ring of this build.
fn on_every_ring<C: Clone>(cases: impl IntoIterator<Item = C>) -> Vec<(Backend, C)> {
    cases.into_iter().flat_map(|case| Backend::ALL.iter().map(move |ring| (*ring, case.clone()))).collect()
}

fn shaped(builder: LoaderBuilder, set: &DataSet) -> LoaderBuilder {
    let batch_size = if set.len() > 10 { 16 } else { 2 };
    builder
        .batch_size(batch_size)
        .epochs(2)
        .seed(11)
        .block_size("64KiB".parse().unwrap())
        .stall_after(Duration::from_millis(150))
}

fn expected(set: &DataSet) -> Vec<(u64, u64)> {
    planned(plain_run(set.len(), 11, if set.len() > 10 { 16 } else { 2 }, 2))
}

/// Most faults on one key that a loader must survive: a second stray ETag in a row means that an object did change.
fn per_key_max(kind: FaultKind) -> u32 {
    if matches!(kind, FaultKind::WrongEtag | FaultKind::Changed) { 1 } else { 2 }
}

#[test]
fn every_fault_alone_delivers_the_same_bytes() {
    let mut cases = Vec::new();
    for kind in FaultKind::reading() {
        for seed in 0..3 {
            cases.push(format!("seed={seed},{kind}=0.2,per_key_max={}", per_key_max(kind)));
        }
    }
    for other in ["stall=0.3/40ms", "slowdown_rps=100", "close_after=7", "drop_after=7", "bandwidth=3MiB"] {
        cases.push(other.to_owned());
    }
    side_by_side(on_every_ring(cases), |(ring, script)| {
        let mut injected = 0;
        for set in sets(3) {
            let bucket = bucket(&set, script);
            // A connection must live to its seventh request: 100 objects over 8 connections, however slow the machine.
            let builder = shaped(loader(&bucket), &set).ring(*ring).connections_max(8);
            let mut loader = builder.build().unwrap();
            let delivered = drain(&mut loader, &set).unwrap();
            assert_eq!(delivered.order, expected(&set), "{ring}: {set:?}");
            assert_eq!(loader.config().ring, (*ring).into());
            injected += bucket.counters().faults_total();
        }
        // What depends on the machine's speed may not come up: a slow run stays below the rate that is throttled.
        let timed = script.starts_with("bandwidth") || script.starts_with("slowdown");
        assert!(timed || injected > 0, "{ring}: {script} did nothing");
    });
}

/// A script drawn from `seed`: several kinds of faults, a latency, now and then connections that end.
fn mixture(seed: u64) -> String {
    let mut draw = Prng::new(seed ^ 0x5EED);
    let mut text = format!("seed={seed}");
    let mut per_key = 1 + draw.below(3) as u32;
    for kind in FaultKind::reading() {
        if draw.below(5) < 2 {
            text += &format!(",{kind}=0.0{}", 1 + draw.below(6));
            per_key = per_key.min(per_key_max(kind));
        }
    }
    text += &format!(",per_key_max={per_key}");
    text += match draw.below(5) {
        0 => ",latency=fixed:3ms",
        1 => ",latency=uniform:0ms..6ms",
        2 => ",latency=lognormal:2ms/0.8",
        3 => ",latency=pareto:1ms/1.5",
        _ => "",
    };
    text += match draw.below(4) {
        0 => ",close_after=9",
        1 => ",drop_after=9",
        _ => "",
    };
    text
}

#[test]
fn mixed_faults_deliver_the_same_bytes() {
    side_by_side(on_every_ring(0..50), |&(ring, seed): &(Backend, u64)| {
        let script = mixture(seed);
        let set = &sets(seed)[usize::from(seed % 4 == 3)];
        let bucket = bucket(set, &script);
        let cache = if seed % 3 == 0 { 0 } else { set.total_bytes() / 2 };
        let mut loader = shaped(loader(&bucket), set)
            .ring(ring)
            .shards(1 + (seed % 3) as u16)
            .cache_limit(fuelrail::ByteSize(cache))
            .build()
            .unwrap_or_else(|e| panic!("{ring}: {script}: {e}"));
        let delivered = drain(&mut loader, set).unwrap_or_else(|e| panic!("{ring}: {script}: {e}"));
        assert_eq!(delivered.order, expected(set), "{ring}: {script}");
    });
}

/// One run of one shard over small objects, long enough apart that no request stands behind another on a connection:
/// then every injected fault meets exactly one attempt.
fn counted(ring: Backend, script: &str) -> (Stats, Counters) {
    let set = DataSet::digits(150, 5);
    let bucket = bucket(&set, &format!("{script},latency=fixed:4ms"));
    // On a busy machine an answer may take a second without any fault.
    let patience = Duration::from_secs(if script.contains("stall") { 1 } else { 10 });
    let builder = loader(&bucket).ring(ring).listing(listing(&set)).batch_size(15).stall_after(patience);
    let mut loader = builder.build().unwrap();
    drain(&mut loader, &set).unwrap();
    (loader.stats(), bucket.counters())
}

#[test]
fn retries_match_what_was_injected() {
    let mut cases: Vec<Option<FaultKind>> = FaultKind::reading().map(Some).collect();
    cases.push(None);
    side_by_side(on_every_ring(cases), |&(ring, kind)| {
        let script = kind.map_or(String::new(), |kind| format!("{kind}=0.15,per_key_max={}", per_key_max(kind)));
        let mut runs = std::iter::repeat_with(|| counted(ring, &script)).take(10);
        // Where the machine is busy, an answer may take as long as a stall is waited for; not in every run.
        let is_told = |(stats, counters): &(Stats, Counters)| stats.retries == counters.faults_total();
        let (stats, counters) = runs.find(|run| kind != Some(FaultKind::Stall) || is_told(run)).expect("stalls alone");
        let injected = kind.map_or(0, |kind| counters.injected(kind));
        assert_eq!(counters.faults_total(), injected, "{counters:?}");
        assert!(kind.is_none() || injected >= 10, "{counters:?}");
        let fails = kind.is_some_and(|kind| kind != FaultKind::Chunked);
        let failures = if fails { injected } else { 0 };
        assert_eq!(stats.retries, failures, "{stats:?} {counters:?}");
        assert_eq!(stats.requests, 150 + failures);
        assert_eq!(counters.get_requests, stats.requests);
        assert_eq!(stats.throttled, if kind == Some(FaultKind::Slowdown) { injected } else { 0 });
        assert_eq!((stats.given_up, stats.unproved, stats.samples), (0, 0, 150));
        // What changed is refused by the server, for every request insists on its tag: the connection lives.
        let breaks = fails && !matches!(kind, Some(FaultKind::Slowdown | FaultKind::Error | FaultKind::Changed));
        assert_eq!(stats.connections_failed, if breaks { injected } else { 0 });
    });
}

#[test]
fn too_many_requests_a_second_are_counted_as_throttling() {
    let set = DataSet::digits(150, 5);
    let bucket = bucket(&set, "slowdown_rps=150,latency=fixed:1ms");
    let mut loader = loader(&bucket).listing(listing(&set)).batch_size(15).build().unwrap();
    drain(&mut loader, &set).unwrap();
    let (stats, injected) = (loader.stats(), bucket.counters().injected(FaultKind::SlowdownRate));
    assert_eq!((stats.throttled, stats.retries), (injected, injected));
}

#[test]
fn connections_that_end_between_requests_cost_at_most_one_attempt_each() {
    // 150 requests over 32 connections at most: however slowly they are answered, 43 of these must end.
    let (stats, counters) = counted(Backend::Uring, "close_after=2");
    assert!(counters.injected(FaultKind::CloseAfter) > 10, "{counters:?}");
    assert_eq!((stats.retries, stats.connections_failed), (0, 0), "{stats:?}");
    let (stats, counters) = counted(Backend::Uring, "drop_after=2");
    let dropped = counters.injected(FaultKind::DropAfter);
    assert!(dropped > 10 && stats.retries <= dropped, "{stats:?} {counters:?}");
}

/// The error a run over `set` ends with, because of such a fault.
fn failure(bucket: &Bucket, set: &DataSet, kind: FaultKind) -> Error {
    // A stall is what a busy machine is not: what stands behind a stalled request is asked again, and the bucket counts that.
    let patience = Duration::from_millis(if kind == FaultKind::Stall { 500 } else { 10_000 });
    // One epoch: a busy machine may see the second one's request for the same object leave before the error is taken.
    let builder = shaped(loader(bucket), set).listing(listing(set)).attempts_max(3).epochs(1).stall_after(patience);
    let mut loader = builder.build().unwrap();
    let error = drain(&mut loader, set).expect_err("the run cannot succeed");
    assert!(loader.next_batch().is_none(), "a failed loader has ended");
    error
}

#[test]
fn a_changed_object_is_never_mixed() {
    let set = DataSet::digits(60, 5);
    let key = set.key(31);
    let bucket = bucket(&set, &format!("changed_keys={key}"));
    let error = failure(&bucket, &set, FaultKind::ChangedKey);
    assert_eq!((error.kind(), error.object()), (Kind::Changed, Some(key.as_str())), "{error}");
    assert_eq!(bucket.counters().injected(FaultKind::ChangedKey), 2, "one more attempt, for a stale replica");
    assert!(error.to_string().contains("after 2 attempts"), "{error}");
}

/// An object overwritten while its blocks are on their way comes as one version or the other, or as an error; with the
/// listing's ETag the new one is always an error.
#[test]
fn an_object_overwritten_while_it_is_read_is_never_mixed() {
    let set = DataSet::volumes(1, 9, 0.02);
    let old = set.content(0);
    side_by_side((0..6).collect(), |&case: &u64| {
        // Slow answers: most of the object has not been sent when the script changes.
        let bucket = bucket(&set, "latency=fixed:200ms");
        let listed = if case % 2 == 0 { listing(&set) } else { bare_listing(&set) };
        let known = listed[0].etag.is_some();
        let builder = shaped(loader(&bucket), &set).stall_after(PATIENCE).connections_max(2);
        let mut loader = builder.listing(listed).epochs(1).build().unwrap();
        crate::common::eventually("requests come", || bucket.counters().get_requests > 2 + case);
        bucket.set_script("changed_keys=*".parse::<Script>().unwrap()).unwrap();
        let outcome = loader.next_batch().expect("a batch or an error");
        match outcome {
            Err(error) => assert_eq!(error.kind(), Kind::Changed, "{error}"),
            Ok(batch) => {
                assert!(!known, "the listed version was gone");
                let mut new = Vec::new();
                fuelrail::get(&bucket.url(&set.key(0)), &mut new).unwrap();
                assert_ne!(new, old);
                assert_eq!(batch.sample(0), new, "blocks of both versions were joined");
                assert!(loader.stats().unproved > 0);
            }
        }
    });
}

/// Without ETags in the listing, where another rank still has blocks of the version before: what it sends says of which one it is.
#[test]
fn blocks_of_other_ranks_are_not_joined_with_those_of_another_version() {
    let set = DataSet::tokens(60, 3, 300_000);
    let job = peers::Job::new(set.clone(), 2, 200);
    let rank = |rank| {
        let builder = job.rank(rank).listing(bare_listing(&set)).block_size("64KiB".parse().unwrap()).epochs(8);
        builder.build().unwrap()
    };
    // Two epochs of its own, of eight batches each, in which it sees most samples.
    let mut other = rank(1);
    (0..16).for_each(|_| drop(other.next_batch().unwrap().unwrap()));
    job.bucket.set_script("changed_keys=*".parse::<Script>().unwrap()).unwrap();
    let mut loader = rank(0);
    for _ in 0..8 {
        for sample in loader.next_batch().unwrap().unwrap().samples() {
            let mut new = Vec::new();
            fuelrail::get(&job.bucket.url(&set.key(sample.id.0)), &mut new).unwrap();
            let old = set.content(sample.id.0);
            assert_ne!(new, old);
            assert!(sample.bytes == new || sample.bytes == old, "blocks of both versions were joined");
        }
    }
    let stats = loader.stats();
    assert!(stats.unproved > 0 && stats.peers.as_ref().is_some_and(|peers| peers.hits > 0), "{stats:?}");
}

/// The bucket's fault, or the object's: nothing against the rank, but one that never has a block is asked for fewer.
#[test]
fn a_rank_that_cannot_get_a_block_is_asked_for_others() {
    let asked = Arc::new(AtomicU64::new(0));
    let mut job = peers::Job::new(DataSet::tokens(8_000, 3, 1_000), 2, 200);
    let count = Arc::clone(&asked);
    job.addresses[1] = peers::liar(move |socket| {
        let is_check = peers::request(socket)?.contains("only-if-cached");
        count.fetch_add(u64::from(!is_check), Ordering::Relaxed);
        socket.write_all(b"HTTP/1.1 502 Bad Gateway\r\nContent-Length: 0\r\n\r\n")
    });
    let mut loader = job.rank(0).epochs(1).build().unwrap();
    while let Some(batch) = loader.next_batch() {
        batch.unwrap();
    }
    // This rank reads some 2 000 blocks that the other keeps.
    let (asked, peers) = (asked.load(Ordering::Relaxed), loader.stats().peers.unwrap());
    assert!(peers.hits == 0 && (100..1_000).contains(&asked), "asked for {asked}: {peers:?}");
}

/// Without ETags in the listing a stray answer for one block is still noticed: its parts do not agree.
#[test]
fn a_stray_block_is_fetched_anew_when_the_listing_has_no_etags() {
    side_by_side((0..6).collect(), |&seed: &u64| {
        let set = DataSet::volumes(4, seed, 0.01);
        let bucket = bucket(&set, &format!("seed={seed},changed=0.2,per_key_max=1"));
        let mut loader = shaped(loader(&bucket), &set).listing(bare_listing(&set)).build().unwrap();
        assert_eq!(drain(&mut loader, &set).unwrap().order, expected(&set));
        let injected = bucket.counters().injected(FaultKind::Changed);
        assert!(injected > 0 && loader.stats().unproved > 0, "{:?}", loader.stats());
    });
}

#[test]
fn a_missing_object_is_named_and_asked_for_once() {
    let set = DataSet::digits(60, 5);
    let key = set.key(17);
    let bucket = bucket(&set, &format!("missing_keys={key}"));
    let error = failure(&bucket, &set, FaultKind::MissingKey);
    assert_eq!((error.kind(), error.object()), (Kind::NotFound, Some(key.as_str())), "{error}");
    assert_eq!(bucket.counters().injected(FaultKind::MissingKey), 1);
}

/// The kind a fault without end is reported as.
fn reported(kind: FaultKind) -> &'static [Kind] {
    match kind {
        FaultKind::Slowdown => &[Kind::Throttled],
        FaultKind::Error => &[Kind::Server],
        FaultKind::Reset => &[Kind::Network],
        FaultKind::Truncate => &[Kind::Truncated],
        FaultKind::Stall => &[Kind::Stalled],
        FaultKind::LengthLong | FaultKind::LengthShort => &[Kind::Mismatch],
        FaultKind::WrongEtag | FaultKind::Changed => &[Kind::Changed],
        _ => &[Kind::Protocol],
    }
}

#[test]
fn an_object_that_never_comes_is_named_with_its_cause() {
    let kinds = FaultKind::reading().filter(|&kind| kind != FaultKind::Chunked).collect();
    side_by_side(kinds, |&kind| {
        let set = DataSet::digits(60, 5);
        let key = set.key(44);
        let bucket = bucket(&set, &format!("{kind}=1.0,only={key},per_key_max=1000000"));
        let error = failure(&bucket, &set, kind);
        assert!(reported(kind).contains(&error.kind()), "{kind}: {error} ({:?})", error.kind());
        assert_eq!(error.object(), Some(key.as_str()), "{kind}: {error}");
        let attempts = if error.kind() == Kind::Changed { 2 } else { 3 };
        assert!(error.to_string().contains(&format!("after {attempts} attempts")), "{kind}: {error}");
        assert_eq!(bucket.counters().injected(kind), attempts);
    });
}

/// On a link that breaks again and again each attempt brings a little; the numbers of an error are those of the object.
#[test]
fn a_body_that_is_cut_again_and_again_comes_whole_unless_hardly_any_of_it_comes() {
    let set = DataSet::photos(1, 5);
    let cut = |at: u64| bucket(&set, &format!("truncate=1.0@{at},per_key_max={},only=*", set.size(0) / at));
    let open = |bucket: &Bucket| loader(bucket).batch_size(1).attempts_max(3).build().unwrap();
    assert_eq!(drain(&mut open(&cut(4000)), &set).unwrap().order.len(), 1);
    let error = drain(&mut open(&cut(100)), &set).unwrap_err().to_string();
    let says = format!("the body ended at byte 300 of {} (after 3 attempts)", set.size(0));
    assert!(error.contains(&says), "{error}");
}

/// A server that is gone in the middle of a run ends it with an error, not with silence.
#[test]
fn a_server_that_goes_away_ends_the_run() {
    let set = DataSet::digits(300, 5);
    let bucket = bucket(&set, "latency=fixed:5ms");
    let mut loader = loader(&bucket)
        .batch_size(10)
        .connections_max(2)
        .attempts_max(3)
        .epochs(50)
        .outage_limit(None)
        .build()
        .unwrap();
    loader.next_batch().expect("a first batch").unwrap();
    drop(bucket);
    let (tell, told) = mpsc::channel();
    std::thread::spawn(move || {
        let outcome: Result<u64> = loader.by_ref().map(|batch| batch.map(|b| b.len() as u64)).sum();
        tell.send(outcome).expect("the test waits");
    });
    let error = told.recv_timeout(PATIENCE).expect("the run ends").expect_err("the data set was not read whole");
    assert_eq!(error.kind(), Kind::Network, "{error}");
    assert!(error.object().is_some(), "{error}");
}
