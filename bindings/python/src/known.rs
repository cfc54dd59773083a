//! What a loader is, and where it stands: read while another thread waits for a batch, and after closing.

use crate::device::Keys;
use fuelrail::{Reporter, SampleId, State};
use std::collections::{HashSet, VecDeque};
use std::sync::Arc;

/// Most batches that are remembered until their losses are reported.
const UNREPORTED_MAX: usize = 1024;

/// What a loader is, and where it stands.
pub(crate) struct Known {
    pub state: State,
    /// Before the batch that was taken last.
    pub before: State,
    /// Where epochs are drawn by importance.
    pub reporter: Option<Reporter>,
    /// The batches taken whose losses were not reported, oldest first: number and samples. Empty where none are asked for.
    unreported: VecDeque<(u64, Vec<u64>)>,
    pub has_begun: bool,
    /// The last error, which ended the run unless a batch came after it.
    pub failed: Option<fuelrail::Error>,
    /// The run is over, and whether it was said that there is nothing to iterate over.
    is_over: bool,
    is_told: bool,
    pub is_open: bool,
    pub batches: u64,
    pub samples: u64,
    pub epoch_samples: u64,
    pub classes: Vec<String>,
    notices: Vec<String>,
    told: Box<dyn Fn() -> Vec<String> + Send + Sync>,
    pub keys: Keys,
    pub check: Check,
}

/// Refuses a state, and its scores, that the loader cannot go on from.
pub(crate) type Check = Arc<dyn Fn(&State, Option<&[u8]>) -> fuelrail::Result<()> + Send + Sync>;

impl Known {
    pub(crate) fn of(engine: &fuelrail::Loader) -> Known {
        Known {
            state: engine.state(),
            before: engine.state(),
            reporter: engine.reporter(),
            unreported: VecDeque::new(),
            has_begun: false,
            failed: None,
            is_over: false,
            is_told: false,
            is_open: true,
            batches: engine.batches(),
            samples: engine.samples(),
            epoch_samples: engine.epoch_samples(),
            classes: engine.classes().to_vec(),
            notices: engine.notices().to_vec(),
            told: Box::new(engine.told()),
            keys: Arc::new(engine.record_keys()),
            check: Arc::new(engine.state_check()),
        }
    }

    /// What was said at the start, and of disks and other ranks since.
    pub(crate) fn notices(&self) -> Vec<String> {
        [self.notices.clone(), (self.told)()].concat()
    }

    pub(crate) fn took(&mut self, (seq, ids): (u64, &[SampleId]), state: Option<State>) {
        (self.has_begun, self.failed) = (true, None);
        if let Some(state) = state {
            self.before = std::mem::replace(&mut self.state, state);
        }
        if self.reporter.is_some() {
            if self.unreported.len() == UNREPORTED_MAX {
                self.unreported.pop_front();
            }
            self.unreported.push_back((seq, ids.iter().map(|id| id.0).collect()));
        }
    }

    /// There is no further batch.
    ///
    /// # Errors
    /// The one that ended the run, again: what has failed does not look like what is complete.
    pub(crate) fn ended(&mut self) -> fuelrail::Result<()> {
        self.is_over = self.failed.is_none();
        self.failed.clone().map_or(Ok(()), Err)
    }

    /// Whether it is iterated over after its end, for the first time.
    pub(crate) fn begins_again(&mut self) -> bool {
        self.is_over && !std::mem::replace(&mut self.is_told, true)
    }

    /// Which unreported batch these samples include: the oldest one that they have all samples of, or else one that had none.
    fn reported_by(&self, ids: &[u64]) -> Option<usize> {
        let given: HashSet<&u64> = ids.iter().collect();
        let is_given = |(_, own): &(u64, Vec<u64>)| !own.is_empty() && own.iter().all(|id| given.contains(id));
        let found = self.unreported.iter().position(is_given);
        found.or_else(|| self.unreported.iter().position(|(_, own)| own.is_empty()))
    }

    /// Takes the batch that these samples are of: the reporter for their losses, and the number of its step. `None` where epochs are not drawn
    /// by importance. An error is a cause and a hint.
    pub(crate) fn due(&mut self, ids: &[u64], world: u32) -> Result<Option<(Reporter, u64)>, (String, &'static str)> {
        if let Some(id) = ids.iter().find(|id| **id >= self.samples) {
            return Err((format!("a loss for sample {id} of {}", self.samples), "report the ids that the batch has"));
        }
        let Some(reporter) = self.reporter.clone() else { return Ok(None) };
        let Some(at) = self.reported_by(ids) else {
            let cause = "losses for samples of no batch that was taken and not yet reported".into();
            return Err((cause, "report all samples of a batch, once, and on several ranks those of all ranks"));
        };
        // Ranks differ by one sample at most: where this one has two, the others have some.
        let own = self.unreported[at].1.len();
        if world > 1 && own > 1 && ids.len() == own {
            let cause = format!("losses of one rank's batch, in a run of {world} ranks");
            return Err((cause, "report those of all ranks on each of them: fuelrail.torch gathers them"));
        }
        let step = self.unreported[at].0;
        self.unreported.drain(..=at);
        Ok(Some((reporter, step)))
    }
}
