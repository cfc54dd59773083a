//! What more shards on more cores bring, and what each core does for it: the benchmark behind `cargo x bench cores`.
//!
//! Against a bucket elsewhere, throughput over throughput of one shard is the answer. Against nginx on this machine, client and server share the cores, so the result is given in two ways that do not need a server's share guessed:
//!
//! * **cells**: `n` shards *and the server* are held to the same `n` cores. Every core then carries one shard and one share
//!   of the server, for one core as for many; wall-clock throughput over that of one core is what a core more brings, the
//!   server's growing work included.
//! * **work per core**: bytes per second of processor time of the shards alone. When two shards do as many bytes per second
//!   of work as one, they deliver twice as much wherever the server leaves them their cores.
//!
//! Owns the runs, interleaved (1, 2, … shards, then again), and the shape of the result. Never prints.

use std::fs;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use clap::Args;
use fuelrail::internal::Topology;
use fuelrail::{ByteSize, Config, Error, Kind, Listed, Loader, LoaderBuilder, Result, RingChoice, ShardStats};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use serde::{Deserialize, Serialize};

use crate::harness::tool::{listing, positive, unwritable};
use crate::harness::{Laid, Spread, Transport, Venue, VenueConfig};
use fuelrail_cli::machine::Machine;

const EXAMPLES: &str = "Examples:
  cargo x bench cores
  cargo x bench cores --object-size 110KiB --batch-size 64 --shards 1,2 --seconds 5 --json cores.json
  cargo x bench cores http://10.0.0.2:9000/bucket/training/ --shards 1,2,4,8

Without a URI nginx serves on this machine, held together with the shards to as many cores as there are \
shards: `scaling` is then what one more core, with its shard and its share of the server, brings on the wall clock. `per core` \
is what the shards deliver per second of their own processor time; when that stays the same, they scale with their cores \
wherever the server runs elsewhere (`of work`).";

/// Measure what more shards on more cores bring
#[derive(Args, Clone, Debug)]
#[command(after_help = EXAMPLES)]
pub struct Coring {
    /// A bucket on another machine; without it, nginx on this one
    pub uri: Option<String>,
    /// The objects as key<TAB>size or JSON lines, for servers that cannot list
    #[arg(long, value_name = "FILE", requires = "uri")]
    pub manifest: Option<PathBuf>,
    /// Length of the objects that nginx serves
    #[arg(long, value_name = "SIZE", default_value = "64MiB", conflicts_with = "uri")]
    pub object_size: ByteSize,
    /// Samples per batch
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub batch_size: u32,
    /// Counts of shards to compare; the first is compared to [default: 1 and all cores]
    #[arg(long, value_name = "N,N", value_delimiter = ',')]
    pub shards: Vec<u16>,
    /// Memory of each shard
    #[arg(long, value_name = "SIZE", default_value = "512MiB")]
    pub shard_memory: ByteSize,
    /// Most connections per shard
    #[arg(long, value_name = "N", default_value_t = 8)]
    pub connections: usize,
    /// Back-end of the ring: auto, uring, poll, tokio-uring or glommio
    #[arg(long, value_name = "NAME", default_value = "auto")]
    pub ring: String,
    /// Time of each run, after a quarter of it for warmth
    #[arg(long, value_name = "SECONDS", default_value = "3", value_parser = |text: &str| positive(text, "s"))]
    pub seconds: Duration,
    /// Runs of each count, interleaved
    #[arg(long, value_name = "N", default_value_t = 5)]
    pub rounds: u32,
    /// Print the result as one JSON document, or write it to FILE beside the table
    #[arg(long, value_name = "FILE", num_args = 0..=1, default_missing_value = "-")]
    pub json: Option<String>,
}

impl Coring {
    /// The counts of shards to compare.
    pub(crate) fn counts(&self) -> Vec<u16> {
        let cores = || std::thread::available_parallelism().map_or(1, |cores| cores.get().min(u16::MAX.into()) as u16);
        match &self.shards[..] {
            [] if cores() == 1 => vec![1],
            [] => vec![1, cores()],
            asked => asked.to_vec(),
        }
    }

    /// The loader's configuration, still without what each run sets.
    fn config(&self) -> Result<Config> {
        let Coring { batch_size, connections: connections_max, .. } = *self;
        let uri = self.uri.clone().unwrap_or_default();
        let builder = Loader::builder(uri).batch_size(batch_size).connections_max(connections_max);
        Ok(builder.ring(self.ring.parse::<RingChoice>()?).config().clone())
    }
}

#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct CoreRun {
    /// Shards, each on a core of its own.
    pub shards: u16,
    /// Payload per wall time, GB/s.
    pub gb_per_s: f64,
    /// Payload per processor time of the shards, GB per core and second.
    pub gb_per_core_s: f64,
    /// Processor time of the shards, s per GB.
    pub cpu_s_per_gb: f64,
    /// Processor time of nginx, s per GB; absent with a server elsewhere.
    pub server_cpu_s_per_gb: Option<f64>,
    pub per_shard: Vec<ShardStats>,
}

