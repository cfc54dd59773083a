//! A bucket that serves nothing for a minute in the middle of an epoch: the read goes on by itself, asks seldom meanwhile, and
//! comes back at once. And one that does not come back.

use fuelrail_io::SimFaults;
use fuelrail_sim::{Checker, Down, FaultShares, LifeShape, OutageShape, Scenario, SimReport, run};

const HOW: [Down; 5] = [Down::Refused, Down::Reset, Down::Silent, Down::SlowDown, Down::ServerError];
/// What the retry budget of a shard holds.
const BUDGET: u64 = 100;

/// One rank that reads some seconds' worth, and whose bucket is down from its first second on.
fn scenario(seed: u64, shards: u16, how: Down, for_s: u64) -> Scenario {
    let mut s = Scenario::draw(seed);
    s.sizes = (0..2_000).map(|at| 2_000 + 113 * (at % 60)).collect();
    (s.samples, s.total_bytes) = (2_000, s.sizes.iter().sum());
    (s.block_bytes, s.batch_size, s.epochs, s.drop_last) = (1 << 20, 16, 1, false);
    s.lives = vec![LifeShape { world: 1, kill_after_steps: None, kill_after_events: 0 }];
    (s.loader.shards, s.loader.room_bytes, s.loader.bad_samples) = (shards, 1 << 20, "raise");
    (s.loader.connections_start, s.loader.connections_max, s.loader.depth_max) = (4, 8, 4);
    (s.loader.ring_entries, s.loader.ring_sockets, s.loader.stall_after_ms) = (512, 512, 5_000);
    (s.loader.attempts_max, s.loader.retry_base_us, s.loader.retry_cap_us) = (10, 50_000, 20_000_000);
    (s.bucket.latency_us, s.bucket.addresses, s.bucket.responses_per_connection) = ((10_000, 20_000), 1, 0);
    (s.bucket.connect_us, s.bucket.total_bytes_per_s, s.bucket.connection_bytes_per_s) = (10_000, 0, 100 << 20);
    (s.consumer.step_us, s.consumer.pause, s.consumer.lease_ms) = (5_000, 0.0, 20);
    s.disk = None;
    (s.faults, s.ring, s.hopeless) = (FaultShares::default(), SimFaults::default(), Vec::new());
    s.outage = Some(OutageShape { from_ms: 500, for_ms: for_s * 1_000, how });
    s
}

fn asked(report: &SimReport) -> u64 {
    report.faults["outage"]
}

#[test]
fn an_outage_of_a_minute_is_survived_within_the_retry_budget() {
    for how in HOW {
        for (seed, shards) in [(1, 1), (2, 2), (3, 4)] {
            let report = run(&scenario(seed, shards, how, 60));
            assert!(report.is_sound(), "{how:?}: {report}");
            assert_eq!(report.samples, 2_000);
            let asked = asked(&report);
            let wait_s = report.batch_wait_s_max;
            assert!((10..BUDGET * u64::from(shards)).contains(&asked), "{how:?}, {shards} shards: {asked} requests");
            // What was asked for in vain just before the end is held for as long as silence is.
            let held_s = if how == Down::Silent { 7.5 } else { 0.0 };
            assert!(wait_s > 55.0 && wait_s < 62.5 + held_s, "{how:?}: waited {wait_s} s for a batch");
        }
    }
}

#[test]
fn after_the_limit_the_error_says_how_long_nothing_came() {
    for how in HOW {
        let report = run(&scenario(4, 2, how, 2_000));
        let [violation] = &report.violations[..] else { panic!("{how:?}: {report}") };
        assert_eq!(violation.checker, Checker::Errors, "{how:?}: {report}");
        assert!(violation.text.contains("nothing was served for 3"), "{how:?}: {}", violation.text);
        assert!(violation.text.contains("outage_limit_s"), "{how:?}: {}", violation.text);
        assert!((300.0..330.0).contains(&report.virtual_s), "{how:?}: {} s", report.virtual_s);
        assert!(asked(&report) < 2 * 3 * BUDGET, "{how:?}: {} requests", asked(&report));
    }
}

/// Outages short and long, anywhere, on top of everything else that may be wrong.
#[test]
fn whatever_else_is_wrong_the_same_bytes_come() {
    for seed in 2_000..2_060 {
        let mut calm = Scenario::draw(seed);
        (calm.hopeless, calm.loader.bad_samples) = (Vec::new(), "raise");
        let mut rough = calm.clone();
        let (from_ms, for_ms) = (seed % 700, [300, 3_000, 60_000][seed as usize % 3]);
        // A server that answers is down when many objects fail, not when the few that are left do.
        let how = if rough.samples < 200 { &HOW[..3] } else { &HOW[..] };
        rough.outage = Some(OutageShape { from_ms, for_ms, how: how[seed as usize % how.len()] });
        let (rough, calm) = (run(&rough), run(&calm));
        assert!(rough.is_sound() && calm.is_sound(), "{rough}\n{calm}");
        assert_eq!(rough.content_hash, calm.content_hash, "seed {seed}");
    }
}
