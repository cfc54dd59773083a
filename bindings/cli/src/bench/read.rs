//! `fuelrail bench read`: reading a prefix as a trainer would, and what it cost.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use super::reading::{Event, ReadReport, Reading, read};
use clap::{ArgAction, Args};
use fuelrail::{ByteSize, Config, Format, GateStats, Overrides, ShardStats};
use serde::Serialize;

use crate::failure::{Outcome, usage};
use crate::report::chart::{Axis, Bar as Bars, Hue, bars};
use crate::report::{FactsPage, seconds, write_page};
use crate::screen::{Bar, JsonTo, Table, micros, note};
use crate::settings::{bytes, from_here, given, load};

const EXAMPLES: &str = "Examples:
  fuelrail bench read http://127.0.0.1:9000/bucket/training/ --batch-size 512 --epochs 2 --cache-limit 1gb
  fuelrail bench read http://127.0.0.1:8080/set/ --manifest set.tsv --shards 1 --hash false --json run.json
  fuelrail bench read http://127.0.0.1:9000/bucket/ --shuffle false --json | jq -r .content_hash
  fuelrail bench read http://127.0.0.1:9000/bucket/ --state run.state --audit run-1.log

Settings come from the argument, else the variable FUELRAIL_<FIELD> (FUELRAIL_BATCH_SIZE=64), else the --config file, else the \
default. The effective ones are in the result.

What is measured: wall time from before the listing to the end of the last batch; user and system time of this process until \
the loader is gone, without the content hash, whose CPU time is reported separately as hash_cpu_s. The hash is XXH3-128 over the \
samples in the order of delivery; with --shuffle false that is the order of the keys' bytes, so `xxhsum -H2` over the \
concatenated files must agree. For speed without the hash: --hash false.";

