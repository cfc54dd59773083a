//! A process that forks while it holds a loader: the child is told so and ends, and the parent goes on.

use crate::common::{bucket, loader};
use fuelrail::{ByteSize, Decode, Kind, Loader, LoaderBuilder, Remains};
use fuelrail_bucket::{Bucket, DataSet};
use fuelrail_io::conformance::in_fork;
use std::path::Path;
use std::time::Duration;

/// How long a child may take: none of it is waiting.
const CHILD_LIMIT: Duration = Duration::from_secs(20);
const SAMPLES: u64 = 200;

/// With all threads that a loader can have.
fn build(bucket: &Bucket, dir: &Path, change: impl Fn(LoaderBuilder) -> LoaderBuilder) -> Loader {
    let builder = loader(bucket).shards(2).batch_size(4).spill_dirs(vec![dir.to_owned()]);
    let builder =
        builder.spill_limit(ByteSize(32 << 20)).spill_floor(ByteSize(1)).watchdog_after(Duration::from_millis(4));
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
