//! How the rest of an epoch is divided: which positions each rank takes at each step.
//!
//! Arithmetic on `(samples, start, world, rank, batch size)`: stop after any step, re-split what is left over another
//! world, and every position still belongs to exactly one rank and step. Every rank takes the same number of steps.
//! Never looks at which samples stand at the positions.

use core::ops::Range;

/// The positions of one rank from `start_position` to the end of an epoch, step by step.
///
/// Global step `t` covers the `world * batch_size` positions from `start_position + t * world * batch_size` on; rank `r`
/// takes the `r`-th contiguous stretch of `batch_size` of them. What is left for the last step is divided as evenly as
/// possible: sizes differ by at most one, and may be zero, so that no rank takes a step less than another.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Split {
    samples: u64,
    start: u64,
    world: u64,
    rank: u64,
    batch_size: u64,
    drop_last: bool,
}

impl Split {
    /// Divides positions `start_position..samples`. With `drop_last` a last step that is not full is dropped.
    ///
    /// # Panics
    /// When `world` or `batch_size` is zero, `rank` is not below `world`, or `start_position` is beyond `samples`;
    /// `Run::new` refuses such values with an error.
    pub fn new(samples: u64, start_position: u64, world: u32, rank: u32, batch_size: u32, drop_last: bool) -> Split {
        assert!(rank < world, "rank {rank} of a world of {world}");
        assert!(batch_size > 0, "a batch has at least one sample");
        assert!(start_position <= samples, "start {start_position} of {samples} samples");
        Split {
            samples,
            start: start_position,
            world: u64::from(world),
            rank: u64::from(rank),
            batch_size: u64::from(batch_size),
            drop_last,
        }
    }

    /// Steps to the end of the epoch, the same for every rank.
    pub fn steps(&self) -> u64 {
        let left = self.samples - self.start;
        if self.drop_last { left / self.stride() } else { left.div_ceil(self.stride()) }
    }

    /// The positions this rank takes at `step`; empty when the remainder does not reach it.
    ///
    /// # Panics
    /// When `step` is not below [`steps`](Split::steps).
    pub fn positions(&self, step: u64) -> Range<u64> {
        assert!(step < self.steps(), "step {step} of {}", self.steps());
        let from = self.start + step * self.stride();
        let global = self.stride().min(self.samples - from);
        let (share, longer) = (global / self.world, global % self.world);
        let begin = from + self.rank * share + self.rank.min(longer);
        begin..begin + share + u64::from(self.rank < longer)
    }

    /// The global cursor after `step`: the first position no rank has taken yet.
    ///
    /// # Panics
    /// When `step` is not below [`steps`](Split::steps).
    pub fn end_of(&self, step: u64) -> u64 {
        assert!(step < self.steps(), "step {step} of {}", self.steps());
        (self.start + (step + 1) * self.stride()).min(self.samples)
    }

    /// The step at which this rank takes `position`; `None` when another rank or none does.
    pub fn step_of(&self, position: u64) -> Option<u64> {
        let step = position.checked_sub(self.start)? / self.stride();
        (step < self.steps() && self.positions(step).contains(&position)).then_some(step)
    }

    /// The positions of the whole step around a position, of all ranks together. What `drop_last` drops counts as one.
    /// `None` before the start, where steps may have been cut another way.
    pub fn step_around(&self, position: u64) -> Option<Range<u64>> {
        let step = position.checked_sub(self.start)? / self.stride();
        let from = self.start + step * self.stride();
        Some(from..self.samples.min(from + self.stride()))
    }

    /// Of a whole step, the rank's stretch around a position.
    ///
    /// # Panics
    /// When the step does not hold the position.
    pub fn stretch_around(&self, step: &Range<u64>, position: u64) -> Range<u64> {
        assert!(step.contains(&position), "position {position} of step {step:?}");
        let global = step.end - step.start;
        let (share, longer) = (global / self.world, global % self.world);
        let (at, long_ones) = (position - step.start, longer * (share + 1));
        let (begin, length) =
            if at < long_ones { (at - at % (share + 1), share + 1) } else { (at - (at - long_ones) % share, share) };
        step.start + begin..step.start + begin + length
    }

    /// Positions of one full global step.
    fn stride(&self) -> u64 {
        // Two 32-bit factors: cannot overflow.
        self.world * self.batch_size
    }
}
