//! Which epochs are drawn already, and when the next one is: the moments at which scores become a draw.
//!
//! **The lag.** The draw of an epoch is made of what was reported of steps that end a lag before the epoch begins: an eighth
//! of an epoch, at least eight steps, at most an epoch. Half of the lag is for the consumer, who may take that much ahead of
//! what it reports; the other half is for the loader, which then knows the epoch before it must look into it. An epoch is
//! settled as soon as reports have passed that moment, or, without reports, when the consumer requests what lies half
//! a lag before the epoch: so nothing ever waits for a report. One that comes after its draw is refused, because another
//! rank may have made its draw with it.
//!
//! Moments are epoch times samples plus position, as everywhere: the same on every rank, and with any number of ranks.

use super::draw::{Draw, ONE, levelled, shade};
use super::scores::{Scores, Smoothing};
use super::{ImportanceConfig, Mode};
use crate::usage;
use fuelrail_base::prng::mix64;
use fuelrail_base::{Result, SampleId};
use std::sync::Arc;

/// Sets draws apart from permutations under the same seed.
const DRAW: u64 = 0x696d_706f_7274_616e;
/// … and SHADE's misplaced scores from both.
const MISPLACED: u64 = 0x7368_6164_6521_6661;
/// Draws kept: of the epoch the consumer is in, the one before and the one after it.
const KEPT: usize = 3;

/// The draw of an epoch; `None` for the plain one, in which every sample comes once.
pub type Drawn = Option<Arc<Draw>>;

/// Which epochs are settled, and how. Cheap to clone.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Known {
    first: u64,
    draws: Arc<Vec<Drawn>>,
}

impl Known {
    /// The first epoch that is not settled.
    pub fn settled(&self) -> u64 {
        self.first + self.draws.len() as u64
    }

    /// Whether it is known what an epoch holds: it is settled, and not long over.
    pub fn holds(&self, epoch: u64) -> bool {
        (self.first..self.settled()).contains(&epoch)
    }

    /// The draw of an epoch; `None` when it is plain, or not known.
    pub fn draw(&self, epoch: u64) -> Option<&Arc<Draw>> {
        self.draws.get(usize::try_from(epoch.checked_sub(self.first)?).ok()?)?.as_ref()
    }
}

/// Everything a run needs to go on with the same draws.
#[derive(Clone, PartialEq, Debug)]
pub struct Keepsake {
    /// Scores, and what was reported since the last draw.
    pub scores: Vec<f32>,
    /// What is added to them.
    pub smoothing: Smoothing,
    /// Sum of the losses reported since the last draw.
    pub loss_sum: f64,
    /// … and how many there were.
    pub losses: u64,
    /// The moment up to which steps have been reported.
    pub reported: u64,
    /// The first epoch of `draws`.
    pub first: u64,
    /// The draws of the epochs that are settled and not over.
    pub draws: Vec<Drawn>,
}

/// The moments of a run's draws.
#[derive(Debug)]
pub struct Horizons {
    config: ImportanceConfig,
    samples: u64,
    seed: u64,
    step: u64,
    lag: u64,
    scores: Scores,
    smoothing: Smoothing,
    loss_sum: f64,
    losses: u64,
    reported: u64,
    known: Known,
}

impl Horizons {
    /// The draws of a run over `samples` samples in global steps of `step`, that begins at the moment `start`: with what was
    /// kept of an earlier run there, or with a plain epoch.
    ///
    /// # Errors
    /// [`Kind::Usage`] when the configuration is out of range, or what was kept does not belong to this run.
    pub fn new(
        config: ImportanceConfig,
        samples: u64,
        seed: u64,
        step: u64,
        start: u64,
        kept: Option<Keepsake>,
    ) -> Result<Horizons> {
        config.validate()?;
        let scores = match config.mode {
            Mode::Shade => Scores::new(samples).misplaced(mix64(seed ^ MISPLACED)),
            Mode::Uniform | Mode::ShadeCorrected | Mode::On => Scores::new(samples),
        };
        let mut horizons = Horizons {
            config,
            samples,
            seed,
            step,
            lag: lag(samples, step),
            scores,
            smoothing: Smoothing::default(),
            loss_sum: 0.0,
            losses: 0,
            reported: start,
            known: Known { first: start / samples, draws: Arc::new(vec![None]) },
        };
        if let Some(kept) = kept {
            horizons.restore(kept)?;
        }
        horizons.asked(start);
        Ok(horizons)
    }

    fn restore(&mut self, kept: Keepsake) -> Result<()> {
        let epoch = self.known.first;
        let cure = "resume with the scores saved with the state";
        let foreign = kept.draws.iter().flatten().any(|draw| draw.places() != self.samples);
        let skipped = epoch.checked_sub(kept.first).filter(|skipped| *skipped < kept.draws.len() as u64);
        let (false, Some(skipped), true) = (foreign, skipped, kept.draws.len() <= KEPT) else {
            return usage(format!("the saved scores have no draw for epoch {epoch} of {} samples", self.samples), cure);
        };
        if kept.reported > self.reported {
            return usage("the saved scores are of later steps than the state", cure);
        }
        self.scores.restore(&kept.scores)?;
        (self.smoothing, self.loss_sum, self.losses) = (kept.smoothing, kept.loss_sum, kept.losses);
        self.known.draws = Arc::new(kept.draws.into_iter().skip(skipped as usize).collect());
        Ok(())
    }

