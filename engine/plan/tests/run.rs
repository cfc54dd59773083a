//! Runs: every sample exactly once, whatever the world and wherever it stops; batches, positions and cursors agree.

use fuelrail_base::{BatchSeq, Kind, SampleId};
use fuelrail_plan::order::OrderName;
use fuelrail_plan::run::{BatchSpec, Cursor, EPOCHS_MAX, Run, RunConfig};
use proptest::prelude::*;

fn config(samples: u64, world: u32, batch_size: u32, epochs: u64) -> RunConfig {
    RunConfig {
        samples,
        seed: 17,
        order: OrderName::Global,
        shuffle: true,
        world,
        rank: 0,
        batch_size,
        drop_last: false,
        epochs,
        start: Cursor::default(),
    }
}

fn all_batches(run: &Run) -> Vec<BatchSpec> {
    (0..run.batches()).map(|seq| run.batch(BatchSeq(seq)).expect("below batches()")).collect()
}

proptest! {
    /// Stop after any step, go on with another world and batch size, several times over: every epoch is whole.
    #[test]
    fn elastic_runs_are_exactly_once(
        samples in 1u64..400, epochs in 1u64..4, order in 0usize..3, legs in prop::collection::vec((1u32..6, 1u32..20, 0u64..12), 0..8),
    ) {
        let mut seen = vec![vec![0u32; samples as usize]; epochs as usize];
        let mut cursor = Cursor::default();
        let finish = (3, 7, u64::MAX);
        let order = OrderName::ALL[order];
        for (world, batch_size, steps) in legs.into_iter().chain([finish]) {
            let mut after = vec![cursor; world as usize];
            for rank in 0..world {
                let leg = RunConfig { rank, order, start: cursor, ..config(samples, world, batch_size, epochs) };
                let run = Run::new(leg).unwrap();
                for seq in (0..run.batches().min(steps)).map(BatchSeq) {
                    let batch = run.batch(seq).unwrap();
                    for sample in run.samples(&batch) {
                        seen[batch.epoch as usize][sample.0 as usize] += 1;
                    }
                    after[rank as usize] = run.cursor_after(seq);
                }
            }
            prop_assert!(after.iter().all(|at| *at == after[0]), "ranks stop at one place: {after:?}");
            cursor = after[0];
        }
        prop_assert_eq!(cursor, Cursor { epoch: epochs, position: 0 });
        prop_assert!(seen.iter().flatten().all(|times| *times == 1), "{seen:?}");
    }

    /// Batches number the run without gaps, `seq_of_position` inverts them, and resuming goes on with the same samples.
    #[test]
    fn batches_positions_and_cursors_agree(
        samples in 1u64..300, world in 1u32..5, rank in 0u32..5, batch in 1u32..40, epochs in 1u64..5,
        drop_last: bool, start_epoch in 0u64..5, start_position in 0u64..300, stop in 0u64..1_000, order in 0usize..3,
    ) {
        let drop_last = drop_last && samples >= u64::from(world * batch);
        let start = Cursor { epoch: start_epoch % epochs, position: start_position % (samples + 1) };
        let order = OrderName::ALL[order];
        let whole = RunConfig { rank: rank % world, order, drop_last, start, ..config(samples, world, batch, epochs) };
        let run = Run::new(whole).unwrap();
        let mut owner = std::collections::BTreeMap::new();
        let batches = all_batches(&run);
        for (index, batch) in batches.iter().enumerate() {
            prop_assert_eq!(batch.seq, BatchSeq(index as u64));
            prop_assert_eq!(run.samples(batch).len() as u64, batch.samples());
            for (position, sample) in batch.positions.clone().zip(run.samples(batch)) {
                prop_assert_eq!(run.sample_at(batch.epoch, position), sample);
            }
            owner.extend(batch.positions.clone().map(|position| ((batch.epoch, position), batch.seq)));
        }
        prop_assert_eq!(run.batch(BatchSeq(run.batches())), None);
        for epoch in 0..epochs + 2 {
            for position in 0..samples {
                prop_assert_eq!(run.position_of(epoch, run.sample_at(epoch, position)), position);
                prop_assert_eq!(run.seq_of_position(epoch, position), owner.get(&(epoch, position)).copied());
            }
        }
        if !batches.is_empty() {
            let stop = stop % run.batches();
            let rest = Run::new(RunConfig { start: run.cursor_after(BatchSeq(stop)), ..whole }).unwrap();
            prop_assert_eq!(&run.clone().starting_at(rest.config().start).unwrap(), &rest);
            prop_assert_eq!(run.seq_at(rest.config().start), Some(BatchSeq(stop + 1)));
            let between = batches[stop as usize].positions.end.max(1) - 1;
            let between = Cursor { epoch: batches[stop as usize].epoch, position: between };
            let begins = |seq: u64| seq.checked_sub(1).map_or(start, |last| run.cursor_after(BatchSeq(last)));
            let found = (0..=run.batches()).find(|seq| begins(*seq) == between).map(BatchSeq);
            prop_assert_eq!(run.seq_at(between), found);
            prop_assert_eq!(rest.batches(), run.batches() - stop - 1);
            let expected = batches[stop as usize + 1..].iter().map(|batch| (batch.epoch, batch.positions.clone()));
            prop_assert!(expected.eq(all_batches(&rest).into_iter().map(|batch| (batch.epoch, batch.positions))));
        }
    }
}

