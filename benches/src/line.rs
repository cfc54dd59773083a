//! The question behind `cargo x bench line` and `bench floor`: what the loader costs beside the floors, shape by shape, all in
//! the same run.
//!
//! Owns which contestants take part in which shape and which bars they are held to. Never draws on a terminal.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Instant;

use fuelrail::{Overrides, Result};

use crate::floor::ssl_contestant;
use crate::harness::result::SCHEMA;
use crate::harness::{
    Bar, Contest, Contestant, Contested, Entry, Findings, Heat, Laid, Metric, Relation, SetFacts, Shape, ShapeName,
    Stop, Task, Transport, Turn, Venue, VenueConfig, hold,
};
use fuelrail_cli::machine::Machine;

/// What to measure.
#[derive(Clone, Debug)]
pub struct Line {
    /// The question's name in the result.
    pub question: String,
    /// Shapes, in order.
    pub shapes: Vec<ShapeName>,
    /// Over what they are read.
    pub transports: Vec<Transport>,
    /// Scale of the shapes.
    pub scale: f64,
    /// Measured rounds.
    pub rounds: u32,
    /// Under how many names a pass reads every object; none chooses per shape.
    pub repeats: Option<u32>,
    /// Seed of the order.
    pub seed: u64,
    /// Settings of the loader; none leaves the loader out.
    pub loader: Option<Overrides>,
    /// Whether floors that no bar needs take part too: the hot buffer, the kernel's drop, the bare copy.
    pub all_floors: bool,
    /// The program that holds the floors and the loader: this one.
    pub program: PathBuf,
    /// Who may interrupt it.
    pub stop: Stop,
}

/// What is told while it runs.
#[derive(Clone, Copy, Debug)]
pub enum Step<'a> {
    /// A shape's objects are being written: bytes so far, and in all.
    Laying(ShapeName, u64, u64),
    /// A contest's turn begins.
    Turn(&'a str, Turn<'a>),
}

/// Our loader's name among contestants.
pub const LOADER: &str = "fuelrail";
/// Connections of the client that asks what the server can give.
const ENTITLEMENT_CONNECTIONS: &str = "8";

