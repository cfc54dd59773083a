//! The harness: contestants as processes of their own, interleaved passes, processor time of whole process trees, servers
//! to read from, and results that can be compared.
//!
//! Owns the order of passes: every contestant once, in turn, again and again (A B A B …), so that whatever changes on the machine meanwhile
//! meets them all; ratios are then taken within rounds. The protocol that contestants speak is in [`protocol`].

pub mod account;
pub mod contestant;
pub mod protocol;
pub mod result;
pub mod shape;
pub(crate) mod tool;
pub mod venue;

use fuelrail::{Error, Kind, Result};
pub use fuelrail_cli::failure::Stop;

pub use self::account::Place;
pub use self::contestant::{Contestant, Pass, Patience, Running};
pub use self::protocol::{Said, SetHash, Task};
pub use self::result::{Bar, Contested, Findings, Heat, Judged, Metric, Relation, Scored, SetFacts, Spread};
pub use self::shape::{Laid, Shape, ShapeName};
pub use self::venue::{Transport, Venue, VenueConfig, VenueFacts, VenueKind};

#[derive(Clone, Debug)]
pub struct Entry {
    pub contestant: Contestant,
    pub task: Task,
    /// The hash it must come to, where its task is another than that of the contest.
    pub expected_hash: Option<String>,
}

impl Entry {
    pub fn new(contestant: Contestant, task: Task) -> Entry {
        Entry { contestant, task, expected_hash: None }
    }
}

#[derive(Clone, Debug, Default)]
pub struct Contest {
    /// Measured rounds, after one that is not counted.
    pub rounds: u32,
    /// Cold rounds: every contestant from the start of its process, nothing kept.
    pub cold_rounds: u32,
    pub place: Place,
    pub patience: Patience,
    /// The hash that every contestant with hashing must return, in an unmeasured pass before all others.
    pub expected_hash: Option<String>,
    pub stop: Stop,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Stage {
    Proof,
    /// From the start of a process, in this round; the first is 1.
    Cold(u32),
    WarmUp,
    /// Measured in this round; the first is 1.
    Round(u32),
}

impl core::fmt::Display for Stage {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Stage::Proof => f.write_str("proof"),
            Stage::Cold(round) => write!(f, "cold round {round}"),
            Stage::WarmUp => f.write_str("warm-up"),
            Stage::Round(round) => write!(f, "round {round}"),
        }
    }
}

/// What is told while a contest is held: when a pass begins, and again when it has ended.
#[derive(Clone, Copy, Debug)]
pub struct Turn<'a> {
    pub name: &'a str,
    pub stage: Stage,
    pub done: u32,
    pub total: u32,
    /// What it came to, or why it failed; none when it begins.
    pub ended: Option<Result<&'a Pass, &'a str>>,
}

/// Holds a contest. A contestant that fails is out, with its reason in its score; the others go on.
///
/// # Errors
/// `Cancelled` when asked to stop. Nothing of the contestants is left then either.
pub fn hold(contest: &Contest, entries: &[Entry], watch: &mut dyn FnMut(Turn<'_>)) -> Result<Vec<Scored>> {
    let mut scores: Vec<Scored> =
        entries.iter().map(|entry| Scored { name: entry.contestant.name.clone(), ..Scored::default() }).collect();
    let mut running: Vec<Option<Running>> = entries.iter().map(|_| None).collect();
    let proof = contest.expected_hash.iter().map(|_| Stage::Proof);
    let cold = (1..=contest.cold_rounds).map(Stage::Cold);
    let warm_up = (contest.rounds > 0).then_some(Stage::WarmUp);
    let stages: Vec<Stage> = proof.chain(cold).chain(warm_up).chain((1..=contest.rounds).map(Stage::Round)).collect();
    let total = (stages.len() * entries.len()) as u32;
    let mut done = 0;
    for stage in stages {
        for ((entry, score), running) in entries.iter().zip(&mut scores).zip(&mut running) {
            let turn = Turn { name: &entry.contestant.name, stage, done, total, ended: None };
            watch(turn);
            // Who is out already is passed over, but counted: the end of the contest stays where it is.
            done += 1;
            if score.failure.is_some() {
                continue;
            }
            let outcome = contest.pass(stage, entry, score, running);
            let pass = out_if_failed(score, outcome)?.flatten();
            match (&pass, &score.failure) {
                (Some(pass), _) => watch(Turn { ended: Some(Ok(pass)), ..turn }),
                (None, Some(why)) => watch(Turn { ended: Some(Err(why)), ..turn }),
                (None, None) => {}
            }
            match stage {
                Stage::Proof => {}
                Stage::Cold(_) => score.cold_passes.extend(pass),
                Stage::WarmUp => score.warm_up = pass,
                Stage::Round(_) => score.passes.extend(pass),
            }
        }
    }
    for (running, score) in running.into_iter().zip(&mut scores) {
        if let Some(running) = running.filter(|_| score.failure.is_none()) {
            out_if_failed(score, running.finish())?;
        }
    }
    Ok(scores)
}

impl Contest {
    /// One pass of one contestant; none of one that cannot prove its bytes.
    fn pass(
        &self,
        stage: Stage,
        entry: &Entry,
        score: &mut Scored,
        running: &mut Option<Running>,
    ) -> Result<Option<Pass>> {
        let Contest { place, patience, stop, .. } = self;
        let Entry { contestant, task, .. } = entry;
        match stage {
            Stage::Proof => return self.prove(entry, score),
            Stage::Cold(_) => {
                let (pass, settings) = Running::cold(contestant, task, place, *patience, stop)?;
                score.settings = settings;
                return Ok(Some(pass));
            }
            Stage::WarmUp => *running = Some(Running::start(contestant, task, place, *patience, stop)?),
            Stage::Round(_) => {}
        }
        let running = running.as_mut().expect("it was started for its warm-up");
        let pass = running.pass()?;
        score.settings.clone_from(&running.settings);
        score.accounting = running.account.source().to_owned();
        Ok(Some(pass))
    }

    /// One pass with hashing, in a process of its own; none of who cannot hash.
    fn prove(&self, entry: &Entry, score: &mut Scored) -> Result<Option<Pass>> {
        let expected = entry.expected_hash.as_ref().or(self.expected_hash.as_ref());
        let (Some(expected), Some(proving)) = (expected, entry.contestant.proving()) else { return Ok(None) };
        let (pass, _) = Running::cold(&proving, &entry.task, &self.place, self.patience, &self.stop)?;
        let wrong = |what: String| {
            Err(Error::new(Kind::Mismatch, format!("contestant {} {what}", score.name))
                .with_hint("its bytes differ from the bucket's: its figures are not comparable"))
        };
        match &pass.hash {
            Some(hash) if hash == expected => {
                score.hash = Some(hash.clone());
                Ok(Some(pass))
            }
            Some(hash) => wrong(format!("delivered other bytes: hash {hash}, not {expected}")),
            None => wrong("returned no hash".to_owned()),
        }
    }
}

/// Records a failure in the score; a cancellation ends the contest.
fn out_if_failed<T>(score: &mut Scored, outcome: Result<T>) -> Result<Option<T>> {
    match outcome {
        Ok(value) => Ok(Some(value)),
        Err(error) if error.kind() == Kind::Cancelled => Err(error),
        Err(error) => {
            score.failure = Some(error.to_string());
            Ok(None)
        }
    }
}
