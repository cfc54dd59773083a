//! Epochs played for a prediction take what arithmetic says, where arithmetic can say it.

use fuelrail_base::Kind;
use fuelrail_sim::forecast::{World, epochs_s};

const WORLD: World = World {
    samples: 800,
    sample_bytes: 10_000,
    block_bytes: 1 << 20,
    batch_size: 8,
    ranks: 1,
    epochs: 4,
    sticky: false,
    shards: 1,
    connections_max: 4,
    room_bytes: 400_000,
    cache_bytes: 0,
    disk_bytes: 0,
    latency_s: 0.02,
    bytes_per_s: 0,
    requests_per_s: 0,
    step_s: 0.0,
};

/// The third epoch: a disk is full by then, and it still looks ahead.
fn later_s(world: &World) -> f64 {
    epochs_s(world).unwrap()[2]
}

fn near(found: f64, wanted: f64) {
    assert!((found / wanted - 1.0).abs() < 0.08, "{found} s instead of {wanted} s");
}

#[test]
fn latency_bandwidth_memory_disk_and_device_are_each_the_limit() {
    near(later_s(&WORLD), 800.0 * 0.02 / 4.0);
    near(later_s(&World { bytes_per_s: 1_000_000, ..WORLD }), 8.0);
    near(later_s(&World { step_s: 0.1, ..WORLD }), 10.0);
    near(later_s(&World { cache_bytes: 4_000_000, ..WORLD }), 2.0);
    // 4 MB of disk are three segments of 1 MiB, each with head, journal and 103 samples; 200 samples are in RAM.
    let missing = 800.0 - 200.0 - 3.0 * 103.0;
    near(later_s(&World { cache_bytes: 2_000_000, disk_bytes: 4_000_000, ..WORLD }), missing * 0.02 / 4.0);
    // Of a rank's 400 samples, 200 are cached.
    near(later_s(&World { ranks: 2, sticky: true, cache_bytes: 2_000_000, ..WORLD }), 200.0 * 0.02 / 4.0);
    let whole = later_s(&World { cache_bytes: 9_000_000, ..WORLD });
    assert!(whole < 0.1, "all of it is in RAM: {whole}");
}

#[test]
fn ranks_in_step_share_a_link_evenly() {
    // Eight connections fill it. Of its 300 samples, a rank has 150 in RAM and 75 on disk, and it has room for a few batches.
    let link = World { sample_bytes: 65_536, connections_max: 15, latency_s: 0.026, bytes_per_s: 16 << 20, ..WORLD };
    let tiers = World { samples: 900, room_bytes: 4 << 20, cache_bytes: 150 * 65_536, disk_bytes: 5 << 20, ..link };
    let epochs = epochs_s(&World { ranks: 3, sticky: true, step_s: 0.01, epochs: 8, ..tiers }).unwrap();
    let (later, least) = (epochs[2..7].iter().sum::<f64>() / 5.0, 225.0 / 256.0);
    assert!(later < 1.1 * least, "{later} s an epoch, where the link takes {least} s");
}

#[test]
fn a_fetch_that_few_batches_need_is_waited_for_by_none() {
    // Nearly all is in RAM and on disk; about one batch of ten needs the bucket, which is six steps away. Memory has room for eight.
    let far = World { samples: 960, sample_bytes: 65_536, connections_max: 15, latency_s: 0.055, ..WORLD };
    let held = World { room_bytes: 4_214_784, cache_bytes: 304 * 65_536, disk_bytes: 5 << 20, ranks: 3, ..far };
    let epochs = epochs_s(&World { sticky: true, step_s: 0.01, epochs: 8, ..held }).unwrap();
    let (later, least) = (epochs[2..7].iter().sum::<f64>() / 5.0, 40.0 * 0.01);
    assert!(later < 1.01 * least, "{later} s an epoch, of which steps take {least} s");
}

#[test]
fn ranks_in_step_share_a_rate_of_requests() {
    // Ranks exchange nothing. One that is ahead has its memory full and sends fewer requests, until the others have caught up.
    let rate = World { samples: 2_000, sample_bytes: 3_000, connections_max: 64, room_bytes: 1 << 20, ..WORLD };
    for ranks in [1, 2, 8] {
        let epochs = epochs_s(&World { ranks, requests_per_s: 250, ..rate }).unwrap();
        let (run, least) = (epochs.iter().sum::<f64>(), epochs.len() as f64 * 8.0);
        assert!(
            run > 0.98 * least && run < 1.15 * least,
            "{ranks} ranks: {epochs:?} s, where the rate takes {least} s"
        );
    }
}

#[test]
fn a_set_too_large_to_be_played_takes_as_many_times_as_long() {
    let large = World { samples: 80_000, cache_bytes: 400_000_000, room_bytes: 4_000_000, ..WORLD };
    near(later_s(&large), 80_000.0 * 0.02 / 4.0 / 2.0);
    let long =
        World { samples: 2_000, sample_bytes: 10_000_000, block_bytes: 1 << 20, bytes_per_s: 100_000_000, ..WORLD };
    near(later_s(&World { connections_max: 64, room_bytes: 400_000_000, ..long }), 200.0);
}

#[test]
fn what_no_loader_is_made_for_is_refused() {
    for world in
        [World { samples: 0, ..WORLD }, World { connections_max: 0, ..WORLD }, World { latency_s: -1.0, ..WORLD }]
    {
        let error = epochs_s(&world).unwrap_err();
        assert!(error.kind() == Kind::Usage && error.hint().is_some(), "{error}");
    }
}
