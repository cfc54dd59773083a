//! The experiment: every row on the same bucket, one after the other, except those that only wait.
//!
//! Owns the bucket and the order of the rows. The rows that read one `GET` at a time use a per cent or two of a core and
//! almost all of the wall time; they run side by side, each with its own trainers, connections and caches. Their CPU is that
//! of their own threads (they have no others); only their peak memory cannot be told apart, and is marked so.

use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use fuelrail_base::{Error, Kind, Result};
use fuelrail_bucket::{Bucket, BucketConfig, DataSet, Latency, Script, Source};
use serde::{Deserialize, Serialize};
use tempfile::TempDir;

use super::feed::{Course, Feed, LocalDisk};
use super::line::StartLine;
use super::meter::{PeakMemory, cpu_without_bucket};
use super::originals::Originals;
use super::outcome::{Epoch, Row, RowName, reduction};
use super::prefetch::Setting;
use super::rail::{Rail, budget_bytes};
use super::remote::{Between, Remote};
use super::scale::Scale;
use super::trainer::{RankEpoch, RankRun, Seat, train};
use crate::failure::of_bucket;

/// The bucket's name.
const BUCKET: &str = "bucket";
/// Rows that wait for one `GET` after the other.
const ONE_AT_A_TIME: [RowName; 5] =
    [RowName::Bucket, RowName::DemandFifo25, RowName::DemandFifo50, RowName::DemandFifo75, RowName::DemandUnlimited];
/// Rows that get the machine for themselves.
const ALONE: [RowName; 4] = [RowName::LocalDisk, RowName::DeliFullFetch, RowName::Deli5050, RowName::Fuelrail];

/// Someone who watches the experiment. Called from many threads.
pub trait Watch: Sync {
    /// These rows begin; each takes so many batches, all ranks together.
    fn begin(&self, rows: &[RowName], batches: u64);
    /// A rank of this row got a batch and computed on it.
    fn batch(&self, row: RowName);
    /// A row is done.
    fn end(&self, row: &Row);
}

/// What the experiment found.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Findings {
    /// How large it was.
    pub scale: Scale,
    /// Objects in the bucket.
    pub objects: u64,
    /// Their bytes.
    pub object_bytes: u64,
    /// Payload memory each rank of DELI and of Fuelrail had.
    pub cache_bytes_per_rank: u64,
    /// Whether every delivered byte was compared with the generator and found right. A wrong one ends the experiment with
    /// an error, so this is never false in a report.
    pub verified_bytes: bool,
    /// The rows, in the order of [`RowName::ALL`].
    pub rows: Vec<Row>,
    /// What the engine wanted said aloud.
    pub notices: Vec<String>,
}

/// Runs the experiment.
///
/// # Errors
/// `Usage` for a scale that makes no sense, `Environment` when the bucket, a thread or io_uring is refused, `File` for the
/// scratch folder, `Mismatch` for a delivered byte that is not the generator's.
pub fn run(scale: &Scale, watch: &dyn Watch) -> Result<Findings> {
    scale.validate()?;
    let bench = Bench::new(scale, watch)?;
    let mut rows = bench.side_by_side(&ONE_AT_A_TIME)?;
    for name in ALONE {
        rows.push(bench.alone(name, &rows)?);
    }
    rows.sort_by_key(|row| row.name);
    Ok(Findings {
        scale: scale.clone(),
        objects: bench.originals.len() as u64,
        object_bytes: bench.originals.total_bytes(),
        cache_bytes_per_rank: budget_bytes(scale, &bench.originals),
        verified_bytes: true,
        rows,
        notices: bench.notices.into_inner().unwrap_or_else(PoisonError::into_inner),
    })
}

/// What all rows share.
struct Bench<'a> {
    scale: &'a Scale,
    watch: &'a dyn Watch,
    originals: Originals,
    bucket: Bucket,
    paths: Vec<PathBuf>,
    notices: Mutex<Vec<String>>,
    /// Holds the local files while the experiment lasts.
    _folder: TempDir,
}

