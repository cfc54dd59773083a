//! DELI's experiment (IC2E 2021) with DELI as the rival: its system reimplemented from the paper, its rows and metrics,
//! and Fuelrail on the same bucket, order, batches and cache bytes.
//!
//! DELI's weaknesses are kept as published, because the experiment is about them: every prefetch lists the bucket again;
//! a fetch becomes visible only when it is complete; every sample of a fetch costs an OS thread; the cache is first in,
//! first out, although the order is known; fetch size and threshold are fixed; the look-ahead ends with the epoch. Python
//! is not kept. Neither side decodes, and cached samples are the bytes of the object.
//!
//! The trainer's step is simulated by waiting; everything else is real: HTTP over loopback, threads, caches, the engine.
//! Every delivered byte is compared with the generator, in every row alike, outside the data wait.
//!
//! Rows follow each other on the same bucket, except those that read one `GET` at a time: these use 1 or 2 % of a core and almost all of the
//! wall time, so they run concurrently, each with its own trainers, connections and caches. Their CPU time is that of their own
//! threads (they have no others); only their peak memory cannot be separated, and the report says so.

mod feed;
mod http;
mod outcome;
mod prefetch;
mod rail;
mod scale;
mod trainer;

use std::panic::resume_unwind;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{ScopedJoinHandle, scope};
use std::time::Duration;

use fuelrail::internal::memory_use;
use fuelrail_base::{Error, Kind, Result};
use fuelrail_bucket::{Bucket, BucketConfig, DataSet, Latency, Script, Source};
use tempfile::TempDir;

use self::feed::{Feed, LocalDisk, Remote};
use self::http::Client;
pub use self::outcome::{Epoch, Row, RowName};
use self::prefetch::{ItemCache, Sampler};
use self::rail::{Rail, budget_bytes, connections};
pub use self::scale::Scale;
use self::trainer::{Originals, RankEpoch, batches, cpu_without_bucket, restart_peak_rss, train};
use crate::failure::of_bucket;

/// The bucket's name.
const BUCKET: &str = "bucket";
/// Rows that run together: first those that wait for one `GET` after the other, including the one that all are compared with.
const TOGETHER: [&[RowName]; 7] = [
    &[RowName::Bucket, RowName::DemandFifo25, RowName::DemandFifo50, RowName::DemandFifo75, RowName::DemandUnlimited],
    &[RowName::LocalDisk],
    &[RowName::DeliFullFetch],
    &[RowName::Deli5050],
    &[RowName::DeliFullFetchWide],
    &[RowName::Deli5050Wide],
    &[RowName::Fuelrail],
];

/// Observes the progress of the experiment. Called from many threads.
pub trait Watch: Sync {
    /// These rows start; each takes `batches` batches, over all ranks.
    fn begin(&self, rows: &[RowName], batches: u64);
    /// A rank of this row received a batch and computed on it.
    fn batch(&self, row: RowName);
    /// A row is done.
    fn end(&self, row: &Row);
}

/// The experiment's result. A delivered byte that differs from the generator's is an error instead.
#[derive(Debug)]
pub struct Findings {
    /// The size of the experiment.
    pub scale: Scale,
    /// Objects in the bucket.
    pub objects: u64,
    /// Their total bytes.
    pub object_bytes: u64,
    /// Payload memory of each rank of DELI and of Fuelrail, bytes.
    pub cache_bytes_per_rank: u64,
    /// The rows, in the order of [`RowName::ALL`].
    pub rows: Vec<Row>,
    /// The engine's notices.
    pub notices: Vec<String>,
}

