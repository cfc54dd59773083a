//! A shard that dies, of whatever and wherever, ends the run at once: with its own cause, and with nothing left behind.

use crate::common::{PATIENCE, bucket, eventually, loader, thread_names, threads};
use fuelrail::{ByteSize, Decode, Error, Kind, Loader, LoaderBuilder};
use fuelrail_base::canary::{self, Crash, Stage};
use fuelrail_bucket::{Bucket, DataSet};
use std::sync::mpsc;
use std::time::{Duration, Instant};

const EIO: i32 = 5;
const ENOMEM: i32 = 12;
/// Ways to die, and what the error says of each.
const WAYS: [(Option<i32>, &str); 3] =
    [(None, "a planted panic of shard"), (Some(EIO), "Input/output error"), (Some(ENOMEM), "Cannot allocate memory")];
/// Longest wait for the error: a second is what is promised, and this machine may be busy.
const WAIT_MAX: Duration = Duration::from_secs(10);

/// Takes batches until the run ends; its error, and how long the call that returned it took. A run that hangs fails here.
fn end_of(mut loader: Loader) -> (Error, Duration) {
    let (tell, told) = mpsc::channel();
    let consumer = std::thread::spawn(move || {
        let end = loop {
            let begun = Instant::now();
            match loader.next_batch() {
                Some(Ok(_)) => {}
                Some(Err(error)) => break Some((error, begun.elapsed())),
                None => break None,
            }
        };
        assert!(loader.next_batch().is_none(), "after an error the run is over");
        // The other shards end by themselves, too: those that sleep are woken.
        let is_shard = |name: &String| name.trim_end().trim_start_matches("fuelrail-").parse::<u16>().is_ok();
        eventually("shards go on without the dead one", || !thread_names().iter().any(is_shard));
        drop(loader);
        tell.send(end).expect("the test waits");
    });
    let end = told.recv_timeout(PATIENCE).expect("the consumer hangs");
    consumer.join().unwrap();
    end.expect("the run ended as if nothing had happened")
}

/// Runs a loader with the crash planted, and holds the end to what is promised.
#[expect(clippy::print_stdout, reason = "the test harness shows it where a test fails")]
fn dies(crash: Crash, says: &str, builder: LoaderBuilder) {
    let before = threads();
    let (error, waited) = end_of(canary::with_crash(crash, || builder.build().unwrap()));
    println!("{crash:?}: {waited:?}, {error}");
    assert_eq!(error.kind(), Kind::Environment, "{crash:?}: {error}");
    let text = error.to_string();
    assert!(text.contains(says), "{crash:?}: {text}");
    if crash.stage != Stage::Decode {
        assert!(text.contains(&format!("shard {}", crash.shard)), "{crash:?}: {text}");
    }
    assert!(waited < WAIT_MAX, "{crash:?}: {waited:?}");
    assert_eq!(threads(), before, "{crash:?}");
}

fn endless(bucket: &Bucket, shards: u16, cache: &str) -> LoaderBuilder {
    let builder = loader(bucket).shards(shards).batch_size(4).epochs(1_000_000).cache_limit(cache.parse().unwrap());
    builder.memory_limit("128MB".parse().unwrap()).block_size("64KiB".parse().unwrap())
}

#[test]
fn a_shard_that_dies_ends_the_run_with_its_cause() {
    let bucket = bucket(&DataSet::photos(90, 4), "latency=uniform:0ms..2ms");
    let stages = [Stage::Start, Stage::Receive, Stage::Assemble, Stage::Deliver];
    let mut stages = stages.into_iter().cycle();
    for shards in [1, 2, 4, 8] {
        for (errno, says) in WAYS {
            for cache in ["0B", "2MB"] {
                // The last one: the consumer waits for another shard's batch first.
                let (shard, stage) = (shards - 1, stages.next().unwrap());
                let crash = Crash { shard, stage, after: 5, errno };
                dies(crash, says, endless(&bucket, shards, cache));
            }
        }
        stages.next();
    }
}

#[test]
fn a_shard_that_dies_while_it_writes_to_disk_ends_the_run() {
    let bucket = bucket(&DataSet::photos(90, 4), "latency=uniform:5ms..9ms");
    for (shards, (errno, says)) in [1, 2, 4].into_iter().zip(WAYS) {
        let folder = tempfile::tempdir().unwrap();
        let builder = endless(&bucket, shards, "1MB").spill_dirs(vec![folder.path().to_owned()]);
        let crash = Crash { shard: shards - 1, stage: Stage::Spill, after: 1, errno };
        // Small segments: making them is not what is tried here.
        dies(crash, says, builder.spill_limit(ByteSize(32 << 20)).spill_floor(ByteSize(0)));
    }
}

#[test]
fn a_shard_or_a_decoding_thread_that_dies_ends_a_run_that_decodes() {
    let bucket = bucket(&DataSet::digits(300, 7), "");
    for (shards, (errno, says)) in [1, 2, 4].into_iter().zip(WAYS) {
        let decoding = || endless(&bucket, shards, "100kB").decode(Decode::exact(28, 28, 1)).decode_threads(2);
        dies(Crash { shard: shards - 1, stage: Stage::Receive, after: 20, errno }, says, decoding());
        dies(Crash { shard: 0, stage: Stage::Decode, after: 20, errno: None }, "a planted panic", decoding());
    }
}