impl<'a> Bench<'a> {
    fn new(scale: &'a Scale, watch: &'a dyn Watch) -> Result<Bench<'a>> {
        let set = DataSet::digits(scale.samples(), scale.seed);
        let script = Script { latency: Latency::Fixed { us: scale.get_latency_us }, ..Script::default() };
        let source = Source::Generated(set.clone());
        let config = BucketConfig { bucket: BUCKET.to_owned(), source, script, ..BucketConfig::default() };
        let bucket = Bucket::start(config).map_err(|e| of_bucket(&e))?;
        let originals = Originals::new(set);
        let folder = tempfile::Builder::new().prefix("fuelrail-demo-").tempdir().map_err(|e| {
            Error::new(Kind::File, format!("making a scratch folder: {e}")).cure("point TMPDIR elsewhere")
        })?;
        let paths = originals.write_files(folder.path())?;
        Ok(Bench { scale, watch, originals, bucket, paths, notices: Mutex::default(), _folder: folder })
    }

    fn open(&self, name: RowName, rank: u32) -> Result<Box<dyn Feed + '_>> {
        let share = |percent| Between::Cache(self.scale.samples_per_rank * percent / 100);
        let between = match name {
            RowName::LocalDisk => {
                return Ok(Box::new(LocalDisk::new(Course::new(self.scale, rank), &self.paths)));
            }
            RowName::Fuelrail => {
                let rail = Rail::open(&self.bucket.url(""), self.scale, rank, &self.originals)?;
                self.note(rail.notices());
                return Ok(Box::new(rail));
            }
            RowName::Bucket => Between::Nothing,
            RowName::DemandFifo25 => share(25),
            RowName::DemandFifo50 => share(50),
            RowName::DemandFifo75 => share(75),
            RowName::DemandUnlimited => Between::Cache(u64::MAX),
            RowName::DeliFullFetch => Between::Prefetch(Setting::FullFetch),
            RowName::Deli5050 => Between::Prefetch(Setting::HalfAndHalf),
        };
        let addr = self.bucket.addr();
        Ok(Box::new(Remote::open(between, self.scale, rank, &self.originals, addr, BUCKET)?))
    }

    fn note(&self, lines: &[String]) {
        let mut notices = self.notices.lock().unwrap_or_else(PoisonError::into_inner);
        for line in lines {
            if !notices.contains(line) {
                notices.push(line.clone());
            }
        }
    }

    fn batches(&self) -> u64 {
        self.scale.steps() * self.scale.epochs * u64::from(self.scale.ranks)
    }

    /// One row with the machine for itself.
    fn alone(&self, name: RowName, earlier: &[Row]) -> Result<Row> {
        self.watch.begin(&[name], self.batches());
        let memory = PeakMemory::from_now();
        let cpu = Mutex::new(Vec::new());
        let sample_cpu = || cpu.lock().unwrap_or_else(PoisonError::into_inner).push(cpu_without_bucket());
        let ranks = self.train_ranks(name, &sample_cpu)?;
        let marks = cpu.into_inner().unwrap_or_else(PoisonError::into_inner);
        let cpu = marks.windows(2).map(|pair| pair[1].saturating_sub(pair[0])).collect();
        let mut row = row_of(name, &ranks, cpu, memory);
        if let Some(bucket) = earlier.iter().find(|row| row.name == RowName::Bucket) {
            compare(&mut row, bucket);
        }
        self.watch.end(&row);
        Ok(row)
    }

    /// Rows at the same time.
    fn side_by_side(&self, names: &[RowName]) -> Result<Vec<Row>> {
        self.watch.begin(names, self.batches());
        let memory = PeakMemory::from_now();
        let mut rows = std::thread::scope(|scope| {
            let running: Vec<_> =
                names.iter().map(|&name| (name, scope.spawn(move || self.train_ranks(name, &|| {})))).collect();
            let rows = running.into_iter().map(|(name, thread)| {
                let ranks = thread.join().map_err(|_| panicked(name))??;
                let epochs = 0..self.scale.epochs as usize;
                let cpu = epochs.map(|epoch| ranks.iter().map(|rank| rank.epochs[epoch].own_cpu).sum()).collect();
                Ok(row_of(name, &ranks, cpu, memory))
            });
            rows.collect::<Result<Vec<Row>>>()
        })?;
        let peak = memory.peak_bytes();
        let bucket = rows.iter().find(|row| row.name == RowName::Bucket).cloned();
        for row in &mut rows {
            row.peak_rss_bytes = peak;
            row.side_by_side = names.iter().copied().filter(|name| *name != row.name).collect();
            if let Some(bucket) = &bucket {
                compare(row, bucket);
            }
            self.watch.end(row);
        }
        Ok(rows)
    }

    /// All ranks of a row, each on a thread of its own.
    fn train_ranks(&self, name: RowName, at_line: &(dyn Fn() + Sync)) -> Result<Vec<RankRun>> {
        let line = StartLine::new(self.scale.ranks);
        let on_batch = || self.watch.batch(name);
        let (line, on_batch): (_, &(dyn Fn() + Sync)) = (&line, &on_batch);
        let outcomes: Vec<Result<RankRun>> = std::thread::scope(|scope| {
            let trainer = |rank| {
                move || {
                    let (scale, originals) = (self.scale, &self.originals);
                    let seat = Seat { scale, rank, originals, line, at_line, on_batch };
                    train(&seat, || self.open(name, rank))
                }
            };
            let threads: Vec<_> = (0..self.scale.ranks).map(|rank| scope.spawn(trainer(rank))).collect();
            threads.into_iter().map(|thread| thread.join().unwrap_or_else(|_| Err(panicked(name)))).collect()
        });
        // Ranks that were let go say only that; the one that failed says why.
        let (done, failed): (Vec<_>, Vec<_>) = outcomes.into_iter().partition(Result::is_ok);
        match failed.into_iter().filter_map(Result::err).min_by_key(|error| error.kind() == Kind::Cancelled) {
            Some(error) => Err(error),
            None => done.into_iter().collect(),
        }
    }
}