/// Runs the experiment.
///
/// # Errors
/// `Environment` when the bucket, a thread or io_uring cannot be started, `File` for the
/// scratch folder, `Mismatch` for a delivered byte that differs from the generator's.
pub fn run(scale: &Scale, watch: &dyn Watch) -> Result<Findings> {
    let bench = Bench::new(scale, watch)?;
    let mut rows: Vec<Row> = Vec::new();
    for names in TOGETHER {
        for mut row in bench.rows(names)? {
            let bucket = rows.iter().find(|row| row.name == RowName::Bucket).cloned();
            row.compare(&bucket.unwrap_or_else(|| row.clone()));
            watch.end(&row);
            rows.push(row);
        }
    }
    rows.sort_by_key(|row| row.name);
    Ok(Findings {
        scale: scale.clone(),
        objects: scale.samples(),
        object_bytes: bench.originals.total_bytes(),
        cache_bytes_per_rank: budget_bytes(scale, &bench.originals),
        rows,
        notices: bench.notices.into_inner().unwrap_or_else(PoisonError::into_inner),
    })
}

/// State shared by all rows.
struct Bench<'a> {
    scale: &'a Scale,
    watch: &'a dyn Watch,
    originals: Originals,
    bucket: Bucket,
    paths: Vec<PathBuf>,
    notices: Mutex<Vec<String>>,
    /// Keeps the local files until the experiment ends.
    _folder: TempDir,
}

