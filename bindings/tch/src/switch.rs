//! The switches between synchronous and asynchronous training: Sync-Switch (Li, Mangoubi, Xu, Guo, ICDCS 2021) with its online policies.
//!
//! Pure: after a synchronous step all ranks see the same numbers and decide the same; of asynchronous ones rank 0 decides alone. The published
//! system restarts the job to switch; here it is one step's end.

use clap::{Args, ValueEnum};
use fuelrail_base::{Error, Kind, Result};
use serde::{Deserialize, Serialize};
use std::ops::Range;

/// How gradients of ranks come together.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Mode {
    /// Bulk-synchronous: every step waits for every rank.
    #[default]
    Synchronous,
    /// Every rank at its own pace, against parameters that rank 0 holds.
    Asynchronous,
}

/// What is done about a rank that lags.
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Policy {
    /// Steps are asynchronous until no rank lags any more.
    #[default]
    Greedy,
    /// The others go on without it, synchronously, until the synchronous share of the work is done: it takes part in their sums with nothing of
    /// its own, which spares what a slow device costs, not what a slow network does. Rank 0, which keeps the model's running statistics, is
    /// never left out; where it lags, steps are asynchronous
    Elastic,
}

/// When to switch.
#[derive(Args, Clone, Copy, PartialEq, Debug)]
pub struct SwitchConfig {
    /// Share of the work, done in synchronous steps, after which training goes asynchronous (Sync-Switch); 1 never, 0 at once
    #[arg(long = "switch-after", value_name = "SHARE", default_value_t = 1.0)]
    pub after: f64,
    /// A rank lags that takes this many times the median's time, ten steps in a row; 0 never
    #[arg(long, default_value_t = 0.0)]
    pub straggler: f64,
    /// What is done about a rank that lags
    #[arg(long = "straggler-policy", value_enum, default_value_t)]
    pub policy: Policy,
    /// Steps in a row it must be seen in.
    #[arg(skip = 10)]
    pub straggler_steps: i32,
}

impl Default for SwitchConfig {
    fn default() -> SwitchConfig {
        SwitchConfig { after: 1.0, straggler: 0.0, policy: Policy::Greedy, straggler_steps: 10 }
    }
}

/// A rank that is slowed down, for trials.
#[derive(Clone, PartialEq, Debug)]
pub struct Slow {
    /// Which.
    pub rank: usize,
    /// How many times its own time a step takes.
    pub factor: f64,
    /// Between which shares of the work.
    pub during: Range<f64>,
}

/// Reads RANK=FACTOR[@FROM..TO].
pub(crate) fn slow(text: &str) -> Result<Slow> {
    let read = || {
        let (rank, how) = text.split_once('=')?;
        let (factor, during) = how.split_once('@').unwrap_or((how, "0..2"));
        let (from, to) = during.split_once("..")?;
        let (rank, factor, during) = (rank.parse().ok()?, factor.parse().ok()?, from.parse().ok()?..to.parse().ok()?);
        Some(Slow { rank, factor, during })
    };
    read().ok_or_else(|| {
        Error::new(Kind::Usage, "not RANK=FACTOR[@FROM..TO]").with_hint("write for example 1=3, or 1=3@0.1..0.5")
    })
}

/// Why it was switched.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Reason {
    /// Asynchronous: the share of the work was done.
    Share,
    /// Asynchronous: this rank lags.
    Straggler(usize),
    /// Synchronous without this rank, which lags.
    LeftOut(usize),
    /// Synchronous again: no rank lags any more.
    Recovered,
}

/// Decides when to switch.
#[derive(Clone, Debug)]
pub(crate) struct Switch {
    config: SwitchConfig,
    /// For each rank, seconds of its own work in its last step.
    own_s: Vec<f64>,
    /// For each rank, the steps in a row in which it lagged; below zero, those in which it did not.
    lagging: Vec<i32>,
    left_out: Vec<bool>,
}

impl Switch {
    pub(crate) fn new(config: SwitchConfig, world: usize) -> Switch {
        Switch { config, own_s: vec![0.0; world], lagging: vec![0; world], left_out: vec![false; world] }
    }

    /// Whether steps may become asynchronous, or ranks be left out: then loaders must be able to go on beyond their share.
    pub(crate) fn may_switch(&self) -> bool {
        self.lagging.len() > 1 && (self.config.after < 1.0 || self.config.straggler > 0.0)
    }

    /// Whether the others go on without this rank.
    pub(crate) fn leaves_out(&self, rank: usize) -> bool {
        self.left_out[rank]
    }

    /// The share of the ranks that take part in synchronous steps.
    pub(crate) fn present(&self) -> f64 {
        self.left_out.iter().filter(|&&out| !out).count() as f64 / self.left_out.len() as f64
    }

    /// Whether the synchronous part is done, where this share of the work was done in such steps.
    pub(crate) fn is_done(&self, share: f64) -> bool {
        self.may_switch() && share >= self.config.after
    }