fn panicked(name: RowName) -> Error {
    Error::new(Kind::Cancelled, format!("a trainer of {name} panicked: a bug of the demo"))
}

/// The row of these ranks, not yet compared with the bucket's.
fn row_of(name: RowName, ranks: &[RankRun], cpu: Vec<Duration>, memory: PeakMemory) -> Row {
    let count = ranks[0].epochs.len();
    let epochs: Vec<Epoch> = (0..count)
        .map(|epoch| {
            let all: Vec<&RankEpoch> = ranks.iter().map(|rank| &rank.epochs[epoch]).collect();
            epoch_of(epoch, &all, cpu.get(epoch).copied().unwrap_or_default())
        })
        .collect();
    let mean = |field: fn(&Epoch) -> f64| epochs.iter().map(field).sum::<f64>() / count as f64;
    let waits = ranks.iter().flat_map(|rank| &rank.epochs).flat_map(|epoch| &epoch.waits).copied().collect();
    let first: Duration = ranks.iter().map(|rank| rank.first_batch).sum();
    Row {
        name,
        data_wait_s: mean(|epoch| epoch.data_wait_s),
        wait_reduction: 0.0,
        epoch_s: mean(|epoch| epoch.epoch_s),
        first_batch_ms: ms(first) / ranks.len() as f64,
        miss_rate: epochs.last().map_or(0.0, |epoch| epoch.miss_rate),
        batch_wait_p99_ms: p99_ms(waits),
        cpu_s: cpu.iter().sum::<Duration>().as_secs_f64(),
        peak_rss_bytes: memory.peak_bytes(),
        rss_before_bytes: memory.before_bytes,
        held_bytes_max: ranks.iter().map(|rank| rank.held_bytes_max).sum(),
        side_by_side: Vec::new(),
        epochs,
    }
}

