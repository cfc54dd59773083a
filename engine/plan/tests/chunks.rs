//! The chunked order: golden vectors, bijection, few chunks in use at a time, and when each is over.

use crate::order::check_inverse;
use fuelrail_base::{SampleId, limits, prng::mix64};
use fuelrail_plan::order::{ChunkShape, Order, OrderName};
use fuelrail_plan::run::{Cursor, Run, RunConfig};
use fuelrail_plan::schedule::Schedule;
use proptest::prelude::*;
use std::collections::BTreeMap;

fn chunked(samples: u64, seed: u64, (chunk, window): (u64, u64)) -> Order {
    Order::named(OrderName::Chunks, samples, seed, true).cut(ChunkShape { samples: chunk, window, in_turn: false })
}

fn in_turn(samples: u64, seed: u64, (chunk, window): (u64, u64)) -> Order {
    Order::named(OrderName::Chunks, samples, seed, true).cut(ChunkShape { samples: chunk, window, in_turn: true })
}

/// These pin the order for ever. When one fails, the code is wrong, not the vector: saved states depend on it.
#[test]
fn golden_vectors() {
    let head =
        |order: &Order, epoch, count| -> Vec<u64> { (0..count).map(|at| order.sample_at(epoch, at).0).collect() };
    assert_eq!(head(&chunked(20, 0, (2, 4)), 0, 20), GOLDEN_20);
    let photos = chunked(1_281_167, 42, (36, 128));
    assert_eq!([0, 1, u64::MAX].map(|epoch| head(&photos, epoch, 4)), GOLDEN_PHOTOS);
    let digest = |epoch: u64| {
        let epoch = photos.epoch(epoch);
        (0..photos.samples()).step_by(101).fold(0, |hash, at| mix64(hash ^ epoch.sample_at(at).0))
    };
    assert_eq!([0, 1].map(digest), GOLDEN_DIGESTS);
    assert_eq!([0, 1].map(|epoch| head(&in_turn(20, 0, (2, 4)), epoch, 20)), GOLDEN_IN_TURN);
}

const GOLDEN_20: [u64; 20] = [14, 19, 1, 8, 11, 7, 15, 0, 4, 16, 9, 10, 3, 6, 13, 17, 18, 2, 5, 12];
const GOLDEN_IN_TURN: [[u64; 20]; 2] = [
    [14, 15, 1, 8, 11, 7, 16, 0, 3, 17, 9, 10, 2, 6, 13, 18, 19, 4, 5, 12],
    [5, 1, 17, 10, 18, 0, 6, 11, 19, 12, 8, 3, 7, 2, 15, 13, 9, 14, 16, 4],
];
const GOLDEN_PHOTOS: [[u64; 4]; 3] =
    [[722111, 497454, 783918, 111566], [484032, 13117, 1035791, 703166], [236994, 366306, 657051, 423910]];
const GOLDEN_DIGESTS: [u64; 2] = [0x1D6630DD53C6BDDB, 0x34DBDACAD5868D14];

#[test]
fn every_size_and_shape_is_a_bijection_with_its_inverse() {
    for (n, samples) in (1..=600).chain([4_095, 4_096, 65_537, 100_003]).enumerate() {
        for shape in [(1, 1), (1, 64), (3, 4), (64, 128), (7, 1), (1_000, 16), (u64::MAX, u64::MAX)] {
            if samples > 1_000 && n % 2 == 0 && shape.0 < 3 {
                continue;
            }
            let kind = if n % 3 == 0 { in_turn } else { chunked };
            let order = kind(samples, samples * 7, shape).epoch(samples % 5);
            let mut seen = vec![false; samples as usize];
            for position in 0..samples {
                let sample = order.sample_at(position);
                assert!(
                    !core::mem::replace(&mut seen[sample.0 as usize], true),
                    "{sample:?} twice of {samples} {shape:?}"
                );
                assert_eq!(order.position_of(sample), position, "inverse of {samples} {shape:?}");
            }
        }
    }
}

