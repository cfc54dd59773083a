//! The question behind `fuelrail bench rivals`: what the loader costs beside other people's clients and loaders, and beside
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
    Bar, Contest, Contested, Contestant, Entry, Findings, Laid, Metric, Score, SetFacts, Shape, ShapeName, Transport,
    Venue, VenueConfig, hold,
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
        let laid = shape.lay(venue.folder(), &line.stop, &mut |done| watch(Step::Laying(*name, done, total)))?;
        for transport in &line.transports {
            let contested = contest(question, &venue, &shape, &laid, *transport, watch)?;
            findings.notices.extend(left_out(&contested));
            findings.contests.push(contested);
        }
    }
    findings.notices.sort();
    findings.notices.dedup();
    findings.wall_s = start.elapsed().as_secs_f64();
    Ok(findings)
}

fn contest(
    question: &Question,
    venue: &Venue,
    shape: &Shape,
    laid: &Laid,
    transport: Transport,
    watch: &mut dyn FnMut(Step<'_>),
) -> Result<Contested> {
    let Question { line, rivals, .. } = question;
    let task = line::task(venue, shape, laid, transport, line.seed)?;
    let contest: Contest = line::rules(line, venue, shape, laid);
    let mut cast = line::cast(line, venue, shape.name, transport)?;
    let mut missing = Vec::new();
    for rival in rivals {
        match take_part(question, rival, venue, shape, laid, transport)? {
            Ok(contestant) => cast.push(contestant),
            Err(absent) => {
                let failure = Some(absent.to_string());
                missing.push(Score { name: rival.name.to_owned(), failure, ..Score::default() });
            }
        }
    }
    let entries: Vec<Entry> = cast.into_iter().map(|contestant| Entry::new(contestant, task.clone())).collect();
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
    Ok(Contested::new(SetFacts::of(shape, laid), transport, scores, &bars))
}

/// The rival as a contestant; or why it is absent. Shards that cannot be packed are its absence, not everybody's failure.
fn take_part(
    question: &Question,
    rival: &Rival,
    venue: &Venue,
    shape: &Shape,
    laid: &Laid,
    transport: Transport,
) -> Result<Result<Contestant, Absent>> {
    let Question { line, programs, .. } = question;
    if let Err(absent) = programs.find(rival, transport, venue.facts().kind) {
        return Ok(Err(absent));
    }
    match programs.contestant(rival, shape, laid, venue, &line.stop) {
        Ok(contestant) => Ok(Ok(contestant)),
        Err(error) if error.kind() == Kind::Cancelled => Err(error),
        Err(error) => {
            let cure = "see whether its script runs by hand".to_owned();
            Ok(Err(Absent { reason: error.to_string(), cure }))
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
