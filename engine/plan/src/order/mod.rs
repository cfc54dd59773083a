//! The order of samples as a function: a keyed permutation of `0..samples` for every epoch.
//!
//! Four kinds. **Global**: one permutation of everything (`permutation.rs`). **Sticky**: every sample belongs to a group for
//! ever, every stretch of the epoch holds samples of all groups evenly (`sticky.rs`), and a step is dealt to its ranks by
//! group (`deal.rs`), so that a sample comes back to the rank whose cache has it. **Chunks**: the same, of groups that are neighbours in the
//! listing and come chunk by chunk (`chunks.rs`), so that one request reads many samples. **Mixtures**: places of
//! several data sets, each as often as its weight says (`mixture.rs`). In all, *which* samples a stretch of
//! positions holds depends on nothing but seed and epoch: cursors mean the same whatever the world. How well they shuffle is
//! measured (`quality.rs`). Owns a seed and nothing else: O(1) memory, seekable in both directions, the same on every
//! machine. Never looks at ranks or batches. The golden vectors in `tests/order.rs` and `tests/sticky.rs` pin it for ever: a
//! run saved today must resume on the same samples in ten years.

mod chunks;
mod deal;
mod mixture;
mod permutation;
pub mod quality;
mod sticky;

pub use chunks::ChunkShape;
pub use deal::{StepOrder, StretchOrder};
pub use mixture::{Mixture, MixtureEpoch, SETS_MAX, Weights};

use core::ops::Range;
use fuelrail_base::canary::{self, Mistake};
use fuelrail_base::prng::mix64;
use fuelrail_base::{SampleId, limits};
use mixture::Windows;
use permutation::Permutation;
use sticky::Sticky;

/// Which shuffle a run uses.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum OrderName {
    /// One permutation of everything per epoch: a sample lands on any rank.
    #[default]
    Global,
    /// A permutation per epoch in which a sample comes back to the same rank, as long as there are as many.
    Sticky,
    /// A permutation per epoch in which neighbouring samples, that one request reads, come near each other: chunks in random order, mixed
    /// with many others.
    Chunks,
}

fuelrail_base::named!(OrderName, "an order": Global = "global", Sticky = "sticky", Chunks = "chunks");

/// The order of a data set over all epochs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Order {
    name: OrderName,
    samples: u64,
    seed: u64,
    shuffle: bool,
    chunks: ChunkShape,
    /// Places of a window, where the samples are places of a mixture.
    window: Option<u64>,
}

impl Order {
    /// The global order of `samples` samples under `seed`. Without `shuffle` every epoch is `0, 1, 2, …`.
    ///
    /// # Panics
    /// When `samples` exceeds [`limits::SAMPLES_MAX`]; `Run::new` refuses such a data set with an error.
    #[must_use]
    pub fn new(samples: u64, seed: u64, shuffle: bool) -> Order {
        Order::named(OrderName::Global, samples, seed, shuffle)
    }

    /// An order by name. Without `shuffle` both are the listing: every epoch has every sample where it was.
    ///
    /// # Panics
    /// As [`Order::new`].
    #[must_use]
    pub fn named(name: OrderName, samples: u64, seed: u64, shuffle: bool) -> Order {
        assert!(samples <= limits::SAMPLES_MAX, "{samples} samples are too many");
        Order { name, samples, seed, shuffle, chunks: ChunkShape::default(), window: None }
    }

    /// The same, with chunks of another shape, which only [`OrderName::Chunks`] has.
    #[must_use]
    pub fn cut(self, chunks: ChunkShape) -> Order {
        Order { chunks, ..self }
    }

    /// The order of a mixture's places: random within windows of so many. Shuffled or not, since data sets shall be mixed.
    #[must_use]
    pub(crate) fn windowed(self, window: u64) -> Order {
        Order { window: Some(window), ..self }
    }

    /// The shape of its chunks, where it has any.
    #[must_use]
    pub fn chunks(&self) -> Option<ChunkShape> {
        (self.name == OrderName::Chunks).then_some(self.chunks)
    }

    /// The samples that this one is read with, in every epoch; `None` where it is read alone.
    ///
    /// # Panics
    /// When the sample is not one of the data set.
    #[must_use]
    pub fn chunk_of(&self, sample: SampleId) -> Option<Range<u64>> {
        assert!(sample.0 < self.samples, "sample {} of {}", sample.0, self.samples);
        let shape = self.chunks()?;
        match self.epoch(0).sticky() {
            Some(sticky) => sticky.chunk_of(sample.0),
            None => Some(chunks::around(sample.0, shape.samples.max(1), self.samples)),
        }
    }

    /// Which of so many ranks takes this sample in nearly every epoch; `None` where any may.
    ///
    /// # Panics
    /// When the sample is not one of the data set, or there is no rank.
    #[must_use]
    pub fn home(&self, sample: SampleId, ranks: u16) -> Option<u16> {
        assert!(sample.0 < self.samples && ranks > 0, "sample {} of {}, {ranks} ranks", sample.0, self.samples);
        self.epoch(0).sticky()?.home(sample.0, ranks)
    }

    /// Which one it is.
    #[must_use]
    pub fn name(&self) -> OrderName {
        self.name
    }

    /// Number of samples.
    #[must_use]
    pub fn samples(&self) -> u64 {
        self.samples
    }

    /// The permutation of one epoch, with its keys worked out: cheap to copy, for many look-ups in one epoch.
    #[must_use]
    pub fn epoch(&self, epoch: u64) -> EpochOrder {
        let seed = mix64(self.seed);
        let key = mix64(seed.wrapping_add(epoch));
        let kind = match (self.window, self.shuffle, self.name) {
            (Some(window), ..) => Kind::Windows(Windows { places: self.samples, window, key }),
            (None, false, _) => Kind::Global(Permutation::identity(self.samples)),
            (None, true, OrderName::Global) => Kind::Global(Permutation::new(self.samples, key)),
            (None, true, OrderName::Chunks) => Kind::Sticky(Sticky::chunked(self.samples, self.chunks, seed, epoch)),
            (None, true, OrderName::Sticky) => Kind::Sticky(Sticky::new(self.samples, seed, epoch)),
        };
        EpochOrder { samples: self.samples, kind }
    }

    /// The sample at `position` (in `0..samples`) of `epoch`; see [`EpochOrder::sample_at`].
    ///
    /// # Panics
    /// When `position` is not below `samples`.
    #[must_use]
    pub fn sample_at(&self, epoch: u64, position: u64) -> SampleId {
        self.epoch(epoch).sample_at(position)
    }

    /// Where in `epoch` the sample comes: the inverse of [`sample_at`](Order::sample_at).
    ///
    /// # Panics
    /// When the sample is not one of the data set.
    #[must_use]
    pub fn position_of(&self, epoch: u64, sample: SampleId) -> u64 {
        self.epoch(epoch).position_of(sample)
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Kind {
    Global(Permutation),
    Sticky(Sticky),
    Windows(Windows),
}

/// The permutation of one epoch.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct EpochOrder {
    samples: u64,
    kind: Kind,
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
            Kind::Windows(windows) => windows.at(position),
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
            Kind::Windows(windows) => windows.of(word),
        }
    }

    fn sticky(&self) -> Option<&Sticky> {
        match &self.kind {
            Kind::Global(_) | Kind::Windows(_) => None,
            Kind::Sticky(sticky) => Some(sticky),
        }
    }
}