    /// After a synchronous step: `done` is the share of the work done in such steps, `own_s` each rank's own time.
    pub(crate) fn look(&mut self, done: f64, own_s: &[f64]) -> Option<Reason> {
        if self.is_done(done) {
            self.left_out.fill(false);
            return Some(Reason::Share);
        }
        if !self.may_switch() || self.config.straggler <= 0.0 {
            return None;
        }
        self.own_s.copy_from_slice(own_s);
        let present: Vec<usize> = (0..own_s.len()).filter(|&rank| !self.left_out[rank]).collect();
        present.iter().for_each(|&rank| self.count(rank));
        let lags = present.into_iter().find(|&rank| self.lagging[rank] >= self.config.straggler_steps.max(1))?;
        if lags == 0 || self.config.policy == Policy::Greedy {
            self.lagging.fill(0);
            return Some(Reason::Straggler(lags));
        }
        self.left_out[lags] = true;
        Some(Reason::LeftOut(lags))
    }

    /// After an asynchronous step of one rank, which took so long: whether no rank lags any more.
    pub(crate) fn recovered(&mut self, rank: usize, own_s: f64) -> bool {
        self.own_s[rank] = own_s;
        self.count(rank);
        let enough = -self.config.straggler_steps.max(1);
        self.lagging.iter().zip(&self.left_out).all(|(&steps, &out)| out || steps <= enough)
    }

    fn count(&mut self, rank: usize) {
        let present = self.own_s.iter().zip(&self.left_out).filter(|(_, out)| !**out);
        let mut sorted: Vec<f64> = present.map(|(own, _)| *own).collect();
        sorted.sort_unstable_by(f64::total_cmp);
        // Of two ranks the faster one is the measure, else nobody could lag behind the median.
        let usual = sorted[(sorted.len() - 1) / 2];
        let steps = &mut self.lagging[rank];
        *steps = if self.own_s[rank] > self.config.straggler * usual {
            steps.saturating_add(1).max(1)
        } else {
            steps.saturating_sub(1).min(-1)
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn after_a_share_of_the_work() {
        let mut switch = Switch::new(SwitchConfig { after: 0.05, ..SwitchConfig::default() }, 2);
        assert_eq!(switch.look(0.049, &[1.0, 1.0]), None);
        assert_eq!(switch.look(0.05, &[1.0, 1.0]), Some(Reason::Share));
    }

    #[test]
    fn when_one_rank_lags_for_long_enough() {
        let config = SwitchConfig { straggler: 2.0, straggler_steps: 3, ..SwitchConfig::default() };
        let mut switch = Switch::new(config, 3);
        assert_eq!(switch.look(0.1, &[1.0, 1.0, 2.5]), None);
        assert_eq!(switch.look(0.1, &[1.0, 1.0, 2.5]), None);
        assert_eq!(switch.look(0.1, &[1.0, 1.0, 1.5]), None, "it caught up");
        for _ in 0..2 {
            assert_eq!(switch.look(0.1, &[1.0, 1.0, 2.5]), None);
        }
        assert_eq!(switch.look(0.1, &[1.0, 1.0, 2.5]), Some(Reason::Straggler(2)));
        let mut two = Switch::new(SwitchConfig { straggler_steps: 1, ..config }, 2);
        assert_eq!(two.look(0.0, &[9.0, 1.0]), Some(Reason::Straggler(0)));
    }

    #[test]
    fn back_when_no_rank_lags_any_more() {
        let config = SwitchConfig { straggler: 2.0, straggler_steps: 2, ..SwitchConfig::default() };
        let mut switch = Switch::new(config, 3);
        assert_eq!(switch.look(0.1, &[1.0, 2.5, 1.0]), None);
        assert_eq!(switch.look(0.1, &[1.0, 2.5, 1.0]), Some(Reason::Straggler(1)));
        let mut of_rank_0 = switch.clone();
        for (rank, own_s) in [(0, 1.0), (1, 2.5), (2, 1.0), (1, 1.5), (1, 2.5), (1, 1.0), (0, 1.0), (2, 1.0)] {
            assert!(!of_rank_0.recovered(rank, own_s), "rank {rank}, {own_s}");
        }
        assert!(of_rank_0.recovered(1, 1.0));
        assert_eq!(switch.look(0.1, &[1.0, 2.5, 1.0]), None, "one step is not enough to lag again");
    }

    #[test]
    fn without_those_that_lag_until_the_share_is_done() {
        let config = SwitchConfig { after: 0.5, straggler: 2.0, policy: Policy::Elastic, straggler_steps: 1 };
        let mut switch = Switch::new(config, 4);
        assert_eq!(switch.look(0.1, &[1.0, 1.0, 1.0, 3.0]), Some(Reason::LeftOut(3)));
        assert!(switch.leaves_out(3) && switch.present() == 0.75);
        assert_eq!(switch.look(0.2, &[1.0, 1.0, 1.0, 0.0]), None, "the one left out is no measure");
        assert_eq!(switch.look(0.2, &[1.0, 1.0, 4.0, 0.0]), Some(Reason::LeftOut(2)));
        assert_eq!(switch.look(0.3, &[9.0, 1.0, 0.0, 0.0]), Some(Reason::Straggler(0)), "rank 0 stays");
        assert_eq!(switch.look(0.5, &[1.0, 1.0, 0.0, 0.0]), Some(Reason::Share));
        assert!((0..4).all(|rank| !switch.leaves_out(rank)) && switch.present() == 1.0);
    }

    #[test]
    fn never_alone_and_never_unasked() {
        assert!(!Switch::new(SwitchConfig { after: 0.0, ..SwitchConfig::default() }, 1).may_switch());
        assert_eq!(Switch::new(SwitchConfig::default(), 4).look(1.0, &[1.0, 1.0, 1.0, 99.0]), None);
    }
}
