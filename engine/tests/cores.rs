//! What a shard's core does: nothing while there is nothing to do, and what it did stands in the stats.

use crate::common::{bucket, eventually, folder, loader};
use fuelrail::{Format, Loader, LoaderBuilder, Stats};
use fuelrail_bucket::DataSet;
use std::time::Duration;

fn cpu_s(stats: &Stats) -> f64 {
    stats.shards.iter().map(|shard| shard.cpu_s()).sum()
}

/// Waits until all look-ahead is filled: nothing has landed for a second, longer than a shard of a busy machine waits.
fn filled(loader: &Loader) -> Stats {
    let (mut last, mut looks) = (loader.stats(), 0);
    eventually("the look-ahead is never full", || {
        std::thread::sleep(Duration::from_millis(100));
        let now = loader.stats();
        let still = now.landed_bytes > 0 && now.landed_bytes == last.landed_bytes && now.requests == last.requests;
        (last, looks) = (now, if still { looks + 1 } else { 0 });
        looks == 10
    });
    last
}

#[test]
fn an_idle_loader_sleeps() {
    let set = DataSet::volumes(16, 5, 0.01);
    let bucket = bucket(&set, "");
    let mut loader = loader(&bucket).shards(2).batch_size(2).epochs(100).build().unwrap();
    drop(loader.next_batch().unwrap().unwrap());
    // The consumer computes for a long time: every gate is full, keep-alive connections stand, and no thread has work.
    let mut before = filled(&loader);
    // Long, beside what the counters cost that are asked for at its end.
    let watched = Duration::from_secs(6);
    let mut quietest = f64::MAX;
    // Beside a busy machine a few switches cost milliseconds: one quiet time of three shows that nothing runs by itself.
    for _ in 0..3 {
        std::thread::sleep(watched);
        let after = loader.stats();
        assert_eq!(after.landed_bytes, before.landed_bytes, "not idle");
        // A busy loop would enter the kernel thousands of times; what is left are look-ups asked for by `stats`.
        assert!(after.enters - before.enters < 200, "{} system calls while idle", after.enters - before.enters);
        quietest = quietest.min((cpu_s(&after) - cpu_s(&before)) / watched.as_secs_f64());
        if quietest < 0.005 {
            break;
        }
        before = after;
    }
    assert!(quietest < 0.005, "two idle shards used {:.3} % of a core: {:#?}", quietest * 100.0, before.shards);
    drop(loader.next_batch().unwrap().unwrap());
}

#[test]
fn every_shard_tells_what_its_core_did() {
    let set = DataSet::volumes(16, 6, 0.01);
    let bucket = bucket(&set, "");
    let mut loader = loader(&bucket).shards(2).pin(true).batch_size(2).build().unwrap();
    crate::common::drain(&mut loader, &set).unwrap();
    let stats = loader.stats();
    assert_eq!(stats.shards.len(), 2);
    for shard in &stats.shards {
        assert!(shard.core.is_some() && shard.cpu_s() > 0.0 && shard.switches_voluntary > 0, "{shard:?}");
        assert!(
            shard.received_bytes > shard.landed_bytes && shard.landed_bytes > 0,
            "heads come with payload: {shard:?}"
        );
        assert!(shard.syscalls_per_mib > 0.0 && shard.completions_per_syscall > 0.0, "{shard:?}");
    }
    let nothing = stats.shards[0].since(&stats.shards[0]);
    assert_eq!((nothing.enters, nothing.landed_bytes, nothing.cpu_s()), (0, 0, 0.0));
    let since_start = stats.shards[0].since(&fuelrail::ShardStats::default());
    assert_eq!((since_start.completions, since_start.core), (stats.shards[0].completions, stats.shards[0].core));
    let sum = |of: fn(&fuelrail::ShardStats) -> u64| stats.shards.iter().map(of).sum::<u64>();
    assert_eq!(sum(|shard| shard.landed_bytes), stats.landed_bytes);
    assert_eq!(sum(|shard| shard.enters), stats.enters);
    let rate = stats.enters as f64 * 1048576.0 / sum(|shard| shard.received_bytes) as f64;
    assert!((stats.syscalls_per_mib - rate).abs() < 1e-9 * rate, "{stats:?}");
}

#[test]
fn loaders_near_a_node_share_its_cores_and_one_near_none_says_so() {
    let set = DataSet::digits(64, 8);
    let bucket = bucket(&set, "");
    let here = fuelrail::internal::Topology::here();
    let node = here.cores[0].node;
    let near = |node: usize| loader(&bucket).pin(true).near(node as u16).build().unwrap();
    let (mut first, mut second) = (near(node), near(node));
    let core = |loader: &mut Loader| {
        crate::common::drain(loader, &set).unwrap();
        loader.stats().shards[0].core.expect("a shard bound to a core tells which")
    };
    let cores = [core(&mut first), core(&mut second)];
    let on_node: Vec<usize> = here.cores.iter().filter(|core| core.node == node).map(|core| core.id).collect();
    assert!(cores.iter().all(|core| on_node.contains(core)), "{cores:?} of {on_node:?}");
    assert!(cores[0] != cores[1] || on_node.len() == 1, "{cores:?}");
    let said = |loader: &Loader| loader.notices().iter().any(|notice| notice.starts_with("near: "));
    assert!(!said(&first) && said(&near(60_000)), "{:?}", first.notices());
}

/// What reads side-cars at the start is a loader, too, and over before the shards start.
#[test]
fn a_pass_over_objects_takes_no_cores() {
    let dir = tempfile::tempdir().unwrap();
    for name in ["a.bin", "a.cls", "b.bin", "b.cls"] {
        std::fs::write(dir.path().join(name), "1").unwrap();
    }
    let bucket = folder(dir.path(), "");
    let seats = fuelrail::internal::Topology::here().seats();
    // Where only one core is allowed, all loaders sit on it, and this proves nothing.
    let seat = |builder: LoaderBuilder| {
        let mut loader = builder.pin(true).build().unwrap();
        while let Some(batch) = loader.next_batch() {
            drop(batch.unwrap());
        }
        let core = loader.stats().shards[0].core.expect("a shard bound to a core tells which");
        seats.iter().position(|seat| seat.id == core).unwrap()
    };
    let first = seat(loader(&bucket));
    let second = seat(loader(&bucket).format(Format::Objects).side_cars(["cls"]));
    assert_eq!(second, (first + 1) % seats.len(), "it begins after the loader before it");
}
