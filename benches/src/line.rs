//! The question behind `cargo x bench line`: what the loader costs beside the floors, on each ring, beside other people's
//! loaders; set by set, all in the same run.
//!
//! Owns which contestants take part in which set and which bars they are held to. Never draws on a terminal. A rival that is
//! not there is in the result with the reason and the cure; it is never left out in silence.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Instant;

use fuelrail::{ByteSize, Error, Kind, Listed, Overrides, Result, write_manifest};

use crate::floor::ssl_contestant;
use crate::harness::result::SCHEMA;
use crate::harness::{
    Bar, Contest, Contestant, Contested, Entry, Findings, Heat, Laid, Metric, Relation, Scored, SetFacts, ShapeName,
    Stop, Task, Transport, Turn, Venue, VenueConfig, hold,
};
use crate::own::split;
use crate::rivals::{Absent, Origin, Programs, Rival};
use fuelrail_cli::machine::Machine;

#[derive(Clone, Debug)]
pub struct Line {
    /// Shapes, in order.
    pub shapes: Vec<ShapeName>,
    pub transports: Vec<Transport>,
    /// A bucket that is there already, instead of shapes and transports. There are no bars: those are for sets that everybody
    /// can have.
    pub bucket: Option<External>,
    pub scale: f64,
    pub rounds: u32,
    /// Under how many names a pass reads every object; none chooses per shape.
    pub repeats: Option<u32>,
    pub seed: u64,
    /// Settings of the loader; none leaves the loader out.
    pub loader: Option<Overrides>,
    /// The loader on each of these rings, held to no bar, instead of once.
    pub rings: Vec<String>,
    /// Other people's loaders that are to take part.
    pub rivals: Vec<&'static Rival>,
    pub programs: Programs,
    /// Whether floors that no bar needs take part too: the hot buffer, the kernel's drop, the bare copy.
    pub all_floors: bool,
    /// The program that holds the floors and the loader: this one.
    pub program: PathBuf,
    pub stop: Stop,
}

/// A bucket and how it is read.
#[derive(Clone, Debug)]
pub struct External {
    /// `http[s]://HOST[:PORT]/BUCKET/PREFIX`.
    pub uri: String,
    /// Its objects, by whole keys.
    pub listing: Vec<Listed>,
    pub batch_size: u32,
    pub arena_bytes: u64,
}

/// What is told while it runs.
#[derive(Clone, Copy, Debug)]
pub enum Step<'a> {
    /// A shape's objects are being written: bytes so far, and in all.
    Laying(ShapeName, u64, u64),
    Turn(&'a str, Turn<'a>),
}

/// Our loader's name among contestants.
pub const LOADER: &str = "fuelrail";
/// Connections of the client that asks what the server can give.
const ENTITLEMENT_CONNECTIONS: &str = "8";
/// Under how many names a pass reads every object of a shape, so that starting and ending a run weigh little.
const REPEATS: u32 = 4;

