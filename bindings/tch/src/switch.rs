//! The switch from synchronous to asynchronous training: Sync-Switch (Li, Mangoubi, Xu, Guo, ICDCS 2021).
//!
//! Pure: every rank sees the same numbers, so every rank decides the same at the same step. The published system restarts the job to switch;
//! here it is one step's end.

use clap::Args;
use serde::{Deserialize, Serialize};

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

/// When to switch.
#[derive(Args, Clone, Copy, PartialEq, Debug)]
pub struct SwitchConfig {
    /// Share of the work after which training goes asynchronous (Sync-Switch); 1 never, 0 at once
    #[arg(long = "switch-after", value_name = "SHARE", default_value_t = 1.0)]
    pub after: f64,
    /// Also when a rank takes this many times the median's time, ten steps in a row; 0 never
    #[arg(long, default_value_t = 0.0)]
    pub straggler: f64,
    /// Steps in a row it must be seen in.
    #[arg(skip = 10_u32)]
    pub straggler_steps: u32,
}

impl Default for SwitchConfig {
    fn default() -> SwitchConfig {
        SwitchConfig { after: 1.0, straggler: 0.0, straggler_steps: 10 }
    }
}

/// Why it was switched.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Reason {
    /// The share of the work was done.
    Share,
    /// This rank lags.
    Straggler(usize),
}

/// Decides when to switch.
#[derive(Clone, Debug)]
pub(crate) struct Switch {
    config: SwitchConfig,
    /// For each rank, steps in a row in which it lagged.
    lagging: Vec<u32>,
}

impl Switch {
    /// A switch for `world` ranks.
    pub(crate) fn new(config: SwitchConfig, world: usize) -> Switch {
        Switch { config, lagging: vec![0; world] }
    }

    /// Whether steps may become asynchronous: then loaders must be able to go on beyond their share.
    pub(crate) fn may_switch(&self) -> bool {
        self.lagging.len() > 1 && (self.config.after < 1.0 || self.config.straggler > 0.0)
    }

    /// After a synchronous step: `done` is the share of the work, `own_s` each rank's own time.
    pub(crate) fn look(&mut self, done: f64, own_s: &[f64]) -> Option<Reason> {
        if !self.may_switch() {
            return None;
        }
        if done >= self.config.after {
            return Some(Reason::Share);
        }
        if self.config.straggler <= 0.0 {
            return None;
        }
        let mut sorted = own_s.to_vec();
        sorted.sort_unstable_by(f64::total_cmp);
        // Of two ranks the faster one is the measure, else nobody could lag behind the median.
        let usual = sorted[(sorted.len() - 1) / 2];
        for (count, own) in self.lagging.iter_mut().zip(own_s) {
            *count = if *own > self.config.straggler * usual { *count + 1 } else { 0 };
        }
        let lags = self.lagging.iter().position(|&steps| steps >= self.config.straggler_steps.max(1))?;
        Some(Reason::Straggler(lags))
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
    fn never_alone_and_never_unasked() {
        assert!(!Switch::new(SwitchConfig { after: 0.0, ..SwitchConfig::default() }, 1).may_switch());
        assert_eq!(Switch::new(SwitchConfig::default(), 4).look(1.0, &[1.0, 1.0, 1.0, 99.0]), None);
    }
}
