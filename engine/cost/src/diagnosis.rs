//! Why a run is slower than predicted: the part of a step that takes the time, on all ranks or on one.

use core::fmt;

use serde::{Deserialize, Serialize};

/// Where a rank's steps spend their time: means over its steps, seconds.
#[derive(Clone, Copy, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct Shares {
    /// The whole step.
    pub wall_s: f64,
    /// Waiting for the next batch.
    pub data_wait_s: f64,
    /// Forward, backward, optimiser.
    pub compute_s: f64,
    /// Sums over the ranks: their transfer, and waiting for the slowest rank.
    pub all_reduce_s: f64,
    /// How full the stage that decodes is, 0 to 1; 0 where nothing is decoded.
    pub decode_share: f64,
}

/// The part of a step in which a rank is slow.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Part {
    /// The bucket, or the way to it.
    Bucket,
    /// Threads that decode.
    Decode,
    /// The device that computes, and copies to it.
    Device,
}

fuelrail_base::named!(Part, "a part of a step": Bucket = "the bucket", Decode = "decoding", Device = "the device");

/// What makes steps slow.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Cause {
    /// On all ranks alike.
    All(Part),
    /// Sums over the ranks take long although none of them is late.
    Network,
    /// One rank, which all others wait for.
    Straggler {
        /// Its number.
        rank: usize,
        /// The part of a step in which it is slower than the others.
        by: Part,
    },
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Cause::All(part) => part.fmt(f),
            Cause::Network => f.write_str("the network between the ranks"),
            Cause::Straggler { rank, by } => write!(f, "rank {rank}, slower than the others by {by}"),
        }
    }
}

/// Steps slower than predicted.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
pub struct Diagnosis {
    /// Why; `None` where nothing that was measured explains half of it.
    pub cause: Option<Cause>,
    /// Seconds a step.
    pub step_s: f64,
    /// Where they were predicted to lie.
    pub predicted_s: [f64; 2],
    /// Seconds of a step that the cause takes, or the part that takes most.
    pub lost_s: f64,
}

impl fmt::Display for Diagnosis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Diagnosis { cause, step_s, predicted_s: [low, high], lost_s } = self;
        let [step, low, high, lost] = [step_s, low, high, lost_s].map(|s| s * 1e3);
        write!(f, "slower than predicted: {step:.1} ms a step, not {low:.1} to {high:.1}; ")?;
        match cause {
            Some(cause) => write!(f, "{lost:.1} ms of it for {cause}"),
            None => write!(f, "no part of it stands out"),
        }
    }
}

/// A stage that decodes and is at least so full is what a batch waits for.
const DECODE_FULL: f64 = 0.5;

impl Shares {
    /// Seconds of a step beyond the predicted compute: waiting for data, and on the device.
    fn parts(&self, predicted_s: f64) -> [(Part, f64); 2] {
        let source = if self.decode_share >= DECODE_FULL { Part::Decode } else { Part::Bucket };
        let device_s = (self.compute_s - predicted_s).max(0.0);
        [(source, self.data_wait_s), (Part::Device, device_s)]
    }
}

/// Names the cause of steps that take longer than the interval of their prediction; `None` where they do not. One entry per rank.
pub fn diagnose(predicted_s: [f64; 2], ranks: &[Shares]) -> Option<Diagnosis> {
    let step_s = ranks.iter().map(|rank| rank.wall_s).fold(0.0, f64::max);
    if step_s <= predicted_s[1] {
        return None;
    }
    // A rank's own time; for the rest of its step it waits for the others.
    let own = |rank: &&Shares| rank.wall_s - rank.all_reduce_s;
    let mut sorted: Vec<&Shares> = ranks.iter().collect();
    sorted.sort_by(|a, b| own(a).total_cmp(&own(b)));
    let (usual, slowest) = (sorted[(sorted.len() - 1) / 2], sorted[sorted.len() - 1]);
    let network_s = ranks.iter().map(|rank| rank.all_reduce_s).fold(f64::INFINITY, f64::min);
    let parts = usual.parts(predicted_s[1]);
    let common = parts.map(|(part, lost_s)| (Cause::All(part), lost_s));
    let late = slowest.parts(predicted_s[1]).into_iter().zip(parts);
    let by = late.map(|((part, late_s), (_, usual_s))| (part, late_s - usual_s)).max_by(|a, b| a.1.total_cmp(&b.1));
    let rank = ranks.iter().position(|rank| rank == slowest);
    let straggler = rank.zip(by).map(|(rank, (by, _))| (Cause::Straggler { rank, by }, own(&slowest) - own(&usual)));
    let causes = common.into_iter().chain([(Cause::Network, network_s)]).chain(straggler);
    let (cause, lost_s) = causes.max_by(|a, b| a.1.total_cmp(&b.1))?;
    let explains = lost_s >= (step_s - predicted_s[1]) / 2.0;
    Some(Diagnosis { cause: explains.then_some(cause), step_s, predicted_s, lost_s })
}