/// One count of shards over all rounds.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct CoreRow {
    pub shards: u16,
    /// Payload per wall time, GB/s.
    pub gb_per_s: Spread,
    pub gb_per_core_s: Spread,
    /// Wall-clock throughput over that of the first count in the same round. With nginx here: of as many cells.
    pub scaling: Spread,
    /// Bytes per second of work over those of the first count in the same round: 1 when a core more costs the others nothing.
    pub work_per_core: Spread,
    /// `work_per_core` × shards: what the shards deliver where a server elsewhere leaves them their cores.
    pub scaling_of_work: f64,
    /// Processor time of nginx, s per GB.
    pub server_cpu_s_per_gb: Option<f64>,
}

#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct CoresReport {
    /// Version of the result's shape.
    pub schema: u32,
    /// `elsewhere`, or `nginx`: then every run's shards and its server are held to as many cores as there are shards.
    pub origin: String,
    /// Mean length of the objects, bytes.
    pub object_bytes_mean: u64,
    pub rows: Vec<CoreRow>,
    /// Every run, in order.
    pub runs: Vec<CoreRun>,
    pub notices: Vec<String>,
    pub machine: Machine,
    /// The loader's configuration, with the last count of shards.
    pub config: Config,
}

/// A run warms up for this share of its time first.
const WARM_UP: f64 = 0.25;
/// Names of the one file that nginx serves: enough that look-ahead never meets itself.
const NAMED_BYTES: u64 = 4 << 30;
const NAMES_MAX: u64 = 50_000;
/// Whatever the name, the same file.
const ONE_FILE: &str = "    location /set/ { try_files /object =404; }";

/// Measures. `watch` hears of every run.
pub fn cores(coring: &Coring, watch: &mut dyn FnMut(&CoreRun)) -> Result<CoresReport> {
    let seats: Vec<usize> = Topology::here().seats().iter().map(|core| core.id).collect();
    let counts = coring.counts();
    if counts.contains(&0) || counts.iter().any(|count| usize::from(*count) > seats.len()) {
        let cause = format!("shards {counts:?} on {} core(s)", seats.len());
        return Err(Error::new(Kind::Usage, cause).with_hint("name counts from 1 to the cores this process may use"));
    }
    let objects = coring.uri.as_ref().map(|uri| listing(uri, coring.manifest.as_deref())).transpose()?;
    let mut report = CoresReport {
        schema: 1,
        origin: if objects.is_some() { "elsewhere" } else { "nginx" }.to_owned(),
        object_bytes_mean: 0,
        rows: Vec::new(),
        runs: Vec::new(),
        notices: Vec::new(),
        machine: Machine::here(),
        config: Config::default(),
    };
    for _ in 0..coring.rounds.max(1) {
        for shards in &counts {
            let run = one_run(coring, objects.as_deref(), *shards, &seats, &mut report)?;
            watch(&run);
            report.runs.push(run);
        }
    }
    report.rows = counts.iter().filter_map(|shards| row(*shards, counts[0], &report.runs)).collect();
    Ok(report)
}

fn row(shards: u16, first: u16, runs: &[CoreRun]) -> Option<CoreRow> {
    let of = |shards: u16, what: fn(&CoreRun) -> f64| -> Vec<f64> {
        runs.iter().filter(|run| run.shards == shards).map(what).collect()
    };
    let speed = |run: &CoreRun| run.gb_per_s;
    let work = |run: &CoreRun| run.gb_per_core_s;
    let work_per_core = Spread::of_ratios(&of(shards, work), &of(first, work))?;
    let server = runs.iter().filter(|run| run.shards == shards).filter_map(|run| run.server_cpu_s_per_gb);
    Some(CoreRow {
        shards,
        gb_per_s: Spread::of(of(shards, speed))?,
        gb_per_core_s: Spread::of(of(shards, work))?,
        scaling: Spread::of_ratios(&of(shards, speed), &of(first, speed))?,
        work_per_core,
        scaling_of_work: work_per_core.median * f64::from(shards) / f64::from(first),
        server_cpu_s_per_gb: Spread::of(server).map(|spread| spread.median),
    })
}

