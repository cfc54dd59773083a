//! When a sample is used again by this rank: arithmetic on the order, no table.
//!
//! Owns a copy of the run and a horizon; every lookup costs O(1) per epoch searched, and use in it, and no memory. Never knows what is
//! cached or delivered.

use crate::importance::Known;
use crate::run::{Cursor, Run};
use core::ops::Range;
use fuelrail_base::SampleId;

/// A moment of the run: `epoch * samples + position`. Grows along the run; the same on every rank.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct UseTime(pub u64);

/// Next uses of samples by this rank within a horizon.
///
/// The horizon is a number of whole epochs searched beyond the current one: with 1, a next use may lie anywhere in the rest
/// of this epoch and in all of the next. A sample comes to a given rank of `world` once in `world`
/// epochs on average, so several ranks want a horizon of a few times `world`; under the sticky order nearly every epoch.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Schedule {
    run: Run,
    horizon_epochs: u64,
    /// Uses by any rank count.
    of_all: bool,
}

/// Epochs searched for a next use at most, which bounds the time for a block. A rank of so many that this is too few sees few samples twice in a
/// whole run.
const HORIZON_MAX: u64 = 64;

/// Epochs that `Schedule` looks ahead for a rank of `world` that can keep `kept_share` (0 to 1) of the data set.
///
/// A sample comes to a rank once in `world` epochs on average, so the blocks whose next uses are nearest fill the caches
/// with uses within `-ln(1 - kept_share) * world` epochs, and what is used later is not kept. Four times the share is more than
/// that up to a share of 0.98. At most `HORIZON_MAX`, because the next use of every block that lands is searched in up to so many epochs.
pub fn horizon_epochs(world: u32, kept_share: f64) -> u64 {
    let most = 4 * u64::from(world);
    ((most as f64 * kept_share).ceil() as u64).clamp(4, most).min(HORIZON_MAX)
}

impl Schedule {
    /// A schedule over `run`, looking `horizon_epochs` whole epochs ahead.
    pub fn new(run: &Run, horizon_epochs: u64) -> Schedule {
        Schedule { run: run.clone(), horizon_epochs, of_all: false }
    }

    /// The same, of uses by any rank: of one that keeps blocks for all.
    #[must_use]
    pub fn of_all_ranks(self) -> Schedule {
        Schedule { of_all: true, ..self }
    }

    /// Takes in which epochs are drawn. In one that is not, a sample counts as coming at its place.
    pub fn learn(&mut self, known: &Known) {
        self.run.learn(known);
    }

    /// How important a sample is, as far as epochs are drawn: see [`Run::rate`].
    pub fn rate(&self, sample: SampleId) -> u16 {
        self.run.rate(sample)
    }

    /// The moment of a position of an epoch.
    ///
    /// # Panics
    /// When the position is not one of the data set, or the epoch is beyond every run.
    pub fn time(&self, epoch: u64, position: u64) -> UseTime {
        assert!(position < self.samples() && epoch <= crate::run::EPOCHS_MAX, "epoch {epoch} position {position}");
        UseTime(epoch * self.samples() + position)
    }

    /// The epoch and position of a moment.
    pub fn cursor(&self, time: UseTime) -> Cursor {
        Cursor { epoch: time.0 / self.samples(), position: time.0 % self.samples() }
    }

    /// The next time this rank, or [any](Schedule::of_all_ranks), uses `sample`, strictly later than `after`; `None` when that is beyond the horizon or the
    /// end of the run.
    ///
    /// # Panics
    /// When the sample is not one of the data set.
    pub fn next_use(&self, sample: SampleId, after: UseTime) -> Option<UseTime> {
        let from = after.0.saturating_add(1);
        self.epochs_from(after).find_map(|epoch| {
            let (from, mine) = (from.saturating_sub(epoch * self.samples()), |at| {
                self.of_all || self.run.seq_of_position(epoch, at).is_some()
            });
            let position = self.run.next_position(epoch, sample, from, mine)?;
            Some(self.time(epoch, position))
        })
    }

    /// How many of these samples this rank takes in the epoch, as far as it is this run's.
    pub fn taken(&self, epoch: u64, samples: Range<u64>) -> u64 {
        let config = self.run.config();
        if config.world == 1 && !config.drop_last && (epoch > config.start.epoch || config.start.position == 0) {
            return samples.end - samples.start;
        }
        let takes = |sample| self.run.seq_of_position(epoch, self.run.position_of(epoch, SampleId(sample))).is_some();
        samples.filter(|sample| takes(*sample)).count() as u64
    }

    /// The value of a block with this next use: uses per epoch expected from `now` on, one over the epochs until then; 0 without one.
    pub fn worth(&self, next: Option<UseTime>, now: UseTime) -> f64 {
        let epoch = |at| self.cursor(at).epoch;
        next.map_or(0.0, |next| 1.0 / (epoch(next) - epoch(now)).max(1) as f64)
    }

    /// Whether a moment is in the last epoch of the run.
    pub fn is_last(&self, at: UseTime) -> bool {
        self.cursor(at).epoch >= self.run.config().epochs - 1
    }

    fn epochs_from(&self, from: UseTime) -> core::ops::Range<u64> {
        let config = self.run.config();
        let asked_in = self.cursor(from).epoch;
        let end = asked_in.saturating_add(self.horizon_epochs).saturating_add(1).min(config.epochs);
        asked_in.max(config.start.epoch)..end
    }

    fn samples(&self) -> u64 {
        self.run.config().samples
    }
}
