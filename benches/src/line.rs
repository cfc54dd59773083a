//! The benchmark behind `cargo x bench line`: what the loader costs beside the floors, on each ring, beside other people's
//! loaders; set by set, all in the same run.
//!
//! Owns which contestants take part in which set and which bars they are held to. Never draws on a terminal. A rival that is
//! not there is in the result with the reason and the cure; it is never skipped silently.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Instant;

use clap::Args;
use fuelrail::{Backend, Kind, Result, RingChoice};

use crate::floor::{CONNECTIONS_TRIED, ssl_contestant};
use crate::harness::result::SCHEMA;
use crate::harness::tool::HugePages;
use crate::harness::venue::BitRate;
use crate::harness::{
    Bar, Contest, Contestant, Contested, Entry, Findings, Heat, Laid, Metric, Relation, Scored, SetFacts, ShapeName,
    Stop, Task, Transport, Turn, Venue, VenueConfig, VenueKind, hold,
};
use crate::rivals::{Absent, Origin, Programs, Rival};
use fuelrail_cli::machine::Machine;

const EXAMPLES: &str = "Examples:
  cargo x bench line
  cargo x bench line --venue netns --shapes large,volumes,mid,tiny,first --json line.json
  cargo x bench line --venue netns --link 10gbit --shapes large
  cargo x bench line --shapes large --transport tls --set register=true
  cargo x bench line --rings uring,poll --shapes large,mid,tiny
  cargo x bench line --rivals hyper,object-store --shapes large,mid,tiny

Every contestant is a process of its own. Rounds go A B A B; ratios are taken within a round; the figures are medians with \
their range. Processor time is that of the whole process tree, from a cgroup where we may make one (root). Exit code 1 when a bar \
that could be judged does not hold, or a floor or the loader fails.

Floors are plain loops with no parsing beyond Content-Length: blocking recv, and epoll at the best of 1, 8 and 32 connections, both \
into an arena of the same size; over TLS OpenSSL's SSL_read in C, compiled on the spot, and a blocking loop over rustls with aws-lc. \
The cheapest of them is the judge.

Rivals: hyper, object-store, hyper-drop (native); curl, wrk (commands); boto3, dataloader-boto3, s3torchconnector, s3dlio, webdataset, \
mosaicml-streaming, runai-model-streamer, obstore, litdata, and our own package as fuelrail-python (Python). Each runs with the \
settings its makers recommend, and at the number of connections (1, 8, 32) that costs it the least; both are in the result. One that \
is not there is listed with the reason and how to install it. The native ones come from the program fuelrail-rival (cargo build \
--release -p fuelrail-rivals). A pass of a Python rival goes over the set once: they are slow.";