    /// Takes the losses of one whole global step, which ends at the moment `end`; steps come in their order. Returns whether
    /// an epoch was settled by it.
    ///
    /// # Errors
    /// [`Kind::Usage`], and nothing is taken, when the step was reported before, comes after the draw it belongs to, or the
    /// losses do not fit the ids.
    pub fn report(&mut self, end: u64, ids: &[SampleId], losses: &[f32]) -> Result<bool> {
        if end <= self.reported {
            let cause =
                format!("losses up to {} were reported, and now those of a step that ends at {end}", self.reported);
            return usage(cause, "report every step once, in order");
        }
        let settled = self.known.settled();
        if end <= self.cut(settled - 1) {
            let (epoch, half) = (settled - 1, self.lag / 2);
            let cause = format!("losses of a step that ends at {end} came after the draw of epoch {epoch}");
            return usage(cause, format!("take at most {half} samples, of all ranks, ahead of what you report"));
        }
        self.scores.check(ids, losses)?;
        let before = self.settle_while(|cut| end > cut);
        let epoch = (end - 1) / self.samples;
        let (sum, count) = self.scores.report(epoch, ids, losses)?;
        self.loss_sum += sum;
        self.losses += count;
        self.reported = end;
        Ok(self.settle_reported() || before)
    }

    /// The consumer requests the batch that begins at this moment. Returns whether an epoch was settled by it.
    pub fn asked(&mut self, begin: u64) -> bool {
        let half = self.lag / 2;
        let reported = self.settle_reported();
        let settled = self.settle_while(|cut| begin >= cut + half) || reported;
        while self.known.first + 1 < begin / self.samples && self.known.draws.len() > 1 {
            Arc::make_mut(&mut self.known.draws).remove(0);
            self.known.first += 1;
        }
        settled
    }

    /// What shards have to know.
    pub fn known(&self) -> Known {
        self.known.clone()
    }

    /// The draw of an epoch, if it is settled and not long over.
    pub fn draw(&self, epoch: u64) -> Option<&Arc<Draw>> {
        self.known.draw(epoch)
    }

    /// What a run that goes on at this moment needs.
    pub fn keepsake(&self, at: u64) -> Keepsake {
        let Known { first, draws } = &self.known;
        let skipped = (at / self.samples).saturating_sub(*first).min(draws.len() as u64 - 1);
        Keepsake {
            scores: self.scores.as_slice().to_vec(),
            smoothing: self.smoothing,
            loss_sum: self.loss_sum,
            losses: self.losses,
            reported: self.reported,
            first: first + skipped,
            draws: draws.iter().skip(skipped as usize).cloned().collect(),
        }
    }

    /// The moment whose scores an epoch is drawn from.
    fn cut(&self, epoch: u64) -> u64 {
        epoch.saturating_mul(self.samples).saturating_sub(self.lag)
    }

    /// Settles the epochs of which everything is reported: the next step ends after their moment.
    fn settle_reported(&mut self) -> bool {
        let edge = (self.reported / self.samples + 1).saturating_mul(self.samples);
        let next = self.reported.saturating_add(self.step).min(edge);
        self.settle_while(|cut| next > cut)
    }

    fn settle_while(&mut self, due: impl Fn(u64) -> bool) -> bool {
        let before = self.known.settled();
        while due(self.cut(self.known.settled())) {
            let drawn = self.drawn(self.known.settled());
            Arc::make_mut(&mut self.known.draws).push(drawn);
        }
        self.known.settled() > before
    }

    fn drawn(&mut self, epoch: u64) -> Drawn {
        if self.losses > 0 {
            self.smoothing.follow(self.loss_sum / self.losses as f64);
            (self.loss_sum, self.losses) = (0.0, 0);
        }
        let ImportanceConfig { mode, coverage, replay, weights, cached_samples } = self.config;
        let (scores, word) = (self.scores.as_slice(), mix64(mix64(self.seed ^ DRAW).wrapping_add(epoch)));
        if mode == Mode::Uniform || scores.iter().all(|score| score.is_nan()) {
            return None;
        }
        let draw = match mode {
            Mode::On => {
                let floor = (coverage * f64::from(ONE)).ceil().clamp(1.0, f64::from(ONE)) as u16;
                let cap = (u64::from(ONE) * u64::from(replay)) as u16;
                let rates = levelled(scores, &self.smoothing, floor, cap);
                Draw::new(rates, word, weights)
            }
            Mode::Shade | Mode::ShadeCorrected | Mode::Uniform => {
                Draw::new(shade(scores, &self.smoothing, cached_samples, replay, word), word, false)
            }
        };
        Some(Arc::new(draw.expect("rates add up to the places of an epoch")))
    }
}

/// How long before an epoch its draw is made, in positions.
fn lag(samples: u64, step: u64) -> u64 {
    (samples / 8).max(step.saturating_mul(8)).min(samples)
}
