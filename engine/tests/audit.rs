//! The exactly-once proof: logs of all ranks, joined.

use crate::common::{bucket, drain, loader, side_by_side};
use fuelrail::{Audit, Kind, State};
use fuelrail_bucket::DataSet;
use std::net::TcpListener;

#[test]
fn every_sample_once_an_epoch() {
    let folder = tempfile::tempdir().unwrap();
    side_by_side(vec![(1u32, 1u16), (2, 1), (3, 2)], |&(world, shards)| {
        let set = DataSet::digits(211, 7);
        // A log of every rank, under faults: what is proved is the order, not the weather.
        let bucket = bucket(&set, "reset=0.05,truncate=0.05,latency=uniform:0ms..3ms");
        let logs: Vec<Audit> = (0..world)
            .map(|rank| {
                let path = folder.path().join(format!("{world}-{rank}.jsonl"));
                let builder = loader(&bucket).rank(rank).world(world).shards(shards).batch_size(8).epochs(3);
                let mut loader = builder.seed(3).audit(path.clone()).build().unwrap();
                let delivered = drain(&mut loader, &set).unwrap();
                assert_eq!(loader.batches(), loader.stats().batches);
                assert!(delivered.order.len() as u64 >= 3 * (211 / u64::from(world)));
                Audit::read(&path).unwrap()
            })
            .collect();
        let verdict = Audit::join(&logs).unwrap();
        assert!(verdict.exactly_once, "{verdict:?}");
        assert_eq!(
            verdict.epochs.iter().map(|e| (e.epoch, e.once)).collect::<Vec<_>>(),
            [(0, 211), (1, 211), (2, 211)]
        );
        let ends: Vec<State> = logs.iter().map(Audit::last_state).collect();
        assert!(ends.iter().all(|end| (end.epoch, end.position) == (3, 0)), "{ends:?}");
        // The proof notices a rank that is left out.
        assert_eq!(Audit::join(&logs[1..]).map_or(0, |v| v.epochs.iter().map(|e| e.missing).sum()) > 0, world > 1);
    });
}

/// One rank stops, and goes on from its state alone; the other has run through.
#[test]
fn a_rank_that_alone_went_on_from_its_state_lacks_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let set = DataSet::digits(100, 7);
    let bucket = bucket(&set, "");
    let path = |name: &str| folder.path().join(name);
    let rank = |rank, log| loader(&bucket).rank(rank).world(2).batch_size(8).epochs(2).seed(3).audit(path(log));
    let mut stopped = rank(0, "stopped").build().unwrap();
    let taken: Vec<_> = stopped.by_ref().take(3).map(|batch| batch.unwrap()).collect();
    let state = stopped.state();
    assert_eq!((taken.len(), state.epoch, state.position), (3, 0, 48));
    // Delivered after the state was saved, so once more by the run that goes on.
    let _lost = stopped.next_batch().unwrap().unwrap();
    drop(stopped);
    drain(&mut rank(1, "through").build().unwrap(), &set).unwrap();
    drain(&mut rank(0, "resumed").resume(state).build().unwrap(), &set).unwrap();
    let logs = ["through", "stopped", "resumed"].map(|name| Audit::read(&path(name)).unwrap());
    let verdict = Audit::join(&logs).unwrap();
    assert!(verdict.exactly_once && verdict.alone == [0], "{verdict:?}");
    assert_eq!(verdict.epochs.iter().map(|e| e.once).collect::<Vec<_>>(), [100, 100]);
    assert!(!Audit::join(&logs[..2]).unwrap().exactly_once, "what it read after its state is missed");
}

#[test]
fn a_log_that_is_there_is_never_overwritten() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("log.jsonl");
    std::fs::write(&path, "the proof of another run\n").unwrap();
    let set = DataSet::digits(20, 7);
    let bucket = bucket(&set, "");
    let refused = loader(&bucket).audit(path.clone()).build().err().map(|error| error.to_string());
    assert_eq!(std::fs::read_to_string(&path).unwrap(), "the proof of another run\n");
    assert!(refused.is_some_and(|told| told.contains("log.jsonl") && told.contains("new log")));
}

#[test]
fn a_start_that_fails_leaves_no_log() {
    let folder = tempfile::tempdir().unwrap();
    let set = DataSet::digits(20, 7);
    let bucket = bucket(&set, "");
    let builder = loader(&bucket).audit(folder.path().join("log.jsonl"));
    let held = TcpListener::bind("127.0.0.1:0").unwrap();
    let error = builder.clone().metrics_listen(held.local_addr().unwrap().to_string()).build().unwrap_err();
    assert!(error.kind() == Kind::Environment && error.to_string().contains("listening at"), "{error}");
    assert_eq!(drain(&mut builder.build().unwrap(), &set).unwrap().order.len(), 20);
}

/// The proof counts what a policy left out, and calls the rest whole.
#[test]
fn left_out_samples_are_counted_not_missing() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("log.jsonl");
    let set = DataSet::digits(100, 7);
    let bucket = bucket(&set, &format!("missing_keys={};{}", set.key(3), set.key(90)));
    let builder = loader(&bucket).bad_samples(fuelrail::BadSamples::Skip).batch_size(8).epochs(2);
    let mut loader = builder.audit(path.clone()).build().unwrap();
    assert_eq!(drain(&mut loader, &set).unwrap().order.len(), 2 * 98);
    let verdict = Audit::join(&[Audit::read(&path).unwrap()]).unwrap();
    assert!(verdict.exactly_once, "{verdict:?}");
    assert_eq!(verdict.epochs.iter().map(|e| e.left_out).collect::<Vec<_>>(), [2, 2]);
}
