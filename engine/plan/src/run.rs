//! One rank's run: its batches from a start cursor to the end of the last epoch, numbered and found in O(1).
//!
//! Joins [`Order`] and [`Split`] over epochs. Owns no state: what has been delivered is the caller's to count, and a
//! [`Cursor`] is all that needs saving.

use crate::importance::{Draw, Known, ONE};
use crate::order::{ChunkShape, Mixture, Order, OrderName, StepOrder};
use crate::split::Split;
use crate::usage;
use core::ops::Range;
use fuelrail_base::search::first_wanted;
use fuelrail_base::{BatchSeq, Result, SampleId, limits};
use std::sync::Arc;

/// Most epochs of one run: with 32-bit samples, every use of every sample then has its own 64-bit time.
pub const EPOCHS_MAX: u64 = u32::MAX as u64;

/// A place between two global steps: everything before it has been delivered to some rank.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Cursor {
    /// Epoch, from 0.
    pub epoch: u64,
    /// First position of that epoch that no rank has taken yet.
    pub position: u64,
}

/// What a run is made of.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RunConfig {
    /// Samples of an epoch, `1..=SAMPLES_MAX`: those of the data set, or the places of a mixture.
    pub samples: u64,
    /// Seed of the order.
    pub seed: u64,
    /// Which shuffle epochs go by.
    pub order: OrderName,
    /// Whether epochs are shuffled; otherwise every epoch goes in listing order.
    pub shuffle: bool,
    /// Number of ranks that share each epoch.
    pub world: u32,
    /// This rank, in `0..world`.
    pub rank: u32,
    /// Samples per batch and rank.
    pub batch_size: u32,
    /// Whether a last global step that is not full is dropped.
    pub drop_last: bool,
    /// Epochs of the whole run, counted from epoch 0 whatever the start: the last one is `epochs - 1`.
    pub epochs: u64,
    /// Where to start; a cursor at the end of the run makes a run without batches.
    pub start: Cursor,
}

impl RunConfig {
    /// Checks every field.
    ///
    /// # Errors
    /// [`Kind::Usage`], with the numbers that do not fit.
    pub fn validate(&self) -> Result<()> {
        let &RunConfig { samples, world, rank, batch_size, epochs, start, .. } = self;
        if samples == 0 {
            return usage("the data set has no samples", "check the prefix or the manifest");
        }
        if samples > limits::SAMPLES_MAX {
            let cause = format!("{samples} samples are more than {}", limits::SAMPLES_MAX);
            return usage(cause, "pack small samples into fewer, larger objects");
        }
        if world == 0 || rank >= world {
            return usage(format!("rank {rank} is not in a world of {world}"), "ranks count from 0 to world - 1");
        }
        if batch_size == 0 {
            return usage("batch_size is 0", "ask for at least one sample per batch");
        }
        if epochs == 0 || epochs > EPOCHS_MAX {
            return usage(format!("epochs is {epochs}"), "ask for 1 to 4294967295 epochs");
        }
        if samples.checked_mul(epochs + 1).is_none() {
            let cause = format!("{epochs} epochs of {samples} samples are more than 2^64 uses");
            return usage(cause, "ask for fewer epochs, and resume from the last state");
        }
        let stride = u64::from(world) * u64::from(batch_size);
        if self.drop_last && samples < stride {
            let cause = format!(
                "drop_last drops everything: {samples} samples do not fill one step of {world} ranks x {batch_size}"
            );
            return usage(cause, "use a smaller batch_size, or drop_last = false");
        }
        let cure = "resume with the data set and number of epochs the state was saved with, or more epochs";
        if start.position > samples {
            return usage(format!("start position {} is beyond the {samples} samples", start.position), cure);
        }
        if start.epoch > epochs || (start.epoch == epochs && start.position > 0) {
            let cause =
                format!("start epoch {} position {} is beyond the {epochs} epochs", start.epoch, start.position);
            return usage(cause, cure);
        }
        Ok(())
    }
}

