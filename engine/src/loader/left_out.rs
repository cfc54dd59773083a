//! Says once that samples are left out, and once that most of a batch are: a run that trains on few or none of them looks like any other.

use crate::batch::Batch;
use fuelrail_flow::BadSamples;

/// What was said already.
#[derive(Default)]
pub(super) struct LeftOut {
    of_one: bool,
    of_most: bool,
}

impl LeftOut {
    /// Warns of the first sample that is left out, and of the first batch that most of its samples are missing from.
    pub(super) fn look_at(&mut self, batch: &Batch, policy: BadSamples) {
        let left_out = batch.left_out();
        let Some((_, error)) = left_out.first() else { return };
        let (key, cause) = (error.object().unwrap_or("a sample").escape_debug(), error.cause());
        if !std::mem::replace(&mut self.of_one, true) {
            tracing::warn!(
                "bad_samples = {policy}: '{key}' is left out: {cause}; further ones are counted in the statistics, as left_out, and not logged"
            );
        }
        if left_out.len() > batch.len() && !std::mem::replace(&mut self.of_most, true) {
            let (epoch, step, all) = (batch.epoch(), batch.step(), batch.len() + left_out.len());
            tracing::warn!(
                "bad_samples = {policy}: {} of {all} samples of the batch of epoch {epoch}, step {step}, are left out, '{key}' among them: \
                 {cause}; if you did not expect this, set bad_samples = raise",
                left_out.len()
            );
        }
    }
}