/// What a loader reads and how
#[derive(Args, Serialize, Debug)]
pub(crate) struct LoaderSettings {
    /// How objects hold samples: webdataset, mds, tfrecord, parquet, tokens, manifest or objects; without it every object is a sample
    #[arg(long, value_name = "NAME")]
    format: Option<String>,
    /// Samples per batch [default: 64]
    #[arg(long, value_name = "N")]
    batch_size: Option<u32>,
    /// Epochs of the whole run [default: 1]
    #[arg(long, value_name = "N")]
    epochs: Option<u64>,
    /// Shuffled epochs, or the order of the keys [default: true]
    #[arg(long, value_name = "true|false", action = ArgAction::Set)]
    shuffle: Option<bool>,
    /// Which shuffle: global, sticky (samples stay on the same rank across epochs), or chunks (neighbouring records are read together) [default: global]
    #[arg(long, value_name = "NAME")]
    order: Option<String>,
    /// Seed of the order [default: 0]
    #[arg(long)]
    seed: Option<u64>,
    /// Drop the last step of an epoch when it is not full [default: false]
    #[arg(long, value_name = "true|false", action = ArgAction::Set)]
    drop_last: Option<bool>,
    /// Ranks that share each epoch [default: 1]
    #[arg(long, value_name = "N")]
    world: Option<u32>,
    /// Which of them this is, from 0 [default: 0]
    #[arg(long, value_name = "N")]
    rank: Option<u32>,
    /// Threads, each with a core, a ring and its share of memory; 0 chooses [default: 0]
    #[arg(long, value_name = "N")]
    shards: Option<u16>,
    /// All buffers together; 0 takes half of the cgroup's limit [default: 0]
    #[arg(long = "memory-limit", value_name = "SIZE", value_parser = bytes)]
    memory_limit_bytes: Option<u64>,
    /// RAM cache inside the memory limit [default: 0]
    #[arg(long = "cache-limit", value_name = "SIZE", value_parser = bytes)]
    cache_limit_bytes: Option<u64>,
    /// What the cache keeps: next-use, pinned, lru, fifo, dlcache or importance [default: next-use]
    #[arg(long = "policy", value_name = "NAME")]
    cache_policy: Option<String>,
    /// How to look ahead: lookahead, or DELI's full-fetch and 50/50 [default: lookahead]
    #[arg(long, value_name = "NAME")]
    prefetch: Option<String>,
    /// Longest span fetched and cached as one [default: 8MiB]
    #[arg(long = "block-size", value_name = "SIZE", value_parser = bytes)]
    block_bytes: Option<u64>,
    /// Most connections per shard [default: 256]
    #[arg(long = "connections", value_name = "N")]
    connections_max: Option<usize>,
    /// When a sample cannot be had: raise, skip or quarantine [default: raise]
    #[arg(long, value_name = "NAME")]
    bad_samples: Option<String>,
    /// Decode PNG and JPEG to HEIGHTxWIDTHxCHANNELS, such as 224x224x3; the hash is then of the pixels
    #[arg(long, value_name = "SHAPE")]
    decode: Option<String>,
    /// How pictures of another size come to that: exact, center-crop or random-crop [default: exact]
    #[arg(long, value_name = "NAME", requires = "decode")]
    decode_fit: Option<String>,
    /// Mirror every other sample left to right [default: false]
    #[arg(long, value_name = "true|false", action = ArgAction::Set, requires = "decode")]
    decode_flip: Option<bool>,
    /// Threads that decode; 0 takes the cores that the shards leave [default: 0]
    #[arg(long, value_name = "N")]
    decode_threads: Option<usize>,
    /// Batches decoded ahead [default: 4]
    #[arg(long, value_name = "N")]
    decode_depth: Option<usize>,
    /// The interface to the kernel: auto, uring, poll, tokio-uring or glommio; auto is uring, or poll with a notice where
    /// io_uring is refused (engine/docs/CONTAINERS.md says how to allow it) [default: auto]
    #[arg(long, value_name = "NAME")]
    ring: Option<String>,
    /// Register the memory with the ring [default: false]
    #[arg(long, value_name = "true|false", action = ArgAction::Set)]
    register: Option<bool>,
    /// Bind each shard to a core [default: true]
    #[arg(long, value_name = "true|false", action = ArgAction::Set)]
    pin: Option<bool>,
    /// Under https, trust the authorities in FILE (PEM) instead of the system's
    #[arg(long, value_name = "FILE")]
    ca_file: Option<String>,
    /// Under https, disable certificate verification (insecure; prints a warning) [default: false]
    #[arg(long, value_name = "true|false", action = ArgAction::Set, num_args = 0..=1, default_missing_value = "true")]
    tls_insecure: Option<bool>,
    /// The objects as key<TAB>size or JSON lines, for servers that cannot list
    #[arg(long, value_name = "FILE")]
    manifest: Option<String>,
    /// Keep the bucket's listing, and the index of records, in DIR for later runs
    #[arg(long, value_name = "DIR", value_parser = from_here)]
    listing_dir: Option<PathBuf>,
}

/// Read a prefix as a trainer would: wall time, CPU-seconds per GB, waits, hits, content hash
#[derive(Args, Serialize, Debug)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Read {
    /// What to read: s3://BUCKET/PREFIX, gs://, az://, http[s]://HOST:PORT/BUCKET/PREFIX, or a folder
    #[serde(skip)]
    uri: Option<String>,
    /// Hash these fields of the records, in this order, instead of all bytes: jpg,cls; of Parquet no other columns are read
    #[arg(long, value_name = "NAMES", value_delimiter = ',', requires = "format")]
    #[serde(skip)]
    fields: Vec<String>,
    #[command(flatten)]
    #[serde(flatten)]
    settings: LoaderSettings,
    /// Take the batches from the `fuelrail share` that serves this URI in --share-dir
    #[arg(long, requires = "share_dir")]
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    shared_read: bool,
    /// A local directory where loaders share the rate of requests, and the read
    #[arg(long, value_name = "DIR", value_parser = from_here)]
    share_dir: Option<PathBuf>,
    /// A TOML file with settings
    #[arg(long, value_name = "FILE")]
    #[serde(skip)]
    config: Option<PathBuf>,
    /// Resume from FILE when it is there, and keep the state in it after every batch
    #[arg(long, value_name = "FILE")]
    #[serde(skip)]
    state: Option<PathBuf>,
    /// Log what is delivered, for `fuelrail inspect`
    #[arg(long, value_name = "FILE")]
    audit: Option<String>,
    /// The trainer's step, simulated by waiting after every batch
    #[arg(long, value_name = "MS", default_value_t = 0.0)]
    #[serde(skip)]
    step_ms: f64,
    /// Hash the delivered samples
    #[arg(long, value_name = "true|false", action = ArgAction::Set, default_value_t = true)]
    #[serde(skip)]
    hash: bool,
    /// Print the result as one JSON document, or write it to FILE beside the table
    #[arg(long, value_name = "FILE", num_args = 0..=1, default_missing_value = "-")]
    #[serde(skip)]
    json: Option<String>,
    /// Write the result as a page with charts
    #[arg(long, value_name = "FILE")]
    #[serde(skip)]
    html: Option<PathBuf>,
}

