//! Where a run stands: small versioned JSON, the same on every rank, enough to go on with any number of ranks.

use fuelrail_base::{Error, Kind, Result};
use fuelrail_flow::{ByteRange, Listing};
use fuelrail_plan::importance::Mode;
use fuelrail_plan::order::{ChunkShape, OrderName};
use fuelrail_plan::run::{Cursor, Run};
use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::Xxh3;

/// The version written.
const VERSION: u32 = 1;

/// A place in a run between two global steps.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct State {
    /// Format version.
    pub version: u32,
    /// Seed of the order.
    pub seed: u64,
    /// Shuffled, or key order.
    pub shuffle: bool,
    /// Which shuffle. States from before there was a choice do not say, and mean the global one.
    #[serde(default = "global", skip_serializing_if = "is_global")]
    pub order: String,
    /// Samples of an epoch: those of the data set, but for mixtures.
    pub samples: u64,
    /// Hash of keys and sizes: the same listing has the same hash, and so has one of other contents of the same lengths. ETags are no part of
    /// it: those of a copy of the data set differ, and a manifest may have none.
    pub listing: String,
    /// Epoch to go on with.
    pub epoch: u64,
    /// First position of that epoch that no rank has taken.
    pub position: u64,
    /// Where epochs are drawn: how. The scores that belong to this state are saved beside it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub importance: Option<String>,
}

fn global() -> String {
    OrderName::Global.word().into()
}

fn is_global(order: &str) -> bool {
    order == OrderName::Global.word()
}

impl State {
    /// Reads a state.
    ///
    /// # Errors
    /// `Usage` when the text is not a state of this version.
    pub fn from_json(text: &str) -> Result<State> {
        let state: State = serde_json::from_str(text).map_err(|e| {
            Error::new(Kind::Usage, format!("not a loader state: {e}"))
                .with_source(e)
                .with_hint("pass the JSON that a loader gave as its state")
        })?;
        state.check_version()?;
        Ok(state)
    }

    fn check_version(&self) -> Result<()> {
        if self.version == VERSION {
            return Ok(());
        }
        let cause = format!("a loader state of version {}", self.version);
        Err(Error::new(Kind::Usage, cause).with_hint(format!("this build reads version {VERSION}")))
    }

    /// Writes the state as one line of JSON.
    ///
    /// # Panics
    /// Never: the fields are plain.
    #[must_use]
    pub fn to_json(&self) -> String {
        serde_json::to_string(self).expect("plain fields serialise")
    }

    /// Checks that this state belongs to the run that has the other one.
    pub(crate) fn check(&self, run: &State) -> Result<()> {
        // Again: it may have been made from its fields.
        self.check_version()?;
        for (what, was, is) in [
            ("a number of samples of", self.samples.to_string(), run.samples.to_string()),
            ("listing", self.listing.clone(), run.listing.clone()),
            ("seed", self.seed.to_string(), run.seed.to_string()),
            ("shuffle", self.shuffle.to_string(), run.shuffle.to_string()),
            ("order", self.order.clone(), run.order.clone()),
        ] {
            if was != is {
                let cause = format!("the state was saved with {what} {was}, this run has {is}");
                return Err(Error::new(Kind::Usage, cause)
                    .with_hint("resume with the same data set, seed, shuffle and order, or start without a state"));
            }
        }
        if self.position >= run.samples {
            let cause = format!("the state's position {} is not below {} samples", self.position, run.samples);
            return Err(
                Error::new(Kind::Usage, cause).with_hint("a finished epoch is written as the next one at position 0")
            );
        }
        Ok(())
    }
}

/// The state at a cursor of a run.
pub(crate) fn state_at(run: &Run, fingerprint: &str, importance: Option<Mode>, cursor: Cursor) -> State {
    let config = run.config();
    State {
        version: VERSION,
        seed: config.seed,
        shuffle: config.shuffle,
        order: match (run.order().chunks(), run.mixture()) {
            (_, Some(mixture)) => mixture.to_string(),
            (None, None) => config.order.word().into(),
            (Some(ChunkShape { samples, window, in_turn }), None) => {
                let how = if in_turn { ", in turn" } else { "" };
                format!("{} of {samples}, {window} at a time{how}", config.order.word())
            }
        },
        samples: config.samples,
        listing: fingerprint.into(),
        epoch: cursor.epoch,
        position: cursor.position,
        importance: importance.map(|mode| mode.word().into()),
    }
}

/// Hash of keys and sizes, in order, and of the samples where they are ranges of objects.
pub(crate) fn fingerprint(listing: &Listing, ranges: Option<&[ByteRange]>) -> String {
    let mut hash = Xxh3::new();
    for at in 0..listing.len() {
        let key = listing.key(at);
        hash.update(&(key.len() as u64).to_le_bytes());
        hash.update(key.as_bytes());
        hash.update(&listing.size(at).to_le_bytes());
    }
    for ByteRange { object, first, len } in ranges.unwrap_or_default() {
        [u64::from(*object), *first, *len].iter().for_each(|number| hash.update(&number.to_le_bytes()));
    }
    format!("{:016x}", hash.digest())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn state() -> State {
        let (listing, order) = ("ab".into(), global());
        State {
            version: 1,
            seed: 7,
            shuffle: true,
            order,
            samples: 10,
            listing,
            epoch: 2,
            position: 5,
            importance: None,
        }
    }

    #[test]
    fn round_trips_and_refuses_others() {
        let sticky = State { order: "sticky".into(), ..state() };
        for state in [state(), sticky.clone()] {
            assert_eq!(State::from_json(&state.to_json()).unwrap(), state);
        }
        assert!(sticky.to_json().contains(r#""order":"sticky""#), "{}", sticky.to_json());
        for bad in ["", "{}", "[1]", &state().to_json().replace("\"version\":1", "\"version\":9")] {
            assert_eq!(State::from_json(bad).unwrap_err().kind(), Kind::Usage, "{bad}");
        }
        state().check(&state()).unwrap();
        let error = State { version: 9, ..state() }.check(&state()).unwrap_err();
        assert!(error.kind() == Kind::Usage && error.to_string().contains("version 9"), "{error}");
    }

    /// As written before there was a choice of orders, and still where it is the global one: older builds read it.
    #[test]
    fn a_state_without_an_order_means_the_global_one() {
        let old = r#"{"version":1,"seed":7,"shuffle":true,"samples":10,"listing":"ab","epoch":2,"position":5}"#;
        assert_eq!(State::from_json(old).unwrap(), state());
        assert_eq!(state().to_json(), old);
    }
}
