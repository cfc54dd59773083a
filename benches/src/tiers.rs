//! What RAM and disk hit together, against what they can hold; and what writing to the disk costs the reads a trainer waits for:
//! the question behind `cargo x bench tiers`.
//!
//! **Capacities.** The real engine, several epochs over a bucket of photos, RAM and disk together so many percent of the set.
//! Counted from the end of the last epoch but one to the end of the last: look-ahead crosses both edges alike. When every sample
//! is used once an epoch no cache hits more than its share, so the share is the limit.
//!
//! **Reads beside writes.** Half of the set is on disk; a run reads it while the other half comes from the bucket and is written,
//! as fast as it goes; then a run finds all of it on disk and writes nothing. Read times of both, round by round.
//!
//! Both buckets are a little away, as buckets are, or the engine would rather ask them than a disk; the first is narrow, the second as
//! wide as this machine makes it. Owns both, and what it writes below a folder it removes. The engine checks every byte from disk
//! against its checksum. Never prints.

use std::path::{Path, PathBuf};

use fuelrail::{ByteSize, DiskFacts, Error, Kind, Listed, Loader, LoaderBuilder, Quantiles, Result, Stats};
use fuelrail_bucket::{Bucket, BucketConfig, DataSet, Latency, Script, Source};
use serde::{Deserialize, Serialize};

use crate::embedded;
use crate::harness::{Spread, Stop};
use fuelrail_cli::machine::Machine;

/// Version of the result's shape.
const SCHEMA: u32 = 1;
/// Of a capacity, the part that is RAM.
const RAM_SHARE: f64 = 0.2;
/// Policies by the names that RAM and disk share; the first is ours.
pub const TIERS_POLICIES: [&str; 3] = ["next-use", "lru", "fifo"];
/// Epochs of a run: a disk may need a second one to be full, for blocks pass while a segment is being made.
const EPOCHS: u64 = 4;
/// Memory beside the cache: a few batches on their way and connections. Look-ahead is memory across the edge of an epoch as well,
/// so for the capacities it is kept short.
const SHORT: Ahead = Ahead { batch_size: 4, bytes: 20 << 20 };
const LONG: Ahead = Ahead { batch_size: 16, bytes: 64 << 20 };
const SEED: u64 = 9;
const CONNECTIONS: usize = 64;
/// Both buckets are a few milliseconds away, the first behind 4 Gbit/s.
const FAR: Latency = Latency::Fixed { us: 5_000 };
const NARROW_BYTES_PER_S: u64 = 512 << 20;

/// How far ahead of its consumer a loader may be.
struct Ahead {
    batch_size: u32,
    bytes: u64,
}

/// What to measure.
#[derive(Clone, Debug)]
pub struct Tiering {
    /// A folder on the disk. What is made in it is removed at the end.
    pub folder: PathBuf,
    /// Photos in the bucket, about 110 KiB each.
    pub photos: u64,
    /// Capacities of RAM and disk together, percent of the set.
    pub percents: Vec<u32>,
    /// Rounds of reads beside writes.
    pub rounds: u32,
    /// Who may interrupt it.
    pub stop: Stop,
}

impl Default for Tiering {
    fn default() -> Tiering {
        Tiering {
            folder: PathBuf::from("."),
            photos: 20_000,
            percents: vec![5, 25, 50, 75, 95],
            rounds: 3,
            stop: Stop::default(),
        }
    }
}

/// One capacity under one policy.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TierRow {
    /// Policy of RAM and disk.
    pub policy: String,
    /// Capacity of both over the data set, bytes: the limit of the hit ratio.
    pub capacity_share: f64,
    /// Bytes served from RAM and disk in the last epoch, over all of its bytes.
    pub hit_ratio: f64,
    /// … from RAM.
    pub ram_hit_ratio: f64,
    /// … from disk.
    pub disk_hit_ratio: f64,
    /// Bytes written to disk in the last epoch, over the data set.
    pub written_share: f64,
    /// Segments given up for better blocks, in all epochs.
    pub trims: u64,
}

/// One round of reads beside writes. Times are from the command to the last byte.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LaneRound {
    /// Reads that met writes, while half of the set was being written, µs.
    pub beside_writes_us: Quantiles,
    /// Reads of the same run that met none, µs.
    pub between_writes_us: Quantiles,
    /// Reads of the run that wrote nothing, µs.
    pub alone_us: Quantiles,
    /// 99th percentile beside writes over that of the run that wrote nothing.
    pub p99_ratio: f64,
    /// Payload written, GB/s of that run.
    pub written_gb_per_s: f64,
    /// Payload delivered by the run that wrote nothing, GB/s.
    pub read_gb_per_s: f64,
    /// Processor time of the shards in it, s per GB.
    pub read_cpu_s_per_gb: f64,
}

