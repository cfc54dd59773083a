//! Rounds: every contestant once, in turn, again and again (A B A B …), so that whatever changes on the machine meanwhile
//! meets them all; ratios are then taken within rounds.
//!
//! Owns the order of passes. Never judges them.

use fuelrail::{Error, Kind, Result};

use super::contestant::{Contestant, Pass, Patience, Running};
use super::place::Place;
use super::protocol::Task;
use super::stop::Stop;

/// One contestant and what it is to do.
#[derive(Clone, Debug)]
pub struct Entry {
    /// Who.
    pub contestant: Contestant,
    /// On what.
    pub task: Task,
    /// The hash it must come to, where its task is another than that of the contest.
    pub expected_hash: Option<String>,
}

impl Entry {
    /// A contestant with its task.
    #[must_use]
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
    /// Where the contestants run.
    pub place: Place,
    /// How long they may take.
    pub patience: Patience,
    /// The hash that everybody who can hash must come to, in a pass before all others that is not measured.
    pub expected_hash: Option<String>,
    /// Who may interrupt it.
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

/// What became of a contestant.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Score {
    /// Its name.
    pub name: String,
    /// What it says it ran with.
    pub settings: String,
    /// How its processor time was counted; empty when it never ran.
    pub accounting: String,
    /// The hash it came to in its proof pass: the expected one, or it would be out.
    pub hash: Option<String>,
    /// Its pass before the first round.
    pub warm_up: Option<Pass>,
    /// Its passes, one a round.
    pub passes: Vec<Pass>,
    /// Its passes from the start of a process, one a cold round.
    pub cold_passes: Vec<Pass>,
    /// Why it left, with the error's words. Its passes up to then stay.
    pub failure: Option<String>,
}

/// What is told while a contest is held.
#[derive(Clone, Copy, Debug)]
pub struct Turn<'a> {
    /// Whose pass begins.
    pub name: &'a str,
    /// Passes done.
    pub done: u32,
    /// Passes in all.
    pub total: u32,
}

/// Holds a contest. A contestant that fails is out, with its reason in its score; the others go on.
///
/// # Errors
/// `Cancelled` when asked to stop. Nothing of the contestants is left then either.
pub fn hold(contest: &Contest, entries: &[Entry], watch: &mut dyn FnMut(Turn<'_>)) -> Result<Vec<Score>> {
    let mut scores: Vec<Score> =
        entries.iter().map(|entry| Score { name: entry.contestant.name.clone(), ..Score::default() }).collect();
    let each = entries.len() as u32;
    let warm_rounds = if contest.rounds > 0 { contest.rounds + 1 } else { 0 };
    let proofs = u32::from(contest.expected_hash.is_some());
    let total = each * (proofs + contest.cold_rounds + warm_rounds);
    let mut done = 0;
    for _ in 0..proofs {
        for (entry, score) in entries.iter().zip(&mut scores) {
            watch(Turn { name: &score.name, done, total });
            done += 1;
            let proved = prove(contest, entry, score);
            out_if_failed(score, proved)?;
        }
    }
    for _ in 0..contest.cold_rounds {
        for (entry, score) in entries.iter().zip(&mut scores) {
            watch(Turn { name: &score.name, done, total });
            done += 1;
            if score.failure.is_none() {
                let cold = cold(contest, entry, score);
                out_if_failed(score, cold)?;
            }
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
        for (slot, score) in running.iter_mut().zip(&mut scores) {
            watch(Turn { name: &score.name, done, total });
            done += 1;
            let Some(contestant) = slot else { continue };
            let pass = warm(contestant, score, round);
            if out_if_failed(score, pass)?.is_none() {
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

fn warm(contestant: &mut Running, score: &mut Score, round: u32) -> Result<()> {
    let pass = contestant.pass()?;
    score.settings = contestant.settings().to_owned();
    score.accounting = contestant.accounting().to_owned();
    if round == 0 {
        score.warm_up = Some(pass);
    } else {
        score.passes.push(pass);
    }
    Ok(())
}

fn cold(contest: &Contest, entry: &Entry, score: &mut Score) -> Result<()> {
    let (pass, settings) =
        Running::cold(&entry.contestant, &entry.task, &contest.place, contest.patience, &contest.stop)?;
    score.settings = settings;
    score.cold_passes.push(pass);
    Ok(())
}

/// One pass with hashing, in a process of its own.
fn prove(contest: &Contest, entry: &Entry, score: &mut Score) -> Result<()> {
    let expected = entry.expected_hash.as_ref().or(contest.expected_hash.as_ref());
    let (Some(expected), Some(proving)) = (expected, entry.contestant.proving()) else { return Ok(()) };
    let (pass, _) = Running::cold(&proving, &entry.task, &contest.place, contest.patience, &contest.stop)?;
    let wrong = |what: String| {
        Err(Error::new(Kind::Mismatch, format!("contestant {} {what}", score.name))
            .cure("its bytes are not those of the bucket: its figures would mean nothing"))
    };
    match pass.hash {
        Some(hash) if hash == *expected => {
            score.hash = Some(hash);
            Ok(())
        }
        Some(hash) => wrong(format!("delivered other bytes: hash {hash}, not {expected}")),
        None => wrong("was asked for a hash and gives none".to_owned()),
    }
}

/// Writes a failure into the score; a wish to stop is everybody's.
fn out_if_failed<T>(score: &mut Score, outcome: Result<T>) -> Result<Option<T>> {
    match outcome {
        Ok(value) => Ok(Some(value)),
        Err(error) if error.kind() == Kind::Cancelled => Err(error),
        Err(error) => {
            score.failure = Some(error.to_string());
            Ok(None)
        }
    }
}
