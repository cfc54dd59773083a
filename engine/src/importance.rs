//! Importance sampling in the loader: accepts losses and passes draws to the shards.
//!
//! The rules are in `fuelrail_plan::importance`; this module connects them to the loader. Losses are reported on the trainer's thread,
//! which also makes the draw once an epoch and notifies the shards. Owns the scores, behind one lock that no shard takes.
//!
//! Saved beside a state they are one line of JSON that says what they are, then little-endian numbers: the score of every sample (f32,
//! NaN for one never reported), then for each drawn epoch the rate of every sample (u16). A hash of them is in the head: what was torn or
//! changed is refused.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use fuelrail_base::{BatchSeq, Error, Kind, Result, SampleId};
use fuelrail_flow::Consumer;
use fuelrail_io::Waker;
use fuelrail_plan::catalog::Catalog;
use fuelrail_plan::importance::{Draw, Drawn, Horizons, Keepsake, Known, Smoothing};
use fuelrail_plan::run::{Cursor, Run};
use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::xxh3_64;

use crate::config::Config;
use crate::state::State;
use crate::watch::Watched;

/// Accepts the losses of a loader's samples, from any thread. Clones share one state.
///
/// After every step, every rank reports the losses of *all* ranks' samples of that step, gathered by the trainer's own
/// collectives, so that all ranks make the same draws. A trainer that takes batches ahead of its steps may be late by
/// half of the lag: a sixteenth of an epoch, at least four steps.
#[derive(Clone)]
pub struct Reporter(Arc<Shared>);

struct Shared {
    run: Run,
    listing: String,
    drawn: Mutex<Draws>,
    consumer: Arc<Consumer>,
    shards: Vec<Waker>,
}

/// The draws, and their version, which advances with every new draw.
type Draws = (Horizons, u64);

impl Reporter {
    pub(crate) fn new(
        horizons: Horizons,
        run: &Run,
        listing: &str,
        consumer: &Arc<Consumer>,
        shards: &[Watched],
    ) -> Reporter {
        let drawn = Mutex::new((horizons, 0));
        let shards = shards.iter().map(|shard| shard.waker.clone()).collect();
        let (run, listing, consumer) = (run.clone(), listing.into(), Arc::clone(consumer));
        Reporter(Arc::new(Shared { run, listing, drawn, consumer, shards }))
    }

    /// Reports the losses of one global step, in any order. `seq` is the number of this rank's batch in it (the last,
    /// where a step has several), the same on every rank. A sample skipped by the policy for bad samples has no loss.
    ///
    /// # Errors
    /// `Usage`, with nothing recorded, when the numbers of losses and ids differ, a sample or batch is not of the run, or
    /// a step is repeated, out of order, or later than the draw it belongs to.
    pub fn report(&self, seq: u64, ids: &[SampleId], losses: &[f32]) -> Result<()> {
        let shared = &self.0;
        if seq >= shared.run.batches() {
            let cause = format!("losses of batch {seq} of {}", shared.run.batches());
            return Err(Error::new(Kind::Usage, cause).with_hint("report with the number of the batch: Batch::seq"));
        }
        let mut drawn = self.lock();
        let end = moment(&shared.run, shared.run.cursor_after(BatchSeq(seq)));
        if drawn.0.report(end, ids, losses)? {
            self.tell(&mut drawn);
        }
        Ok(())
    }

    /// Serialises the scores that belong to a state of this loader, to be saved beside it. Ranks that reported the same
    /// losses get the same bytes, so saving one copy is enough.
    ///
    /// # Errors
    /// `Usage` when the state is older than the draws that are kept.
    pub fn scores(&self, state: &State) -> Result<Vec<u8>> {
        let at = Cursor { epoch: state.epoch, position: state.position };
        let kept = self.lock().0.keepsake(moment(&self.0.run, at));
        Table { seed: state.seed, listing: self.0.listing.clone(), at, kept }.to_bytes()
    }

    /// Returns the weights of an epoch's samples; 1 where the epoch is not drawn by importance.
    #[must_use]
    pub fn weights(&self, epoch: u64, ids: &[SampleId]) -> Vec<f32> {
        let draw = self.lock().0.draw(epoch).cloned();
        ids.iter().map(|id| draw.as_ref().map_or(1.0, |draw| draw.weight(*id))).collect()
    }

    /// Registers that the consumer wants the batch at this cursor. Returns the draws when they are newer than version `seen`.
    pub(crate) fn asked(&self, at: Cursor, seen: &mut Option<u64>) -> Option<Known> {
        let mut drawn = self.lock();
        if drawn.0.asked(moment(&self.0.run, at)) {
            self.tell(&mut drawn);
        }
        if *seen == Some(drawn.1) {
            return None;
        }
        *seen = Some(drawn.1);
        Some(drawn.0.known())
    }