fn epoch_of(index: usize, ranks: &[&RankEpoch], cpu: Duration) -> Epoch {
    let mean = |field: fn(&RankEpoch) -> Duration| {
        ranks.iter().map(|rank| field(rank).as_secs_f64()).sum::<f64>() / ranks.len() as f64
    };
    let sum = |field: fn(&RankEpoch) -> u64| ranks.iter().map(|rank| field(rank)).sum::<u64>();
    let steps = ranks.iter().map(|rank| rank.waits.len()).max().unwrap_or(0);
    let step_wait = |step: usize| {
        let waits = ranks.iter().filter_map(|rank| rank.waits.get(step));
        round_us(waits.map(|wait| ms(*wait)).sum::<f64>() / ranks.len() as f64)
    };
    let samples = sum(|rank| rank.samples);
    Epoch {
        epoch: index as u64 + 1,
        data_wait_s: mean(|rank| rank.waits.iter().sum()),
        wait_reduction: 0.0,
        epoch_s: mean(|rank| rank.whole),
        step_s: mean(|rank| rank.steps),
        miss_rate: sum(|rank| rank.counts.misses) as f64 / samples.max(1) as f64,
        batch_wait_p99_ms: p99_ms(ranks.iter().flat_map(|rank| &rank.waits).copied().collect()),
        cpu_s: cpu.as_secs_f64(),
        gets: sum(|rank| rank.counts.gets),
        list_pages: sum(|rank| rank.counts.list_pages),
        samples,
        bytes: sum(|rank| rank.bytes),
        step_wait_ms: (0..steps).map(step_wait).collect(),
    }
}

/// Fills in how much of the bucket row's data wait is gone.
fn compare(row: &mut Row, bucket: &Row) {
    row.wait_reduction = reduction(row.data_wait_s, bucket.data_wait_s);
    for (epoch, of) in row.epochs.iter_mut().zip(&bucket.epochs) {
        epoch.wait_reduction = reduction(epoch.data_wait_s, of.data_wait_s);
    }
}

fn ms(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1e3
}

/// A time in ms to whole microseconds, so that reports are not full of noise digits.
fn round_us(ms: f64) -> f64 {
    (ms * 1e3).round() / 1e3
}

/// The smallest wait that at least 99 % of the waits do not exceed.
fn p99_ms(mut waits: Vec<Duration>) -> f64 {
    waits.sort_unstable();
    let rank = (waits.len() * 99).div_ceil(100);
    waits.get(rank.saturating_sub(1)).map_or(0.0, |wait| ms(*wait))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_of_what_happened() {
        let waits = |count: u64| (1..=count).map(Duration::from_millis).collect();
        assert_eq!((p99_ms(waits(100)), p99_ms(waits(1)), p99_ms(waits(1000))), (99.0, 1.0, 990.0));
        assert_eq!(p99_ms(Vec::new()), 0.0);
    }

    #[test]
    fn ranks_are_averaged_and_counts_summed() {
        let rank = |wait_ms: u64, misses: u64| RankRun {
            epochs: vec![RankEpoch {
                waits: vec![Duration::from_millis(wait_ms); 2],
                whole: Duration::from_secs(1),
                counts: super::super::feed::Counts { misses, gets: 5, list_pages: 1 },
                samples: 10,
                ..RankEpoch::default()
            }],
            first_batch: Duration::from_millis(wait_ms),
            held_bytes_max: 100,
        };
        let memory = PeakMemory { before_bytes: 1 };
        let mut row = row_of(RowName::Bucket, &[rank(10, 10), rank(30, 0)], vec![Duration::from_secs(3)], memory);
        let epoch = &row.epochs[0];
        assert!((epoch.data_wait_s - 0.04).abs() < 1e-9 && epoch.step_wait_ms == [20.0, 20.0], "{epoch:?}");
        assert_eq!((epoch.miss_rate, epoch.gets, epoch.list_pages, epoch.samples), (0.5, 10, 2, 20));
        assert_eq!((row.first_batch_ms, row.held_bytes_max, row.cpu_s), (20.0, 200, 3.0));
        let bucket = Row { data_wait_s: 0.4, ..row.clone() };
        compare(&mut row, &bucket);
        assert!((row.wait_reduction - 0.9).abs() < 1e-9);
    }
}
