//! `fuelrail bench latency`: how long a bucket takes to answer, and how long a trainer waits for a sample.
//!
//! Two things can be timed. *GETs*: of whole objects or of their first bytes, over kept connections of the engine's own client, the
//! bucket's latency. *Samples*: batches of one sample through the loader, asked for at given moments, the trainer's wait;
//! look-ahead is part of it, which is the point of a loader. The rule from when on a latency counts is in `drive.rs`.

mod drive;
mod histogram;

use std::collections::BTreeMap;
use std::panic::resume_unwind;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use clap::{Args, ValueEnum};
use fuelrail::internal::{GetConnection, Gets};
use fuelrail::{
    Access, ByteSize, Config, Error, Kind, Listed, LoaderBuilder, Overrides, Result, list_with, read_manifest,
};
use serde_json::json;

pub use self::drive::Load;
use self::drive::{Clock, Measured, Queue};
pub use self::histogram::{Latencies, LatencyResult, LatencySummary};
use crate::failure::{Outcome, Stop, file, usage};
use crate::machine::Machine;
use crate::screen::{Bar, JsonTo, Table, note};
use crate::settings::{self, Trust};
use crate::signals::stop_on_signals;

const EXAMPLES: &str = "Examples:
  fuelrail bench latency http://127.0.0.1:9000/bucket/
  fuelrail bench latency http://127.0.0.1:8080/set/ --manifest set.tsv --size 4KiB,128KiB --rate 1000 --arrivals random
  fuelrail bench latency http://127.0.0.1:9000/bucket/ --through loader --rate 500 --json latency.json --hgrm latency

Without --rate the loop is closed: every connection sends when its last answer is there. With --rate it is open: requests have a \
moment at which they are meant to be sent, and `response` counts from there, also when every connection is still busy: a stall \
counts for everybody it kept waiting (no coordinated omission). `service` counts from the sending, for comparison. \
--through gets times the bucket with single GETs of --size bytes, none tried again; --through loader times what a trainer waits for one sample (batches \
of one, look-ahead included).";

/// Time GETs or samples: percentiles, open or closed loop, free of coordinated omission
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Latency {
    /// What to read: s3://BUCKET/PREFIX, gs://, az://ACCOUNT/CONTAINER/PREFIX, http[s]://HOST:PORT/BUCKET/PREFIX
    uri: String,
    #[command(flatten)]
    trust: Trust,
    /// The objects, as key<TAB>size lines, for servers that cannot list
    #[arg(long, value_name = "FILE")]
    manifest: Option<PathBuf>,
    /// What is timed
    #[arg(long, value_enum, default_value_t = Through::Gets)]
    through: Through,
    /// Bytes of a GET, several with commas; each is a run [default: whole objects]
    #[arg(long, value_name = "SIZE", value_delimiter = ',')]
    size: Vec<ByteSize>,
    /// Requests a second that are meant to be sent; without it the loop is closed
    #[arg(long, value_name = "N")]
    rate: Option<f64>,
    /// How they come
    #[arg(long, value_enum, default_value_t = Arrivals::Even, requires = "rate")]
    arrivals: Arrivals,
    /// Connections of GETs
    #[arg(long, value_name = "N", default_value_t = 8)]
    connections: usize,
    /// Requests measured
    #[arg(long, value_name = "N", default_value_t = 10_000)]
    requests: u64,
    /// Requests before those, not counted
    #[arg(long, value_name = "N", default_value_t = 1_000)]
    warm_up: u64,
    /// Seed of random arrivals and of the loader's order
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// A setting of the loader over its defaults, by the name of its field
    #[arg(long = "set", value_name = "FIELD=VALUE", value_parser = super::setting)]
    settings: Vec<(String, String)>,
    /// Write histograms in HdrHistogram's text format: PREFIX-1-response.hgrm, PREFIX-1-service.hgrm, …
    #[arg(long, value_name = "PREFIX")]
    hgrm: Option<String>,
    /// Print the result as one JSON document, or write it to FILE beside the table
    #[arg(long, value_name = "FILE", num_args = 0..=1, default_missing_value = "-")]
    json: Option<String>,
}

