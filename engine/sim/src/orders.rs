//! What the orders cost and what they bring: how well each shuffles, and what ranks hit in caches of their own.
//!
//! The shuffles are judged as delivered, epoch by epoch; a windowed one stands beside them to show what a weak one looks
//! like. The hits are counted by the shipping shards of all ranks in virtual time, without faults. Never measures time.

use clap::Args;
use fuelrail_base::{Error, Kind, Result};
use fuelrail_plan::order::OrderName;
use fuelrail_plan::order::quality::{Quality, measure, windowed};
use fuelrail_plan::policy::PolicyName;
use fuelrail_plan::run::{Cursor, Run, RunConfig};
use fuelrail_plan::schedule::horizon_epochs;
use serde::Serialize;

use crate::run::run_sound;
use crate::scenario::Scenario;

/// The question.
#[derive(Args, Clone, Copy, PartialEq, Debug, Serialize)]
pub struct OrdersRun {
    /// Samples of the data set
    #[arg(long, value_name = "N", default_value_t = 20_000, value_parser = clap::value_parser!(u32).range(2..=10_000_000))]
    pub samples: u32,
    /// Ranks
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=64))]
    pub world: u32,
    /// Samples per batch and rank
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..))]
    pub batch_size: u32,
    /// Epochs
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u64).range(2..=100))]
    pub epochs: u64,
    /// Each rank's cache, as a share of its part of the data set: the most it can hit from the second epoch on
    #[arg(long, value_name = "SHARE", default_value_t = 0.5)]
    pub cache_share: f64,
    /// Samples in the window of the weak shuffle beside them
    #[arg(long, value_name = "N", default_value_t = 1_000)]
    pub window: u32,
    /// Seed
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub seed: u64,
}

/// What one shuffle is like.
#[derive(Clone, PartialEq, Debug)]
pub struct OrderAnswer {
    /// Its name.
    pub name: String,
    /// How well it shuffles.
    pub quality: Quality,
    /// Share of uses from the second epoch on that the ranks' own caches served; none where no loader has this shuffle. It may
    /// be a little more than the caches' share: what is on its way while two epochs meet crosses the edge as well.
    pub hit_ratio: Option<f64>,
}

/// Bytes of an object in virtual time; what counts are blocks.
const OBJECT_BYTES: u64 = 512;

/// The global order, the sticky one, the chunked one and a windowed shuffle.
///
/// # Errors
/// `Usage` when there are not two epochs of a step at least; `Environment` when a check of the simulation fails: a bug of
/// the engine.
pub fn compare(question: &OrdersRun) -> Result<Vec<OrderAnswer>> {
    let &OrdersRun { samples, world, batch_size, epochs, window, seed, .. } = question;
    if epochs < 2 || u64::from(world) * u64::from(batch_size) > u64::from(samples) || window == 0 {
        let cause = format!("{epochs} epochs of {samples} samples over {world} ranks x {batch_size}, window {window}");
        return Err(Error::new(Kind::Usage, cause).with_hint("ask for two epochs and one full step at least"));
    }
    let quality = |epochs: &[Vec<u32>]| measure(epochs, world as usize, batch_size as usize);
    let mut answers = Vec::new();
    for order in OrderName::ALL {
        let delivered = (0..epochs).map(|epoch| delivered(question, order, epoch)).collect::<Result<Vec<_>>>()?;
        let hit_ratio = Some(hit_ratio(question, order)?);
        answers.push(OrderAnswer { name: order.word().into(), quality: quality(&delivered), hit_ratio });
    }
    let delivered: Vec<_> = (0..epochs).map(|epoch| windowed(samples, window as usize, seed, epoch)).collect();
    let name = format!("window of {window}");
    answers.push(OrderAnswer { name, quality: quality(&delivered), hit_ratio: None });
    Ok(answers)
}

