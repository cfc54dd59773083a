//! `fuelrail bench latency`: how long a bucket takes to answer, and how long a trainer waits for a sample.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Instant;

use clap::{Args, ValueEnum};
use fuelrail::{ByteSize, Config, Listed, Overrides, list, read_manifest};
use fuelrail_benches::Machine;
use fuelrail_benches::harness::result::SCHEMA;
use fuelrail_benches::harness::{Findings, Latencies, LatencyResult, VenueFacts, VenueKind};
use fuelrail_benches::latency::{Load, Run, Timed, run as measure};

use super::findings::text;
use super::line::json_to;
use super::venue::stop_on_signals;
use crate::failure::{Outcome, file, usage};
use crate::screen::{Bar, note};

const EXAMPLES: &str = "Examples:
  fuelrail bench latency http://127.0.0.1:9000/bucket/
  fuelrail bench latency http://127.0.0.1:8080/set/ --manifest set.tsv --size 4KiB,128KiB --rate 1000 --arrivals random
  fuelrail bench latency http://127.0.0.1:9000/bucket/ --through loader --rate 500 --json latency.json --hgrm latency

Without --rate the loop is closed: every connection sends when its last answer is there. With --rate it is open: requests have a
moment at which they are meant to be sent, and `response` counts from there, also when every connection is still busy: a stall
counts for everybody it kept waiting (no coordinated omission). `service` counts from the sending, for comparison.
--through gets times the bucket with plain GETs of --size bytes; --through loader times what a trainer waits for one sample (batches
of one, look-ahead included).";

/// Time GETs or samples: percentiles, open or closed loop, free of coordinated omission
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Latency {
    /// What to read: http://HOST:PORT/BUCKET/PREFIX
    uri: String,
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
    #[arg(long = "set", value_name = "FIELD=VALUE", value_parser = super::contestant::setting)]
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
    /// GETs over plain connections
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
    let listing = match &args.manifest {
        Some(path) => read_manifest(path)?,
        None => list(&args.uri, |_| {})?,
    };
    let load = match (args.rate, args.arrivals) {
        (None, _) => Load::Closed,
        (Some(rate), Arrivals::Even) => Load::Constant(rate),
        (Some(rate), Arrivals::Random) => Load::Poisson(rate),
    };
    let runs = timed(args)?;
    let bar = Bar::new(Some(runs.len() as u64), "runs");
    let mut latencies = Vec::new();
    for (number, timed) in (1..).zip(runs) {
        bar.at(number - 1, || "measuring".to_owned());
        let Latency { requests, warm_up, seed, .. } = *args;
        let plan = Run { timed, load, requests, warm_up, seed, stop: stop.clone() };
        let (result, histograms) = measured(&plan, &listing)?;
        if let Some(prefix) = &args.hgrm {
            write(prefix, number, &histograms)?;
        }
        latencies.push(result);
    }
    drop(bar);
    let findings = findings(args, latencies, start.elapsed().as_secs_f64());
    findings.notices.iter().for_each(|notice| note(notice));
    json_to(args.json.as_deref()).show(&findings, || text(&findings))?;
    Ok(ExitCode::SUCCESS)
}

fn measured(plan: &Run, listing: &[Listed]) -> Outcome<(LatencyResult, [Latencies; 2])> {
    Ok(measure(plan, listing)?)
}

/// One run per size.
fn timed(args: &Latency) -> Outcome<Vec<Timed>> {
    if args.through == Through::Loader {
        let mut settings: Overrides = vec![("uri".into(), args.uri.clone()), ("seed".into(), args.seed.to_string())];
        settings.extend(args.settings.iter().cloned());
        return Ok(vec![Timed::Samples(Box::new(Config::load(None, fuelrail::environment_variables()?, &settings)?))]);
    }
    let sizes: Vec<Option<u64>> =
        if args.size.is_empty() { vec![None] } else { args.size.iter().map(|size| Some(size.0)).collect() };
    if sizes.contains(&Some(0)) {
        return Err(usage("--size 0 asks for nothing", "give at least 1"));
    }
    let gets = |bytes| Timed::Gets { uri: args.uri.clone(), bytes, connections: args.connections };
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

fn findings(args: &Latency, latencies: Vec<LatencyResult>, wall_s: f64) -> Findings {
    let mut config = BTreeMap::new();
    let mut note = |name: &str, value: String| config.insert(name.to_owned(), value);
    note("through", format!("{:?}", args.through).to_lowercase());
    note("connections", args.connections.to_string());
    note("requests", args.requests.to_string());
    note("warm_up", args.warm_up.to_string());
    note("seed", args.seed.to_string());
    for (name, value) in &args.settings {
        note(&format!("loader.{name}"), value.clone());
    }
    let machine = Machine::here();
    let notices =
        if machine.optimised { vec![] } else { vec!["an unoptimised build: its figures mean nothing".into()] };
    let venue = VenueFacts {
        kind: VenueKind::External,
        server: "external".into(),
        mtu: None,
        link_bits_per_s: None,
        server_core: None,
        client_cores: Vec::new(),
    };
    Findings {
        schema: SCHEMA,
        question: "latency".into(),
        machine,
        venue,
        config,
        contests: Vec::new(),
        latencies,
        notices,
        wall_s,
    }
}