/// What is timed.
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
enum Through {
    /// Single GETs
    Gets,
    /// Samples from the loader
    Loader,
}

/// How requests come.
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
enum Arrivals {
    /// One after the other at equal distances
    Even,
    /// At random, as from many independent users (Poisson)
    Random,
}

pub(crate) fn run(args: &Latency) -> Outcome {
    let start = Instant::now();
    if args.through == Through::Loader && !args.size.is_empty() {
        return Err(usage("the loader reads whole samples", "leave out --size, or use --through gets"));
    }
    let stop = stop_on_signals()?;
    let given = given(args);
    let access = Access::load(&args.uri, fuelrail::environment_variables()?, &given)?;
    let listing = match &args.manifest {
        Some(path) => read_manifest(path)?,
        None => list_with(&access, &args.uri, |_| {})?,
    };
    let load = match (args.rate, args.arrivals) {
        (None, _) => Load::Closed,
        (Some(rate), Arrivals::Even) => Load::Constant(rate),
        (Some(rate), Arrivals::Random) => Load::Poisson(rate),
    };
    let runs = timed(args, &access, &given)?;
    let bar = Bar::new(Some(runs.len() as u64), "runs");
    let mut latencies = Vec::new();
    for (number, timed) in (1..).zip(runs) {
        bar.at(number - 1, || "measuring".to_owned());
        let Latency { requests, warm_up, seed, .. } = *args;
        let plan = Run { timed, load, requests, warm_up, seed, stop: stop.clone() };
        let (result, histograms) = measure(&plan, &listing)?;
        if let Some(prefix) = &args.hgrm {
            write(prefix, number, &histograms)?;
        }
        latencies.push(result);
    }
    drop(bar);
    let machine = Machine::here();
    let notices = if machine.optimised { vec![] } else { vec!["an unoptimised build: its figures mean nothing"] };
    notices.iter().for_each(|notice| note(notice));
    let findings = json!({
        "schema": 1,
        "question": "latency",
        "machine": machine,
        "config": config(args),
        "latencies": latencies,
        "notices": notices,
        "wall_s": start.elapsed().as_secs_f64(),
    });
    JsonTo::asked(args.json.as_deref())
        .show(&findings, || format!("{}{}\n", self::latencies(&latencies), machine.line()))
}

/// Settings of the loader, of which some say how the bucket is reached.
fn given(args: &Latency) -> Overrides {
    let own = [("uri".to_owned(), args.uri.clone()), ("seed".to_owned(), args.seed.to_string())];
    own.into_iter().chain(settings::given(&args.trust)).chain(args.settings.iter().cloned()).collect()
}

/// One run per size.
fn timed(args: &Latency, access: &Access, given: &Overrides) -> Outcome<Vec<Timed>> {
    if args.through == Through::Loader {
        let config = Config::load(None, fuelrail::environment_variables()?, given)?;
        return Ok(vec![Timed::Samples(Box::new(config))]);
    }
    let sizes: Vec<Option<u64>> =
        if args.size.is_empty() { vec![None] } else { args.size.iter().map(|size| Some(size.0)).collect() };
    if sizes.contains(&Some(0)) {
        return Err(usage("--size is 0", "give at least 1"));
    }
    let (uri, connections) = (&args.uri, args.connections);
    let gets = |bytes| Timed::Gets { access: Box::new(access.clone()), uri: uri.clone(), bytes, connections };
    Ok(sizes.into_iter().map(gets).collect())
}

fn write(prefix: &str, number: u64, histograms: &[Latencies; 2]) -> Outcome<()> {
    for (what, histogram) in ["response", "service"].iter().zip(histograms) {
        let name = format!("{prefix}-{number}-{what}.hgrm");
        let path = Path::new(&name);
        std::fs::write(path, histogram.hgrm()).map_err(|error| file("writing", path, &error))?;
    }
    Ok(())
}