pub(crate) fn run(args: &Read) -> Outcome {
    let (uri, json) = uri_and_json(args.uri.as_deref(), args.json.as_deref());
    let mut config = load(args.config.as_deref(), &overrides(args, uri))?;
    // They are read, or come with what is decoded; else batches have all.
    if (config.format == Some(Format::Parquet) || config.decode.shape.is_some()) && config.fields.is_empty() {
        config.fields.clone_from(&args.fields);
    }
    let step = Duration::try_from_secs_f64(args.step_ms / 1e3)
        .map_err(|error| usage(format!("--step-ms {}: {error}", args.step_ms), "give a number of milliseconds"))?;
    let Read { hash, fields, state, .. } = args;
    let reading = Reading { config, hash: *hash, fields: fields.clone(), step, state: state.clone() };
    let bar = Bar::new(Some(0), "batches");
    let report = read(&reading, &mut |event| match event {
        Event::Opened(loader) => {
            loader.notices().iter().for_each(|notice| note(notice));
            bar.total(loader.batches());
        }
        Event::Batch(so_far) => bar.at(so_far.batches, || ByteSize(so_far.bytes).to_string()),
    })?;
    drop(bar);
    json.show(&report, || text(&report))?;
    write_page(args.html.as_deref(), || page(&report))?;
    Ok(ExitCode::SUCCESS)
}

/// `--json` may stand alone, so `--json http://…` is a switch followed by the URI, not a file of that name.
fn uri_and_json<'a>(uri: Option<&'a str>, json: Option<&'a str>) -> (Option<&'a str>, JsonTo) {
    match (uri, json) {
        (uri, None) => (uri, JsonTo::Nowhere),
        (uri, Some("-")) => (uri, JsonTo::Output),
        (None, Some(taken)) if taken.contains("://") => (Some(taken), JsonTo::Output),
        (uri, Some(path)) => (uri, JsonTo::File(PathBuf::from(path))),
    }
}

fn overrides(args: &Read, uri: Option<&str>) -> Overrides {
    // This process reads and does nothing else: the signal is free.
    let own = [("uri", uri), ("report_on_sigusr1", Some("true"))];
    let own = own.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?.to_owned())));
    own.chain(given(args)).collect()
}

fn config_text(config: &Config) -> String {
    serde_json::to_string(config).expect("a configuration is a plain structure")
}

fn page(report: &ReadReport) -> FactsPage {
    let bar =
        |name: &str, text: String, value: f64, hue| Bars { name: name.to_owned(), text, value, marks: Vec::new(), hue };
    let q = report.batch_wait_us;
    let waits = [
        ("median", q.p50),
        ("p99", q.p99),
        ("p99.9", q.p999),
        ("longest", q.max),
        ("first batch", report.first_batch_us),
    ];
    let waits = waits.map(|(name, us)| bar(name, micros(us), us as f64 / 1e6, Hue::Rail));
    let times = [
        ("wall time", report.wall_s, Hue::Plain),
        ("data wait", report.data_wait_s, Hue::Rail),
        ("CPU, user", report.cpu_user_s, Hue::Deli),
        ("CPU, system", report.cpu_sys_s, Hue::Deli),
    ];
    let times = times.map(|(name, s, hue)| bar(name, seconds(s), s, hue));
    let charts = [
        ("Wait for a batch", "Inside next(). Logarithmic.", bars(&waits, Axis { log: true, tick: seconds })),
        ("Where time went", "The whole run.", bars(&times, Axis { log: false, tick: seconds })),
    ];
    let cost = report.cpu_s_per_gb.map_or_else(String::new, |cost| format!(", {cost:.3} CPU-seconds a GB"));
    FactsPage {
        kicker: "Fuelrail bench read",
        headline: format!("{:.3} GB/s{cost}", report.gb_per_s),
        caption: format!("{} samples, {} in {} batches.", report.samples, ByteSize(report.bytes), report.batches),
        charts,
        facts: facts(report),
    }
}

