//! A real bucket that asks to slow down, and one that is down for a while: by counts, not by time.

use crate::common::ports::free_port;
use crate::common::skip::skip_or_fail;
use crate::common::{PATIENCE, bucket, drain, eventually, kept_in, listing, loader, loader_at, plain_run, planned};
use fuelrail::{Kind, Loader, Stats};
use fuelrail_bucket::{Bucket, BucketConfig, Counters, DataSet, FaultKind, Script, Source};
use std::net::{Ipv4Addr, TcpListener};
use std::os::unix::fs::chown;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Refused requests over served ones.
fn refused_share(counters: &Counters) -> f64 {
    let refused = counters.injected(FaultKind::SlowdownRate) as f64;
    refused / (counters.get_requests as f64 - refused)
}

#[test]
fn a_rate_limit_is_found_by_all_shards_together_and_few_requests_are_refused() {
    let set = DataSet::digits(2_000, 5);
    for shards in [1, 3] {
        let bucket = bucket(&set, "slowdown_rps=500,latency=fixed:2ms");
        let mut loader = loader(&bucket).listing(listing(&set)).shards(shards).batch_size(20).seed(3).build().unwrap();
        let delivered = drain(&mut loader, &set).unwrap();
        assert_eq!(delivered.order, planned(plain_run(2_000, 3, 20, 1)));
        let (stats, counters): (Stats, Counters) = (loader.stats(), bucket.counters());
        assert_eq!(stats.throttled, counters.injected(FaultKind::SlowdownRate));
        assert_eq!(stats.given_up, 0);
        // The first moment is the dearest: no limit is known then, and every request may meet it once.
        let share = refused_share(&counters);
        assert!(stats.throttled > 0 && share < 1.5, "{shards} shards: {share:.3} were refused; {stats:?}");
    }
}

/// How many samples each of two loaders has when the first of them has all of its own.
fn race(set: &DataSet, bucket: &Bucket, share_dir: Option<&Path>) -> [u64; 2] {
    let taken = [const { AtomicU64::new(0) }; 2];
    let (first, ready) = (AtomicU64::new(u64::MAX), AtomicU64::new(0));
    let at_end = std::thread::scope(|scope| {
        let racers = [0, 1].map(|at| {
            let (taken, first, ready) = (&taken, &first, &ready);
            scope.spawn(move || {
                let mut builder = loader(bucket).listing(listing(set)).batch_size(5).seed(at as u64);
                if let Some(dir) = share_dir {
                    builder = builder.share_dir(dir.to_owned());
                }
                let mut loader: Loader = builder.build().unwrap();
                let refused = |line: &&String| line.contains("share_dir") && !line.contains("made");
                assert_eq!(loader.notices().iter().find(refused), None);
                ready.fetch_add(1, Ordering::SeqCst);
                eventually("both stand", || ready.load(Ordering::SeqCst) == 2);
                while let Some(batch) = loader.next_batch() {
                    let batch = batch.unwrap();
                    batch.samples().for_each(|s| set.verify(loader.key(s.id), s.bytes).unwrap());
                    taken[at].fetch_add(batch.len() as u64, Ordering::SeqCst);
                }
                let other = taken[1 - at].load(Ordering::SeqCst);
                if first.compare_exchange(u64::MAX, other, Ordering::SeqCst, Ordering::SeqCst).is_ok() {
                    other
                } else {
                    0
                }
            })
        });
        racers.map(|racer| racer.join().unwrap())
    });
    [set.len(), at_end.iter().sum()]
}

#[test]
fn two_loaders_with_one_directory_share_the_rate_and_neither_starves() {
    let set = DataSet::digits(2_000, 5);
    let run = || {
        let dir = tempfile::tempdir().unwrap();
        let bucket = bucket(&set, "slowdown_rps=800,latency=fixed:2ms");
        let taken = race(&set, &bucket, Some(&dir.path().join("pace")));
        let files = kept_in(&dir.path().join("pace"));
        assert_eq!(files.len(), 1, "{files:?}");
        taken
    };
    // Delivered in order: what was refused in the first moment holds back what came since, so this is less even than the rate. And a
    // busy machine may let one run ahead; not in every race.
    let races: Vec<_> = (0..3).map(|_| run()).take_while(|[first, second]| second * 10 <= first * 3).collect();
    assert!(races.len() < 3, "the first had so many, and the second: {races:?}");
}

/// Another user could lower the rate of all, or cut the file short under its mapping.
#[test]
fn a_directory_of_another_user_costs_one_line() {
    let set = DataSet::digits(40, 5);
    let (bucket, dir) = (bucket(&set, ""), tempfile::tempdir().unwrap());
    if let Err(error) = chown(dir.path(), Some(54_321), None) {
        return skip_or_fail("root", error);
    }
    let mut one = loader(&bucket).share_dir(dir.path().to_owned()).build().unwrap();
    assert!(one.notices().iter().any(|line| line.contains("share_dir: ") && line.contains("user 54321")));
    drain(&mut one, &set).unwrap();
}

#[test]
fn a_directory_that_cannot_be_used_costs_one_line() {
    let set = DataSet::digits(40, 5);
    let bucket = bucket(&set, "");
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("file");
    std::fs::write(&file, "not ours").unwrap();
    let mut one = loader(&bucket).share_dir(file).build().unwrap();
    let said: Vec<_> = one.notices().iter().filter(|line| line.contains("share_dir")).cloned().collect();
    assert_eq!(said.len(), 1, "{said:?}");
    drain(&mut one, &set).unwrap();
    let error = loader(&bucket).share_dir("pace").build().unwrap_err();
    assert!(error.kind() == Kind::Usage && error.to_string().contains("absolute"), "{error}");
}

