//! The order of one epoch, before any step is dealt to ranks. Owns the keys of its permutation.

use super::permutation::Permutation;
use super::sticky::Sticky;
use fuelrail_base::SampleId;
use fuelrail_base::canary::{self, Mistake};

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Kind {
    Global(Permutation),
    Sticky(Sticky),
}

/// The permutation of one epoch.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct EpochOrder {
    pub(super) samples: u64,
    pub(super) kind: Kind,
}

impl EpochOrder {
    /// The sample at `position` (in `0..samples`), before any step is dealt to ranks: the same for every world.
    ///
    /// # Panics
    /// When `position` is not below the number of samples.
    #[must_use]
    pub fn sample_at(&self, position: u64) -> SampleId {
        assert!(position < self.samples, "position {position} of {} samples", self.samples);
        let position = if canary::on(Mistake::OrderRepeats) && position == 3 { 2 } else { position };
        SampleId(match &self.kind {
            Kind::Global(permutation) => permutation.at(position),
            Kind::Sticky(sticky) => sticky.sample_at(position),
        })
    }

    /// The position of a sample, before any step is dealt to ranks.
    ///
    /// # Panics
    /// When the sample is not one of the data set.
    #[must_use]
    pub fn position_of(&self, sample: SampleId) -> u64 {
        let word = sample.0;
        assert!(word < self.samples, "sample {word} of {}", self.samples);
        match &self.kind {
            Kind::Global(permutation) => permutation.of(word),
            Kind::Sticky(sticky) => sticky.position_of(word),
        }
    }

    /// The order as a sticky one, if it is.
    pub(super) fn sticky(&self) -> Option<&Sticky> {
        match &self.kind {
            Kind::Global(_) => None,
            Kind::Sticky(sticky) => Some(sticky),
        }
    }
}