/// One batch of one rank.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct BatchSpec {
    /// Its number in this run of this rank, from 0 at the start cursor.
    pub seq: BatchSeq,
    /// Its epoch.
    pub epoch: u64,
    /// Its step in that epoch, counted from where this run enters the epoch.
    pub step: u64,
    /// The positions of the epoch it takes; may be empty in the last step of an epoch.
    pub positions: Range<u64>,
}

impl BatchSpec {
    /// Number of samples.
    pub fn samples(&self) -> u64 {
        self.positions.end - self.positions.start
    }
}

/// One rank's batches from its start to the end of the last epoch.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Run {
    config: RunConfig,
    order: Order,
    /// Which epochs are drawn, and how. `None` where every epoch is plain.
    known: Option<Known>,
    /// The data sets, where they are mixed: the order is then one of places.
    mixture: Option<Arc<Mixture>>,
    /// The epoch the run starts in, from the start position on.
    first: Split,
    /// Every later epoch.
    later: Split,
}

impl Run {
    /// A run over this configuration.
    ///
    /// # Errors
    /// [`Kind::Usage`] when a field is out of range or the fields contradict each other.
    pub fn new(config: RunConfig) -> Result<Run> {
        config.validate()?;
        let RunConfig { samples, seed, order, shuffle, world, rank, batch_size, drop_last, start, .. } = config;
        let split = |from| Split::new(samples, from, world, rank, batch_size, drop_last);
        let order = Order::named(order, samples, seed, shuffle);
        Ok(Run { config, order, known: None, mixture: None, first: split(start.position), later: split(0) })
    }

    /// The same run from another place on.
    ///
    /// # Errors
    /// [`Kind::Usage`](fuelrail_base::Kind) when that is beyond its end.
    pub fn starting_at(self, start: Cursor) -> Result<Run> {
        let config = RunConfig { start, ..self.config };
        config.validate()?;
        let RunConfig { samples, world, rank, batch_size, drop_last, .. } = config;
        let first = Split::new(samples, start.position, world, rank, batch_size, drop_last);
        Ok(Run { config, first, ..self })
    }

    /// The number of the batch that comes first at a place between two steps of the run; its end's where that is its end. `None` where no
    /// step begins there.
    pub fn seq_at(&self, place: Cursor) -> Option<BatchSeq> {
        if place == self.config.start {
            return Some(BatchSeq(0));
        }
        let last = first_wanted(0..self.batches(), |seq| self.cursor_after(BatchSeq(seq)) >= place);
        (last < self.batches() && self.cursor_after(BatchSeq(last)) == place).then_some(BatchSeq(last + 1))
    }

    /// The configuration it was made from.
    pub fn config(&self) -> &RunConfig {
        &self.config
    }

    /// The same run with drawn epochs, and those known at the start.
    #[must_use]
    pub fn drawn(self, known: Known) -> Run {
        Run { known: Some(known), ..self }
    }

    /// The same run with chunks of this shape, where its order is in chunks.
    #[must_use]
    pub fn chunked(self, shape: ChunkShape) -> Run {
        Run { order: self.order.cut(shape), ..self }
    }

    /// The same run with these data sets mixed. Its epochs must have as many samples as the mixture has places.
    ///
    /// # Errors
    /// [`Kind::Usage`](fuelrail_base::Kind) when they have not, or the order is not the global one.
    pub fn mixed(self, mixture: Arc<Mixture>) -> Result<Run> {
        if self.config.order != OrderName::Global {
            return usage(format!("a mixture in the order {}", self.config.order), "set order = global, or no mixture");
        }
        if self.config.samples != mixture.places() {
            let (samples, places) = (self.config.samples, mixture.places());
            return usage(
                format!("an epoch of {samples} samples, and a mixture of {places} places"),
                "make them equal",
            );
        }
        Ok(Run { order: self.order.windowed(mixture.window()), mixture: Some(mixture), ..self })
    }

    /// The data sets, where they are mixed.
    pub fn mixture(&self) -> Option<&Arc<Mixture>> {
        self.mixture.as_ref()
    }

    /// Takes in which epochs are drawn. No effect on a run of plain epochs.
    pub fn learn(&mut self, known: &Known) {
        if self.known.is_some() {
            self.known = Some(known.clone());
        }
    }

