//! Mixtures: shares, bijection of draws, changes of weights, when a sample comes next, and the same run on any number of ranks.

use fuelrail_base::{BatchSeq, Kind, SampleId};
use fuelrail_plan::order::{Mixture, MixtureEpoch, OrderName, SETS_MAX, Weights};
use fuelrail_plan::run::{Cursor, Run, RunConfig};
use fuelrail_plan::schedule::{Schedule, UseTime};
use proptest::prelude::*;
use std::sync::Arc;

fn weights(changes: &[(u64, &[u64])]) -> Vec<Weights> {
    changes.iter().map(|&(from, of)| Weights { from, of: of.to_vec() }).collect()
}

fn mixture(sizes: &[u64], changes: &[(u64, &[u64])], epoch: MixtureEpoch, window: u64) -> Mixture {
    let mut first = 0;
    let sets = sizes.iter().map(|size| {
        first += size;
        first - size..first
    });
    Mixture::new(sets.collect(), weights(changes), (epoch, window), (7, true)).unwrap()
}

fn config(mixture: &Mixture, epochs: u64) -> RunConfig {
    RunConfig {
        samples: mixture.places(),
        seed: 7,
        order: OrderName::Global,
        shuffle: true,
        world: 1,
        rank: 0,
        batch_size: 5,
        drop_last: false,
        epochs,
        start: Cursor::default(),
    }
}

fn run(mixture: &Mixture, config: RunConfig) -> Run {
    Run::new(config).unwrap().mixed(Arc::new(mixture.clone())).unwrap()
}

/// All samples of a run, by position.
fn samples(mixture: &Mixture, epochs: u64) -> Vec<u64> {
    let run = run(mixture, config(mixture, epochs));
    (0..epochs)
        .flat_map(|epoch| (0..mixture.places()).map(move |at| (epoch, at)))
        .map(|(e, at)| run.sample_at(e, at).0)
        .collect()
}

#[test]
fn golden_vectors() {
    let mixture = mixture(&[5, 3, 100], &[(0, &[2, 1, 1]), (30, &[0, 1, 3])], MixtureEpoch::Total, 8);
    let seen = samples(&mixture, 1);
    assert_eq!(seen[..40], GOLDEN, "a run saved today must resume on the same samples in ten years");
    let said = "a mixture of 0..5 5..8 8..108 with weights 2:1:1 from 0, 0:1:3 from 30, in windows of 8";
    assert_eq!(mixture.to_string(), said, "states say this");
}

const GOLDEN: [u64; 40] = [
    1, 89, 6, 3, 86, 7, 2, 0, 7, 5, 84, 3, 4, 85, 0, 1, 4, 1, 2, 6, 72, 5, 4, 10, 61, 80, 94, 3, 7, 64, 2, 0, 6, 26,
    30, 32, 95, 5, 92, 96,
];

#[test]
fn every_window_has_the_shares_and_every_pass_all_samples() {
    let (sizes, of) = ([40, 7, 300], [5, 2, 3]);
    let mixture = mixture(&sizes, &[(0, &of)], MixtureEpoch::Total, 50);
    let seen = samples(&mixture, 6);
    let set = |sample: u64| mixture.sets().iter().position(|set| set.contains(&sample)).unwrap();
    for (epoch, epoch_seen) in seen.chunks(mixture.places() as usize).enumerate() {
        for (window, seen) in epoch_seen.chunks(50).enumerate() {
            for (at, weight) in of.iter().enumerate() {
                let (count, share) = (seen.iter().filter(|s| set(**s) == at).count(), weight * seen.len() as u64 / 10);
                assert!(
                    (count as i64 - share as i64).abs() <= 2,
                    "epoch {epoch} window {window} set {at}: {count} of {share}"
                );
            }
        }
    }
    for at in 0..3 {
        // Passes follow each other window by window, so the number of times that samples have come never differs by more than a window's.
        let mut times = vec![0_u64; sizes[at] as usize];
        seen.iter().filter(|s| set(**s) == at).for_each(|s| times[(s - mixture.sets()[at].start) as usize] += 1);
        let (least, most) = (times.iter().min().unwrap(), times.iter().max().unwrap());
        assert!(most - least <= 1, "set {at}: {least} to {most}");
    }
    assert_ne!(seen[..347], seen[347..694], "epochs differ");
}

#[test]
fn epochs_end_as_they_are_told() {
    let changes: &[(u64, &[u64])] = &[(0, &[1, 3])];
    let of = |epoch| mixture(&[100, 90], changes, epoch, 16).places();
    assert_eq!((of(MixtureEpoch::Total), of(MixtureEpoch::FirstUsedUp), of(MixtureEpoch::AllUsedUp)), (190, 120, 400));
    for (epoch, is_whole) in [(MixtureEpoch::FirstUsedUp, false), (MixtureEpoch::AllUsedUp, true)] {
        let mut seen = samples(&mixture(&[100, 90], changes, epoch, 16), 1);
        let places = seen.len();
        seen.sort_unstable();
        seen.dedup();
        assert_eq!((seen.len() == places, seen.len() == 190), (!is_whole, is_whole));
    }
    let never = mixture(&[10, 10], &[(0, &[1, 0])], MixtureEpoch::AllUsedUp, 4);
    assert_eq!(never.places(), 10, "what has no weight is not waited for");
}

