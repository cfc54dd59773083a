//! What the simulator found once, kept as scenarios that fail without the fix.

use fuelrail_io::SimFaults;
use fuelrail_sim::{Despair, FaultShares, LifeShape, Scenario, SimReport, run};

/// One rank, one shard, one address, 60 objects, no trouble.
fn plain(seed: u64) -> Scenario {
    let mut s = Scenario::draw(seed);
    s.sizes = (0..60).map(|at| 200 + 113 * at).collect();
    (s.samples, s.total_bytes) = (60, s.sizes.iter().sum());
    (s.block_bytes, s.batch_size, s.epochs, s.drop_last) = (1 << 20, 4, 2, false);
    s.lives = vec![LifeShape { world: 1, kill_after_steps: None, kill_after_events: 0 }];
    (s.loader.shards, s.loader.room_bytes, s.loader.bad_samples) = (1, 128 << 10, "raise");
    s.disk = None;
    (s.faults, s.ring, s.hopeless) = (FaultShares::default(), SimFaults::default(), Vec::new());
    (s.bucket.addresses, s.bucket.responses_per_connection, s.bucket.until_close) = (1, 0, 0.0);
    s
}

fn sound(scenario: &Scenario) -> SimReport {
    let report = run(scenario);
    assert!(report.is_sound(), "{report}");
    report
}

/// A chunked response cut after its payload: the window is full, and a request for the rest would be for no byte.
#[test]
fn a_body_cut_behind_its_payload_has_landed() {
    for seed in 0..10 {
        let mut s = plain(seed);
        s.bucket.chunked = 1.0;
        s.faults = FaultShares { reset: 0.2, finish: 0.2, stall: 0.02, per_key_max: 4, ..FaultShares::default() };
        sound(&s);
    }
}

/// The first part of a body is damaged, then the connection breaks and a range completes it: parts carry no checksum, so
/// the one promised with the first part must be kept.
#[test]
fn a_resumed_body_keeps_its_checksum() {
    let mut unproved = 0;
    for seed in 0..20 {
        let mut s = plain(seed);
        s.bucket.crc32c = true;
        s.bucket.segment_bytes = 100;
        s.faults = FaultShares { flipped: 0.5, per_key_max: 2, ..FaultShares::default() };
        s.ring = SimFaults { fatal_errno: 0.01, short_receive: 0.9, ..SimFaults::default() };
        unproved += sound(&s).counters.unproved;
    }
    assert!(unproved > 0, "nothing was damaged");
}

/// A sample that fails last of its batch must not leave its window out when the batch is sealed.
#[test]
fn a_batch_is_sealed_when_its_last_answer_is_an_error() {
    for (policy, epochs) in [("skip", 2), ("quarantine", 2), ("raise", 1)] {
        for why in [Despair::NotFound, Despair::Denied, Despair::ServerError] {
            let mut s = plain(5);
            s.epochs = epochs;
            s.loader.bad_samples = policy;
            s.hopeless = (0..3).map(|at| (at * 19, why)).collect();
            let report = sound(&s);
            assert_eq!(report.raised.is_some(), policy == "raise", "{report}");
        }
    }
}

/// Connections that fail together to a dead address must not lead the next ones back to it.
#[test]
fn a_dead_address_is_left_after_the_first_connections() {
    for seed in 0..10 {
        let mut s = plain(seed);
        s.bucket.addresses = 2;
        (s.loader.connections_start, s.loader.connections_max) = (8, 16);
        let report = sound(&s);
        let dead = report.faults.get("dead_address").copied().unwrap_or(0);
        assert!((1..=16).contains(&dead), "{dead} connections to the dead address: {report}");
    }
}

/// A server that always refuses an object, and between refusals closes the idle connection without a word: the closes
/// are no attempts of the object, but they must not make the earlier ones forgotten either.
#[test]
fn a_hopeless_object_is_given_up_although_connections_idle_out() {
    for seed in 0..10 {
        let mut s = plain(seed);
        s.sizes.truncate(4);
        (s.samples, s.total_bytes) = (4, s.sizes.iter().sum());
        (s.bucket.responses_per_connection, s.bucket.announces_close) = (1, false);
        (s.loader.connections_start, s.loader.connections_max) = (1, 1);
        (s.loader.retry_base_us, s.loader.retry_cap_us, s.loader.attempts_max) = (2_000_000, 4_000_000, 8);
        s.hopeless = vec![(2, Despair::ServerError)];
        let report = sound(&s);
        assert!(report.raised.is_some(), "{report}");
    }
}

/// The disk reads less than asked for, by way of a bounce buffer: the rest is read, and the block is not given up.
#[test]
fn a_short_block_that_is_read_in_pieces_is_whole() {
    let report = sound(&Scenario::draw(971_311_793_408));
    assert!(report.faults.get("disk_short_read").is_some_and(|n| *n > 0), "{report}");
}

/// Objects that are refused for ever are the most urgent ones while connections fail: a server that is up is found so by asking
/// for the others, and not in 139 s.
#[test]
fn the_end_of_an_outage_is_seen_behind_a_bad_object() {
    sound(&Scenario::draw(1347));
}

/// A block of a sample that did not prove itself is asked for anew while another batch has it read from disk, where the damaged
/// copy went: that copy must not be what the sample gets again, or its attempts are used up for nothing.
#[test]
fn a_damaged_copy_on_disk_is_not_taken_for_a_fresh_one() {
    for seed in [399_949_804_179, 0, 3] {
        sound(&crate::disk::damaged(seed));
    }
}

/// A segment that cannot be opened is given up by the shard that goes to sleep: its ring says then that it does not.
#[test]
fn a_segment_that_cannot_be_opened_keeps_its_shard_awake() {
    sound(&Scenario::draw(492));
}
