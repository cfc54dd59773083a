//! Splits: every position belongs to one rank and step, and every rank takes the same steps, whatever the world.

use fuelrail_plan::split::Split;
use proptest::prelude::*;

#[test]
fn the_last_step_is_divided_evenly() {
    let sizes = |samples, rank| {
        let split = Split::new(samples, 0, 3, rank, 4, false);
        (split.steps(), split.positions(split.steps() - 1))
    };
    assert_eq!([0, 1, 2].map(|rank| sizes(12, rank)), [(1, 0..4), (1, 4..8), (1, 8..12)]);
    assert_eq!([0, 1, 2].map(|rank| sizes(17, rank)), [(2, 12..14), (2, 14..16), (2, 16..17)]);
    assert_eq!([0, 1, 2].map(|rank| sizes(13, rank)), [(2, 12..13), (2, 13..13), (2, 13..13)]);
    let dropped = Split::new(17, 0, 3, 1, 4, true);
    assert_eq!((dropped.steps(), dropped.positions(0), dropped.end_of(0)), (1, 4..8, 12));
    assert_eq!([3, 4, 7, 8, 14].map(|position| dropped.step_of(position)), [None, Some(0), Some(0), None, None]);
}

/// All ranks' splits of the positions from `start` on.
fn splits(samples: u64, start: u64, world: u32, batch: u32, drop_last: bool) -> Vec<Split> {
    (0..world).map(|rank| Split::new(samples, start.min(samples), world, rank, batch, drop_last)).collect()
}

proptest! {
    #[test]
    fn every_rank_takes_the_same_steps(
        samples in 0u64..3_000, start in 0u64..3_000, world in 1u32..9, batch in 1u32..70, drop_last: bool,
    ) {
        let splits = splits(samples, start, world, batch, drop_last);
        let steps = splits[0].steps();
        prop_assert!(splits.iter().all(|split| split.steps() == steps));
        for step in 0..steps {
            let sizes: Vec<_> = splits.iter().map(|split| split.positions(step)).map(|at| at.end - at.start).collect();
            let (least, most) = (*sizes.iter().min().unwrap(), *sizes.iter().max().unwrap());
            let full = step + 1 < steps || drop_last;
            prop_assert!(most > 0 && most <= u64::from(batch) && most - least <= 1, "step {step}: {sizes:?}");
            prop_assert!(!full || least == u64::from(batch), "only a last step may be short: step {step}, {sizes:?}");
            prop_assert!(splits.iter().all(|split| split.end_of(step) == splits[0].end_of(step)));
        }
    }

    #[test]
    fn every_position_belongs_to_one_rank_and_step(
        samples in 0u64..3_000, start in 0u64..3_000, world in 1u32..9, batch in 1u32..70, drop_last: bool,
    ) {
        let splits = splits(samples, start, world, batch, drop_last);
        let mut at = start.min(samples);
        for step in 0..splits[0].steps() {
            for (rank, split) in splits.iter().enumerate() {
                let positions = split.positions(step);
                prop_assert_eq!(positions.start, at, "shares follow each other");
                at = positions.end;
                for position in positions {
                    let owners: Vec<_> = splits.iter().map(|split| split.step_of(position)).collect();
                    prop_assert_eq!(owners.iter().flatten().count(), 1, "position {} of {:?}", position, owners);
                    prop_assert_eq!(owners[rank], Some(step));
                }
            }
            prop_assert_eq!(splits[0].end_of(step), at);
        }
        let most_left = if drop_last { u64::from(world * batch) - 1 } else { 0 };
        prop_assert!(samples - at <= most_left, "{} positions left", samples - at);
        prop_assert!(splits.iter().all(|split| (at..samples).all(|position| split.step_of(position).is_none())));
    }
}