/// One epoch, as all ranks together deliver it.
fn delivered(question: &OrdersRun, order: OrderName, epoch: u64) -> Result<Vec<u32>> {
    let &OrdersRun { world, batch_size, epochs, seed, .. } = question;
    let (samples, shuffle, rank, drop_last) = (u64::from(question.samples), true, 0, false);
    let start = Cursor::default();
    let run = Run::new(RunConfig { samples, seed, order, shuffle, world, rank, batch_size, drop_last, epochs, start })?;
    Ok((0..samples).map(|position| run.sample_at(epoch, position).0 as u32).collect())
}

/// What the caches of all ranks served from the second epoch on, played in virtual time.
fn hit_ratio(question: &OrdersRun, order: OrderName) -> Result<f64> {
    let &OrdersRun { samples, world, batch_size, epochs, cache_share, seed, .. } = question;
    let mut scenario = Scenario::quiet(seed, u64::from(samples), OBJECT_BYTES, batch_size);
    (scenario.order, scenario.epochs, scenario.lives[0].world) = (order, epochs, world);
    let part = scenario.total_bytes as f64 / f64::from(world);
    scenario.loader.cache_bytes = (part * cache_share.clamp(0.0, 1.0)) as u64 / OBJECT_BYTES * OBJECT_BYTES;
    let kept_share = scenario.loader.cache_bytes as f64 / scenario.total_bytes as f64;
    (scenario.loader.policy, scenario.loader.horizon_epochs) = (PolicyName::NextUse, horizon_epochs(world, kept_share));
    let report = run_sound(&scenario)?;
    Ok(report.counters.hits as f64 / (u64::from(samples) * (epochs - 1)) as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The shipping shards of three ranks: what their caches can hold, they hit under the sticky order.
    #[test]
    fn three_ranks_reach_the_limit_of_their_own_caches() {
        for cache_share in [0.25, 0.5, 0.75] {
            let question =
                OrdersRun { samples: 3_000, world: 3, batch_size: 32, epochs: 4, cache_share, window: 100, seed: 3 };
            let answers = compare(&question).unwrap();
            let [global, sticky, chunks, window] = &answers[..] else { panic!("{answers:?}") };
            let (under_global, under_sticky) = (global.hit_ratio.unwrap(), sticky.hit_ratio.unwrap());
            // At each edge, the four open batches of each rank may be hit besides.
            let most = cache_share + f64::from(4 * 3 * 32) / 3_000.0;
            assert!((0.95 * cache_share..=most).contains(&under_sticky), "{cache_share}: {sticky:?}");
            assert!(under_sticky >= under_global, "{cache_share}: {global:?} {sticky:?}");
            assert!((0.95 * cache_share..=most).contains(&chunks.hit_ratio.unwrap()), "{cache_share}: {chunks:?}");
            assert!(cache_share < 0.75 || under_global < 0.7 * cache_share, "{cache_share}: {global:?}");
            let [global, sticky, chunks, window] = [global, sticky, chunks, window].map(|order| order.quality);
            assert!(sticky.kept > 0.95 && (global.kept - 1.0 / 3.0).abs() < 0.03, "{answers:?}");
            // Near the listing by chunks, and by nothing else: steps are more even than chance makes them, batches of ranks as even.
            assert!(chunks.kept > 0.95 && chunks.neighbours > 0.95 && chunks.serial_sigmas.abs() < 10.0, "{answers:?}");
            assert!(chunks.step_sigmas < 4.0 && chunks.batch_sigmas.abs() < 4.0, "{answers:?}");
            assert!((chunks.step_mates - 1.0).abs() < 0.02 && chunks.batch_mates > 0.95, "{answers:?}");
            assert!(sticky.step_sigmas.abs() < 4.0 && window.step_sigmas > 100.0, "{answers:?}");
        }
    }

    #[test]
    fn what_cannot_be_compared_is_refused() {
        let good = OrdersRun { samples: 100, world: 3, batch_size: 8, epochs: 2, cache_share: 0.5, window: 9, seed: 1 };
        assert_eq!(compare(&good).unwrap().len(), 4);
        for bad in
            [OrdersRun { epochs: 1, ..good }, OrdersRun { batch_size: 50, ..good }, OrdersRun { window: 0, ..good }]
        {
            assert_eq!(compare(&bad).unwrap_err().kind(), Kind::Usage);
        }
    }
}