#[test]
fn order_does_not_depend_on_the_world() {
    let epoch = |world: u32, batch_size: u32| {
        let runs: Vec<_> = (0..world)
            .map(|rank| Run::new(RunConfig { rank, ..config(1_000, world, batch_size, 1) }).unwrap())
            .collect();
        let mut order = Vec::new();
        for seq in 0..runs[0].batches() {
            order.extend(runs.iter().flat_map(|run| run.samples(&run.batch(BatchSeq(seq)).unwrap())));
        }
        order
    };
    let alone = epoch(1, 1);
    assert!(alone != (0..1_000).map(SampleId).collect::<Vec<_>>(), "shuffled");
    assert_eq!(alone, epoch(3, 64));
    assert_eq!(alone, epoch(4, 7));
}

#[test]
fn an_epoch_has_the_samples_of_all_ranks_but_for_what_is_dropped() {
    let start = Cursor { epoch: 1, position: 90 };
    let of = |drop_last| Run::new(RunConfig { drop_last, start, ..config(100, 3, 8, 2) }).unwrap().epoch_samples();
    assert_eq!([false, true].map(of), [100, 96]);
}

#[test]
fn a_finished_run_has_no_batches_and_a_long_one_is_seekable() {
    let done = RunConfig { start: Cursor { epoch: 2, position: 0 }, ..config(10, 1, 3, 2) };
    assert_eq!(Run::new(done).unwrap().batches(), 0);
    let long = Run::new(config(u64::from(u32::MAX), 7, 1, EPOCHS_MAX)).unwrap();
    let last = long.batch(BatchSeq(long.batches() - 1)).unwrap();
    assert_eq!(last.epoch, EPOCHS_MAX - 1);
    assert_eq!(long.seq_of_position(last.epoch, last.positions.start), Some(last.seq));
    assert_eq!(long.cursor_after(last.seq), Cursor { epoch: EPOCHS_MAX, position: 0 });
}

#[test]
fn refuses_what_cannot_run_with_the_numbers() {
    let good = config(100, 3, 64, 2);
    let refused = [
        (RunConfig { samples: 0, ..good }, "no samples"),
        (RunConfig { samples: 1 << 40, ..good }, "1099511627776 samples are more than 1099511627775"),
        (RunConfig { samples: 1 << 39, epochs: 1 << 25, ..good }, "33554432 epochs of 549755813888 samples"),
        (RunConfig { world: 0, ..good }, "world of 0"),
        (RunConfig { rank: 3, ..good }, "rank 3 is not in a world of 3"),
        (RunConfig { batch_size: 0, ..good }, "batch_size is 0"),
        (RunConfig { epochs: 0, ..good }, "epochs is 0"),
        (RunConfig { epochs: u64::MAX, ..good }, "epochs is 18446744073709551615"),
        (RunConfig { drop_last: true, ..good }, "100 samples do not fill one step of 3 ranks x 64"),
        (RunConfig { start: Cursor { epoch: 0, position: 101 }, ..good }, "position 101 is beyond the 100"),
        (RunConfig { start: Cursor { epoch: 2, position: 1 }, ..good }, "epoch 2 position 1 is beyond the 2"),
        (RunConfig { start: Cursor { epoch: 3, position: 0 }, ..good }, "epoch 3 position 0"),
    ];
    for (config, words) in refused {
        let error = Run::new(config).unwrap_err();
        assert_eq!(error.kind(), Kind::Usage);
        assert!(error.to_string().contains(words), "{error}");
    }
    assert!(Run::new(good).is_ok());
}
