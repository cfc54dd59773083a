//! The scores saved beside a state: one line of JSON that says what they are, then plain numbers.
//!
//! The numbers, little-endian, are the score of every sample (f32, NaN for one never reported), then for each drawn epoch
//! the rate of every sample (u16). A hash of them is in the head: what was torn or changed is refused.

use crate::state::State;
use fuelrail_base::{Error, Kind, Result};
use fuelrail_plan::importance::{Draw, Drawn, Keepsake, Smoothing};
use fuelrail_plan::run::Cursor;
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use xxhash_rust::xxh3::xxh3_64;

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
            Error::new(Kind::Usage, cause).with_hint("pass the bytes that Reporter::scores returned for this state")
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
    use super::*;
    use fuelrail_plan::importance::ONE;

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
