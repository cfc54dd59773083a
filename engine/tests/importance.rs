//! Importance through the whole loader: ranks draw alike, every byte and every draw is proved, runs go on with the same
//! draws, and nothing waits for a report.

use crate::common::{bucket, drain, loader, side_by_side};
use fuelrail::{Audit, Batch, ByteSize, ImportanceMode, Kind, Loader, LoaderBuilder, SampleId, State};
use fuelrail_bucket::{Bucket, DataSet};
use std::collections::BTreeMap;
use std::path::Path;

const SAMPLES: u64 = 211;
const BATCH: u32 = 4;

fn digits() -> DataSet {
    DataSet::digits(SAMPLES, 7)
}

/// A loader that draws, small enough a cache that some of what it reads is hit.
fn drawing(bucket: &Bucket, epochs: u64) -> LoaderBuilder {
    loader(bucket)
        .batch_size(BATCH)
        .epochs(epochs)
        .seed(3)
        .importance(ImportanceMode::On)
        .importance_coverage_percent(60)
}

/// The loss of a sample: some are hard for ever.
fn loss(id: SampleId) -> f32 {
    (id.0 % 13) as f32 + id.0 as f32 / 1_000.0
}

/// One step of every rank, and the exchange of losses after it. None when the run is over.
fn step(ranks: &mut [Loader]) -> Option<Vec<Batch>> {
    let batches: Vec<Batch> = ranks.iter_mut().map_while(|rank| rank.next_batch().transpose().unwrap()).collect();
    if batches.len() < ranks.len() {
        assert!(batches.is_empty(), "every rank takes the same number of steps");
        return None;
    }
    for (rank, own) in ranks.iter().zip(&batches) {
        // Every rank has the list in another order.
        let others = batches.iter().cycle().skip(own.seq() as usize % batches.len()).take(batches.len());
        let ids: Vec<SampleId> = others.flat_map(|batch| batch.ids()).copied().collect();
        let losses: Vec<f32> = ids.iter().map(|id| loss(*id)).collect();
        rank.report(own.seq(), &ids, &losses).unwrap();
    }
    Some(batches)
}

/// Delivered samples with their weights, epoch by epoch, in order, ranks in turn.
type Run = BTreeMap<u64, Vec<(u64, f32)>>;

fn note(run: &mut Run, batches: &[Batch], set: &DataSet, ranks: &[Loader]) {
    for batch in batches {
        for (sample, weight) in batch.samples().zip(batch.weights()) {
            set.verify(ranks[0].key(sample.id), sample.bytes).expect("every byte is the generator's");
            run.entry(batch.epoch()).or_default().push((sample.id.0, *weight));
        }
    }
}

fn logs(folder: &Path, names: &[String]) -> Vec<Audit> {
    names.iter().map(|name| Audit::read(&folder.join(name)).unwrap()).collect()
}

#[test]
fn ranks_draw_alike_and_the_logs_prove_every_draw() {
    let folder = tempfile::tempdir().unwrap();
    let set = digits();
    let seen = std::sync::Mutex::new(Vec::new());
    side_by_side(vec![(1u32, 1u16), (2, 2), (3, 1)], |&(world, shards)| {
        let bucket = bucket(&set, "reset=0.02,latency=uniform:0ms..2ms");
        let names: Vec<String> = (0..world).map(|rank| format!("{world}-{rank}")).collect();
        let mut ranks: Vec<Loader> = (0..world)
            .map(|rank| {
                // The same global step, so the same ranks within it and the same draws.
                let builder = drawing(&bucket, 4).batch_size(12 / world).rank(rank).world(world).shards(shards);
                builder.cache_limit(ByteSize(20_000)).audit(folder.path().join(&names[rank as usize])).build().unwrap()
            })
            .collect();
        let mut run = Run::new();
        while let Some(batches) = step(&mut ranks) {
            note(&mut run, &batches, &set, &ranks);
        }
        let verdict = Audit::join(&logs(folder.path(), &names)).unwrap();
        assert!(verdict.exactly_once, "{verdict:?}");
        assert_eq!(verdict.epochs.len(), 4);
        assert!(run.values().all(|epoch| epoch.len() as u64 == SAMPLES));
        let distinct = |epoch: &u64| {
            let mut ids: Vec<u64> = run[epoch].iter().map(|(id, _)| *id).collect();
            ids.sort_unstable();
            ids.dedup();
            ids.len() as u64
        };
        assert_eq!(distinct(&0), SAMPLES, "the first epoch is plain");
        assert!(run[&0].iter().all(|(_, weight)| *weight == 1.0));
        let drawn: Vec<u64> = [1, 2, 3].iter().map(distinct).collect();
        assert!(drawn.iter().all(|distinct| (SAMPLES * 6 / 10..SAMPLES).contains(distinct)), "{drawn:?}");
        assert!(run[&3].iter().any(|(_, weight)| *weight > 1.0) && run[&3].iter().any(|(_, weight)| *weight < 1.0));
        let coverage = (SAMPLES + drawn.iter().sum::<u64>()) as f64 / (4 * SAMPLES) as f64;
        ranks.iter().for_each(|rank| assert!((rank.stats().coverage - coverage).abs() < 1e-9));
        // The proof notices a rank that is left out, and a sample too many.
        if world > 1 {
            assert!(!Audit::join(&logs(folder.path(), &names[1..])).unwrap().exactly_once);
        }
        let mut epochs: Vec<Vec<(u64, u32)>> = run
            .into_values()
            .map(|epoch| epoch.into_iter().map(|(id, weight)| (id, weight.to_bits())).collect())
            .collect();
        epochs.iter_mut().for_each(|epoch| epoch.sort_unstable());
        seen.lock().unwrap().push(epochs);
    });
    let seen = seen.into_inner().unwrap();
    assert!(seen.iter().all(|run| *run == seen[0]), "one, two and three ranks draw the same epochs");
}