    fn tell(&self, drawn: &mut Draws) {
        drawn.1 += 1;
        self.0.consumer.tell(drawn.0.known());
        self.0.shards.iter().for_each(Waker::wake);
    }

    fn lock(&self) -> MutexGuard<'_, Draws> {
        self.0.drawn.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns the run with its draw points, where epochs are drawn by importance, resumed from `state`.
pub(crate) fn drawn(
    config: &Config,
    catalog: &Catalog,
    run: Run,
    state: Option<&State>,
    scores: Option<&[u8]>,
) -> Result<(Run, Option<Horizons>)> {
    let (samples, total) = (catalog.samples(), catalog.total_bytes().max(1));
    let cached =
        u128::from(config.memory.cache_limit.0) * u128::from(config.world) * u128::from(samples) / u128::from(total);
    let drawn = config.importance(u64::try_from(cached).unwrap_or(samples).min(samples))?;
    let state = state.filter(|state| state.importance.is_some());
    let refused = |cause: &str, cure: &str| Err(Error::new(Kind::Usage, cause).with_hint(cure));
    let kept = match (&drawn, state, scores) {
        (None, Some(_), _) => {
            return refused(
                "the state belongs to a run with importance sampling",
                "resume with the same importance setting",
            );
        }
        (_, Some(_), None) => {
            return refused("the state was saved with scores", "resume with the scores that were saved beside it");
        }
        (Some(_), Some(state), Some(scores)) => Some(Table::read(scores, state)?),
        (_, None, _) => None,
    };
    let Some(drawn) = drawn else { return Ok((run, None)) };
    let step = u64::from(config.world) * u64::from(config.batch_size);
    let horizons = Horizons::new(drawn, samples, config.order.seed, step, moment(&run, run.config().start), kept)?;
    Ok((run.drawn(horizons.known()), Some(horizons)))
}

/// The number of samples before a cursor, as the plan counts.
fn moment(run: &Run, at: Cursor) -> u64 {
    at.epoch * run.config().samples + at.position
}

impl std::fmt::Debug for Reporter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Reporter")
    }
}

/// The version written.
const VERSION: u32 = 1;

