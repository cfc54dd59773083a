//! The sticky order: golden vectors, bijection at every level, even groups, and samples that come back to their rank.

use crate::order::check_inverse;
use fuelrail_base::{BatchSeq, limits, prng::mix64};
use fuelrail_plan::order::{Order, OrderName};
use fuelrail_plan::run::{Cursor, Run, RunConfig};
use proptest::prelude::*;

fn sticky(samples: u64, seed: u64) -> Order {
    Order::named(OrderName::Sticky, samples, seed, true)
}

fn run(samples: u64, world: u32, rank: u32, batch_size: u32, epochs: u64) -> Run {
    let start = Cursor::default();
    let config = RunConfig {
        samples,
        seed: 9,
        order: OrderName::Sticky,
        shuffle: true,
        world,
        rank,
        batch_size,
        drop_last: false,
        epochs,
        start,
    };
    Run::new(config).unwrap()
}

fn head(order: &Order, epoch: u64, count: u64) -> Vec<u64> {
    (0..count).map(|position| order.sample_at(epoch, position).0).collect()
}

/// These pin the order for ever. When one fails, the code is wrong, not the vector: saved states depend on it.
#[test]
fn golden_vectors() {
    assert_eq!(head(&sticky(10, 0), 0, 10), GOLDEN_10);
    let mnist = sticky(60_000, 42);
    assert_eq!([0, 1, u64::MAX].map(|epoch| head(&mnist, epoch, 4)), GOLDEN_60K);
    let digest = |epoch: u64| {
        let epoch = mnist.epoch(epoch);
        (0..60_000).fold(0, |hash, position| mix64(hash ^ epoch.sample_at(position).0))
    };
    assert_eq!([0, 1].map(digest), GOLDEN_60K_DIGESTS);
    assert_eq!(head(&sticky(u64::from(u32::MAX), u64::MAX), 3, 4), GOLDEN_MOST);
    // Who takes what within a step is pinned as well: the order within a batch, and the world's arithmetic.
    let dealt = |world, rank, batch_size| {
        let run = run(60_000, world, rank, batch_size, 2);
        let seqs = (0..run.batches()).map(BatchSeq).map(|seq| run.batch(seq).unwrap());
        seqs.flat_map(|batch| run.samples(&batch)).fold(0, |hash, sample| mix64(hash ^ sample.0))
    };
    assert_eq!([dealt(1, 0, 64), dealt(3, 1, 64), dealt(8, 7, 33)], GOLDEN_DEALT);
}

const GOLDEN_10: [u64; 10] = [8, 1, 3, 9, 2, 7, 4, 0, 6, 5];
const GOLDEN_60K: [[u64; 4]; 3] =
    [[27101, 29712, 36474, 29163], [49346, 47651, 49763, 7660], [1391, 42807, 12949, 13587]];
const GOLDEN_60K_DIGESTS: [u64; 2] = [0xAFCB_A2B9_81C2_D04C, 0x2FEE_50F3_DEE2_D4AC];
const GOLDEN_MOST: [u64; 4] = [174962549, 1331682747, 1047654348, 3602190969];
const GOLDEN_DEALT: [u64; 3] = [0x34E8_243D_03B9_1E66, 0x5596_0CB4_FD19_A05C, 0x892E_9EB0_A670_7E51];

#[test]
fn every_size_is_a_bijection_with_its_inverse() {
    for samples in (1..=1_200).chain([4_095, 4_096, 4_097, 65_535, 65_536, 65_537, 300_007]) {
        let order = sticky(samples, samples * 7).epoch(samples % 5);
        let mut seen = vec![false; samples as usize];
        for position in 0..samples {
            let sample = order.sample_at(position);
            assert!(!core::mem::replace(&mut seen[sample.0 as usize], true), "{sample:?} twice of {samples}");
            assert_eq!(order.position_of(sample), position, "inverse of {samples}");
        }
    }
}

proptest! {
    #[test]
    fn position_of_inverts_sample_at(samples in 1..=limits::SAMPLES_MAX, seed: u64, epoch: u64, at: u64) {
        check_inverse(&sticky(samples, seed), epoch, at)?;
    }

    /// Of any run, at any size: the positions of an epoch hold every sample once, each step those of the undealt order.
    #[test]
    fn steps_are_dealt_and_nothing_else(
        samples in 1u64..3_000, seed: u64, world in 1u32..20, batch_size in 1u32..90, at in 0u64..3_000,
        drop_last: bool,
    ) {
        let drop_last = drop_last && samples >= u64::from(world * batch_size);
        let start = Cursor { epoch: 0, position: at % (samples + 1) };
        let config = RunConfig { seed, drop_last, start, ..*run(samples, world, 0, batch_size, 2).config() };
        let run = Run::new(config).unwrap();
        let stride = u64::from(world * batch_size);
        for epoch in 0..2 {
            let from = if epoch == 0 { start.position } else { 0 };
            let order = run.order().epoch(epoch);
            prop_assert!((0..from).all(|p| run.sample_at(epoch, p) == order.sample_at(p)), "before the start");
            for step in (from..samples).step_by(stride as usize) {
                let end = samples.min(step + stride);
                let mut dealt: Vec<_> = (step..end).map(|p| run.sample_at(epoch, p)).collect();
                let mut undealt: Vec<_> = (step..end).map(|p| order.sample_at(p)).collect();
                prop_assert!((step..end).all(|p| run.position_of(epoch, run.sample_at(epoch, p)) == p), "inverse");
                dealt.sort_unstable();
                undealt.sort_unstable();
                prop_assert_eq!(dealt, undealt, "epoch {} step from {}", epoch, step);
            }
        }
    }
}

/// Share of samples that some rank has in one epoch and again in the next, over a few epochs.
fn kept(samples: u64, world: u32, batch_size: u32) -> f64 {
    let epochs = 3;
    let mut owners = vec![vec![u32::MAX; samples as usize]; epochs as usize];
    for rank in 0..world {
        let run = run(samples, world, rank, batch_size, epochs);
        for batch in (0..run.batches()).map(|seq| run.batch(BatchSeq(seq)).unwrap()) {
            run.samples(&batch).for_each(|sample| owners[batch.epoch as usize][sample.0 as usize] = rank);
        }
    }
    let same =
        owners.windows(2).map(|pair| pair[0].iter().zip(&pair[1]).filter(|(a, b)| a == b).count()).sum::<usize>();
    same as f64 / (samples * (epochs - 1)) as f64
}

#[test]
fn samples_come_back_to_their_rank() {
    for (samples, world, batch_size, least) in [
        (60_000, 2, 64, 0.99),
        (60_000, 3, 64, 0.99),
        (60_000, 3, 512, 0.99),
        (60_000, 8, 64, 0.99),
        (60_001, 4, 64, 0.95),
        (50_001, 5, 50, 0.95),
        (50_003, 13, 32, 0.95),
        (50_001, 16, 37, 0.95),
        (300_007, 24, 32, 0.95),
        (60_000, 100, 64, 0.95),
        (61_009, 107, 18, 0.90),
        (60_000, 7, 16, 0.95),
        (3_000, 3, 10, 0.90),
    ] {
        let share = kept(samples, world, batch_size);
        assert!(share >= least, "{samples} samples over {world} x {batch_size}: {share} stay");
    }
}