proptest! {
    #[test]
    fn position_of_inverts_sample_at(
        samples in 1..=limits::SAMPLES_MAX, seed: u64, epoch: u64, at: u64, chunk in 1u64..10_000, window in 1u64..100_000, turn: bool,
    ) {
        let order = if turn { in_turn } else { chunked }(samples, seed, (chunk, window));
        check_inverse(&order, epoch, at)?;
        let id = SampleId(mix64(at) % samples);
        let chunk_around = order.chunk_of(id);
        prop_assert!(chunk_around.is_none_or(|around| around.contains(&id.0) && around.end - around.start <= chunk * 5 / 4 + 1));
    }

    /// No more chunks are in use than the window has, and all samples but a few lone ones are in one. Of each, ranks together take all.
    #[test]
    fn few_chunks_are_in_use_and_ranks_share_them(
        samples in 1u64..6_000, seed: u64, chunk in 1u64..60, window in 1u64..70, world in 1u32..6, batch_size in 1u32..40, shuffle: bool,
        turn: bool,
    ) {
        let (start, rank, drop_last, epochs) = (Cursor::default(), 0, false, 2);
        let config = RunConfig { samples, seed, order: OrderName::Chunks, shuffle, world, rank, batch_size, drop_last, epochs, start };
        let run = Run::new(config).unwrap().chunked(ChunkShape { samples: chunk, window, in_turn: turn });
        let order = *run.order();
        for epoch in 0..epochs {
            let mut uses = BTreeMap::<u64, (u64, u64)>::new();
            let mut lone = 0;
            for at in 0..samples {
                let sample = order.sample_at(epoch, at);
                match order.chunk_of(sample) {
                    None => lone += 1,
                    Some(around) => uses.entry(around.start).or_insert((at, at)).1 = at,
                }
            }
            prop_assert!(lone < window.max(2), "{} lone samples", lone);
            let most = (0..samples).step_by(17).map(|at| uses.values().filter(|(from, to)| (*from..=*to).contains(&at)).count()).max();
            let ranks: Vec<Schedule> = (0..world)
                .map(|rank| Run::new(RunConfig { rank, ..config }).unwrap().chunked(ChunkShape { samples: chunk, window, in_turn: turn }))
                .map(|run| Schedule::new(&run, 1))
                .collect();
            let some = order.chunk_of(SampleId(seed % samples)).unwrap_or(0..1);
            let shares: u64 = ranks.iter().map(|rank| rank.taken(epoch, some.clone())).sum();
            prop_assert_eq!(shares, some.end - some.start);
            // One that ends and one that begins may share a row.
            prop_assert!(most.unwrap_or(0) as u64 <= 2 * window, "{:?} of {} in use", most, window);
        }
    }
}

/// Where chunks come in turn, a group goes through its neighbours as they are listed, from some chunk on and round: what lies across two
/// chunks is needed again at once, and else only at the begin and at the end.
#[test]
fn chunks_that_come_in_turn_follow_the_listing_round() {
    let (samples, window, chunk) = (4_096, 8, 32);
    let order = in_turn(samples, 11, (chunk, window));
    let mut begins = Vec::new();
    for epoch in 0..3 {
        let mut chunks = vec![Vec::<u64>::new(); window as usize];
        for at in 0..samples {
            let around = order.chunk_of(order.sample_at(epoch, at)).unwrap();
            let group = &mut chunks[(around.start / (samples / window)) as usize];
            if group.last() != Some(&around.start) {
                group.push(around.start);
            }
        }
        for group in &chunks {
            let falls = group.windows(2).filter(|pair| pair[1] < pair[0]).count();
            assert!(falls <= 1 && group.len() > 10, "{group:?}");
        }
        begins.push(chunks.iter().map(|group| group[0]).collect::<Vec<_>>());
    }
    assert!(begins[0] != begins[1] && begins[1] != begins[2], "{begins:?}");
}
