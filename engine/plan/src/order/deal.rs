//! How a step of the sticky order is dealt to its ranks: sorted by group, so that stretches are ranges of groups.
//!
//! Positions of a step are sorted by group, and ranks take stretches of that in turn, as they do of any step. Groups are even
//! in every step, so a rank's stretch begins and ends at nearly the same group always, for every rank and however large
//! steps are. Within its stretch each rank's samples are permuted, so that no sample has a fixed place in its batch. All
//! by counting: neither the step nor the groups are ever written out. The samples of a step remain those of its
//! positions, so a run that stops after a step has delivered the same whatever the world was.
//!
//! Owns a copy of the epoch's order. In the global order nothing is dealt: a place in a step is its position.

use super::EpochOrder;
use super::permutation::Permutation;
use super::sticky::{Blocks, Sticky};
use core::ops::Range;
use fuelrail_base::SampleId;

/// The order within one step.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct StepOrder {
    epoch: EpochOrder,
    deal: Option<Deal>,
}

impl StepOrder {
    /// Of an epoch, the step that takes these positions: the same samples, dealt to ranks.
    ///
    /// # Panics
    /// When the positions are not some of the epoch's.
    pub fn new(epoch: &EpochOrder, positions: Range<u64>) -> StepOrder {
        let samples = epoch.samples;
        assert!(positions.start <= positions.end && positions.end <= samples, "{positions:?} of {samples}");
        StepOrder { epoch: *epoch, deal: epoch.sticky().map(|sticky| Deal::new(*sticky, &positions)) }
    }

    /// Where what stands at a position of the step comes when it is dealt, before the rank's stretch that it falls into
    /// is permuted.
    pub fn place_of(&self, position: u64) -> u64 {
        self.deal.map_or(position, |deal| deal.place_of(position))
    }

    /// The order within one rank's stretch of the step's positions.
    pub fn stretch(&self, positions: Range<u64>) -> StretchOrder {
        let length = positions.end - positions.start;
        let mixed = self.deal.map(|deal| deal.sticky.stretch(positions.start, length));
        StretchOrder { step: *self, start: positions.start, mixed }
    }
}

/// The order within one rank's stretch of a step.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct StretchOrder {
    step: StepOrder,
    start: u64,
    mixed: Option<Permutation>,
}

impl StretchOrder {
    /// The sample at a position of the stretch.
    pub fn sample_at(&self, position: u64) -> SampleId {
        match (&self.step.deal, &self.mixed) {
            (Some(deal), Some(mixed)) => {
                let (row, group) = deal.row_and_group_at(self.start + mixed.at(position - self.start));
                SampleId(deal.sticky.sample_in(row, group))
            }
            _ => self.step.epoch.sample_at(position),
        }
    }

    /// The position that a place of the step has in the end: the inverse, after [`StepOrder::place_of`].
    pub fn position_of(&self, place: u64) -> u64 {
        self.mixed.map_or(place, |mixed| self.start + mixed.of(place - self.start))
    }
}

/// The positions of a step sorted by group; within a group, as they come.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Deal {
    sticky: Sticky,
    from: Edge,
    to: Edge,
    /// Full rows from the first to the one before the last, and the places of the short row, if it is one of those.
    full: u64,
    short: Blocks,
    start: u64,
}

/// Where a step begins or ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Edge {
    row: u64,
    place: u64,
    /// By which groups of the row are mixed.
    key: u64,
    /// The places of the row before it.
    before: Blocks,
}

impl Edge {
    fn new(sticky: &Sticky, position: u64) -> Edge {
        let (row, place) = sticky.row_and_place(position);
        Edge { row, place, key: sticky.group_key(row), before: sticky.blocks(row, place) }
    }
}

impl Deal {
    fn new(sticky: Sticky, positions: &Range<u64>) -> Deal {
        let (mut from, mut to) = (Edge::new(&sticky, positions.start), Edge::new(&sticky, positions.end));
        if from.row == to.row {
            from.before.part(&mut to.before);
        }
        let within = (from.row..to.row).contains(&sticky.short);
        let short = if within { sticky.blocks(sticky.short, u64::MAX) } else { Blocks::default() };
        Deal { full: to.row - from.row - u64::from(within), from, to, short, sticky, start: positions.start }
    }

    /// Positions of the step whose group is below this one, with its flips in the first row and in the last.
    fn below(&self, group: u64, flips: (u64, u64)) -> u64 {
        // Of the short row all places are in, and so no bit that is turned round makes a difference.
        let rows = self.full * group + self.short.below(group, 0);
        rows + self.to.before.below(group, flips.1) - self.from.before.below(group, flips.0)
    }

    fn place_of(&self, position: u64) -> u64 {
        let (row, place) = self.sticky.row_and_place(position);
        let group = self.sticky.group_at(row, place);
        let flips = |edge: &Edge| self.sticky.flips(edge.key, group);
        let first = self.first_row_of(group);
        let missing = !self.sticky.is_long(group) && (first..row).contains(&self.sticky.short);
        let below = self.below(group, (flips(&self.from), flips(&self.to)));
        self.start + below + row - first - u64::from(missing)
    }

    /// What comes at a place, as the row and the group of its position: bit by bit, the last group with no more than that
    /// below it.
    fn row_and_group_at(&self, place: u64) -> (u64, u64) {
        let place = place - self.start;
        let (mut group, mut flips) = (0u64, (0, 0));
        for level in (0..self.sticky.bits).rev() {
            let flip = |edge: &Edge| self.sticky.flip(edge.key, level, group >> (level + 1)) << level;
            flips = (flips.0 | flip(&self.from), flips.1 | flip(&self.to));
            let higher = group | (1 << level);
            if self.below(higher, flips) <= place {
                group = higher;
            }
        }
        let first = self.first_row_of(group);
        let row = first + place - self.below(group, flips);
        let missing = !self.sticky.is_long(group) && (first..=row).contains(&self.sticky.short);
        (row + u64::from(missing), group)
    }

    /// The first row in which the group comes within the step, or would, were that not the short one.
    fn first_row_of(&self, group: u64) -> u64 {
        let row = self.from.row;
        let before = row < self.to.row && self.sticky.place_of(row, group) < self.from.place;
        row + u64::from(before)
    }
}