/// Serves nothing but refusals from now on, or everything.
fn down(bucket: &Bucket, script: &str) {
    bucket.set_script(script.parse::<Script>().unwrap()).unwrap();
}

#[test]
fn an_outage_is_waited_for_with_few_requests_and_then_the_read_goes_on() {
    let set = DataSet::digits(600, 5);
    for script in ["slowdown=1.0,per_key_max=1000000", "error=1.0,per_key_max=1000000"] {
        // Far enough away that a connection has one request at a time: what is under way when the outage begins is refused too.
        let bucket = bucket(&set, "latency=fixed:5ms");
        let builder = loader(&bucket).listing(listing(&set)).batch_size(20).seed(3).connections_max(8);
        // Room for little: most is still to be fetched when the outage begins.
        let mut loader = builder.memory_limit("3MB".parse().unwrap()).epochs(4).build().unwrap();
        let mut delivered = crate::common::Delivered::default();
        crate::common::take(&loader.next_batch().unwrap().unwrap(), &loader, &set, &mut delivered);
        let before = bucket.counters();
        down(&bucket, script);
        let begun = Instant::now();
        let kind = if script.starts_with("slow") { FaultKind::Slowdown } else { FaultKind::Error };
        let refused = || bucket.counters().injected(kind) - before.injected(kind);
        // Probes come four times a second at most.
        let probes_max = |since: Instant| (since.elapsed().as_secs_f64() * 4.0) as u64;
        let (probes, most, most_in_all) = std::thread::scope(|scope| {
            let outage = scope.spawn(|| {
                eventually("an outage is known", || {
                    let (begun, known) = (Instant::now(), refused());
                    std::thread::sleep(Duration::from_secs(1));
                    let probes = refused() - known;
                    known >= 24 && probes <= probes_max(begun)
                });
                let (known_at, known) = (Instant::now(), refused());
                eventually("it is asked again", || known_at.elapsed() >= Duration::from_secs(3) && refused() > known);
                let probes = refused() - known;
                let most = probes_max(known_at);
                down(&bucket, "");
                // It is known after 24 refusals; one late answer of each of the eight connections may begin that count anew.
                (probes, most, 9 * 24 + 8 + probes_max(begun) + 12)
            });
            while let Some(batch) = loader.next_batch() {
                crate::common::take(&batch.unwrap(), &loader, &set, &mut delivered);
            }
            outage.join().unwrap()
        });
        assert_eq!(delivered.order, planned(plain_run(600, 3, 20, 4)));
        let refused = refused();
        assert!(refused <= most_in_all, "{refused} requests in the outage, {most_in_all} at most");
        assert!(probes <= most, "{probes} requests in the last seconds of the outage, {most} at most");
        assert_eq!(loader.stats().given_up, 0);
    }
}

/// A job that a restarted cluster has begun is not given up after the few attempts of a command at a prompt.
#[test]
fn a_loader_that_starts_in_an_outage_waits_for_its_end() {
    let set = DataSet::digits(60, 5);
    let bucket = bucket(&set, "slowdown=1.0,per_key_max=1000000");
    std::thread::scope(|scope| {
        let read = scope.spawn(|| {
            let mut loader = loader(&bucket).batch_size(20).outage_limit(PATIENCE).build().unwrap();
            drain(&mut loader, &set).unwrap().order.len()
        });
        eventually("more attempts than at a prompt", || bucket.counters().injected(FaultKind::Slowdown) > 6);
        assert!(!read.is_finished());
        down(&bucket, "");
        assert_eq!(read.join().unwrap(), 60);
    });
    // Connections are closed, then refused, and then somebody serves.
    let listener = TcpListener::bind(free_port(Ipv4Addr::LOCALHOST)).unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::scope(|scope| {
        let read = scope.spawn(move || {
            let builder = loader_at(&format!("http://{address}/bucket/")).outage_limit(PATIENCE);
            builder.batch_size(20).build().unwrap().samples()
        });
        (0..7).for_each(|_| drop(listener.accept().unwrap()));
        drop(listener);
        let mut served = None;
        eventually("the address is free again", || {
            let source = Source::Generated(set.clone());
            served = Bucket::start(BucketConfig { listen: address, source, ..BucketConfig::default() }).ok();
            served.is_some()
        });
        assert_eq!(read.join().unwrap(), 60);
    });
}

#[test]
fn an_outage_that_lasts_too_long_ends_the_run_and_says_how_long_it_was() {
    let set = DataSet::digits(600, 5);
    let bucket = bucket(&set, "latency=fixed:1ms");
    let builder = loader(&bucket).listing(listing(&set)).batch_size(20).memory_limit("3MB".parse().unwrap());
    let mut loader = builder.outage_limit(Duration::from_secs(2)).epochs(100).build().unwrap();
    loader.next_batch().unwrap().unwrap();
    drop(bucket);
    let error = loader.by_ref().find_map(Result::err).expect("the data set was not read whole");
    assert_eq!(error.kind(), Kind::Network, "{error}");
    assert!(error.to_string().contains("nothing was served for 2 s"), "{error}");
    assert!(error.to_string().contains("outage_limit_s"), "{error}");
}