impl<'a> Bench<'a> {
    fn new(scale: &'a Scale, watch: &'a dyn Watch) -> Result<Bench<'a>> {
        let set = DataSet::digits(scale.samples(), scale.seed);
        let script = Script { latency: Latency::Fixed { us: scale.get_latency_us }, ..Script::default() };
        let source = Source::Generated(set.clone());
        let config = BucketConfig { bucket: BUCKET.to_owned(), source, script, ..BucketConfig::default() };
        let bucket = Bucket::start(config).map_err(|e| of_bucket(&e))?;
        let folder = tempfile::Builder::new().prefix("fuelrail-demo-").tempdir().map_err(|e| {
            Error::from_io(Kind::File, "making a scratch folder", e).with_hint("point TMPDIR elsewhere")
        })?;
        set.write_to(folder.path(), |_| {}).map_err(|e| Error::new(Kind::File, e.to_string()))?;
        let originals = Originals::new(set);
        let paths = originals.keys.iter().map(|key| folder.path().join(key)).collect();
        Ok(Bench { scale, watch, originals, bucket, paths, notices: Mutex::default(), _folder: folder })
    }

    fn open(&self, name: RowName, rank: u32) -> Result<Box<dyn Feed + '_>> {
        let (scale, cache_samples) = (self.scale, self.scale.cache_samples);
        let share = |percent| (Some(scale.samples_per_rank * percent / 100), None);
        // The cache's items, and the fetch size and threshold of its prefetch.
        let (items_max, watermarks) = match name {
            RowName::LocalDisk => return Ok(Box::new(LocalDisk { paths: &self.paths, batch: Vec::new() })),
            RowName::Fuelrail => {
                let rail = Rail::open(&self.bucket.url(""), scale, rank, &self.originals)?;
                self.note(rail.notices());
                return Ok(Box::new(rail));
            }
            RowName::Bucket => (None, None),
            RowName::DemandFifo25 => share(25),
            RowName::DemandFifo50 => share(50),
            RowName::DemandFifo75 => share(75),
            RowName::DemandUnlimited => (Some(u64::MAX), None),
            RowName::DeliFullFetch | RowName::DeliFullFetchWide => (Some(cache_samples), Some((cache_samples, 0))),
            RowName::Deli5050 | RowName::Deli5050Wide => {
                (Some(cache_samples), Some((cache_samples / 2, cache_samples / 2)))
            }
        };
        let fetch_connections = match name {
            RowName::DeliFullFetchWide | RowName::Deli5050Wide => connections(scale, &self.originals),
            _ => scale.fetch_connections,
        };
        let client = || Client::new(self.bucket.addr(), BUCKET);
        let cache = items_max.map(|items_max| Arc::new(ItemCache::new(items_max)));
        let sampler = match (&cache, watermarks) {
            (Some(cache), Some(watermarks)) => {
                Some(Sampler::new(watermarks, scale, Arc::clone(cache), fetch_connections, client)?)
            }
            _ => None,
        };
        let keys = &self.originals.keys;
        Ok(Box::new(Remote { keys, client: client(), cache, sampler, batch: Vec::new(), misses: 0 }))
    }

    fn note(&self, lines: &[String]) {
        let mut notices = self.notices.lock().unwrap_or_else(PoisonError::into_inner);
        for line in lines {
            if !notices.contains(line) {
                notices.push(line.clone());
            }
        }
    }

    /// Runs several rows concurrently, or one alone.
    fn rows(&self, names: &[RowName]) -> Result<Vec<Row>> {
        self.watch.begin(names, self.scale.steps() * self.scale.epochs * u64::from(self.scale.ranks));
        let rss_before_bytes = restart_peak_rss();
        let mut rows = scope(|scope| {
            let running: Vec<_> =
                names.iter().map(|&name| scope.spawn(move || self.row(name, names.len() == 1))).collect();
            running.into_iter().map(joined).collect::<Result<Vec<Row>>>()
        })?;
        let peak_rss_bytes = memory_use().peak_rss_bytes;
        for row in &mut rows {
            (row.rss_before_bytes, row.peak_rss_bytes) = (rss_before_bytes, peak_rss_bytes);
            row.side_by_side = names.iter().copied().filter(|name| *name != row.name).collect();
        }
        Ok(rows)
    }

    /// Runs all ranks of a row through all epochs, which they start and end together.
    fn row(&self, name: RowName, alone: bool) -> Result<Row> {
        let mut feeds: Vec<Option<Box<dyn Feed + '_>>> = (0..self.scale.ranks).map(|_| None).collect();
        let mut epochs = Vec::new();
        for epoch in 0..self.scale.epochs {
            let before = cpu_without_bucket();
            let ranks = self.epoch(name, epoch, &mut feeds)?;
            let own: Duration = ranks.iter().map(|rank| rank.own_cpu).sum();
            epochs.push((ranks, if alone { cpu_without_bucket().saturating_sub(before) } else { own }));
        }
        let feeds = || feeds.iter().flatten();
        let held_bytes_max = feeds().map(|feed| feed.held_bytes_max()).sum();
        let connections = feeds().map(|feed| feed.connections()).max().unwrap_or(0);
        Ok(Row { held_bytes_max, connections, ..Row::of(name, &epochs) })
    }

    /// Runs one epoch, with one thread per rank.
    fn epoch<'f>(
        &'f self,
        name: RowName,
        epoch: u64,
        feeds: &mut [Option<Box<dyn Feed + 'f>>],
    ) -> Result<Vec<RankEpoch>> {
        let failed = AtomicBool::new(false);
        let on_batch = || {
            self.watch.batch(name);
            let failed = failed.load(Ordering::Relaxed);
            if failed { Err(Error::new(Kind::Cancelled, "another rank of the row failed")) } else { Ok(()) }
        };
        let trainer = |rank: u32, feed: &mut Option<Box<dyn Feed + 'f>>| {
            let batches = batches(self.scale, rank, epoch);
            let open = || match feed {
                Some(feed) => Ok(feed.as_mut()),
                none => Ok(none.insert(self.open(name, rank)?).as_mut()),
            };
            let ran = train(self.scale, &self.originals, &batches, open, on_batch);
            ran.inspect_err(|_| failed.store(true, Ordering::Relaxed))
        };
        let outcomes: Vec<Result<RankEpoch>> = scope(|scope| {
            let trainer = &trainer;
            let threads: Vec<_> =
                (0..).zip(feeds).map(|(rank, feed)| scope.spawn(move || trainer(rank, feed))).collect();
            threads.into_iter().map(joined).collect()
        });
        // Ranks stopped because another failed return `Cancelled`: prefer the error of the one that failed.
        let told = outcomes.iter().filter_map(|outcome| outcome.as_ref().err());
        match told.min_by_key(|error| error.kind() == Kind::Cancelled) {
            Some(error) => Err(error.clone()),
            None => outcomes.into_iter().collect(),
        }
    }
}

fn joined<T>(thread: ScopedJoinHandle<'_, T>) -> T {
    thread.join().unwrap_or_else(|panic| resume_unwind(panic))
}