/// Measure the loader beside the floors, on each ring, or beside other people's loaders
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(crate) struct LineArgs {
    /// The server: nginx on loopback, nginx behind a network namespace of its own (root), or the embedded bucket
    #[arg(long, value_enum, default_value = "loopback")]
    pub(crate) venue: VenueKind,
    /// Hold the namespace's link to a rate, for example 1gbit or 10gbit
    #[arg(long, value_name = "RATE")]
    pub(crate) link: Option<BitRate>,
    /// Where the objects are written and kept [default: a folder in /dev/shm, removed at the end]
    #[arg(long, value_name = "FOLDER")]
    pub(crate) dir: Option<PathBuf>,
    /// Shapes, with commas: large, volumes, mid, tiny, first
    #[arg(long, value_name = "NAMES", value_enum, value_delimiter = ',', default_value = "large,mid,tiny")]
    pub(crate) shapes: Vec<ShapeName>,
    /// Fewer and smaller objects: figures are published for 1
    #[arg(long, value_name = "SHARE", default_value_t = 1.0)]
    pub(crate) scale: f64,
    /// Rounds measured, after one for warmth
    #[arg(long, value_name = "N", default_value_t = 5)]
    pub(crate) rounds: u32,
    /// Seed of the order
    #[arg(long, default_value_t = 0)]
    pub(crate) seed: u64,
    /// Let server and contestants run on any core
    #[arg(long)]
    pub(crate) no_pin: bool,
    /// Over what, with commas
    #[arg(long, value_name = "NAMES", value_enum, value_delimiter = ',', default_value = "plain")]
    pub(crate) transport: Vec<Transport>,
    /// Under how many names a pass reads every object [default: 4, first 1; Python rivals always 1]
    #[arg(long, value_name = "N")]
    pub(crate) repeats: Option<u32>,
    /// A setting of the loader over its defaults, by the name of its field
    #[arg(long = "set", value_name = "FIELD=VALUE", value_parser = fuelrail_cli::bench::setting)]
    pub(crate) settings: Vec<(String, String)>,
    /// The loader on each of these rings, with commas [default: all of this build]
    #[arg(long, value_name = "NAMES", num_args = 0.., value_delimiter = ',', conflicts_with = "rivals", value_parser = ring)]
    pub(crate) rings: Option<Vec<String>>,
    /// Other people's loaders as well, with commas [default: all]
    #[arg(long, value_name = "NAMES", num_args = 0.., value_delimiter = ',')]
    pub(crate) rivals: Option<Vec<&'static Rival>>,
    /// Install the Python rivals first: some 7 GB, minutes
    #[arg(long, requires = "rivals")]
    pub(crate) python: bool,
    /// Where the Python rivals are installed [default: fuelrail/rivals in the user's cache folder]
    #[arg(long, value_name = "FOLDER", requires = "rivals")]
    pub(crate) python_dir: Option<PathBuf>,
    /// The program with the native rivals [default: fuelrail-rival beside this one]
    #[arg(long, value_name = "FILE", requires = "rivals")]
    pub(crate) rival_program: Option<PathBuf>,
    /// Print the result as one JSON document, or write it to FILE beside the table
    #[arg(long, value_name = "FILE", num_args = 0..=1, default_missing_value = "-")]
    pub(crate) json: Option<String>,
}

pub(crate) fn ring(name: &str) -> Result<String> {
    name.parse::<RingChoice>().map(|_| name.to_owned())
}

/// What to measure and with what.
pub(crate) struct Line<'a> {
    pub(crate) args: &'a LineArgs,
    /// Other people's loaders that are to take part.
    pub(crate) rivals: Vec<&'static Rival>,
    pub(crate) programs: Programs,
    /// The program that holds the floors and the loader: this one.
    pub(crate) program: PathBuf,
    pub(crate) stop: Stop,
}

/// What is told while it runs.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Step<'a> {
    /// A shape's objects are being written: bytes so far, and in all.
    Laying(ShapeName, u64, u64),
    Turn(&'a str, Turn<'a>),
}

/// Our loader's name among contestants.
const LOADER: &str = "fuelrail";
/// Connections of the client that asks what the server can give.
const ENTITLEMENT_CONNECTIONS: &str = "8";
/// Under how many names a pass reads every object of a shape, so that starting and ending a run weigh little.
const REPEATS: u32 = 4;

pub(crate) fn line(line: &Line<'_>, watch: &mut dyn FnMut(Step<'_>)) -> Result<Findings> {
    let start = Instant::now();
    let args = line.args;
    let (_huge_pages, unequal) = HugePages::on();
    let venue = Venue::open(&args.venue())?;
    let with_python = line.rivals.iter().any(|rival| matches!(rival.origin, Origin::Python(_)));
    if with_python && line.programs.python.stands() {
        line.programs.python.write_scripts()?;
    }
    let mut findings = line.findings(&venue);
    findings.notices.extend(unequal);
    for name in &args.shapes {
        let set = Set::laid(line, *name, &venue, watch)?;
        for transport in &args.transport {
            findings.contests.push(line.contest(&venue, &set, *transport, watch)?);
        }
    }
    for scored in findings.contests.iter().flat_map(|contest| &contest.contestants) {
        if let Some(failure) = &scored.failure {
            findings.notices.push(format!("{} is not in the figures: {failure}", scored.name));
        }
    }
    if !findings.machine.optimised {
        findings.notices.push("an unoptimised build: its figures mean nothing".into());
    }
    findings.notices.sort();
    findings.notices.dedup();
    findings.wall_s = start.elapsed().as_secs_f64();
    Ok(findings)
}