    /// Whether it is known what the epoch holds: its batches may be opened.
    pub fn is_settled(&self, epoch: u64) -> bool {
        self.known.as_ref().is_none_or(|known| epoch < known.settled())
    }

    /// The draw of an epoch; `None` when it is plain, or not known: not settled, or long over.
    pub fn draw(&self, epoch: u64) -> Option<&Arc<Draw>> {
        self.known.as_ref()?.draw(epoch)
    }

    /// How often a sample comes in the newest epoch that is drawn, in units of [`ONE`]: how important it is.
    pub fn rate(&self, sample: SampleId) -> u16 {
        let newest = |known: &Known| self.draw(known.settled() - 1).map(|draw| draw.rate(sample));
        self.known.as_ref().and_then(newest).unwrap_or(ONE)
    }

    /// The order of its samples, before steps are dealt to ranks: which samples a step has, not which rank takes them.
    pub fn order(&self) -> &Order {
        &self.order
    }

    /// Samples that all ranks together take in a whole epoch: not those that `drop_last` drops.
    pub fn epoch_samples(&self) -> u64 {
        // A step at least: the configuration was checked.
        self.later.end_of(self.later.steps() - 1)
    }

    /// Batches of this rank in all; the same for every rank.
    pub fn batches(&self) -> u64 {
        match self.config.epochs.checked_sub(self.config.start.epoch + 1) {
            // Saturates: no run reaches 2^64 batches.
            Some(later_epochs) => self.first.steps().saturating_add(later_epochs.saturating_mul(self.later.steps())),
            None => 0,
        }
    }

    /// The batch with this number, in O(1); `None` beyond the end of the run.
    pub fn batch(&self, seq: BatchSeq) -> Option<BatchSpec> {
        if seq.0 >= self.batches() {
            return None;
        }
        let (epoch, step) = self.epoch_and_step(seq);
        Some(BatchSpec { seq, epoch, step, positions: self.split_of(epoch).positions(step) })
    }

    /// The samples of a batch, in order.
    ///
    /// # Panics
    /// When its epoch is not settled, or so long over that its draw is gone.
    pub fn samples(&self, batch: &BatchSpec) -> impl ExactSizeIterator<Item = SampleId> + Clone + use<> {
        let (from, order) = (batch.positions.start, self.order.epoch(batch.epoch));
        // A batch without samples may lie after the last position: no step is around it.
        let step = self.split_of(batch.epoch).step_around(from).unwrap_or(batch.positions.clone());
        let stretch = StepOrder::new(&order, step).stretch(batch.positions.clone());
        assert!(self.known.as_ref().is_none_or(|known| known.holds(batch.epoch)), "epoch {} is not known", batch.epoch);
        let (draw, mixture, epoch) = (self.draw(batch.epoch).cloned(), self.mixture.clone(), batch.epoch);
        // A batch has at most 2^32 - 1 samples, so the offsets fit 32 bits (a range of u64 has no exact size).
        let count = u32::try_from(batch.samples()).expect("a batch is no larger than its 32-bit size");
        (0..count).map(move |offset| {
            let place = stretch.sample_at(from + u64::from(offset));
            match &mixture {
                Some(mixture) => mixture.sample_in(epoch, place.0),
                None => draw.as_ref().map_or(place, |draw| draw.sample_in(place)),
            }
        })
    }

    /// The sample at a position of an epoch, whichever rank takes it. Before the start, where an earlier run may have dealt
    /// its steps another way, it is the order's.
    ///
    /// # Panics
    /// When the position is not below the number of samples.
    pub fn sample_at(&self, epoch: u64, position: u64) -> SampleId {
        let place = self.place_at(epoch, position);
        if let Some(mixture) = &self.mixture {
            return mixture.sample_in(epoch, place.0);
        }
        self.draw(epoch).map_or(place, |draw| draw.sample_in(place))
    }

