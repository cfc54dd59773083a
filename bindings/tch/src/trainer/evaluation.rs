//! Evaluation of the model on samples it was not trained with, by all ranks together.

use super::Trainer;
use crate::feed::Feed;
use crate::ffi::{caught, floats_of};
use fuelrail_base::Result;
use serde::Serialize;
use tch::{Kind as Element, Tensor, no_grad};

/// The result of an evaluation.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
pub struct Score {
    /// Samples evaluated, all ranks together.
    pub samples: u64,
    /// Mean loss.
    pub loss: f64,
    /// Share of right answers.
    pub accuracy: f64,
    /// Share of samples whose right answer is among the five best, where the task asks for that.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub accuracy_of_five: Option<f64>,
}

impl Trainer<'_> {
    /// Evaluates all samples of the feed without training, with the averaged parameters where there are any. Every rank evaluates its share.
    ///
    /// # Errors
    /// What the feed, the model or the other ranks report.
    pub fn evaluate(&mut self, feed: &mut dyn Feed) -> Result<Score> {
        caught(|| {
            // Running statistics are each rank's own while it trains: those of rank 0 count.
            self.share_parameters()?;
            let Some(average) = &self.average else { return self.judge(feed) };
            let mut parameters = self.reducer.flat_parameters()?;
            let trained = no_grad(|| parameters.copy());
            no_grad(|| parameters.copy_(average));
            let judged = self.judge(feed);
            no_grad(|| parameters.copy_(&trained));
            judged
        })
    }

    fn judge(&mut self, feed: &mut dyn Feed) -> Result<Score> {
        let mut sums = [0.0; 6];
        while let Some(fed) = feed.next() {
            let batch = fed?.batch;
            if batch.is_empty() {
                continue;
            }
            let judged = no_grad(|| self.task.judge(&batch, false))?;
            sums[0] += batch.len() as f64;
            sums[1] += judged.losses.sum(Element::Double).double_value(&[]);
            sums[2] += judged.right.double_value(&[]);
            sums[3] += judged.answers * batch.len() as f64;
            if let Some(near) = &judged.near {
                sums[4] += near.double_value(&[]);
                sums[5] += batch.len() as f64;
            }
        }
        let mut all = Tensor::from_slice(&sums);
        if let Some(group) = &self.group {
            group.all_reduce(&mut all)?;
        }
        let [samples, loss, right, asked, near, of] = floats_of(&all);
        Ok(Score {
            samples: samples as u64,
            loss: loss / samples.max(1.0),
            accuracy: right / asked.max(1.0),
            accuracy_of_five: (of > 0.0).then(|| near / of),
        })
    }
}
