//! A process that forks while it holds a loader: the child is told so and ends, and the parent goes on.

use crate::common::keys::now;
use crate::common::{bucket, drain, eventually, loader};
use fuelrail::{ByteSize, Credential, Decode, Kind, Loader, LoaderBuilder, Remains, Taken};
use fuelrail_bucket::{Bucket, DataSet};
use fuelrail_io::conformance::in_fork;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

/// How long a child may take, which waits for a second at most.
const CHILD_LIMIT: Duration = Duration::from_secs(20);
const SAMPLES: u64 = 200;

/// With all threads that a loader can have.
fn build(bucket: &Bucket, dir: &Path, change: impl Fn(LoaderBuilder) -> LoaderBuilder) -> Loader {
    let builder = loader(bucket).shards(2).batch_size(4).spill_dirs(vec![dir.to_owned()]);
    let builder =
        builder.spill_limit(ByteSize(32 << 20)).spill_floor(ByteSize(0)).watchdog_after(Duration::from_millis(4));
    change(builder).build().unwrap()
}

#[test]
fn a_forked_child_is_refused_and_lets_go_without_waiting() {
    let (set, folder) = (DataSet::digits(SAMPLES, 7), tempfile::tempdir().unwrap());
    let bucket = bucket(&set, "latency=uniform:0ms..2ms");
    let decodes = |builder: LoaderBuilder| builder.decode(Decode::exact(28, 28, 1)).decode_threads(2);
    for loader in [build(&bucket, folder.path(), |plain| plain), build(&bucket, folder.path(), decodes)] {
        let mut mine = Some((loader, Vec::new()));
        let mut samples = 0;
        for ends in [|loader: Loader| drop(loader), |loader: Loader| assert_eq!(loader.close(), Remains::default())] {
            let (loader, held) = mine.as_mut().unwrap();
            held.push(loader.next_batch().unwrap().unwrap());
            samples += held.last().unwrap().len() as u64;
            let code = in_fork(CHILD_LIMIT, || {
                let (mut loader, held) = mine.take().unwrap();
                assert_eq!(loader.stats().batches, held.len() as u64);
                let error = loader.next_batch().unwrap().unwrap_err();
                assert!(error.kind() == Kind::Environment && error.to_string().contains("is a fork of"), "{error}");
                drop(held);
                ends(loader);
                0
            });
            assert_eq!(code, Some(0), "the child hangs, or was not refused");
        }
        let (mut loader, held) = mine.unwrap();
        drop(held);
        samples += loader.by_ref().map(|batch| batch.unwrap().len() as u64).sum::<u64>();
        assert_eq!(samples, SAMPLES, "the parent goes on");
    }
}

#[test]
fn a_wake_that_is_pending_stays_the_parents() {
    let set = DataSet::digits(SAMPLES, 7);
    let bucket = bucket(&set, "latency=fixed:200ms");
    let mut loader = loader(&bucket).batch_size(4).connections_max(2).build().unwrap();
    let event = loader.event().unwrap();
    let is_readable = |within_s| {
        let limit = Timespec { tv_sec: within_s, tv_nsec: 0 };
        poll(&mut [PollFd::new(&event, PollFlags::IN)], Some(&limit)).unwrap() == 1
    };
    loop {
        match loader.try_next_batch().unwrap() {
            Taken::Batch(batch) => drop(batch),
            Taken::NotYet => break,
            Taken::Over => panic!("it was never waited for"),
        }
    }
    assert!(is_readable(20));
    assert_eq!(in_fork(CHILD_LIMIT, || i32::from(loader.try_next_batch().is_ok())), Some(0), "the child is refused");
    assert!(is_readable(0), "the child took the wake");
    assert!(loader.next_batch().unwrap().is_ok(), "the parent goes on");
}

/// The thread that renews the parent's credential is not in the child.
#[test]
fn a_child_that_opens_a_loader_renews_its_own_credential() {
    let set = DataSet::digits(20, 7);
    let bucket = bucket(&set, "");
    let asked = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&asked);
    let provider = move || {
        count.fetch_add(1, Ordering::AcqRel);
        let credential = Credential::aws("marked-id", "marked-secret", None)?;
        Ok(credential.until(Some(now().shifted(2))))
    };
    let builder = loader(&bucket).credentials(provider);
    let mut mine = builder.clone().build().unwrap();
    drain(&mut mine, &set).unwrap();
    let code = in_fork(CHILD_LIMIT, || {
        let before = asked.load(Ordering::Acquire);
        let mut its = builder.clone().build().unwrap();
        drain(&mut its, &set).unwrap();
        eventually("it is not renewed", || asked.load(Ordering::Acquire) > before + 1);
        0
    });
    assert_eq!(code, Some(0), "the child signs with what the parent has");
}