/// Asks the question at a venue.
///
/// # Errors
/// `Usage`, `Environment` and `File` from setting up; `Cancelled` when asked to stop. A contestant that fails is in the
/// result with its reason.
pub fn line(line: &Line, at: &VenueConfig, watch: &mut dyn FnMut(Step<'_>)) -> Result<Findings> {
    let start = Instant::now();
    let tls = at.tls || line.transports.contains(&Transport::Tls);
    let venue = Venue::open(&VenueConfig { tls, ..at.clone() })?;
    let mut findings = findings(line, &venue);
    for name in &line.shapes {
        let shape = name.shape(line.scale)?;
        let total = shape.bytes();
        let laid = shape.lay_repeated(venue.folder(), line.repeats(*name), &line.stop, &mut |done| {
            watch(Step::Laying(*name, done, total))
        })?;
        for transport in &line.transports {
            let contested = contest(line, &venue, &shape, &laid, *transport, watch)?;
            findings.contests.push(contested);
        }
    }
    if !findings.machine.optimised {
        findings.notices.push("an unoptimised build: its figures mean nothing".into());
    }
    findings.wall_s = start.elapsed().as_secs_f64();
    Ok(findings)
}

/// A result of this question, still without contests.
pub(crate) fn findings(line: &Line, venue: &Venue) -> Findings {
    let mut config = BTreeMap::new();
    let mut note = |name: &str, value: String| config.insert(name.to_owned(), value);
    note("scale", line.scale.to_string());
    note("rounds", line.rounds.to_string());
    note("seed", line.seed.to_string());
    note("repeats", line.repeats.map_or_else(|| "by shape".to_owned(), |repeats| repeats.to_string()));
    if line.loader.is_some() {
        // Results of a loader that was built anew in every pass have no such line, and are unlike these.
        note("passes", "one loader, from rest to rest".to_owned());
    }
    for (name, value) in line.loader.iter().flatten() {
        note(&format!("loader.{name}"), value.clone());
    }
    Findings {
        schema: SCHEMA,
        question: line.question.clone(),
        machine: Machine::here(),
        venue: venue.facts().clone(),
        config,
        contests: Vec::new(),
        latencies: Vec::new(),
        notices: Vec::new(),
        wall_s: 0.0,
    }
}

fn contest(
    line: &Line,
    venue: &Venue,
    shape: &Shape,
    laid: &Laid,
    transport: Transport,
    watch: &mut dyn FnMut(Step<'_>),
) -> Result<Contested> {
    let task = task(venue, shape, laid, transport, line.seed)?;
    let contest = rules(line, venue, shape, laid);
    let cast = cast(line, venue, shape.name, transport)?;
    let entries: Vec<Entry> = cast.into_iter().map(|contestant| Entry::new(contestant, task.clone())).collect();
    let name = shape.name.word();
    let scores = hold(&contest, &entries, &mut |turn| watch(Step::Turn(name, turn)))?;
    let bars =
        if line.loader.is_some() { bars(shape.name, transport, venue.facts().link_bits_per_s) } else { Vec::new() };
    let mut contested = Contested::new(SetFacts::of(shape, laid), transport, scores, &bars);
    if transport == Transport::Plain && contest.rounds > 0 {
        contested.entitlement_gb_per_s = entitlement(line, &contest, &task)?;
    }
    Ok(contested)
}

/// How a contest over a shape is held: cold where the time to the first batch is the question, else warm.
pub(crate) fn rules(line: &Line, venue: &Venue, shape: &Shape, laid: &Laid) -> Contest {
    let cold = shape.name == ShapeName::First;
    Contest {
        rounds: if cold { 0 } else { line.rounds },
        cold_rounds: if cold { line.rounds } else { 0 },
        place: venue.place().clone(),
        expected_hash: Some(laid.hash.clone()),
        stop: line.stop.clone(),
        ..Contest::default()
    }
}

/// The task of a shape at a venue.
///
/// # Errors
/// `Usage` for TLS where there is none.
pub fn task(venue: &Venue, shape: &Shape, laid: &Laid, transport: Transport, seed: u64) -> Result<Task> {
    Ok(Task {
        uri: venue.uri(laid, transport)?,
        manifest: laid.manifest.clone(),
        batch_size: shape.batch_size,
        arena_bytes: shape.arena_bytes,
        seed,
    })
}

/// What the server gives at most: a client whose kernel drops all payload, over several connections. None when it fails.
pub(crate) fn entitlement(line: &Line, contest: &Contest, task: &Task) -> Result<Option<f64>> {
    let args = ["contestant", "floor-drop", "--connections", ENTITLEMENT_CONNECTIONS];
    let dropper = Contestant::new("entitlement", &line.program, args);
    let contest = Contest { rounds: 3, cold_rounds: 0, expected_hash: None, ..contest.clone() };
    let scores = hold(&contest, &[Entry::new(dropper, task.clone())], &mut |_| {})?;
    let speeds = scores[0].passes.iter().filter_map(|pass| Metric::GbPerS.of(pass));
    Ok(speeds.reduce(f64::max))
}

/// Under how many names a pass reads every object of a shape, so that starting and ending a run weigh little.
const REPEATS: u32 = 4;

impl Line {
    pub(crate) fn repeats(&self, shape: ShapeName) -> u32 {
        self.repeats.unwrap_or(if shape == ShapeName::First { 1 } else { REPEATS })
    }
}

/// One of this program's own contestants with its name, its kind and more arguments.
#[must_use]
pub fn own_contestant(program: &Path, name: &str, kind: &str, args: &[&str]) -> Contestant {
    Contestant::new(name, program, [&["contestant", kind][..], args].concat())
}

/// The `epoll` floor, which finds its number of connections itself. Its bytes are proved without that search: with any number
/// they are the same.
#[must_use]
pub fn floor_epoll(program: &Path) -> Contestant {
    own_contestant(program, "floor-epoll", "floor-epoll", &[]).proved_by(["--hash", "--connections", "8"])
}

/// Our loader as a contestant, with settings.
#[must_use]
pub fn loader_contestant(program: &Path, name: &str, settings: &Overrides) -> Contestant {
    let sets: Vec<String> = settings.iter().map(|(field, value)| format!("--set={field}={value}")).collect();
    let sets: Vec<&str> = sets.iter().map(String::as_str).collect();
    own_contestant(program, name, "fuelrail", &sets).proved_by(["--hash"]).once_by(["--once"])
}

/// Who takes part in a shape over a transport: the floors its bars need, all floors if asked, and the loader.
///
/// # Errors
/// `Environment` when the TLS floor cannot be compiled.
pub fn cast(line: &Line, venue: &Venue, shape: ShapeName, transport: Transport) -> Result<Vec<Contestant>> {
    let own = |name: &str, kind: &str, args: &[&str]| own_contestant(&line.program, name, kind, args);
    let proved = |name: &str, kind: &str, args: &[&str]| own(name, kind, args).proved_by(["--hash"]);
    let mut cast = Vec::new();
    let mut settings = line.loader.clone();
    if transport == Transport::Tls {
        if let Some(authority) = venue.authority() {
            for read_ahead in [false, true] {
                cast.push(ssl_contestant(venue.folder(), authority, read_ahead)?);
            }
            if let Some(settings) = &mut settings {
                settings.push(("ca_file".into(), authority.display().to_string()));
            }
        }
    } else if shape == ShapeName::First {
        // From the start of a process nobody touches memory ahead of its use.
        cast.push(own("floor-epoll", "floor-epoll", &["--touch", "false", "--connections", "8"]));
    } else {
        cast.push(proved("floor-recv", "floor-recv", &[]));
        cast.push(floor_epoll(&line.program));
        if line.all_floors {
            cast.push(proved("floor-recv-hot", "floor-recv", &["--hot"]));
            cast.push(own("floor-drop", "floor-drop", &["--connections", "1"]));
            cast.push(own("floor-copy", "floor-copy", &[]));
            cast.push(own("floor-copy-hot", "floor-copy", &["--hot"]));
        }
    }
    cast.extend(settings.map(|settings| loader_contestant(&line.program, LOADER, &settings)));
    Ok(cast)
}

/// What the loader is held to in a shape.
#[must_use]
pub fn bars(shape: ShapeName, transport: Transport, link_bits_per_s: Option<u64>) -> Vec<Bar> {
    let large = matches!(shape, ShapeName::Large | ShapeName::Volumes);
    let mut bars = match (shape, transport) {
        (_, Transport::Tls) if large => vec![Bar::ratio(LOADER, &["floor-ssl"], Metric::CpuSPerGb, 0.75)],
        (_, Transport::Tls) => Vec::new(),
        // A link slower than the processor wakes a blocking loop for every 64 KiB.
        _ if large && link_bits_per_s.is_some() => vec![Bar::ratio(LOADER, &["floor-recv"], Metric::CpuSPerGb, 0.70)],
        _ if large => vec![Bar::ratio(LOADER, &["floor-recv"], Metric::CpuSPerGb, 1.10)],
        (ShapeName::Mid, _) => vec![Bar::ratio(LOADER, &["floor-epoll"], Metric::CpuSPerGb, 1.15)],
        (ShapeName::Tiny, _) => vec![Bar::ratio(LOADER, &["floor-epoll"], Metric::CpuUsPerObject, 1.25)],
        _ => vec![Bar {
            of: LOADER.to_owned(),
            to: vec!["floor-epoll".to_owned()],
            metric: Metric::FirstBatchUs,
            heat: Heat::Cold,
            relation: Relation::Difference,
            bound: 3_000.0,
        }],
    };
    if shape != ShapeName::First {
        bars.push(Bar {
            of: LOADER.to_owned(),
            to: Vec::new(),
            metric: Metric::CopiedBytesPerByte,
            heat: Heat::Warm,
            relation: Relation::Alone,
            bound: 0.01,
        });
    }
    bars
}
