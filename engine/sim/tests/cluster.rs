//! Many ranks that keep blocks for each other: how often they read the bucket, also where ranks are lost or far away.

use fuelrail_sim::cluster::{Cluster, play};

/// Eight ranks whose disks hold the set, for three epochs.
fn eight() -> Cluster {
    Cluster {
        ranks: 8,
        samples: 4_000,
        sample_bytes: 110_000,
        batch_size: 32,
        sticky: false,
        epochs: 3,
        steps_max: u64::MAX,
        disk_blocks: 1_000,
        step_s: 0.1,
        bucket_s: 0.02,
        hop_s: 0.000_1,
        bytes_per_s: 1e9,
        far_ranks: 0,
        far_bucket_s: 0.0,
        far_hop_s: 0.0,
        lost_ranks: 0,
        lost_at_step: 0,
        steps_without: 0,
        new_ranks: 0,
    }
}

#[test]
fn a_job_whose_disks_hold_the_set_reads_it_once() {
    let (played, recording) = play(&eight()).unwrap();
    assert_eq!((played.whole_epochs, played.samples, played.requests), (3, 12_000, 4_000));
    assert!(played.peer_blocks > 9_000 && played.peer_misses == 0, "{played:?}");
    let last = played.waits_s.len() - 16;
    assert!(played.waits_s[last..].iter().all(|wait| *wait < 0.01), "{:?}", played.waits_s);
    recording.replay().unwrap()();
    assert_eq!(recording.samples, 1_500);
}

#[test]
fn one_that_is_alone_reads_what_its_disk_does_not_hold() {
    let (played, _) = play(&Cluster { ranks: 1, disk_blocks: 2_000, ..eight() }).unwrap();
    assert_eq!((played.whole_epochs, played.peer_blocks), (3, 0));
    assert!((8_000..8_200).contains(&played.requests), "{played:?}");
}

#[test]
fn ranks_that_are_lost_cost_the_bucket_what_they_alone_held() {
    // Ranks whose answers came from their disks take long for what is no longer on any.
    for bucket_s in [0.02, 0.1, 0.3] {
        let lost = Cluster { bucket_s, lost_ranks: 2, lost_at_step: 20, steps_without: 4, ..eight() };
        let (played, _) = play(&lost).unwrap();
        assert_eq!((played.whole_epochs, played.samples), (3, 12_000), "from the same step on, by six");
        assert!(played.lost_blocks > 800, "{played:?}");
        assert!((played.lost_blocks..played.lost_blocks * 5 / 4).contains(&played.anew), "{played:?}");
    }
}

#[test]
fn under_the_sticky_order_a_job_of_other_ranks_finds_what_the_run_before_kept() {
    let four = Cluster { ranks: 4, disk_blocks: 2_000, sticky: true, lost_at_step: 40, ..eight() };
    let (five, _) = play(&Cluster { new_ranks: 1, ..four }).unwrap();
    assert_eq!((five.whole_epochs, five.samples, five.lost_blocks), (3, 12_000, 0));
    // Half of the blocks have another home.
    assert!(five.anew < 400, "{five:?}");
    let (three, _) = play(&Cluster { lost_ranks: 1, ..four }).unwrap();
    assert_eq!((three.whole_epochs, three.samples), (3, 12_000));
    assert!(three.lost_blocks > 800, "{three:?}");
    assert!((three.lost_blocks..three.lost_blocks * 5 / 4).contains(&three.anew), "{three:?}");
    let (other, _) = play(&Cluster { lost_ranks: 1, new_ranks: 1, ..four }).unwrap();
    assert!((other.lost_blocks..other.lost_blocks * 5 / 4).contains(&other.anew), "another in its place: {other:?}");
}

#[test]
fn a_far_region_waits_for_no_one_once_it_looks_ahead() {
    let far = Cluster { far_ranks: 4, far_bucket_s: 0.2, far_hop_s: 0.03, ..eight() };
    let (played, recording) = play(&far).unwrap();
    (0..2).for_each(|_| recording.replay().unwrap()());
    assert_eq!((played.whole_epochs, played.samples), (3, 12_000));
    let last = played.waits_s.len() - 16;
    assert!(played.waits_s[last..].iter().all(|wait| *wait < 0.01), "{:?}", played.waits_s);
}
#[test]
fn what_the_disks_hold_is_not_read_again_and_homes_are_not_asked_for_what_none_holds() {
    let third = Cluster { ranks: 32, samples: 96_000, ..eight() };
    let (played, _) = play(&third).unwrap();
    let again = (played.requests - third.samples) as f64 / 2.0 / 64_000.0;
    assert!((1.0..1.01).contains(&again), "{again} of what the disks cannot hold: {played:?}");
    let vast = Cluster { ranks: 16, samples: 1_000_000_000, disk_blocks: 400, steps_max: 400, ..eight() };
    let (played, _) = play(&vast).unwrap();
    assert!(played.peer_blocks * 5 < played.requests, "{played:?}");
}
