//! Numbers of a step that are read while the next one runs, so that a device always has work in its queue.
//!
//! All ranks read the numbers of the same step at the same point, because what they do together follows from them.

use super::steps::{Passes, Unread};
use super::tail::Tail;
use super::{End, Event, Trainer};
use crate::feed::Feed;
use crate::ffi::{LOST, Later};
use crate::switch::Mode;
use fuelrail_base::Result;
use std::time::Duration;

/// Longest wait for a step of a single rank.
const PATIENCE: Duration = Duration::from_secs(600);

impl Trainer<'_> {
    /// Whether the step just done is the first of an epoch, and whether an epoch ends in it: such a step is read at once, so that counts are exact.
    pub(super) fn epoch_turns(&mut self, feed: &dyn Feed) -> (bool, bool) {
        let (order, begins) = (feed.order(), self.late.samples == 0);
        // A step of several batches may take the last ones of an epoch and the first ones of the next.
        let crosses = !begins && order.epoch != self.late.epoch;
        self.late.epoch = order.epoch;
        (begins, crosses || order.position == 0 || order.position >= self.config.epoch_samples)
    }

    /// Waits for a step's numbers, as long as for other ranks.
    pub(super) fn wait_for(&self, numbers: Later) -> Result<Tail> {
        let patience = self.group.as_ref().map_or(PATIENCE, |group| group.patience());
        let hint = if self.world() > 1 { LOST } else { "look at `nvidia-smi` and `dmesg | grep Xid`" };
        Ok(Tail::of(&numbers.read(patience).map_err(|error| error.with_hint(hint))?))
    }

    /// Waits for a step's numbers, counts them and tells the listener.
    pub(super) fn read(&mut self, step: Unread) -> Result<Tail> {
        let all = self.wait_for(step.numbers)?;
        self.count(&all, &step.passes, step.rate, step.step);
        Ok(all)
    }

    /// Counts a step's numbers and tells the listener.
    pub(super) fn count(&mut self, all: &Tail, passes: &Passes, rate: f64, step: u64) {
        self.late.samples = all.samples as u64;
        self.progress.samples += all.samples as u64;
        if self.rank() != 0 {
            self.progress.saving_s = all.saving_s;
        }
        self.progress.loss = if all.samples > 0.0 { all.loss / all.samples } else { self.progress.loss };
        let own = all.own_loss[self.rank()];
        if !own.is_finite() && !self.scale.moves() {
            let ids = passes.ids.iter().map(|id| id.0).collect::<Vec<_>>();
            let notice = format!("the loss of step {step} is {own}; samples of this rank: {ids:?}");
            (self.listener)(Event::Notice(&notice));
        }
        self.tell(passes, step, all.right / all.asked.max(1.0), rate, Mode::Synchronous);
    }

    /// Reads the last step, if it is unread, at the end of the samples.
    pub(super) fn read_rest(&mut self, feed: &mut dyn Feed) -> Result<Option<End>> {
        let Some(mut step) = self.late.unread.take() else { return Ok(None) };
        let given = step.passes.given.take();
        let all = self.read(step)?;
        self.after_step(feed, &all, given)
    }
}