pub fn line(line: &Line, at: &VenueConfig, watch: &mut dyn FnMut(Step<'_>)) -> Result<Findings> {
    let start = Instant::now();
    let uri = line.bucket.as_ref().map(|bucket| split(&bucket.uri).0.to_owned());
    let venue = Venue::open(&VenueConfig { uri, ..at.clone() })?;
    let with_python = line.rivals.iter().any(|rival| matches!(rival.origin, Origin::Python(_)));
    if with_python && line.programs.python.stands() {
        line.programs.python.write_scripts()?;
    }
    let mut findings = line.findings(&venue);
    if let Some(bucket) = &line.bucket {
        let set = Set::listed(bucket, &venue)?;
        let transport = if bucket.uri.starts_with("https:") { Transport::Tls } else { Transport::Plain };
        findings.contests.push(line.contest(&venue, &set, transport, watch)?);
        if bucket.arena_bytes > set.facts.bytes {
            let (arena, set) = (ByteSize(bucket.arena_bytes), ByteSize(set.facts.bytes));
            let text = format!("the arena of {arena} is larger than the set of {set}: its memory stays cold");
            findings.notices.push(text);
        }
    } else {
        for name in &line.shapes {
            let set = Set::laid(line, *name, &venue, watch)?;
            for transport in &line.transports {
                findings.contests.push(line.contest(&venue, &set, *transport, watch)?);
            }
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
    shape: Option<ShapeName>,
    facts: SetFacts,
    once: Laid,
    repeated: Laid,
}

impl Set {
    fn laid(line: &Line, name: ShapeName, venue: &Venue, watch: &mut dyn FnMut(Step<'_>)) -> Result<Set> {
        let shape = name.shape(line.scale)?;
        let total = shape.bytes();
        let mut lay = |repeats: u32| {
            shape.lay(venue.folder(), repeats, &line.stop, &mut |done| watch(Step::Laying(name, done, total)))
        };
        let once = lay(1)?;
        let repeated = lay(line.repeats.unwrap_or(if name == ShapeName::First { 1 } else { REPEATS }))?;
        Ok(Set { shape: Some(name), facts: SetFacts::of(&shape, &repeated), once, repeated })
    }

    /// The objects of a bucket, whose hash is not known.
    fn listed(bucket: &External, venue: &Venue) -> Result<Set> {
        let bytes: u64 = bucket.listing.iter().map(|object| object.size).sum();
        if bytes == 0 {
            return Err(
                Error::new(Kind::Usage, format!("{} has no bytes to read", bucket.uri)).cure("check the prefix")
            );
        }
        let manifest = venue.folder().join("external.tsv");
        write_manifest(&manifest, &bucket.listing)?;
        let objects = bucket.listing.len() as u64;
        let (batch_size, arena_bytes) = (bucket.batch_size, bucket.arena_bytes);
        let facts =
            SetFacts { name: "external".into(), scale: None, objects, bytes, batch_size, arena_bytes, hash: None };
        let once = Laid { prefix: String::new(), manifest, objects, bytes, hash: String::new() };
        Ok(Set { shape: None, facts, repeated: once.clone(), once })
    }

    /// Who takes part in a shape of middling objects can read any object.
    fn shape(&self) -> ShapeName {
        self.shape.unwrap_or(ShapeName::Mid)
    }

    fn task(&self, laid: &Laid, venue: &Venue, transport: Transport, seed: u64) -> Result<Task> {
        let SetFacts { batch_size, arena_bytes, .. } = self.facts;
        let (uri, manifest) = (venue.uri(laid, transport)?, laid.manifest.clone());
        Ok(Task { uri, manifest, batch_size, arena_bytes, seed })
    }
}

impl Line {
    /// A result of this question, still without contests.
    fn findings(&self, venue: &Venue) -> Findings {
        let question = match self {
            Line { loader: None, .. } => "floor",
            Line { rings, .. } if !rings.is_empty() => "rings",
            Line { rivals, .. } if !rivals.is_empty() => "rivals",
            _ => "line",
        };
        let mut config = BTreeMap::new();
        let mut note = |name: &str, value: String| config.insert(name.to_owned(), value);
        if self.bucket.is_none() {
            note("scale", self.scale.to_string());
            note("repeats", self.repeats.map_or_else(|| "by shape".to_owned(), |repeats| repeats.to_string()));
        }
        note("rounds", self.rounds.to_string());
        note("seed", self.seed.to_string());
        if self.loader.is_some() {
            // Results of a loader that was built anew in every pass have no such line, and are unlike these.
            note("passes", "one loader, from rest to rest".to_owned());
        }
        for (name, value) in self.loader.iter().flatten() {
            note(&format!("loader.{name}"), value.clone());
        }
        Findings {
            schema: SCHEMA,
            question: question.to_owned(),
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
        &self,
        venue: &Venue,
        set: &Set,
        transport: Transport,
        watch: &mut dyn FnMut(Step<'_>),
    ) -> Result<Contested> {
        let task = set.task(&set.repeated, venue, transport, self.seed)?;
        // Cold where the time to the first batch is the question, else warm.
        let cold = set.shape == Some(ShapeName::First);
        let contest = Contest {
            rounds: if cold { 0 } else { self.rounds },
            cold_rounds: if cold { self.rounds } else { 0 },
            place: venue.place().clone(),
            expected_hash: set.facts.hash.clone(),
            stop: self.stop.clone(),
            ..Contest::default()
        };
        let cast = self.cast(venue, set.shape(), transport)?;
        let mut entries: Vec<Entry> = cast.into_iter().map(|contestant| Entry::new(contestant, task.clone())).collect();
        let mut missing = Vec::new();
        for rival in &self.rivals {
            match self.take_part(rival, venue, set, transport)? {
                Ok(entry) => entries.push(entry),
                Err(absent) => {
                    let (failure, absence) = (Some(absent.to_string()), Some(absent.word.to_owned()));
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
        if let (Some(shape), Some(_), true) = (set.shape, &self.loader, self.rings.is_empty()) {
            bars = self::bars(shape, transport, venue.facts().link_bits_per_s);
            bars.extend(self.rivals.iter().filter_map(|rival| promised(rival, shape)));
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

    /// Who takes part in a shape over a transport: the floors its bars need, all floors if asked, and the loader.
    fn cast(&self, venue: &Venue, shape: ShapeName, transport: Transport) -> Result<Vec<Contestant>> {
        let own = |name: &str, kind: &str, args: &[&str]| own_contestant(&self.program, name, kind, args);
        let proved = |name: &str, kind: &str, args: &[&str]| own(name, kind, args).proved_by(["--hash"]);
        let mut cast = Vec::new();
        let mut settings = self.loader.clone();
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
            // Measured from the start of the process, so touching the arena first would be part of the time.
            cast.push(own("floor-epoll", "floor-epoll", &["--touch", "false", "--connections", "8"]));
        } else {
            cast.push(proved("floor-recv", "floor-recv", &[]));
            // It finds its number of connections itself; its bytes are proved without that search: with any number they
            // are the same.
            cast.push(own("floor-epoll", "floor-epoll", &[]).proved_by(["--hash", "--connections", "8"]));
            if self.all_floors {
                cast.push(proved("floor-recv-hot", "floor-recv", &["--hot"]));
                cast.push(own("floor-drop", "floor-drop", &["--connections", "1"]));
                cast.push(own("floor-copy", "floor-copy", &[]));
                cast.push(own("floor-copy-hot", "floor-copy", &["--hot"]));
            }
        }
        if let Some(settings) = settings {
            let loader = |name: &str, ring: Option<&String>| {
                let ring = ring.map(|ring| format!("--set=ring={ring}"));
                let sets = settings.iter().map(|(field, value)| format!("--set={field}={value}"));
                let sets: Vec<String> = sets.chain(ring).collect();
                let sets: Vec<&str> = sets.iter().map(String::as_str).collect();
                proved(name, "fuelrail", &sets).once_by(["--once"])
            };
            cast.extend(self.rings.iter().map(|ring| loader(ring, Some(ring))));
            if self.rings.is_empty() {
                cast.push(loader(LOADER, None));
            }
        }
        Ok(cast)
    }

    /// The rival with its task; or why it is absent. Shards that cannot be packed are its absence, not everybody's failure.
    fn take_part(
        &self,
        rival: &Rival,
        venue: &Venue,
        set: &Set,
        transport: Transport,
    ) -> Result<Result<Entry, Absent>> {
        if let Err(absent) = self.programs.find(rival, transport, venue.facts().kind) {
            return Ok(Err(absent));
        }
        let slow = matches!(rival.origin, Origin::Python(_));
        let laid = if slow { &set.once } else { &set.repeated };
        match self.programs.contestant(rival, set.shape(), laid, venue, &self.stop) {
            Ok(contestant) => {
                let task = set.task(laid, venue, transport, self.seed)?;
                let expected_hash = set.facts.hash.as_ref().map(|_| laid.hash.clone());
                Ok(Ok(Entry { contestant, task, expected_hash }))
            }
            Err(error) if error.kind() == Kind::Cancelled => Err(error),
            Err(error) => {
                let cure = "see whether its script runs by hand".to_owned();
                Ok(Err(Absent { word: "not packed", reason: error.to_string(), cure }))
            }
        }
    }
}

/// One of this program's own contestants with its name, its kind and more arguments.
fn own_contestant(program: &Path, name: &str, kind: &str, args: &[&str]) -> Contestant {
    Contestant::new(name, program, [&["contestant", kind][..], args].concat())
}

/// What was promised against a rival in a shape.
fn promised(rival: &Rival, shape: ShapeName) -> Option<Bar> {
    let metric = if shape == ShapeName::Tiny { Metric::CpuUsPerObject } else { Metric::CpuSPerGb };
    Some(Bar::ratio(LOADER, &[rival.name], metric, rival.bar(shape)?))
}

/// What the loader is held to in a shape.
fn bars(shape: ShapeName, transport: Transport, link_bits_per_s: Option<u64>) -> Vec<Bar> {
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
