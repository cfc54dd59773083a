//! What the loader's integration tests share: buckets with generated sets, loaders over them, the order a run must have,
//! and a reader that checks every byte.
#![allow(dead_code, unreachable_pub, reason = "each test file uses its part")]

pub mod azurite;
pub mod gcs;
pub mod keys;
pub mod moto;
pub mod nginx;
pub mod pictures;
pub mod ports;
pub mod process;
pub mod proxy;
pub mod reading;
pub mod recorder;
pub mod s3s;
pub mod said;
pub mod secure;
pub mod services;
pub mod skip;

use fuelrail::{Batch, ByteSize, Error, Listed, Loader, LoaderBuilder, Result};
use fuelrail_bucket::{Bucket, BucketConfig, DataSet, Script, Source};
use fuelrail_plan::order::OrderName;
use fuelrail_plan::run::{Run, RunConfig};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::{Duration, Instant};

/// Longest time any test waits for something that must come. Far beyond what is needed: only a hang meets it.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// A bucket that serves `set` and misbehaves as `script` says.
pub fn bucket(set: &DataSet, script: &str) -> Bucket {
    serve(Source::Generated(set.clone()), script)
}

/// A bucket that serves a folder.
pub fn folder(path: &Path, script: &str) -> Bucket {
    serve(Source::Directory(path.to_owned()), script)
}

fn serve(source: Source, script: &str) -> Bucket {
    let script: Script = script.parse().expect("the test's script parses");
    Bucket::start(BucketConfig { source, script, ..BucketConfig::default() }).expect("loopback can be listened on")
}

/// A small loader over the bucket: one shard, 64 MB, no cache.
pub fn loader(bucket: &Bucket) -> LoaderBuilder {
    loader_at(&bucket.url(""))
}

/// As [`loader`], by address.
pub fn loader_at(uri: &str) -> LoaderBuilder {
    Loader::builder(uri)
        .memory_limit("64MB".parse().unwrap())
        .shards(1)
        .connections_max(32)
        .pin(false)
        .watchdog_after(Duration::from_secs(10))
        // Requests are counted: none is sent twice unless the test says so.
        .hedge_percent(0)
}

/// The listing of a generated set, made without asking: a script's faults then meet nothing but objects.
pub fn listing(set: &DataSet) -> Vec<Listed> {
    (0..set.len()).map(|i| Listed { key: set.key(i), size: set.size(i), etag: Some(set.etag(i)) }).collect()
}

/// The same without ETags, as a plain manifest gives it.
pub fn bare_listing(set: &DataSet) -> Vec<Listed> {
    listing(set).into_iter().map(|object| Listed { etag: None, ..object }).collect()
}

/// Everything a loader delivered.
#[derive(Debug, Default, PartialEq, Eq, Clone)]
pub struct Delivered {
    /// `(epoch, sample)` in order of delivery.
    pub order: Vec<(u64, u64)>,
}

/// Reads a loader to its end and checks every byte against the generator.
///
/// # Errors
/// What the loader reports.
pub fn drain(loader: &mut Loader, set: &DataSet) -> Result<Delivered> {
    let mut delivered = Delivered::default();
    while let Some(batch) = loader.next_batch() {
        take(&batch?, loader, set, &mut delivered);
    }
    Ok(delivered)
}

/// Checks one batch and notes what it brought.
pub fn take(batch: &Batch, loader: &Loader, set: &DataSet, delivered: &mut Delivered) {
    for sample in batch.samples() {
        set.verify(loader.key(sample.id), sample.bytes).expect("every byte is the generator's");
        delivered.order.push((batch.epoch(), sample.id.0));
    }
}

/// What the plan alone says a run delivers, in order.
pub fn planned(config: RunConfig) -> Vec<(u64, u64)> {
    let run = Run::new(config).expect("the test's run is sound");
    let batches = (0..run.batches()).map(|seq| run.batch(fuelrail_base::BatchSeq(seq)).expect("below the end"));
    batches.flat_map(|batch| run.samples(&batch).map(move |id| (batch.epoch, id.0)).collect::<Vec<_>>()).collect()
}

/// The plain run of one rank over `samples` samples.
pub fn plain_run(samples: u64, seed: u64, batch_size: u32, epochs: u64) -> RunConfig {
    RunConfig {
        samples,
        seed,
        order: OrderName::Global,
        shuffle: true,
        world: 1,
        rank: 0,
        batch_size,
        drop_last: false,
        epochs,
        start: fuelrail_plan::run::Cursor::default(),
    }
}

/// Files of this user's directory in one that keeps blocks or listings.
pub fn kept_in(dir: &Path) -> Vec<PathBuf> {
    let own = fuelrail_io::OwnDirectory::open(dir).unwrap();
    std::fs::read_dir(own.path()).unwrap().map(|file| file.unwrap().path()).collect()
}

/// Runs `work` on every case, a few at a time: most of a faulty run is waiting. A failure names its case.
pub fn side_by_side<C: std::fmt::Debug + Send + Sync>(cases: Vec<C>, work: impl Fn(&C) + Send + Sync) {
    const AT_ONCE: usize = 6;
    let cases = Mutex::new(cases.into_iter());
    let next = || cases.lock().expect("taking a case never panics").next();
    let failed = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for _ in 0..AT_ONCE {
            scope.spawn(|| {
                while let Some(case) = next() {
                    if std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| work(&case))).is_err() {
                        failed.lock().expect("noting a case never panics").push(case);
                    }
                }
            });
        }
    });
    let failed = failed.into_inner().expect("noting a case never panics");
    assert!(failed.is_empty(), "failed: {failed:#?}");
}

/// The number after "raise memory_limit to" in a refusal, bytes.
pub fn needed(error: &Error) -> u64 {
    let text = error.to_string();
    let number = text.split("raise memory_limit to ").nth(1).and_then(|rest| rest.split(',').next());
    number.and_then(|n| n.parse().ok()).unwrap_or_else(|| panic!("no number of bytes in: {text}"))
}

/// The smallest budget that these settings are not refused with, bytes.
pub fn least_budget(builder: LoaderBuilder) -> u64 {
    needed(&builder.memory_limit(ByteSize(4096)).build().expect_err("a page holds no batch"))
}

/// How many threads loaders have in this process.
pub fn threads() -> usize {
    thread_names().len()
}

/// Their names.
pub fn thread_names() -> Vec<String> {
    let tasks = std::fs::read_dir("/proc/self/task").expect("Linux has /proc");
    // A thread may end between being listed and being looked at.
    let of = |task: std::path::PathBuf| {
        let [name, stat] = ["comm", "stat"].map(|file| std::fs::read_to_string(task.join(file)).ok());
        // The kernel lists a thread for a moment longer than it can be joined: PF_EXITING among its flags.
        let flags: u64 = stat?.rsplit(')').next()?.split(' ').nth(7)?.parse().ok()?;
        name.filter(|name| flags & 4 == 0 && name.starts_with("fuelrail"))
    };
    tasks.filter_map(|task| of(task.ok()?.path())).collect()
}

/// Waits until `done`; panics with `what` when it never is.
pub fn eventually(what: &str, mut done: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !done() {
        assert!(begun.elapsed() < PATIENCE, "{what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}
