//! Rounds: every contestant once, in turn, again and again (A B A B …), so that whatever changes on the machine meanwhile
//! meets them all; ratios are then taken within rounds.
//!
//! Owns the order of passes. Never judges them.

use fuelrail::{Error, Kind, Result};

use super::contestant::{Contestant, Pass, Patience, Running};
use super::place::Place;
use super::protocol::Task;
use super::scored::Scored;
use fuelrail_cli::stop::Stop;

/// One contestant and what it is to do.
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

/// How a contest is held.
#[derive(Clone, Debug)]
pub struct Contest {
    /// Measured rounds, after one that is not counted.
    pub rounds: u32,
    /// Cold rounds: every contestant from the start of its process, nothing kept.
    pub cold_rounds: u32,
    pub place: Place,
    pub patience: Patience,
    /// The hash that everybody who can hash must come to, in a pass before all others that is not measured.
    pub expected_hash: Option<String>,
    pub stop: Stop,
}

impl Default for Contest {
    /// Five warm rounds, no cold one, anywhere.
    fn default() -> Contest {
        Contest {
            rounds: 5,
            cold_rounds: 0,
            place: Place::default(),
            patience: Patience::default(),
            expected_hash: None,
            stop: Stop::default(),
        }
    }
}

/// What a pass is for.
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
pub fn hold(contest: &Contest, entries: &[Entry], watch: &mut dyn FnMut(Turn<'_>)) -> Result<Vec<Scored>> {
    let mut scores: Vec<Scored> =
        entries.iter().map(|entry| Scored { name: entry.contestant.name.clone(), ..Scored::default() }).collect();
    let each = entries.len() as u32;
    let warm_rounds = if contest.rounds > 0 { contest.rounds + 1 } else { 0 };
    let proofs = u32::from(contest.expected_hash.is_some());
    let total = each * (proofs + contest.cold_rounds + warm_rounds);
    let mut caller = Caller { watch, done: 0, total };
    let first = (0..proofs).map(|_| Stage::Proof).chain((1..=contest.cold_rounds).map(Stage::Cold));
    for stage in first {
        for (entry, score) in entries.iter().zip(&mut scores) {
            caller.call(stage, score, |score| match stage {
                Stage::Proof => prove(contest, entry, score),
                _ => cold(contest, entry, score).map(Some),
            })?;
        }
    }
    let mut running: Vec<Option<Running>> = Vec::new();
    for (entry, score) in entries.iter().zip(&mut scores) {
        let standing = score.failure.is_none() && contest.rounds > 0;
        let start = || {
            Running::start(&entry.contestant, &entry.task, &contest.place, contest.patience, &contest.stop).map(Some)
        };
        running.push(if standing { out_if_failed(score, start())?.flatten() } else { None });
    }
    for round in 0..warm_rounds {
        let stage = if round == 0 { Stage::WarmUp } else { Stage::Round(round) };
        for (slot, score) in running.iter_mut().zip(&mut scores) {
            caller.call(stage, score, |score| slot.as_mut().map(|contestant| warm(contestant, score)).transpose())?;
            if score.failure.is_some() {
                *slot = None;
            }
        }
    }
    for (contestant, score) in running.into_iter().zip(&mut scores) {
        if let Some(contestant) = contestant {
            out_if_failed(score, contestant.finish())?;
        }
    }
    Ok(scores)
}

/// Calls contestants to their passes, files what they come to, and tells who watches.
struct Caller<'a> {
    watch: &'a mut dyn FnMut(Turn<'_>),
    done: u32,
    total: u32,
}

impl Caller<'_> {
    /// One pass of one contestant. Who is out already is passed over, but counted: the end of the contest stays where it is.
    fn call(
        &mut self,
        stage: Stage,
        score: &mut Scored,
        pass: impl FnOnce(&mut Scored) -> Result<Option<Pass>>,
    ) -> Result<()> {
        let (done, total) = (self.done, self.total);
        self.done += 1;
        (self.watch)(Turn { name: &score.name, stage, done, total, ended: None });
        if score.failure.is_some() {
            return Ok(());
        }
        let outcome = pass(score);
        let pass = out_if_failed(score, outcome)?.flatten();
        let ended = match (&pass, &score.failure) {
            (Some(pass), _) => Some(Ok(pass)),
            (None, failure) => failure.as_deref().map(Err),
        };
        if ended.is_some() {
            (self.watch)(Turn { name: &score.name, stage, done, total, ended });
        }
        match stage {
            Stage::Proof => {}
            Stage::Cold(_) => score.cold_passes.extend(pass),
            Stage::WarmUp => score.warm_up = pass,
            Stage::Round(_) => score.passes.extend(pass),
        }
        Ok(())
    }
}

fn warm(contestant: &mut Running, score: &mut Scored) -> Result<Pass> {
    let pass = contestant.pass()?;
    score.settings = contestant.settings().to_owned();
    score.accounting = contestant.accounting().to_owned();
    Ok(pass)
}

fn cold(contest: &Contest, entry: &Entry, score: &mut Scored) -> Result<Pass> {
    let (pass, settings) =
        Running::cold(&entry.contestant, &entry.task, &contest.place, contest.patience, &contest.stop)?;
    score.settings = settings;
    Ok(pass)
}

/// One pass with hashing, in a process of its own; none of who cannot hash.
fn prove(contest: &Contest, entry: &Entry, score: &mut Scored) -> Result<Option<Pass>> {
    let expected = entry.expected_hash.as_ref().or(contest.expected_hash.as_ref());
    let (Some(expected), Some(proving)) = (expected, entry.contestant.proving()) else { return Ok(None) };
    let (pass, _) = Running::cold(&proving, &entry.task, &contest.place, contest.patience, &contest.stop)?;
    let wrong = |what: String| {
        Err(Error::new(Kind::Mismatch, format!("contestant {} {what}", score.name))
            .cure("its bytes are not those of the bucket: its figures would mean nothing"))
    };
    match &pass.hash {
        Some(hash) if hash == expected => {
            score.hash = Some(hash.clone());
            Ok(Some(pass))
        }
        Some(hash) => wrong(format!("delivered other bytes: hash {hash}, not {expected}")),
        None => wrong("was asked for a hash and gives none".to_owned()),
    }
}

/// Writes a failure into the score; a wish to stop is everybody's.
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