/// The whole result.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TiersReport {
    /// Version of this shape.
    pub schema: u32,
    /// Photos in the bucket.
    pub photos: u64,
    /// Their bytes.
    pub set_bytes: u64,
    /// Of a capacity, the part that is RAM.
    pub ram_share: f64,
    /// Capacities and policies.
    pub rows: Vec<TierRow>,
    /// Most that next-use misses of its limit.
    pub next_use_short_max: f64,
    /// Reads beside writes.
    pub lanes: Vec<LaneRound>,
    /// `p99_ratio` over the rounds.
    pub p99_ratio: Option<Spread>,
    /// Where it was measured.
    pub machine: Machine,
}

/// What is done.
pub enum TierStep {
    /// A capacity is done.
    Row(TierRow),
    /// A round is done.
    Lanes(LaneRound),
}

/// Measures.
///
/// # Errors
/// `Usage` for capacities that are none, `File` when the folder cannot be used, what the bucket or a loader fails with,
/// `Cancelled` when asked to stop.
pub fn tiers(tiering: &Tiering, watch: &mut dyn FnMut(&TierStep)) -> Result<TiersReport> {
    if tiering.photos == 0 || tiering.percents.iter().any(|percent| !(1..=100).contains(percent)) {
        let cause = format!("{} photos, capacities {:?} %", tiering.photos, tiering.percents);
        return Err(Error::new(Kind::Usage, cause).cure("name at least one photo, and percents from 1 to 100"));
    }
    let trial = Trial::new(tiering)?;
    let mut rows = Vec::new();
    for policy in TIERS_POLICIES {
        for &percent in &tiering.percents {
            tiering.stop.check()?;
            let row = trial.capacity(policy, percent)?;
            watch(&TierStep::Row(row.clone()));
            rows.push(row);
        }
    }
    let mut lanes = Vec::new();
    for _ in 0..tiering.rounds {
        tiering.stop.check()?;
        let round = trial.lanes()?;
        watch(&TierStep::Lanes(round.clone()));
        lanes.push(round);
    }
    let ours = rows.iter().filter(|row| row.policy == TIERS_POLICIES[0]);
    Ok(TiersReport {
        schema: SCHEMA,
        photos: tiering.photos,
        set_bytes: trial.bytes,
        ram_share: RAM_SHARE,
        next_use_short_max: ours.map(|row| row.capacity_share - row.hit_ratio).fold(0.0, f64::max),
        rows,
        p99_ratio: Spread::of(lanes.iter().map(|round| round.p99_ratio)),
        lanes,
        machine: Machine::here(),
    })
}

struct Trial<'a> {
    tiering: &'a Tiering,
    narrow: Bucket,
    wide: Bucket,
    listing: Vec<Listed>,
    bytes: u64,
}

