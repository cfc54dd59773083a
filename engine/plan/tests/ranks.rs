//! What three ranks hit in caches of their own: the sticky order beside the global one, and DELI's scheme.

use fuelrail_base::{BatchSeq, BlockId};
use fuelrail_plan::order::OrderName;
use fuelrail_plan::policy::{PolicyName, build};
use fuelrail_plan::run::{Cursor, Run, RunConfig};
use fuelrail_plan::schedule::{Schedule, UseTime};

const SAMPLES: u64 = 30_000;
const WORLD: u32 = 3;
const EPOCHS: u64 = 6;

fn run(order: OrderName, rank: u32, batch_size: u32) -> Run {
    let (seed, shuffle, drop_last, start) = (5, true, false, Cursor::default());
    let epochs = EPOCHS;
    let config =
        RunConfig { samples: SAMPLES, seed, order, shuffle, world: WORLD, rank, batch_size, drop_last, epochs, start };
    Run::new(config).unwrap()
}

/// Share of uses served by the ranks' own caches in the second epoch and in the later ones, each cache `share` of its rank's
/// part; blocks are all of one size.
fn hit_ratios(order: OrderName, policy: PolicyName, share: f64, batch_size: u32) -> (f64, f64) {
    let mut hits = [0; EPOCHS as usize];
    for rank in 0..WORLD {
        let run = run(order, rank, batch_size);
        // As the loader looks ahead.
        let schedule = Schedule::new(&run, 4 * u64::from(WORLD));
        let capacity = (share * SAMPLES as f64 / f64::from(WORLD)) as u64;
        let (mut policy, mut evicted) = (build(policy, capacity), Vec::new());
        for batch in (0..run.batches()).map(|seq| run.batch(BatchSeq(seq)).unwrap()) {
            for (position, sample) in batch.positions.clone().zip(run.samples(&batch)) {
                let block = BlockId { sample, index: 0 };
                let next_use = schedule.next_use(sample, UseTime(batch.epoch * SAMPLES + position));
                if policy.hit(block, next_use, &mut evicted) {
                    hits[batch.epoch as usize] += 1;
                } else {
                    policy.offer(block, 1, next_use, &mut evicted);
                }
                evicted.clear();
            }
        }
    }
    assert_eq!(hits[0], 0, "nothing is cached before it was used");
    let later: u64 = hits[1..EPOCHS as usize - 1].iter().sum();
    (hits[1] as f64 / SAMPLES as f64, later as f64 / (SAMPLES * (EPOCHS - 2)) as f64)
}

#[test]
fn own_caches_reach_the_limit_under_the_sticky_order() {
    for (share, batch_size) in [(0.25, 64), (0.5, 64), (0.75, 64), (0.5, 16)] {
        let (second, later) = hit_ratios(OrderName::Sticky, PolicyName::NextUse, share, batch_size);
        assert!(second >= 0.99 * share && later >= 0.99 * share, "{share}: {second}, then {later}");
        // Without any look-ahead: what came to another rank is a miss.
        let (second, later) = hit_ratios(OrderName::Sticky, PolicyName::Pinned, share, batch_size);
        assert!(second >= 0.97 * share && later >= 0.97 * share, "pinned {share}: {second}, then {later}");
    }
}