/// Objects to read: each once, and under as many names as a pass of a fast client needs to be long enough. Python loaders read
/// them once: they need minutes for more.
struct Set {
    shape: ShapeName,
    facts: SetFacts,
    once: Laid,
    repeated: Laid,
}

impl Set {
    fn laid(line: &Line<'_>, name: ShapeName, venue: &Venue, watch: &mut dyn FnMut(Step<'_>)) -> Result<Set> {
        let shape = name.shape(line.args.scale)?;
        let total = shape.bytes();
        let mut lay = |repeats: u32| {
            shape.lay(venue.folder(), repeats, &line.stop, &mut |done| watch(Step::Laying(name, done, total)))
        };
        let once = lay(1)?;
        let repeated = lay(line.args.repeats.unwrap_or(if name == ShapeName::First { 1 } else { REPEATS }))?;
        Ok(Set { shape: name, facts: SetFacts::of(&shape, &repeated), once, repeated })
    }

    fn task(&self, laid: &Laid, venue: &Venue, transport: Transport, seed: u64) -> Result<Task> {
        let SetFacts { batch_size, arena_bytes, .. } = self.facts;
        let (uri, manifest) = (venue.uri(laid, transport)?, laid.manifest.clone());
        Ok(Task { uri, manifest, batch_size, arena_bytes, seed })
    }
}

impl LineArgs {
    fn venue(&self) -> VenueConfig {
        let kind = self.venue;
        let free = VenueConfig { kind, ..VenueConfig::default() };
        VenueConfig {
            link_bits_per_s: self.link.map(|rate| rate.0),
            folder: self.dir.clone(),
            tls: self.transport.contains(&Transport::Tls),
            ..if self.no_pin { free } else { VenueConfig::pinned(kind) }
        }
    }

    /// The rings asked for; all of this build when `--rings` stands alone.
    fn rings(&self) -> Vec<String> {
        match &self.rings {
            Some(asked) if asked.is_empty() => Backend::ALL.iter().map(ToString::to_string).collect(),
            asked => asked.clone().unwrap_or_default(),
        }
    }
}

