//! The question behind `cargo x bench rivals`: what the loader costs beside other people's clients and loaders, and beside
//! the floor, all in the same run.
//!
//! Owns who of them takes part and what was promised against each. A rival that is not there is in the result with the
//! reason and the cure; it is never left out in silence.

mod programs;
mod python;
mod roster;

use std::time::Instant;

use fuelrail::{Error, Kind, Result};

use crate::harness::{
    Bar, Contested, Entry, Findings, Laid, Metric, Score, SetFacts, Shape, ShapeName, Transport, Venue, VenueConfig,
    hold,
};
use crate::line::{self, LOADER, Line, Step};

pub use programs::{Absent, Programs, folders};
pub use python::Python;
pub use roster::{Origin, Packing, RIVALS, Rival};

/// What to measure.
#[derive(Clone, Debug)]
pub struct Question {
    /// Shapes, rounds, scale, and how the loader is run.
    pub line: Line,
    /// Who is asked to take part.
    pub rivals: Vec<&'static Rival>,
    /// Where they are.
    pub programs: Programs,
}

/// Asks the question at a venue.
///
/// # Errors
/// `Usage`, `Environment` and `File` from setting up; `Cancelled` when asked to stop. A rival that is absent or fails is in
/// the result with its reason.
pub fn rivals(question: &Question, at: &VenueConfig, watch: &mut dyn FnMut(Step<'_>)) -> Result<Findings> {
    let start = Instant::now();
    let Question { line, rivals, programs } = question;
    if rivals.is_empty() {
        return Err(Error::new(Kind::Usage, "nobody to compare with").cure("name a rival, or none for all"));
    }
    let tls = at.tls || line.transports.contains(&Transport::Tls);
    let venue = Venue::open(&VenueConfig { tls, ..at.clone() })?;
    if rivals.iter().any(|rival| matches!(rival.origin, Origin::Python(_))) && programs.python.stands() {
        programs.python.write_scripts()?;
    }
    let mut findings = line::findings(line, &venue);
    for name in &line.shapes {
        let shape = name.shape(line.scale)?;
        let total = shape.bytes();
        let mut lay = |repeats: u32| {
            let mut told = |done| watch(Step::Laying(*name, done, total));
            shape.lay_repeated(venue.folder(), repeats, &line.stop, &mut told)
        };
        let sets = Sets { once: lay(1)?, repeated: lay(line.repeats(*name))? };
        for transport in &line.transports {
            let contested = contest(question, &venue, &shape, &sets, *transport, watch)?;
            findings.notices.extend(left_out(&contested));
            findings.contests.push(contested);
        }
    }
    findings.notices.sort();
    findings.notices.dedup();
    findings.wall_s = start.elapsed().as_secs_f64();
    Ok(findings)
}

/// A shape as its objects, each once, and under as many names as a pass of a fast client needs to be long enough. Python
/// loaders read it once: they need minutes for more.
struct Sets {
    once: Laid,
    repeated: Laid,
}

fn contest(
    question: &Question,
    venue: &Venue,
    shape: &Shape,
    sets: &Sets,
    transport: Transport,
    watch: &mut dyn FnMut(Step<'_>),
) -> Result<Contested> {
    let Question { line, rivals, .. } = question;
    let task = line::task(venue, shape, &sets.repeated, transport, line.seed)?;
    let contest = line::rules(line, venue, shape, &sets.repeated);
    let cast = line::cast(line, venue, shape.name, transport)?;
    let mut entries: Vec<Entry> = cast.into_iter().map(|contestant| Entry::new(contestant, task.clone())).collect();
    let mut missing = Vec::new();
    for rival in rivals {
        match take_part(question, rival, venue, shape, sets, transport)? {
            Ok(entry) => entries.push(entry),
            Err(absent) => {
                let (failure, absence) = (Some(absent.to_string()), Some(absent.word.to_owned()));
                missing.push(Score { name: rival.name.to_owned(), failure, absence, ..Score::default() });
            }
        }
    }
    let mut scores = hold(&contest, &entries, &mut |turn| watch(Step::Turn(shape.name.word(), turn)))?;
    for score in &mut scores {
        if let Some(caveat) = rivals.iter().find(|rival| rival.name == score.name).and_then(|rival| rival.caveat) {
            score.settings = format!("{}; {caveat}", score.settings);
        }
    }
    scores.extend(missing);
    let mut bars = Vec::new();
    if line.loader.is_some() {
        bars = line::bars(shape.name, transport, venue.facts().link_bits_per_s);
        bars.extend(rivals.iter().filter_map(|rival| promised(rival, shape.name)));
    }
    Ok(Contested::new(SetFacts::of(shape, &sets.repeated), transport, scores, &bars))
}

/// The rival with its task; or why it is absent. Shards that cannot be packed are its absence, not everybody's failure.
fn take_part(
    question: &Question,
    rival: &Rival,
    venue: &Venue,
    shape: &Shape,
    sets: &Sets,
    transport: Transport,
) -> Result<Result<Entry, Absent>> {
    let Question { line, programs, .. } = question;
    if let Err(absent) = programs.find(rival, transport, venue.facts().kind) {
        return Ok(Err(absent));
    }
    let slow = matches!(rival.origin, Origin::Python(_));
    let laid = if slow { &sets.once } else { &sets.repeated };
    match programs.contestant(rival, shape.name, laid, venue, &line.stop) {
        Ok(contestant) => {
            let task = line::task(venue, shape, laid, transport, line.seed)?;
            Ok(Ok(Entry { contestant, task, expected_hash: Some(laid.hash.clone()) }))
        }
        Err(error) if error.kind() == Kind::Cancelled => Err(error),
        Err(error) => {
            let cure = "see whether its script runs by hand".to_owned();
            Ok(Err(Absent { word: "not packed", reason: error.to_string(), cure }))
        }
    }
}

/// What was promised against a rival in a shape.
fn promised(rival: &Rival, shape: ShapeName) -> Option<Bar> {
    let metric = if shape == ShapeName::Tiny { Metric::CpuUsPerObject } else { Metric::CpuSPerGb };
    Some(Bar::ratio(LOADER, &[rival.name], metric, rival.bar(shape)?))
}

/// One line for everybody who is not in a contest's figures.
fn left_out(contested: &Contested) -> impl Iterator<Item = String> {
    let out = contested.contestants.iter().filter_map(|scored| Some((&scored.name, scored.failure.as_ref()?)));
    out.map(|(name, failure)| format!("{name} is not in the figures: {failure}"))
}