#[test]
fn a_log_of_another_draw_is_noticed() {
    let folder = tempfile::tempdir().unwrap();
    let set = digits();
    let bucket = bucket(&set, "");
    let names = ["a".to_owned(), "b".to_owned()];
    for (name, seed) in names.iter().zip([1.0f32, 2.0]) {
        let mut one = drawing(&bucket, 3).audit(folder.path().join(name)).build().unwrap();
        while let Some(batch) = one.next_batch() {
            let batch = batch.unwrap();
            let losses: Vec<f32> = batch.ids().iter().map(|id| (loss(*id) * seed) % 7.0).collect();
            one.report(batch.seq(), batch.ids(), &losses).unwrap();
        }
    }
    assert!(
        logs(folder.path(), &names[..1]).iter().all(|log| Audit::join(std::slice::from_ref(log)).unwrap().exactly_once)
    );
    let error = Audit::join(&logs(folder.path(), &names)).unwrap_err();
    assert!(error.to_string().contains("differently"), "{error}");
    // A sample less than was drawn is missing.
    let text = std::fs::read_to_string(folder.path().join("a")).unwrap();
    let line = text.lines().rfind(|line| line.starts_with("{\"epoch\":2")).unwrap();
    let verdict = Audit::join(&[Audit::parse(&text.replace(&format!("{line}\n"), "")).unwrap()]).unwrap();
    assert!(!verdict.exactly_once && verdict.epochs[2].missing > 0, "{verdict:?}");
}

#[test]
fn nobody_reports_and_the_run_is_the_plain_one_at_full_look_ahead() {
    let set = digits();
    let bucket = bucket(&set, "");
    let plain = drain(&mut loader(&bucket).batch_size(BATCH).epochs(3).seed(3).build().unwrap(), &set).unwrap();
    side_by_side(ImportanceMode::ALL.to_vec(), |mode| {
        let mut silent = drawing(&bucket, 3).importance(*mode).build().unwrap();
        assert_eq!(drain(&mut silent, &set).unwrap(), plain);
        assert_eq!(silent.stats().coverage, 1.0);
    });
    // Off, reporting is allowed and does nothing.
    let mut off = loader(&bucket).batch_size(BATCH).seed(3).build().unwrap();
    assert!(off.reporter().is_none() && off.state().importance.is_none());
    let batch = off.next_batch().unwrap().unwrap();
    assert!(batch.weights().iter().all(|weight| *weight == 1.0));
    off.report(99, &[], &[1.0]).unwrap();
}

#[test]
fn a_run_stopped_anywhere_goes_on_with_the_same_draws() {
    let set = digits();
    let bucket = bucket(&set, "");
    let whole = |stops: &[u64], worlds: &[u32]| {
        let (mut run, mut kept) = (Run::new(), None::<(State, Vec<u8>)>);
        for (leg, world) in worlds.iter().enumerate() {
            let mut ranks: Vec<Loader> = (0..*world)
                .map(|rank| {
                    let mut builder = drawing(&bucket, 4).batch_size(12 / world).rank(rank).world(*world);
                    if let Some((state, scores)) = kept.clone() {
                        builder = builder.resume(State::from_json(&state.to_json()).unwrap()).scores(scores);
                    }
                    builder.build().unwrap()
                })
                .collect();
            let mut taken = 0;
            while taken < stops.get(leg).copied().unwrap_or(u64::MAX) {
                let Some(batches) = step(&mut ranks) else { break };
                note(&mut run, &batches, &set, &ranks);
                taken += 1;
            }
            let saved: Vec<Vec<u8>> =
                ranks.iter().map(|rank| rank.reporter().unwrap().scores(&rank.state()).unwrap()).collect();
            assert!(saved.iter().all(|scores| *scores == saved[0]), "every rank saves the same");
            kept = Some((ranks[0].state(), saved[0].clone()));
        }
        // In the order of positions, which do not depend on the number of ranks.
        run
    };
    let reference = whole(&[], &[1]);
    assert_ne!(reference[&1], reference[&2]);
    for stops in [vec![1], vec![17, 1], vec![18], vec![20, 10], vec![35, 15, 3]] {
        assert_eq!(whole(&stops, &vec![1; stops.len() + 1]), reference, "stopped after {stops:?} steps");
        let worlds: Vec<u32> = [2, 3, 1, 2].into_iter().take(stops.len() + 1).collect();
        assert_eq!(whole(&stops, &worlds), reference, "stopped after {stops:?} steps, on {worlds:?} ranks");
    }
}