fn one_run(
    coring: &Coring,
    objects: Option<&[Listed]>,
    shards: u16,
    seats: &[usize],
    report: &mut CoresReport,
) -> Result<CoreRun> {
    let mut config = coring.config()?;
    // Shards and server started from here on inherit the cell.
    let _held = if objects.is_none() { Some(Held::to(&seats[..usize::from(shards)])?) } else { None };
    let (mut server, mut listing) = (None, objects.unwrap_or_default().to_vec());
    if objects.is_none() {
        let (venue, uri, served) = nginx(coring.object_size.0)?;
        (server, config.uri, listing) = (Some(venue), uri, served);
    }
    let total: u64 = listing.iter().map(|object| object.size).sum();
    report.object_bytes_mean = total / (listing.len() as u64).max(1);
    let builder = LoaderBuilder::new(config).shards(shards).epochs(u64::from(u32::MAX));
    let builder = builder.memory_limit(ByteSize(coring.shard_memory.0 * u64::from(shards)));
    let mut loader = builder.listing(listing).build()?;
    for notice in loader.notices() {
        if !report.notices.contains(notice) {
            report.notices.push(notice.clone());
        }
    }
    report.config = loader.config().clone();
    pull(&mut loader, coring.seconds.mul_f64(WARM_UP))?;
    let server_cpu = || server.as_ref().and_then(Venue::server_cpu_s);
    let before = (Instant::now(), loader.stats(), server_cpu());
    pull(&mut loader, coring.seconds)?;
    let wall_s = before.0.elapsed().as_secs_f64();
    let (after, server_after) = (loader.stats(), server_cpu());
    let gb = (after.bytes - before.1.bytes) as f64 / 1e9;
    let per_shard: Vec<ShardStats> = after.shards.iter().zip(&before.1.shards).map(|(a, b)| a.since(b)).collect();
    let cpu_s: f64 = per_shard.iter().map(ShardStats::cpu_s).sum();
    Ok(CoreRun {
        shards,
        gb_per_s: gb / wall_s,
        gb_per_core_s: if cpu_s > 0.0 { gb / cpu_s } else { 0.0 },
        cpu_s_per_gb: if gb > 0.0 { cpu_s / gb } else { 0.0 },
        server_cpu_s_per_gb: server_after
            .zip(before.2)
            .filter(|_| gb > 0.0)
            .map(|(after, before)| (after - before) / gb),
        per_shard,
    })
}

fn nginx(object_bytes: u64) -> Result<(Venue, String, Vec<Listed>)> {
    let config = VenueConfig { nginx_directives: ONE_FILE.to_owned(), ..VenueConfig::default() };
    let venue = Venue::open(&config)?;
    let path = venue.folder().join("root/object");
    let written = fs::File::create(&path).and_then(|file| file.set_len(object_bytes));
    written.map_err(|error| unwritable(&path, &error))?;
    let objects = (NAMED_BYTES / object_bytes.max(1)).clamp(64, NAMES_MAX);
    let listing = (0..objects).map(|n| Listed { key: format!("set/{n:06}"), size: object_bytes, etag: None }).collect();
    let laid =
        Laid { prefix: String::new(), manifest: path, objects, bytes: objects * object_bytes, hash: String::new() };
    let uri = venue.uri(&laid, Transport::Plain)?;
    Ok((venue, uri, listing))
}

fn pull(loader: &mut Loader, time: Duration) -> Result<()> {
    let begun = Instant::now();
    while begun.elapsed() < time {
        let Some(batch) = loader.next_batch() else { break };
        drop(batch?);
    }
    Ok(())
}

/// This thread, and all that it starts, held to some cores until dropped.
struct Held(CpuSet);

impl Held {
    fn to(cores: &[usize]) -> Result<Held> {
        let refused = |error: rustix::io::Errno| {
            Error::new(Kind::Environment, format!("holding this process to cores {cores:?}: {error}"))
                .with_hint("measure a bucket elsewhere instead: give its URI")
        };
        let before = sched_getaffinity(None).map_err(refused)?;
        let mut set = CpuSet::new();
        cores.iter().for_each(|core| set.set(*core));
        sched_setaffinity(None, &set).map_err(refused)?;
        Ok(Held(before))
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        // These cores were ours before.
        let _ = sched_setaffinity(None, &self.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(shards: u16, gb_per_s: f64, gb_per_core_s: f64) -> CoreRun {
        let cpu_s_per_gb = 1.0 / gb_per_core_s;
        CoreRun { shards, gb_per_s, gb_per_core_s, cpu_s_per_gb, server_cpu_s_per_gb: Some(0.1), per_shard: Vec::new() }
    }

    #[test]
    fn scaling_is_taken_within_a_round() {
        // The machine runs at half its speed in the second round: the ratios do not see it.
        let runs = [run(1, 4.0, 5.0), run(2, 7.6, 4.9), run(1, 2.0, 2.5), run(2, 3.8, 2.45)];
        let two = row(2, 1, &runs).unwrap();
        assert!(
            (two.scaling.median - 1.9).abs() < 1e-12 && (two.scaling.max - two.scaling.min).abs() < 1e-12,
            "{two:?}"
        );
        assert!(
            (two.work_per_core.median - 0.98).abs() < 1e-12 && (two.scaling_of_work - 1.96).abs() < 1e-12,
            "{two:?}"
        );
        assert_eq!((row(1, 1, &runs).unwrap().scaling.median, two.server_cpu_s_per_gb), (1.0, Some(0.1)));
        assert_eq!(row(3, 1, &runs), None);
    }
}
