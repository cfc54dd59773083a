//! Where a run stands: small versioned JSON, the same on every rank, enough to go on with any number of ranks.

use fuelrail_base::{Error, Kind, Result};
use serde::{Deserialize, Serialize};

/// The version written.
pub(crate) const VERSION: u32 = 1;

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
    /// Samples in the data set.
    pub samples: u64,
    /// Hash of keys and sizes: the same listing has the same hash.
    pub listing: String,
    /// Epoch to go on with.
    pub epoch: u64,
    /// First position of that epoch that no rank has taken.
    pub position: u64,
    /// Where epochs are drawn: how. The scores that belong to this state are saved beside it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub importance: Option<String>,
}

impl State {
    /// Reads a state.
    ///
    /// # Errors
    /// `Usage` when the text is not a state of this version.
    pub fn from_json(text: &str) -> Result<State> {
        let state: State = serde_json::from_str(text).map_err(|e| {
            Error::new(Kind::Usage, format!("not a loader state: {e}")).cure("pass the JSON that Loader::state() gave")
        })?;
        if state.version != VERSION {
            return Err(Error::new(Kind::Usage, format!("a loader state of version {}", state.version))
                .cure(format!("this build reads version {VERSION}")));
        }
        Ok(state)
    }

    /// Writes the state as one line of JSON.
    ///
    /// # Panics
    /// Never: the fields are plain.
    #[must_use]
    pub fn to_json(&self) -> String {
        serde_json::to_string(self).expect("plain fields serialise")
    }

    /// Checks that this state belongs to the run it is given to.
    pub(crate) fn check(&self, seed: u64, shuffle: bool, samples: u64, listing: &str) -> Result<()> {
        let differs = |what: &str, was: String, is: String| {
            Err(Error::new(Kind::Usage, format!("the state was saved with {what} {was}, this run has {is}"))
                .cure("resume with the same data set, seed and shuffle, or start without a state"))
        };
        if self.samples != samples {
            return differs("a number of samples of", self.samples.to_string(), samples.to_string());
        }
        if self.listing != listing {
            return differs("listing", self.listing.clone(), listing.to_string());
        }
        if self.seed != seed {
            return differs("seed", self.seed.to_string(), seed.to_string());
        }
        if self.shuffle != shuffle {
            return differs("shuffle", self.shuffle.to_string(), shuffle.to_string());
        }
        if self.position >= samples {
            let cause = format!("the state's position {} is not below {samples} samples", self.position);
            return Err(
                Error::new(Kind::Usage, cause).cure("a finished epoch is written as the next one at position 0")
            );
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn state() -> State {
        State {
            version: 1,
            seed: 7,
            shuffle: true,
            samples: 10,
            listing: "ab".into(),
            epoch: 2,
            position: 5,
            importance: None,
        }
    }

    #[test]
    fn round_trips_and_refuses_others() {
        assert_eq!(State::from_json(&state().to_json()).unwrap(), state());
        for bad in ["", "{}", "[1]", &state().to_json().replace("\"version\":1", "\"version\":9")] {
            assert_eq!(State::from_json(bad).unwrap_err().kind(), Kind::Usage, "{bad}");
        }
    }

    #[test]
    fn belongs_to_one_run() {
        state().check(7, true, 10, "ab").unwrap();
        for (seed, shuffle, samples, listing) in
            [(8, true, 10, "ab"), (7, false, 10, "ab"), (7, true, 11, "ab"), (7, true, 10, "cd")]
        {
            state().check(seed, shuffle, samples, listing).unwrap_err();
        }
    }
}
