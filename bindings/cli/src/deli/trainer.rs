//! One rank's training loop: request a batch, compute on it, repeat. The only place that measures data wait.
//!
//! The step is simulated by waiting for its end. During the step every sample is compared with the generator, so checking
//! adds no data wait to any row.

use std::fs;
use std::time::{Duration, Instant};

use fuelrail::Listed;
use fuelrail::internal::{memory_use, process_cpu, thread_cpu};
use fuelrail_base::{Error, Kind, Result, SampleId};
use fuelrail_bucket::DataSet;
use fuelrail_plan::order::Order;
use fuelrail_plan::split::Split;

use super::feed::{Counts, Feed};
use super::scale::Scale;
use crate::failure::of_bucket;

/// A generated data set, made once before anything is timed, that deliveries are compared with.
pub(super) struct Originals {
    pub(super) set: DataSet,
    pub(super) keys: Vec<String>,
    pub(super) bytes: Vec<Vec<u8>>,
}

impl Originals {
    pub(super) fn new(set: DataSet) -> Originals {
        let all = 0..set.len();
        Originals { keys: all.clone().map(|i| set.key(i)).collect(), bytes: all.map(|i| set.content(i)).collect(), set }
    }

    /// Sum of all sizes.
    pub(super) fn total_bytes(&self) -> u64 {
        self.bytes.iter().map(|bytes| bytes.len() as u64).sum()
    }

    /// Keys and sizes, as a listing returns them.
    pub(super) fn listing(&self) -> Vec<Listed> {
        let all = self.keys.iter().zip(&self.bytes);
        all.map(|(key, bytes)| Listed { key: key.clone(), size: bytes.len() as u64, etag: None }).collect()
    }

    /// Checks that a batch is the due one: its samples, their order, and every byte. Returns its payload bytes.
    ///
    /// # Errors
    /// `Mismatch` with the sample, or the object and its first wrong byte or its lengths.
    fn check(&self, due: &[SampleId], batch: &[(SampleId, &[u8])]) -> Result<u64> {
        let wrong = |id: SampleId, how: &str| Error::new(Kind::Mismatch, format!("sample {} {how}", id.0));
        for (place, (id, delivered)) in batch.iter().enumerate() {
            if due.get(place) != Some(id) {
                return Err(wrong(*id, "is not due"));
            }
            if self.bytes[id.0 as usize] != *delivered {
                let key = &self.keys[id.0 as usize];
                let said = self.set.verify(key, delivered).err().map(|error| of_bucket(&error));
                return Err(said.unwrap_or_else(|| wrong(*id, "contradicts its generator")).with_object(key));
            }
        }
        due.get(batch.len()).map_or(Ok(()), |id| Err(wrong(*id, "is missing")))?;
        Ok(batch.iter().map(|(_, bytes)| bytes.len() as u64).sum())
    }
}

/// Returns the batches of a rank in an epoch: the same in every row.
pub(super) fn batches(scale: &Scale, rank: u32, epoch: u64) -> Vec<Vec<SampleId>> {
    let order = Order::new(scale.samples(), scale.seed, true).epoch(epoch);
    let split = Split::new(scale.samples(), 0, scale.ranks, rank, scale.batch_size, false);
    (0..split.steps()).map(|step| split.positions(step).map(|position| order.sample_at(position)).collect()).collect()
}

/// One rank's measurements in one epoch.
#[derive(Clone, Debug, Default)]
pub(super) struct RankEpoch {
    /// Data wait of every step.
    pub(super) waits: Vec<Duration>,
    /// From the start of the epoch to the end of the last step.
    pub(super) whole: Duration,
    /// Time in simulated steps.
    pub(super) steps: Duration,
    /// Processor time of the trainer's own thread.
    pub(super) own_cpu: Duration,
    /// The feed's counters.
    pub(super) counts: Counts,
    /// Samples delivered and verified.
    pub(super) samples: u64,
    pub(super) bytes: u64,
}

/// Trains for an epoch on the feed that `open` returns; opening is part of the first data wait. `on_batch` is called after every batch.
///
/// # Errors
/// An error of the feed or of `on_batch`, or `Mismatch` for a sample that differs from the generator's.
pub(super) fn train<'f, F: Feed + ?Sized + 'f>(
    scale: &Scale,
    originals: &Originals,
    batches: &[Vec<SampleId>],
    open: impl FnOnce() -> Result<&'f mut F>,
    on_batch: impl Fn() -> Result<()>,
) -> Result<RankEpoch> {
    let (mut ran, cpu_before, begun) = (RankEpoch::default(), thread_cpu(), Instant::now());
    let feed = open()?;
    let before = feed.counts();
    feed.begin_epoch(batches.concat());
    let mut asked_at = begun;
    for due in batches {
        let batch = feed.next(due)?;
        let there_at = Instant::now();
        ran.waits.push(there_at - asked_at);
        ran.bytes += originals.check(due, &batch)?;
        ran.samples += due.len() as u64;
        let end = there_at + scale.step_of(due.len());
        std::thread::sleep(end.saturating_duration_since(Instant::now()));
        asked_at = Instant::now();
        ran.steps += asked_at - there_at;
        on_batch()?;
    }
    let counts = feed.counts();
    ran.counts = Counts {
        misses: counts.misses - before.misses,
        gets: counts.gets - before.gets,
        list_pages: counts.list_pages - before.list_pages,
    };
    ran.whole = asked_at - begun;
    ran.own_cpu = thread_cpu() - cpu_before;
    Ok(ran)
}

