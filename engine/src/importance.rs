//! Importance sampling in the loader: accepts losses and passes draws to the shards.
//!
//! The rules are in `fuelrail_plan::importance`; this module connects them to the loader. Losses are reported on the trainer's thread,
//! which also makes the draw once an epoch and notifies the shards. Owns the scores, behind one lock that no shard takes.

use crate::config::Config;
use crate::scores::Table;
use crate::state::State;
use crate::watch::Watched;
use fuelrail_base::{BatchSeq, Error, Kind, Result, SampleId};
use fuelrail_flow::Consumer;
use fuelrail_io::Waker;
use fuelrail_plan::catalog::Catalog;
use fuelrail_plan::importance::{Horizons, Known};
use fuelrail_plan::run::{Cursor, Run};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

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
        (_, Some(_), None) => return refused("the state was saved with scores", "pass them to LoaderBuilder::scores"),
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