impl<'a> Trial<'a> {
    fn new(tiering: &'a Tiering) -> Result<Trial<'a>> {
        let set = DataSet::photos(tiering.photos, SEED);
        let start = |script| {
            let config =
                BucketConfig { source: Source::Generated(set.clone()), script, threads: 1, ..BucketConfig::default() };
            embedded::start(config)
        };
        let most = Some(NARROW_BYTES_PER_S);
        let narrow = start(Script { latency: FAR, bandwidth_total_bytes_per_s: most, ..Script::default() })?;
        let wide = start(Script { latency: FAR, ..Script::default() })?;
        let listing = fuelrail::list(&wide.url(""), |_| {})?;
        Ok(Trial { tiering, bytes: set.total_bytes(), narrow, wide, listing })
    }

    fn folder(&self) -> Result<tempfile::TempDir> {
        let made = tempfile::Builder::new().prefix("fuelrail-tiers").tempdir_in(&self.tiering.folder);
        let at = self.tiering.folder.display();
        made.map_err(|e| Error::new(Kind::File, format!("making a folder in {at}: {e}")))
    }

    fn loader(&self, bucket: &Bucket, ahead: &Ahead, folder: &Path, ram_bytes: u64, disk_bytes: u64) -> LoaderBuilder {
        Loader::builder(&bucket.url(""))
            .listing(self.listing.clone())
            .batch_size(ahead.batch_size)
            .seed(SEED)
            .shards(1)
            .connections_max(CONNECTIONS)
            .memory_limit(ByteSize(ram_bytes + ahead.bytes))
            .cache_limit(ByteSize(ram_bytes))
            .spill_dirs(vec![folder.to_owned()])
            .spill_limit(ByteSize(disk_bytes))
            .spill_floor(ByteSize(1))
            .pin(false)
    }

    fn capacity(&self, policy: &str, percent: u32) -> Result<TierRow> {
        let folder = self.folder()?;
        let capacity = self.bytes * u64::from(percent) / 100;
        let ram = (capacity as f64 * RAM_SHARE) as u64;
        let mut loader = self
            .loader(&self.narrow, &SHORT, folder.path(), ram, capacity - ram)
            .cache_policy(policy)
            .spill_policy(policy)
            // One more than is read: look-ahead goes on at the end as it does before.
            .epochs(EPOCHS + 1)
            .build()?;
        let samples = self.listing.len() as u64;
        self.read(&mut loader, samples * (EPOCHS - 1))?;
        let before = loader.stats();
        self.read(&mut loader, samples)?;
        let after = loader.stats();
        let asked = (after.asked_bytes - before.asked_bytes).max(1) as f64;
        let of_disk =
            |of: fn(&DiskFacts) -> u64| -> Result<f64> { Ok((of(disk(&after)?) - of(disk(&before)?)) as f64) };
        let ram_hits = (after.hit_bytes - before.hit_bytes) as f64;
        let disk_hits = of_disk(|facts| facts.hit_bytes)?;
        Ok(TierRow {
            policy: policy.to_owned(),
            capacity_share: capacity as f64 / self.bytes as f64,
            hit_ratio: (ram_hits + disk_hits) / asked,
            ram_hit_ratio: ram_hits / asked,
            disk_hit_ratio: disk_hits / asked,
            written_share: of_disk(|facts| facts.written_bytes)? / self.bytes as f64,
            trims: disk(&after)?.trims,
        })
    }

    fn lanes(&self) -> Result<LaneRound> {
        let folder = self.folder()?;
        let all = self.bytes * 5 / 4;
        self.fill(folder.path(), self.bytes / 2)?;
        let mut loader = self.fast(folder.path(), all)?;
        self.read(&mut loader, self.listing.len() as u64)?;
        let writing = loader.stats();
        drop(loader);
        self.fill(folder.path(), all)?;
        let mut loader = self.fast(folder.path(), all)?;
        self.read(&mut loader, self.listing.len() as u64)?;
        let reading = loader.stats();
        let (with, without) = (disk(&writing)?, disk(&reading)?);
        let delivered_gb = reading.bytes as f64 / 1e9;
        Ok(LaneRound {
            beside_writes_us: with.read_beside_writes_us,
            between_writes_us: with.read_alone_us,
            alone_us: without.read_alone_us,
            p99_ratio: with.read_beside_writes_us.p99 as f64 / without.read_alone_us.p99.max(1) as f64,
            written_gb_per_s: with.written_bytes as f64 / 1e9 / writing.wall_s,
            read_gb_per_s: delivered_gb / reading.wall_s,
            read_cpu_s_per_gb: reading.shards.iter().map(|shard| shard.cpu_s()).sum::<f64>() / delivered_gb,
        })
    }

    /// A loader as fast as it goes, with all of its cache on disk. It is for two epochs, of which one is read: what has no next use is
    /// not kept.
    fn fast(&self, folder: &Path, disk_bytes: u64) -> Result<Loader> {
        self.loader(&self.wide, &LONG, folder, 0, disk_bytes).epochs(2).build()
    }

    /// Reads epochs until one writes nothing more.
    fn fill(&self, folder: &Path, disk_bytes: u64) -> Result<()> {
        /// Far more than it ever takes.
        const EPOCHS_MAX: u32 = 20;
        for _ in 0..EPOCHS_MAX {
            self.tiering.stop.check()?;
            let mut loader = self.fast(folder, disk_bytes)?;
            self.read(&mut loader, self.listing.len() as u64)?;
            if disk(&loader.stats())?.written == 0 {
                return Ok(());
            }
        }
        Err(Error::new(Kind::Environment, "the disk is never full").cure("see that nobody else fills it"))
    }

    fn read(&self, loader: &mut Loader, samples: u64) -> Result<()> {
        let mut came = 0;
        while came < samples {
            let Some(batch) = loader.next_batch() else { break };
            came += batch?.len() as u64;
        }
        if came != samples {
            let cause = format!("{came} samples came instead of {samples}");
            return Err(Error::new(Kind::Mismatch, cause));
        }
        Ok(())
    }
}

fn disk(stats: &Stats) -> Result<&DiskFacts> {
    let refused = || Error::new(Kind::Environment, "the folder cannot hold blocks").cure("name one on a local disk");
    stats.disk.as_ref().ok_or_else(refused)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_small_run_counts_every_tier() {
        let folder = tempfile::tempdir().unwrap();
        let tiering =
            Tiering { folder: folder.path().into(), photos: 300, percents: vec![50], rounds: 1, ..Tiering::default() };
        let mut steps = 0;
        let report = tiers(&tiering, &mut |_| steps += 1).unwrap();
        assert_eq!((steps, report.rows.len(), report.lanes.len()), (4, 3, 1));
        for row in &report.rows {
            // So small a set fits into look-ahead in part.
            assert!((0.0..0.9).contains(&row.hit_ratio), "{row:?}");
            assert!((row.ram_hit_ratio + row.disk_hit_ratio - row.hit_ratio).abs() < 1e-9, "{row:?}");
        }
        let ours = &report.rows[0];
        assert!(ours.ram_hit_ratio > 0.0 && ours.disk_hit_ratio > 0.0, "{ours:?}");
        assert!(report.lanes[0].read_gb_per_s > 0.0, "{report:?}");
        let text = serde_json::to_string(&report).unwrap();
        assert_eq!(serde_json::from_str::<TiersReport>(&text).unwrap().rows.len(), 3);
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0, "it tidies up");
    }

    #[test]
    fn capacities_that_are_none_are_refused() {
        let refused = tiers(&Tiering { percents: vec![0], ..Tiering::default() }, &mut |_| {}).unwrap_err();
        assert_eq!(refused.kind(), Kind::Usage);
    }
}