/// The prefix of the bucket's thread names.
const BUCKET_THREADS: &str = "bucket-";
/// Written to `clear_refs`, it resets the peak of resident memory.
const RESET_PEAK: &str = "5";

/// CPU time of this process so far, without the bucket's threads.
pub(super) fn cpu_without_bucket() -> Duration {
    let (user, system) = process_cpu();
    (user + system).saturating_sub(bucket_cpu())
}

/// CPU time of the bucket's threads so far; zero where `/proc` does not report it.
fn bucket_cpu() -> Duration {
    let Ok(threads) = fs::read_dir("/proc/self/task") else { return Duration::ZERO };
    let ours = threads
        .flatten()
        .map(|thread| thread.path())
        .filter(|thread| fs::read_to_string(thread.join("comm")).is_ok_and(|name| name.starts_with(BUCKET_THREADS)));
    let ran = ours.filter_map(|thread| ran_ns(&fs::read_to_string(thread.join("schedstat")).ok()?));
    Duration::from_nanos(ran.sum())
}

/// Returns the first number of a `schedstat` line: nanoseconds on a CPU.
fn ran_ns(schedstat: &str) -> Option<u64> {
    schedstat.split_whitespace().next()?.parse().ok()
}

/// Resets the peak of resident memory and returns the current value, bytes. Where the kernel refuses (the file may be read-only in a
/// container), the peak is that of the whole process so far: an upper bound, which this value makes recognisable.
pub(super) fn restart_peak_rss() -> u64 {
    let _ = fs::write("/proc/self/clear_refs", RESET_PEAK);
    memory_use().rss_bytes
}

#[cfg(test)]
mod tests {
    use std::hint::black_box;

    use fuelrail_bucket::{Bucket, BucketConfig};

    use super::*;

    type Samples = Vec<(SampleId, Vec<u8>)>;

    /// Delivers the due batch, except at one step, where it applies `wrong` to it.
    struct Script<'a> {
        originals: &'a Originals,
        wrong: fn(&mut Samples),
        batch: Samples,
        steps: usize,
    }

    impl Feed for Script<'_> {
        fn next(&mut self, due: &[SampleId]) -> Result<Vec<(SampleId, &[u8])>> {
            self.batch = due.iter().map(|id| (*id, self.originals.bytes[id.0 as usize].clone())).collect();
            self.steps += 1;
            if self.steps == 20 {
                (self.wrong)(&mut self.batch);
            }
            Ok(self.batch.iter().map(|(id, bytes)| (*id, bytes.as_slice())).collect())
        }
    }

    fn trained(wrong: fn(&mut Samples)) -> Result<RankEpoch> {
        let scale = Scale { step_us: 10, ranks: 1, ..Scale::quick(1) };
        let originals = Originals::new(DataSet::digits(scale.samples(), 1));
        let mut feed = Script { originals: &originals, wrong, batch: Vec::new(), steps: 0 };
        train(&scale, &originals, &batches(&scale, 0, 1), || Ok(&mut feed), || Ok(()))
    }

    #[test]
    fn anything_wrong_ends_the_run() {
        type Wrong = fn(&mut Samples);
        let wrongs: [(Wrong, &str); 5] = [
            (|batch| batch[3].1[40] ^= 1, "byte 40"),
            (|batch| batch.swap(0, 1), "not due"),
            (|batch| batch.truncate(2), "missing"),
            (|batch| batch.push((SampleId(0), Vec::new())), "not due"),
            (|batch| batch[5].1.truncate(800), "800"),
        ];
        for (wrong, told) in wrongs {
            let error = trained(wrong).unwrap_err();
            assert!(error.kind() == Kind::Mismatch && error.to_string().contains(told), "{told}: {error}");
        }
    }

    #[test]
    fn the_buckets_time_is_taken_off() {
        let bucket = Bucket::start(BucketConfig::default()).unwrap();
        let mut client = crate::deli::http::Client::new(bucket.addr(), "bucket");
        let before = bucket_cpu();
        for _ in 0..50 {
            client.list_page(1000, None).unwrap();
        }
        assert!(bucket_cpu() > before, "fifty listings take some time");
        assert!(cpu_without_bucket() > Duration::ZERO);
        assert_eq!(ran_ns("1234 5 6\n"), Some(1234));
        assert_eq!(ran_ns(""), None);
    }

    #[test]
    fn peaks_are_seen() {
        let before = restart_peak_rss();
        drop(black_box(vec![1u8; 64 << 20]));
        assert!(before > 0 && memory_use().peak_rss_bytes >= 64 << 20);
    }
}