impl Line<'_> {
    /// A result of this benchmark, still without contests.
    fn findings(&self, venue: &Venue) -> Findings {
        let args = self.args;
        let question = match args {
            LineArgs { rings: Some(_), .. } => "rings",
            LineArgs { rivals: Some(_), .. } => "rivals",
            _ => "line",
        };
        let mut config = BTreeMap::new();
        let mut note = |name: &str, value: String| config.insert(name.to_owned(), value);
        note("scale", args.scale.to_string());
        note("repeats", args.repeats.map_or_else(|| "by shape".to_owned(), |repeats| repeats.to_string()));
        note("rounds", args.rounds.to_string());
        note("seed", args.seed.to_string());
        // Results of a loader that was built anew in every pass have no such line, and are unlike these.
        note("passes", "one loader, from rest to rest".to_owned());
        for (name, value) in &args.settings {
            note(&format!("loader.{name}"), value.clone());
        }
        Findings {
            schema: SCHEMA,
            question: question.to_owned(),
            machine: Machine::here(),
            venue: venue.facts.clone(),
            config,
            contests: Vec::new(),
            notices: Vec::new(),
            wall_s: 0.0,
        }
    }

    fn contest(
        &self,
        venue: &Venue,
        set: &Set,
        transport: Transport,
        watch: &mut dyn FnMut(Step<'_>),
    ) -> Result<Contested> {
        let task = set.task(&set.repeated, venue, transport, self.args.seed)?;
        // Cold if the time to the first batch is measured, else warm.
        let cold = set.shape == ShapeName::First;
        let contest = Contest {
            rounds: if cold { 0 } else { self.args.rounds },
            cold_rounds: if cold { self.args.rounds } else { 0 },
            place: venue.place.clone(),
            expected_hash: set.facts.hash.clone(),
            stop: self.stop.clone(),
            ..Contest::default()
        };
        let cast = self.cast(venue, set.shape, transport)?;
        let mut entries: Vec<Entry> = cast.into_iter().map(|contestant| Entry::new(contestant, task.clone())).collect();
        let mut missing = Vec::new();
        for rival in &self.rivals {
            match self.take_part(rival, venue, set, transport)? {
                Ok(entry) => entries.push(entry),
                Err((word, reason)) => {
                    let (failure, absence) = (Some(reason), Some(word.to_owned()));
                    missing.push(Scored { name: rival.name.to_owned(), failure, absence, ..Scored::default() });
                }
            }
        }
        let mut scores = hold(&contest, &entries, &mut |turn| watch(Step::Turn(&set.facts.name, turn)))?;
        for score in &mut scores {
            let rival = self.rivals.iter().find(|rival| rival.name == score.name);
            if let Some(caveat) = rival.and_then(|rival| rival.caveat) {
                score.settings = format!("{}; {caveat}", score.settings);
            }
        }
        scores.extend(missing);
        let mut bars = Vec::new();
        if self.args.rings.is_none() {
            bars = self::bars(set.shape, transport, venue.facts.link_bits_per_s);
            bars.extend(self.rivals.iter().filter_map(|rival| promised(rival, set.shape)));
        }
        let mut contested = Contested::new(set.facts.clone(), transport, scores, &bars);
        if transport == Transport::Plain && contest.rounds > 0 {
            contested.entitlement_gb_per_s = self.entitlement(&contest, &task)?;
        }
        Ok(contested)
    }

    /// What the server gives at most: a client whose kernel drops all payload, over several connections. None when it fails.
    fn entitlement(&self, contest: &Contest, task: &Task) -> Result<Option<f64>> {
        let args = ["--connections", ENTITLEMENT_CONNECTIONS];
        let dropper = own_contestant(&self.program, "entitlement", "floor-drop", &args);
        let contest = Contest { rounds: 3, cold_rounds: 0, expected_hash: None, ..contest.clone() };
        let scores = hold(&contest, &[Entry::new(dropper, task.clone())], &mut |_| {})?;
        let speeds = scores[0].passes.iter().filter_map(|pass| Metric::GbPerS.of(pass));
        Ok(speeds.reduce(f64::max))
    }

    /// Who takes part in a shape over a transport: the floors its bars need, and the loader.
    fn cast(&self, venue: &Venue, shape: ShapeName, transport: Transport) -> Result<Vec<Contestant>> {
        let own = |name: &str, kind: &str, args: &[&str]| own_contestant(&self.program, name, kind, args);
        let proved = |name: &str, kind: &str, args: &[&str]| own(name, kind, args).proved_by(["--hash"]);
        let mut cast = Vec::new();
        let mut settings = self.args.settings.clone();
        if transport == Transport::Tls {
            if let Some(authority) = &venue.authority {
                for read_ahead in [false, true] {
                    cast.push(ssl_contestant(venue.folder(), authority, read_ahead)?);
                }
                let trusted = authority.display().to_string();
                cast.push(proved("floor-rustls", "floor-rustls", &["--ca", &trusted]));
                settings.push(("ca_file".into(), trusted));
            }
        } else if shape == ShapeName::First {
            // Measured from the start of the process, so touching the arena first would be part of the time.
            cast.push(own("floor-epoll", "floor-epoll", &["--touch", "false", "--connections", "8"]));
        } else {
            cast.push(proved("floor-recv", "floor-recv", &[]));
            // It finds its number of connections itself; its bytes are proved without that search: with any number they
            // are the same.
            cast.push(own("floor-epoll", "floor-epoll", &[]).proved_by(["--hash", "--connections", "8"]));
        }
        let loader = |name: &str, ring: Option<&String>| {
            let ring = ring.map(|ring| format!("--set=ring={ring}"));
            let sets = settings.iter().map(|(field, value)| format!("--set={field}={value}"));
            let sets: Vec<String> = sets.chain(ring).collect();
            let sets: Vec<&str> = sets.iter().map(String::as_str).collect();
            Contestant { once_args: vec!["--once".into()], ..proved(name, "fuelrail", &sets) }
        };
        cast.extend(self.args.rings().iter().map(|ring| loader(ring, Some(ring))));
        if self.args.rings.is_none() {
            cast.push(loader(LOADER, None));
        }
        Ok(cast)
    }

    /// The rival with its task; or why it is absent. If shards cannot be packed, this rival is absent; the others run.
    fn take_part(
        &self,
        rival: &Rival,
        venue: &Venue,
        set: &Set,
        transport: Transport,
    ) -> Result<Result<Entry, Absent>> {
        if let Err(absent) = self.programs.find(rival, transport) {
            return Ok(Err(absent));
        }
        let slow = matches!(rival.origin, Origin::Python(_));
        let laid = if slow { &set.once } else { &set.repeated };
        let found = self.cheapest(rival, venue, set, transport);
        match found.and_then(|count| self.programs.contestant(rival, count, laid, venue, &self.stop)) {
            Ok(contestant) => {
                let task = set.task(laid, venue, transport, self.args.seed)?;
                let expected_hash = set.facts.hash.as_ref().map(|_| laid.hash.clone());
                Ok(Ok(Entry { contestant, task, expected_hash }))
            }
            Err(error) if error.kind() == Kind::Cancelled => Err(error),
            Err(error) => Ok(Err(("not packed", format!("{error}; see whether its script runs by hand")))),
        }
    }

    /// At how many connections a rival costs the least processor time, each number tried in one pass over the set; none where it has no
    /// such setting.
    fn cheapest(&self, rival: &Rival, venue: &Venue, set: &Set, transport: Transport) -> Result<Option<u16>> {
        if !rival.has_connections {
            return Ok(None);
        }
        let task = set.task(&set.once, venue, transport, self.args.seed)?;
        let with = |count| self.programs.contestant(rival, Some(count), &set.once, venue, &self.stop);
        let entries: Result<Vec<Entry>> =
            CONNECTIONS_TRIED.into_iter().map(|count| Ok(Entry::new(with(count)?, task.clone()))).collect();
        let contest = Contest { rounds: 1, place: venue.place.clone(), stop: self.stop.clone(), ..Contest::default() };
        let scores = hold(&contest, &entries?, &mut |_| {})?;
        let cost = |scored: &Scored| scored.passes.first()?.cpu_s_per_gb();
        let costs =
            CONNECTIONS_TRIED.into_iter().zip(&scores).filter_map(|(count, scored)| Some((count, cost(scored)?)));
        Ok(costs.min_by(|a, b| a.1.total_cmp(&b.1)).map(|(count, _)| count))
    }
}

