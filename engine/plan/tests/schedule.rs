//! The schedule against a plain list of all uses.

use fuelrail_base::{BatchSeq, SampleId};
use fuelrail_plan::order::OrderName;
use fuelrail_plan::run::{Cursor, Run, RunConfig};
use fuelrail_plan::schedule::{Schedule, UseTime};
use proptest::prelude::*;

/// Every use of every sample by this rank, in order of time.
fn uses(run: &Run) -> Vec<(UseTime, SampleId)> {
    let mut uses = Vec::new();
    for seq in (0..run.batches()).map(BatchSeq) {
        let batch = run.batch(seq).unwrap();
        let times = batch.positions.clone().map(|p| UseTime(batch.epoch * run.config().samples + p));
        uses.extend(times.zip(run.samples(&batch)));
    }
    uses
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(ProptestConfig::default().cases.div_ceil(2)))]
    #[test]
    fn agrees_with_the_list_of_uses(
        samples in 1u64..70, world in 1u32..4, rank in 0u32..4, batch_size in 1u32..9, epochs in 1u64..6, seed: u64,
        drop_last: bool, start_epoch in 0u64..6, start_position in 0u64..70, horizon in 0u64..4, order in 0usize..3,
    ) {
        let order = OrderName::ALL[order];
        let config = RunConfig {
            samples, seed, order, shuffle: true, world, rank: rank % world, batch_size, epochs,
            drop_last: drop_last && samples >= u64::from(world * batch_size),
            start: Cursor { epoch: start_epoch % epochs, position: start_position % (samples + 1) },
        };
        let run = Run::new(config).unwrap();
        let schedule = Schedule::new(&run, horizon);
        let uses = uses(&run);
        for now in (0..(epochs + 1) * samples).map(UseTime) {
            prop_assert_eq!(schedule.cursor(now), Cursor { epoch: now.0 / samples, position: now.0 % samples });
            let end = UseTime((now.0 / samples + horizon + 1) * samples);
            let within: Vec<_> = uses.iter().filter(|(time, _)| (now..end).contains(time)).collect();
            for sample in (0..samples).map(SampleId) {
                let times: Vec<_> = within.iter().filter(|(_, used)| *used == sample).map(|(time, _)| *time).collect();
                prop_assert_eq!(schedule.next_use(sample, now), times.iter().find(|time| **time > now).copied());
            }
        }
    }
}

#[test]
fn times_follow_the_run() {
    let config = RunConfig {
        samples: 100,
        seed: 1,
        order: OrderName::Global,
        shuffle: true,
        world: 1,
        rank: 0,
        batch_size: 10,
        drop_last: false,
        epochs: 3,
        start: Cursor::default(),
    };
    let run = Run::new(config).unwrap();
    let schedule = Schedule::new(&run, 1);
    assert_eq!(schedule.time(2, 7), UseTime(207));
    assert_eq!(schedule.cursor(UseTime(207)), Cursor { epoch: 2, position: 7 });
    let sample = run.order().sample_at(0, 5);
    let next = schedule.next_use(sample, UseTime(5)).unwrap();
    assert_eq!(next.0, 100 + run.position_of(1, sample), "used once in the next epoch");
    assert_eq!(Schedule::new(&run, 0).next_use(sample, UseTime(5)), None, "a horizon of this epoch only");
}