#[test]
fn unshuffled_sets_come_in_their_own_order() {
    let (sets, of) = (vec![0..6, 6..10], weights(&[(0, &[1, 1])]));
    let mixture = Mixture::new(sets, of, (MixtureEpoch::Total, 4), (7, false)).unwrap();
    let seen = samples(&mixture, 2);
    for (window, seen) in seen.chunks(4).enumerate().take(2) {
        let mut seen = seen.to_vec();
        seen.sort_unstable();
        let first = 2 * window as u64;
        assert_eq!(seen, [first, first + 1, first + 6, first + 7]);
    }
}

#[test]
fn what_cannot_be_mixed_is_refused() {
    let tried = |sets: Vec<core::ops::Range<u64>>, changes: &[(u64, &[u64])], window| {
        Mixture::new(sets, weights(changes), (MixtureEpoch::Total, window), (0, true)).map_err(|e| e.kind())
    };
    let pair = || vec![0..2, 2..4];
    let many = (0..=SETS_MAX as u64).map(|n| n..n + 1).collect();
    for refused in [
        tried(vec![], &[(0, &[])], 8),
        tried(vec![0..2, 2..2], &[(0, &[1, 1])], 8),
        tried(many, &[(0, &[1; SETS_MAX + 1])], 8),
        tried(pair(), &[(0, &[1, 1])], 0),
        tried(pair(), &[], 8),
        tried(pair(), &[(5, &[1, 1])], 8),
        tried(pair(), &[(0, &[0, 0])], 8),
        tried(pair(), &[(0, &[1])], 8),
        tried(pair(), &[(0, &[u64::MAX, 1])], 8),
        tried(pair(), &[(0, &[1, 1]), (9, &[1, 1]), (9, &[1, 2])], 8),
    ] {
        assert_eq!(refused, Err(Kind::Usage));
    }
    let mixture = Arc::new(mixture(&[4], &[(0, &[1])], MixtureEpoch::Total, 8));
    let sticky = Run::new(RunConfig { order: OrderName::Sticky, ..config(&mixture, 1) }).unwrap();
    let longer = Run::new(RunConfig { samples: 5, ..config(&mixture, 1) }).unwrap();
    assert!(sticky.mixed(Arc::clone(&mixture)).is_err() && longer.mixed(mixture).is_err());
}

proptest! {
    /// Of any mixture: a sample's places are those it is in, and the next use that a rank is told is the first that it makes.
    #[test]
    fn places_and_samples_are_each_others_inverse(
        sizes in prop::collection::vec(1_u64..40, 1..5),
        of in prop::collection::vec((0_u64..5, 0_u64..9), 5),
        (change, window, world) in (1_u64..200, 1_u64..70, 1_u32..4),
        (sample, after) in (any::<u64>(), any::<u64>()),
    ) {
        let [mut first, mut second]: [Vec<u64>; 2] = [|w: &(u64, u64)| w.0, |w: &(u64, u64)| w.1].map(|of_one| {
            of.iter().take(sizes.len()).map(of_one).collect()
        });
        (first[0], second[0]) = (first[0] + 1, second[0] + 1);
        let mixture = mixture(&sizes, &[(0, &first), (change, &second)], MixtureEpoch::Total, window);
        let (epochs, total) = (3, sizes.iter().sum::<u64>());
        let seen = samples(&mixture, epochs);
        let sample = SampleId(sample % total);
        for epoch in 0..epochs {
            let mut places: Vec<u64> = mixture.places_of(epoch, sample, 0).collect();
            prop_assert!(places.iter().all(|place| mixture.sample_in(epoch, *place) == sample));
            places.dedup();
            let here = &seen[(epoch * total) as usize..((epoch + 1) * total) as usize];
            prop_assert_eq!(places.len(), here.iter().filter(|seen| **seen == sample.0).count());
        }
        let config = RunConfig { world, rank: world - 1, ..config(&mixture, epochs) };
        let run = run(&mixture, config);
        let after = after % (total * epochs);
        let mine = |at: &u64| run.seq_of_position(at / total, at % total).is_some();
        let next = (after + 1..total * epochs).filter(mine).find(|at| seen[*at as usize] == sample.0);
        prop_assert_eq!(Schedule::new(&run, epochs).next_use(sample, UseTime(after)), next.map(UseTime));
    }

    /// Stopped after any step and gone on with on another number of ranks, over changes of weights: the same samples in the same steps.
    #[test]
    fn any_number_of_ranks_goes_on_with_the_same_samples(stop in 0_u64..12, worlds in (1_u32..5, 1_u32..5), window in 1_u64..40) {
        let mixture = mixture(&[50, 20, 90], &[(0, &[1, 1, 2]), (70, &[3, 0, 1]), (200, &[1, 1, 1])], MixtureEpoch::Total, window);
        let whole = samples(&mixture, 2);
        let mut start = Cursor::default();
        let mut seen = vec![None; whole.len()];
        for (world, steps) in [(worlds.0, stop), (worlds.1, u64::MAX)] {
            let mut end = start;
            for rank in 0..world {
                let run = run(&mixture, RunConfig { world, rank, start, ..config(&mixture, 2) });
                for seq in (0..run.batches().min(steps)).map(BatchSeq) {
                    let batch = run.batch(seq).unwrap();
                    for (at, sample) in batch.positions.clone().zip(run.samples(&batch)) {
                        prop_assert_eq!(seen[(batch.epoch * mixture.places() + at) as usize].replace(sample.0), None);
                    }
                    end = end.max(run.cursor_after(seq));
                }
            }
            start = end;
        }
        prop_assert_eq!(seen.into_iter().collect::<Option<Vec<u64>>>(), Some(whole));
    }
}
