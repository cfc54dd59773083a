//! The plain model of a life: which samples each rank must get at each step, written out.
//!
//! Takes only the order from the engine (its golden vectors stand in the plan's tests) and divides it the slow, obvious
//! way, so that the arithmetic of split, run and cursors is checked against something that is not it.

use crate::scenario::Scenario;
use fuelrail_base::SampleId;
use fuelrail_plan::run::{Cursor, Run};

/// One global step.
pub(crate) struct Step {
    pub(crate) epoch: u64,
    /// Samples by rank.
    pub(crate) shares: Vec<Vec<SampleId>>,
    /// Where to go on when it is done.
    pub(crate) next: Cursor,
}

/// All steps of a world from `start`, where `run` starts as well, to the end of the last epoch.
pub(crate) fn steps(scenario: &Scenario, run: &Run, world: u32, start: Cursor) -> Vec<Step> {
    let mut steps = Vec::new();
    let world = world as usize;
    let full = world * scenario.batch_size as usize;
    for epoch in start.epoch..scenario.epochs {
        let from = if epoch == start.epoch { start.position } else { 0 };
        let samples: Vec<SampleId> = (from..scenario.samples).map(|at| run.sample_at(epoch, at)).collect();
        let kept = if scenario.drop_last { samples.len() / full * full } else { samples.len() };
        let mut position = from;
        let mut rest = &samples[..kept];
        while !rest.is_empty() {
            let (now, later) = rest.split_at(full.min(rest.len()));
            position += now.len() as u64;
            let next =
                if later.is_empty() { Cursor { epoch: epoch + 1, position: 0 } } else { Cursor { epoch, position } };
            steps.push(Step { epoch, shares: divide(now, world), next });
            rest = later;
        }
    }
    steps
}

/// Deals out places one by one: the first ranks get one more when it does not come out even.
fn divide(samples: &[SampleId], world: usize) -> Vec<Vec<SampleId>> {
    let mut counts = vec![0; world];
    (0..samples.len()).for_each(|at| counts[at % world] += 1);
    let mut rest = samples.iter().copied();
    counts.into_iter().map(|count| rest.by_ref().take(count).collect()).collect()
}
