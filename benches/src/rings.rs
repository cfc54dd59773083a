//! The question behind `cargo x bench rings`: what the loader costs on each back-end, shape by shape beside the floors, and
//! what a disk's blocks cost on each, all in one run.
//!
//! Owns which contestants take part. Holds nobody to a bar: which ring is best is what the table is for.

use std::path::PathBuf;
use std::time::Instant;

use fuelrail::{Overrides, Result};

use crate::disk::Blocks;
use crate::harness::{
    Contestant, Contested, Entry, Findings, SetFacts, ShapeName, Transport, Venue, VenueConfig, hold,
};
use crate::line::{Line, Step, findings, floor_epoll, loader_contestant, own_contestant, rules, task};
use crate::spill::{Spill, contests};

/// What to measure.
#[derive(Clone, Debug)]
pub struct Rings {
    /// Rings by name.
    pub rings: Vec<String>,
    /// Shapes, scale, rounds and the loader's settings.
    pub line: Line,
    /// Blocks to move to and from a disk, and a folder on it; none leaves the disk out.
    pub disk: Option<(PathBuf, Blocks)>,
}

/// Asks the question at a venue.
///
/// # Errors
/// As [`line`](crate::line::line) and [`spill`](crate::spill::spill).
pub fn rings(rings: &Rings, at: &VenueConfig, watch: &mut dyn FnMut(Step<'_>)) -> Result<Findings> {
    let start = Instant::now();
    let line = &rings.line;
    let venue = Venue::open(at)?;
    let mut findings = findings(line, &venue);
    for name in &line.shapes {
        let shape = name.shape(line.scale)?;
        let total = shape.bytes();
        let laid = shape.lay_repeated(venue.folder(), line.repeats(*name), &line.stop, &mut |done| {
            watch(Step::Laying(*name, done, total));
        })?;
        let task = task(&venue, &shape, &laid, Transport::Plain, line.seed)?;
        let entries: Vec<Entry> =
            cast(rings, *name).into_iter().map(|contestant| Entry::new(contestant, task.clone())).collect();
        let contest = rules(line, &venue, &shape, &laid);
        let scores = hold(&contest, &entries, &mut |turn| watch(Step::Turn(name.word(), turn)))?;
        findings.contests.push(Contested::new(SetFacts::of(&shape, &laid), Transport::Plain, scores, &[]));
    }
    if let Some((folder, blocks)) = &rings.disk {
        let spill = Spill {
            folder: folder.clone(),
            blocks: *blocks,
            rings: rings.rings.clone(),
            fio: false,
            rounds: line.rounds,
            program: line.program.clone(),
            stop: line.stop.clone(),
        };
        findings
            .contests
            .extend(contests(&spill, false, venue.place(), &mut |way, turn| watch(Step::Turn(way, turn)))?);
    }
    if !findings.machine.optimised {
        findings.notices.push("an unoptimised build: its figures mean nothing".into());
    }
    findings.wall_s = start.elapsed().as_secs_f64();
    Ok(findings)
}

/// The floors and the loader on each ring.
fn cast(rings: &Rings, shape: ShapeName) -> Vec<Contestant> {
    let program = &rings.line.program;
    let mut cast = Vec::new();
    if shape != ShapeName::First {
        cast.push(own_contestant(program, "floor-recv", "floor-recv", &[]).proved_by(["--hash"]));
        cast.push(floor_epoll(program));
    }
    cast.extend(rings.rings.iter().map(|ring| {
        let mut settings: Overrides = rings.line.loader.clone().unwrap_or_default();
        settings.push(("ring".to_owned(), ring.clone()));
        loader_contestant(program, ring, &settings)
    }));
    cast
}