/// Every option that changes figures, by name.
fn config(args: &Latency) -> BTreeMap<String, String> {
    let own = [
        ("through", format!("{:?}", args.through).to_lowercase()),
        ("connections", args.connections.to_string()),
        ("requests", args.requests.to_string()),
        ("warm_up", args.warm_up.to_string()),
        ("seed", args.seed.to_string()),
    ];
    let settings = args.settings.iter().map(|(name, value)| (format!("loader.{name}"), value.clone()));
    own.map(|(name, value)| (name.to_owned(), value)).into_iter().chain(settings).collect()
}

/// Latencies as a table for people.
pub fn latencies(all: &[LatencyResult]) -> String {
    let mut table = Table::new(&[2, 3, 4, 5, 6, 7]);
    table.row(["", "", "answers/s", "p50 µs", "p90", "p99", "p99.9", "max"]);
    for latency in all {
        for (what, summary) in [("response", &latency.response), ("service", &latency.service)] {
            if what == "service" && latency.intended_per_s.is_none() {
                continue;
            }
            let figures = [summary.p50_us, summary.p90_us, summary.p99_us, summary.p999_us, summary.max_us];
            let name = format!("{}, {}", latency.name, latency.load);
            let cells = [name, what.to_owned(), format!("{:.0}", latency.achieved_per_s)];
            table.row(cells.into_iter().chain(figures.map(|us| format!("{us:.0}"))));
        }
    }
    table.text()
}

/// What is timed.
#[derive(Clone, Debug)]
pub enum Timed {
    /// GETs of the first so many bytes of objects; of whole objects without a size.
    Gets {
        /// How the bucket is reached.
        access: Box<Access>,
        /// The bucket, with any prefix.
        uri: String,
        /// Bytes of a GET.
        bytes: Option<u64>,
        /// Connections, each with one request under way at most.
        connections: usize,
    },
    /// Batches of one sample from a loader with this configuration; its batch size and epochs are set here.
    Samples(Box<Config>),
}

/// One run.
#[derive(Clone, Debug)]
pub struct Run {
    /// What is timed.
    pub timed: Timed,
    /// How requests come.
    pub load: Load,
    /// Requests measured.
    pub requests: u64,
    /// Requests before those, sent in a closed loop.
    pub warm_up: u64,
    /// Seed of random arrivals.
    pub seed: u64,
    /// Who may interrupt it.
    pub stop: Stop,
}

/// Most connections.
const CONNECTIONS_MAX: usize = 1024;

/// Latencies of a run: its summary, and the histograms for `.hgrm` files (response, then service).
///
/// # Errors
/// `Usage` for settings that make no sense, the error of the first request that fails, `Cancelled` when asked to stop.
pub fn measure(run: &Run, listing: &[Listed]) -> Result<(LatencyResult, [Latencies; 2])> {
    let (name, how, all) = match &run.timed {
        Timed::Gets { access, uri, bytes, connections } => {
            let what = bytes.map_or_else(|| "whole objects".into(), |bytes| ByteSize(bytes).to_string());
            let all = gets(run, listing, (access, uri), *bytes, *connections)?;
            (format!("GET of {what}"), format!("{connections} connections"), all)
        }
        Timed::Samples(config) => {
            ("sample from the loader".to_owned(), "one consumer".to_owned(), samples(run, config, listing)?)
        }
    };
    let load = match run.load {
        Load::Closed => "closed loop".to_owned(),
        Load::Constant(rate) => format!("open loop, {rate}/s evenly"),
        Load::Poisson(rate) => format!("open loop, {rate}/s at random"),
    };
    let result = LatencyResult {
        name,
        load: format!("{load}, {how}"),
        intended_per_s: run.load.intended_per_s(),
        achieved_per_s: run.requests as f64 / all.ended.as_secs_f64().max(f64::MIN_POSITIVE),
        warm_up: run.warm_up,
        response: all.response.summary(),
        service: all.service.summary(),
    };
    Ok((result, [all.response, all.service]))
}

