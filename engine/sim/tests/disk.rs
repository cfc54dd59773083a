//! Machines with disks: power cuts in the middle of everything, rot, files of others, damage on the wire.

use crate::seeds::seeds;
use fuelrail_io::SimFaults;
use fuelrail_plan::spill::SpillPolicy;
use fuelrail_sim::{DiskShape, FaultShares, LifeShape, Scenario, SimReport, run};

fn sound(scenario: &Scenario) -> SimReport {
    let report = run(scenario);
    assert!(report.is_sound(), "{report}\n  scenario of seed {}", report.seed);
    report
}

/// A small data set, read for many epochs by one rank or two, with short blocks, long ones, and objects of several blocks.
fn small(seed: u64) -> Scenario {
    let mut s = Scenario::draw(seed);
    s.sizes = (0..16).map(|i| if i % 4 == 0 { 65_536 + i * 9_001 } else { i * 313 }).collect();
    (s.samples, s.total_bytes) = (16, s.sizes.iter().sum());
    (s.block_bytes, s.batch_size, s.epochs, s.drop_last, s.hopeless) = (128 << 10, 4, 24, false, Vec::new());
    (s.bucket.etags, s.bucket.addresses, s.bucket.responses_per_connection) = ((true, true), 1, 0);
    (s.bucket.connection_bytes_per_s, s.bucket.total_bytes_per_s) = (1 << 30, 0);
    (s.loader.shards, s.loader.cache_bytes, s.loader.bad_samples) = (1 + (seed % 2) as u16, 0, "raise");
    (s.loader.connections_max, s.loader.room_bytes) = (s.loader.connections_max.min(4), 1 << 20);
    s.loader.connections_start = s.loader.connections_start.min(4);
    (s.consumer.pause, s.faults) = (0.0, FaultShares::default());
    s
}

fn disk(seed: u64) -> DiskShape {
    DiskShape {
        segments_max: 1 + seed % 4,
        policy: SpillPolicy::ALL[seed as usize % 3],
        unit: if seed.is_multiple_of(2) { 512 } else { 4096 },
        capacity_bytes: 1 << 30,
        latency_us_max: [200, 2_000, 20_000][seed as usize % 3],
        foreign: seed.is_multiple_of(5),
        power_cuts: true,
        in_order: seed.is_multiple_of(7),
        rot_bits: if seed.is_multiple_of(3) { 2 } else { 0 },
        failure: None,
    }
}

/// Runs that are each cut twenty times, and gone on with over what the disk kept: five hundred cuts, or five thousand.
#[test]
fn power_cuts_cost_requests_and_never_a_byte() {
    let (mut cuts, mut adopted, mut lost) = (0, 0, 0);
    let runs = seeds(0..26, 2);
    for &seed in &runs {
        let mut s = small(seed);
        // 96 steps in all for one rank.
        let life = |at: u64| LifeShape {
            world: 1 + (at + seed) as u32 % 2,
            kill_after_steps: (at < 20).then_some((at + seed) % 3),
            kill_after_events: (at * 37 + seed) % 60,
        };
        s.lives = (0..=20).map(life).collect();
        s.add_disk(disk(seed));
        let report = sound(&s);
        cuts += report.faults.get("power_cut").copied().unwrap_or(0);
        adopted += report.counters.adopted;
        lost += report.counters.disk_lost;
    }
    assert!(cuts >= runs.len() as u64 * 16, "{cuts} power cuts in {} runs", runs.len());
    assert!(adopted > runs.len() as u64 * 10 && lost > 0 && lost < adopted, "{adopted} found again, {lost} lost");
}

/// Objects longer than a block, some of whose bits flip on the wire, and a server that promises checksums.
pub(crate) fn damaged(seed: u64) -> Scenario {
    let mut s = small(seed);
    s.sizes = (0..16).map(|i| if i % 4 == 0 { 1_200_000 + i * 9_001 } else { 70_000 + i * 313 }).collect();
    (s.epochs, s.total_bytes, s.ring) = (2, s.sizes.iter().sum(), SimFaults::default());
    (s.bucket.crc32c, s.bucket.crc32c_of_parts) = (true, true);
    s.faults = FaultShares { flipped: 0.3, per_key_max: 2, ..FaultShares::default() };
    s.lives = vec![LifeShape { world: 1, kill_after_steps: None, kill_after_events: 0 }];
    s.loader.room_bytes = 12 << 20;
    s.add_disk(DiskShape { segments_max: 40, power_cuts: false, rot_bits: 0, foreign: false, ..disk(seed) });
    s
}

/// What flips on the wire is noticed where the server promises a checksum, of objects longer than a block, too: the sample is
/// fetched anew, into memory that the disk may still read for its neighbours.
#[test]
fn damage_on_the_wire_is_noticed_where_a_checksum_is_promised() {
    let mut unproved = 0;
    for seed in seeds(0..10, 2) {
        unproved += sound(&damaged(seed)).counters.unproved;
    }
    assert!(unproved > 0, "{unproved} samples were found damaged");
}