/// One of this program's own contestants with its name, its kind and more arguments.
fn own_contestant(program: &Path, name: &str, kind: &str, args: &[&str]) -> Contestant {
    Contestant::new(name, program, [&["contestant", kind][..], args].concat())
}

fn promised(rival: &Rival, shape: ShapeName) -> Option<Bar> {
    let metric = if shape == ShapeName::Tiny { Metric::CpuUsPerObject } else { Metric::CpuSPerGb };
    Some(Bar::ratio(LOADER, &[rival.name], metric, rival.bar(shape)?))
}

/// Floors that bring the bytes: the cheapest of them is what the loader is held to.
const FLOORS: [&str; 2] = ["floor-recv", "floor-epoll"];
const TLS_FLOORS: [&str; 3] = ["floor-ssl", "floor-ssl-ahead", "floor-rustls"];

/// What the loader is held to in a shape.
fn bars(shape: ShapeName, transport: Transport, link_bits_per_s: Option<u64>) -> Vec<Bar> {
    let large = matches!(shape, ShapeName::Large | ShapeName::Volumes);
    let mut bars = match (shape, transport) {
        (_, Transport::Tls) if large => vec![Bar::ratio(LOADER, &TLS_FLOORS, Metric::CpuSPerGb, 0.75)],
        (_, Transport::Tls) => Vec::new(),
        // A link slower than the processor wakes a blocking loop for every 64 KiB.
        _ if large && link_bits_per_s.is_some() => vec![Bar::ratio(LOADER, &FLOORS, Metric::CpuSPerGb, 0.70)],
        _ if large => vec![Bar::ratio(LOADER, &FLOORS, Metric::CpuSPerGb, 1.10)],
        (ShapeName::Mid, _) => vec![Bar::ratio(LOADER, &FLOORS, Metric::CpuSPerGb, 1.15)],
        (ShapeName::Tiny, _) => vec![Bar::ratio(LOADER, &FLOORS, Metric::CpuUsPerObject, 1.25)],
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