#[test]
fn scores_and_state_belong_together() {
    let bucket = bucket(&digits(), "");
    let mut first = drawing(&bucket, 2).build().unwrap();
    (0..3).for_each(|_| drop(first.next_batch().unwrap().unwrap()));
    let (state, reporter) = (first.state(), first.reporter().unwrap());
    assert_eq!(state.importance.as_deref(), Some("on"));
    let scores = reporter.scores(&state).unwrap();
    let refused = |builder: LoaderBuilder, says: &str| {
        let error = builder.build().unwrap_err();
        assert_eq!(error.kind(), Kind::Usage);
        assert!(error.to_string().contains(says), "{error}");
    };
    refused(drawing(&bucket, 2).resume(state.clone()), "scores");
    refused(drawing(&bucket, 2).resume(state.clone()).scores(b"{}".to_vec()), "not saved scores");
    drop(first.next_batch());
    refused(drawing(&bucket, 2).resume(first.state()).scores(scores.clone()), "another state");
    refused(drawing(&bucket, 2).importance(None).resume(state.clone()).scores(scores.clone()), "with importance");
    assert!(drawing(&bucket, 2).resume(state).scores(scores).build().is_ok());
    // A run that had none goes on with it: the epoch it is in stays plain.
    let mut plain = loader(&bucket).batch_size(BATCH).epochs(2).seed(3).build().unwrap();
    drop(plain.next_batch().unwrap().unwrap());
    assert!(drawing(&bucket, 2).resume(plain.state()).build().is_ok());
}

#[test]
fn a_wrong_report_is_an_error_and_the_run_goes_on() {
    let set = digits();
    let bucket = bucket(&set, "");
    let mut one = drawing(&bucket, 2).build().unwrap();
    let batch = one.next_batch().unwrap().unwrap();
    let losses: Vec<f32> = batch.ids().iter().map(|id| loss(*id)).collect();
    let reporter = one.reporter().unwrap();
    for (seq, ids, losses) in [
        (0, batch.ids(), &losses[1..]),
        (0, &[SampleId(SAMPLES); 4][..], &losses[..]),
        (10_000, batch.ids(), &losses[..]),
    ] {
        assert_eq!(reporter.report(seq, ids, losses).unwrap_err().kind(), Kind::Usage);
    }
    reporter.report(0, batch.ids(), &losses).unwrap();
    assert!(reporter.report(0, batch.ids(), &losses).unwrap_err().to_string().contains("once"));
    // Taken to the edge without reports; then one comes for what was drawn without it.
    drop(batch);
    while one.next_batch().unwrap().unwrap().epoch() == 0 {}
    let late = reporter.report(1, &[SampleId(1)], &[1.0]).unwrap_err();
    assert!(late.to_string().contains("after the draw"), "{late}");
    assert_eq!(drain(&mut one, &set).unwrap().order.len() as u64, SAMPLES - u64::from(BATCH));
}

#[test]
fn a_batch_has_room_for_its_largest_sample_several_times() {
    let folder = tempfile::tempdir().unwrap();
    for name in 0..41 {
        let bytes = if name == 17 { 200_000 } else { 100 };
        std::fs::write(folder.path().join(format!("{name:02}")), vec![name; bytes]).unwrap();
    }
    let bucket = crate::common::folder(folder.path(), "");
    // SHADE replays what is cached, and the hardest sample is.
    let builder =
        drawing(&bucket, 10).batch_size(41).importance(ImportanceMode::ShadeCorrected).cache_limit(ByteSize(50_000));
    let mut one = builder.build().unwrap();
    let mut twice = 0;
    while let Some(batch) = one.next_batch() {
        let batch = batch.unwrap();
        assert!(batch.samples().all(|sample| sample.bytes.iter().all(|byte| u64::from(*byte) == sample.id.0)));
        twice += usize::from(batch.ids().iter().filter(|id| id.0 == 17).count() > 1);
        assert!(batch.bytes().len() as u64 <= one.batch_bytes_max());
        let losses: Vec<f32> = batch.ids().iter().map(|id| one.size(*id) as f32).collect();
        one.report(batch.seq(), batch.ids(), &losses).unwrap();
    }
    assert!(twice > 0, "the large one came twice in a batch");
}