    /// The first position of an epoch, from `from` on, at which the sample comes and that is `wanted`, whichever rank takes it; of an epoch
    /// that is not settled, where it comes if it does.
    ///
    /// # Panics
    /// When the sample is not one of the data set.
    pub fn next_position(&self, epoch: u64, sample: SampleId, from: u64, wanted: impl Fn(u64) -> bool) -> Option<u64> {
        if from >= self.config.samples {
            return None;
        }
        let at = |place| Some(self.position_of(epoch, place)).filter(|at| *at >= from && wanted(*at));
        let Some(mixture) = &self.mixture else {
            return match self.draw(epoch) {
                None => at(sample),
                Some(draw) => draw.places_of(sample).filter_map(at).min(),
            };
        };
        let mut first: Option<u64> = None;
        for place in mixture.places_of(epoch, sample, from) {
            // What is in a later window comes later.
            if first.is_some_and(|first| first / mixture.window() < place / mixture.window()) {
                break;
            }
            first = [first, at(SampleId(place))].into_iter().flatten().min();
        }
        first
    }

    /// How often a sample comes in an epoch, over all ranks. An epoch that is not settled counts as plain.
    ///
    /// # Panics
    /// When the sample is not one of the data set.
    pub fn times(&self, epoch: u64, sample: SampleId) -> usize {
        match (&self.mixture, self.draw(epoch)) {
            (Some(mixture), _) => mixture.places_of(epoch, sample, 0).count(),
            (None, Some(draw)) => draw.places_of(sample).count(),
            (None, None) => 1,
        }
    }

    /// The sample whose place in the epoch this position is.
    fn place_at(&self, epoch: u64, position: u64) -> SampleId {
        let (order, split) = (self.order.epoch(epoch), self.split_of(epoch));
        match split.step_around(position) {
            None => order.sample_at(position),
            Some(step) => {
                let stretch = split.stretch_around(&step, position);
                StepOrder::new(&order, step).stretch(stretch).sample_at(position)
            }
        }
    }

    /// The position of a sample's place in an epoch, whichever rank takes it: where the sample comes when the epoch is plain,
    /// as the inverse of [`sample_at`](Run::sample_at).
    ///
    /// # Panics
    /// When the sample is not one of the data set.
    pub fn position_of(&self, epoch: u64, sample: SampleId) -> u64 {
        let (order, split) = (self.order.epoch(epoch), self.split_of(epoch));
        let undealt = order.position_of(sample);
        let Some(positions) = split.step_around(undealt) else { return undealt };
        let step = StepOrder::new(&order, positions.clone());
        let place = step.place_of(undealt);
        step.stretch(split.stretch_around(&positions, place)).position_of(place)
    }

    /// Where to start again once this batch has been delivered on every rank. An epoch that is done gives the start of
    /// the next.
    ///
    /// # Panics
    /// When the batch is beyond the end of the run.
    pub fn cursor_after(&self, seq: BatchSeq) -> Cursor {
        assert!(seq.0 < self.batches(), "batch {} of {}", seq.0, self.batches());
        let (epoch, step) = self.epoch_and_step(seq);
        let split = self.split_of(epoch);
        if step + 1 == split.steps() {
            Cursor { epoch: epoch + 1, position: 0 }
        } else {
            Cursor { epoch, position: split.end_of(step) }
        }
    }

    /// The batch of this rank that takes this position; `None` when another rank takes it, it lies before the start or
    /// beyond the end, or `drop_last` drops it.
    pub fn seq_of_position(&self, epoch: u64, position: u64) -> Option<BatchSeq> {
        if epoch >= self.config.epochs {
            return None;
        }
        let passed = epoch.checked_sub(self.config.start.epoch)?;
        let step = self.split_of(epoch).step_of(position)?;
        Some(BatchSeq(match passed.checked_sub(1) {
            None => step,
            Some(whole_epochs) => self.first.steps() + whole_epochs * self.later.steps() + step,
        }))
    }

    fn epoch_and_step(&self, seq: BatchSeq) -> (u64, u64) {
        match seq.0.checked_sub(self.first.steps()) {
            None => (self.config.start.epoch, seq.0),
            Some(rest) => (self.config.start.epoch + 1 + rest / self.later.steps(), rest % self.later.steps()),
        }
    }

    fn split_of(&self, epoch: u64) -> &Split {
        if epoch == self.config.start.epoch { &self.first } else { &self.later }
    }
}