fn gets(
    run: &Run,
    listing: &[Listed],
    (access, uri): (&Access, &str),
    bytes: Option<u64>,
    connections: usize,
) -> Result<Measured> {
    if !(1..=CONNECTIONS_MAX).contains(&connections) {
        return Err(Error::new(Kind::Usage, format!("connections = {connections} is outside 1 to {CONNECTIONS_MAX}")));
    }
    let fit: Vec<&Listed> = listing.iter().filter(|object| object.size >= bytes.unwrap_or(1).max(1)).collect();
    let Some(first) = fit.first() else {
        return Err(Error::new(Kind::Usage, "no object is that large").with_hint("give a smaller --size"));
    };
    let gets = Gets::open(access, uri, &first.key)?;
    let mut open = (0..connections).map(|_| gets.connect()).collect::<Result<Vec<_>>>()?;
    let ask = |connection: &mut GetConnection<'_>, number: u64| {
        let object = fit[(number % fit.len() as u64) as usize];
        let (came, due) = (connection.get(&object.key, bytes)?, bytes.unwrap_or(object.size));
        // Any other length is not the latency of this GET.
        let cause = || format!("the server sent {came} bytes, requested were {due}");
        let cure = "check the manifest, and that the server supports range requests";
        if came == due {
            Ok(())
        } else {
            Err(Error::new(Kind::Protocol, cause()).with_hint(cure).with_object(&object.key))
        }
    };
    phases(run, |queue| together(&mut open, queue, &run.stop, ask))
}

/// The warm-up in a closed loop, then what is measured.
fn phases(run: &Run, mut work: impl FnMut(&Queue) -> Result<Measured>) -> Result<Measured> {
    if run.warm_up > 0 {
        work(&Queue::new(Load::Closed, run.warm_up, run.seed)?)?;
    }
    work(&Queue::new(run.load, run.requests, run.seed)?)
}

/// All connections at work on one queue, each on a thread of its own.
fn together<C: Send>(
    connections: &mut [C],
    queue: &Queue,
    stop: &Stop,
    ask: impl Fn(&mut C, u64) -> Result<()> + Sync,
) -> Result<Measured> {
    let clock = Instant::now();
    let failed = Stop::default();
    let go_on = || stop.check().and_then(|()| failed.check());
    let work =
        |connection: &mut C| queue.work(&clock, |number| ask(connection, number), go_on).inspect_err(|_| failed.ask());
    let all: Vec<Result<Measured>> = std::thread::scope(|scope| {
        let threads: Vec<_> = connections.iter_mut().map(|one| scope.spawn(|| work(one))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap_or_else(|panic| resume_unwind(panic))).collect()
    });
    let mut sum = Measured::default();
    let mut cancelled = None;
    for measured in all {
        match measured {
            Ok(measured) => {
                sum.response.merge(&measured.response);
                sum.service.merge(&measured.service);
                sum.ended = sum.ended.max(measured.ended);
            }
            // The one that failed tells why; the others only stopped for it.
            Err(error) if error.kind() == Kind::Cancelled => cancelled = Some(error),
            Err(error) => return Err(error),
        }
    }
    cancelled.map_or(Ok(sum), Err)
}

fn samples(run: &Run, config: &Config, listing: &[Listed]) -> Result<Measured> {
    let total = run.warm_up + run.requests;
    let epochs = total.div_ceil((listing.len() as u64).max(1)).max(1);
    let builder = LoaderBuilder::new(config.clone()).batch_size(1).epochs(epochs);
    let mut loader = builder.listing(listing.to_vec()).build()?;
    let mut ask = |_| match loader.next_batch() {
        Some(batch) => batch.map(drop),
        None => Err(Error::new(Kind::Usage, "the data set has no samples")),
    };
    phases(run, |queue| queue.work(&Instant::now(), &mut ask, || run.stop.check()))
}

/// The scheduler wakes a sleeper late; the rest of a wait is spent looking at the clock.
const SPIN: Duration = Duration::from_micros(100);

/// The real clock: a run's start.
impl Clock for Instant {
    fn now(&self) -> Duration {
        self.elapsed()
    }

    fn sleep_until(&self, moment: Duration) {
        let left = moment.saturating_sub(self.elapsed());
        if left > SPIN {
            std::thread::sleep(left - SPIN);
        }
        while self.elapsed() < moment {
            std::hint::spin_loop();
        }
    }
}