/// Scores, and which state they belong to.
pub(crate) struct Table {
    pub seed: u64,
    pub listing: String,
    pub at: Cursor,
    pub kept: Keepsake,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Head {
    fuelrail_scores: u32,
    samples: u64,
    seed: u64,
    listing: String,
    epoch: u64,
    position: u64,
    smoothing: f64,
    loss_mean: f64,
    loss_sum: f64,
    losses: u64,
    reported: u64,
    first_epoch: u64,
    /// Epoch by epoch: absent for a plain one.
    draws: Vec<Option<DrawHead>>,
    /// Of the numbers.
    hash: String,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct DrawHead {
    word: u64,
    weighted: bool,
}

impl Table {
    /// Writes it.
    pub(crate) fn to_bytes(&self) -> Result<Vec<u8>> {
        let kept = &self.kept;
        if !(kept.first..kept.first + kept.draws.len() as u64).contains(&self.at.epoch) {
            let cause = format!("scores for epoch {} are no longer available", self.at.epoch);
            return Err(Error::new(Kind::Usage, cause).with_hint("save the scores when you save the state"));
        }
        let mut numbers: Vec<u8> = kept.scores.iter().flat_map(|score| score.to_le_bytes()).collect();
        for draw in kept.draws.iter().flatten() {
            numbers.extend(draw.parts().0.iter().flat_map(|rate| rate.to_le_bytes()));
        }
        let head = |draw: &Arc<Draw>| DrawHead { word: draw.parts().1, weighted: draw.parts().2 };
        let head = Head {
            fuelrail_scores: VERSION,
            samples: kept.scores.len() as u64,
            seed: self.seed,
            listing: self.listing.clone(),
            epoch: self.at.epoch,
            position: self.at.position,
            smoothing: kept.smoothing.added,
            loss_mean: kept.smoothing.mean,
            loss_sum: kept.loss_sum,
            losses: kept.losses,
            reported: kept.reported,
            first_epoch: kept.first,
            draws: kept.draws.iter().map(|draw| draw.as_ref().map(head)).collect(),
            hash: hash(&numbers),
        };
        let mut bytes = serde_json::to_vec(&head).expect("plain fields serialise");
        bytes.push(b'\n');
        bytes.extend(numbers);
        Ok(bytes)
    }

    /// Reads what was kept with this state.
    pub(crate) fn read(bytes: &[u8], state: &State) -> Result<Keepsake> {
        let bad = |cause: String| {
            Error::new(Kind::Usage, cause).with_hint("resume with the bytes that were saved beside this state")
        };
        let line = bytes.iter().position(|byte| *byte == b'\n').unwrap_or(bytes.len());
        let (head, numbers) = (&bytes[..line], bytes.get(line + 1..).unwrap_or_default());
        let head: Head = serde_json::from_slice(head).map_err(|e| bad(format!("not saved scores: {e}")))?;
        if head.fuelrail_scores != VERSION {
            return Err(bad(format!("saved scores of version {}; this build reads {VERSION}", head.fuelrail_scores)));
        }
        let theirs = (head.samples, head.seed, head.listing.as_str(), head.epoch, head.position);
        if theirs != (state.samples, state.seed, state.listing.as_str(), state.epoch, state.position) {
            let (epoch, position) = (head.epoch, head.position);
            return Err(bad(format!("the saved scores belong to another state: epoch {epoch} position {position}")));
        }
        let samples = usize::try_from(head.samples).map_err(|_| bad("too many samples".into()))?;
        let drawn = head.draws.iter().flatten().count();
        if numbers.len() != samples * (4 + 2 * drawn) || hash(numbers) != head.hash {
            return Err(bad("the saved scores are damaged".into()));
        }
        let (scores, mut rates) = numbers.split_at(samples * 4);
        let scores = scores.as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect();
        let mut draws: Vec<Drawn> = Vec::with_capacity(head.draws.len());
        for draw in head.draws {
            draws.push(match draw {
                None => None,
                Some(DrawHead { word, weighted }) => {
                    let (these, rest) = rates.split_at(samples * 2);
                    rates = rest;
                    let these = these.as_chunks().0.iter().map(|bytes| u16::from_le_bytes(*bytes)).collect();
                    Some(Arc::new(Draw::new(these, word, weighted)?))
                }
            });
        }
        Ok(Keepsake {
            scores,
            smoothing: Smoothing { added: head.smoothing, mean: head.loss_mean },
            loss_sum: head.loss_sum,
            losses: head.losses,
            reported: head.reported,
            first: head.first_epoch,
            draws,
        })
    }
}

fn hash(numbers: &[u8]) -> String {
    format!("{:016x}", xxh3_64(numbers))
}

#[cfg(test)]
mod tests {
    use fuelrail_plan::importance::ONE;

    use super::*;

    fn state() -> State {
        State {
            version: 1,
            seed: 7,
            shuffle: true,
            order: "global".into(),
            samples: 3,
            listing: "ab".into(),
            epoch: 2,
            position: 1,
            importance: Some("on".into()),
        }
    }

    fn table() -> Table {
        let draw = Draw::new(vec![ONE, ONE / 2, ONE + ONE / 2], 0x1234_5678_9abc, true).unwrap();
        let kept = Keepsake {
            scores: vec![2.5, f32::NAN, 3.25],
            smoothing: Smoothing { added: 0.1, mean: 0.3 },
            loss_sum: 1.7,
            losses: 5,
            reported: 6,
            first: 2,
            draws: vec![None, Some(Arc::new(draw))],
        };
        Table { seed: 7, listing: "ab".into(), at: Cursor { epoch: 2, position: 1 }, kept }
    }

    #[test]
    fn every_cut_and_every_changed_byte_is_refused() {
        let bytes = table().to_bytes().unwrap();
        let refused = |bytes: &[u8]| assert_eq!(Table::read(bytes, &state()).unwrap_err().kind(), Kind::Usage);
        (0..bytes.len()).for_each(|end| refused(&bytes[..end]));
        let numbers = bytes.iter().position(|byte| *byte == b'\n').unwrap() + 1;
        for at in numbers..bytes.len() {
            let mut changed = bytes.clone();
            changed[at] ^= 4;
            refused(&changed);
        }
        refused(&[&bytes[..], b"x"].concat());
    }

    #[test]
    fn scores_of_another_state_are_refused() {
        let bytes = table().to_bytes().unwrap();
        for other in [
            State { epoch: 3, ..state() },
            State { position: 2, ..state() },
            State { seed: 8, ..state() },
            State { samples: 4, ..state() },
            State { listing: "cd".into(), ..state() },
        ] {
            let error = Table::read(&bytes, &other).unwrap_err();
            assert!(error.to_string().contains("another state"), "{error}");
        }
        let old = Table { at: Cursor { epoch: 1, position: 0 }, ..table() };
        assert_eq!(old.to_bytes().unwrap_err().kind(), Kind::Usage);
    }
}
