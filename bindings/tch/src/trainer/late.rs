//! Numbers of a step that are read while the next one runs, so that a device always has work in its queue.
//!
//! All ranks read the same step at the same time, for what they read decides what they do together.

use super::steps::{Passes, Unread};
use super::tail::Tail;
use super::{End, Event, Trainer};
use crate::feed::Feed;
use crate::switch::Mode;
use fuelrail_base::Result;
use std::time::Duration;

/// A device that works alone may take this long for one step.
const PATIENCE: Duration = Duration::from_secs(600);

impl Trainer<'_> {
    /// Whether an epoch begins, and whether one ends, with the step just done: then it is read at once, for what comes goes by exact counts.
    pub(super) fn epoch_turns(&mut self, feed: &dyn Feed) -> (bool, bool) {
        let order = feed.order();
        let begins = order.epoch != self.late.epoch || self.late.samples == 0;
        self.late.epoch = order.epoch;
        (begins, order.position == 0 || order.position >= self.config.epoch_samples)
    }

    /// How long a step's numbers are waited for: as long as for other ranks.
    pub(super) fn patience(&self) -> Duration {
        self.group.as_ref().map_or(PATIENCE, |group| group.patience())
    }

    /// Waits for a step's numbers, counts them and tells the listener.
    pub(super) fn read(&mut self, step: Unread) -> Result<Tail> {
        let all = Tail::of(&step.numbers.read(self.patience())?);
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

    /// Reads what is not read yet, at the end of the samples.
    pub(super) fn read_rest(&mut self, feed: &mut dyn Feed) -> Result<Option<End>> {
        let Some(mut step) = self.late.unread.take() else { return Ok(None) };
        let given = step.passes.given.take();
        let all = self.read(step)?;
        self.after_step(feed, &all, given)
    }
}