/// The result as a table.
pub(crate) fn text(report: &ReadReport) -> String {
    Table::facts(facts(report)).text()
}

fn facts(report: &ReadReport) -> Vec<(String, String)> {
    let mut facts: Vec<(String, String)> = Vec::new();
    let mut row = |name: &str, value: String| facts.push((name.to_owned(), value));
    let absent = || "-".to_owned();
    row("delivered", format!("{} samples, {} in {} batches", report.samples, ByteSize(report.bytes), report.batches));
    row("wall time", format!("{:.3} s", report.wall_s));
    row("speed", format!("{:.3} GB/s, {:.0} samples/s", report.gb_per_s, report.samples_per_s));
    row("CPU", format!("{:.3} s user, {:.3} s system", report.cpu_user_s, report.cpu_sys_s));
    row("CPU per GB", report.cpu_s_per_gb.map_or_else(absent, |cost| format!("{cost:.3} s")));
    row("CPU per sample", report.cpu_us_per_sample.map_or_else(absent, |cost| format!("{cost:.1} µs")));
    row("content hash CPU", format!("{:.3} s, not in the above", report.hash_cpu_s));
    row("peak memory", ByteSize(report.peak_rss_bytes).to_string());
    row("copied per byte", format!("{:.4}", report.copied_bytes_per_byte));
    row("first batch", micros(report.first_batch_us));
    for (name, q) in [("batch wait", report.batch_wait_us), ("first of an epoch", report.epoch_first_batch_us)] {
        let [p50, p99, p999, max] = [q.p50, q.p99, q.p999, q.max].map(micros);
        row(name, format!("p50 {p50}, p99 {p99}, p99.9 {p999}, max {max}"));
    }
    row("data wait", format!("{:.3} s, {:.1} % of batches ready", report.data_wait_s, report.readiness * 100.0));
    row("cache hits", format!("{:.4}", report.hit_ratio));
    let slower =
        if report.throttled > 0 { format!(", {} asked to slow down", report.throttled) } else { String::new() };
    let (requests, retries) = (report.requests, report.retries);
    row("requests", format!("{requests}{slower}, {retries} retries, {} samples skipped", report.left_out));
    row("ring", report.ring.clone());
    let (calls, completions) = (report.syscalls_per_mib, report.completions_per_syscall);
    row("system calls", format!("{calls:.2} per MiB, {completions:.2} completions each"));
    if !report.gates.is_empty() {
        let full = "a full one waits for what comes after it, an empty one for what comes before";
        row("gates", format!("queues that a block passes on its way, in order; {full}"));
    }
    for gate in &report.gates {
        let GateStats { capacity, passed, occupancy_mean, wait_us_mean, .. } = gate;
        let inside = format!("{occupancy_mean:.1} of at most {capacity} inside on average");
        row(
            &format!("gate {}", gate.name),
            format!("{inside}, {passed} passed, {} each", micros(*wait_us_mean as u64)),
        );
    }
    for (number, shard) in report.shards.iter().enumerate() {
        row(&format!("shard {number}"), shard_text(shard));
    }
    row("content hash", report.content_hash.clone().unwrap_or_else(absent));
    row("machine", report.machine.line());
    row("configuration", config_text(&report.config));
    facts
}

/// One shard's core in a line.
pub fn shard_text(shard: &ShardStats) -> String {
    let core = shard.core.map_or_else(|| "-".to_owned(), |core| core.to_string());
    format!(
        "core {core}, {:.3} s user, {:.3} s system, {}; {:.2} calls per MiB, {:.2} completions each; slept {}, preempted {}",
        shard.cpu_user_s,
        shard.cpu_system_s,
        ByteSize(shard.landed_bytes),
        shard.syscalls_per_mib,
        shard.completions_per_syscall,
        shard.switches_voluntary,
        shard.switches_involuntary,
    )
}
