//! Finding the settings a machine and a bucket want, by measuring few of many: what to measure next, what is best so far,
//! what limits it, and what to expect of it.
//!
//! Pure: the caller measures. The same seed and the same measurements give the same points.

mod limit;
mod search;

pub use limit::{Limit, limit};
pub use search::{Forecast, Search};

use fuelrail_base::{Error, Kind, Result};

/// One thing to choose.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Axis {
    /// Threads.
    Shards,
    /// Most connections of each shard.
    Connections,
    /// Longest span requested at once, bytes.
    BlockBytes,
    /// All buffers together, bytes: how far the loader can look ahead.
    MemoryBytes,
    /// Which ring: a number of the caller's.
    Ring,
    /// Whether the memory is registered with the ring: 0 or 1.
    Register,
}

impl Axis {
    /// Whether neighbouring values behave alike, so that a climb from one to the next makes sense.
    #[must_use]
    pub fn is_ordered(self) -> bool {
        !matches!(self, Axis::Ring | Axis::Register)
    }
}

/// The values of one axis.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Range {
    /// Which axis.
    pub axis: Axis,
    /// What may be chosen, ascending on ordered axes.
    pub values: Vec<u64>,
    /// Where to start: a place in `values`.
    pub start: usize,
}

/// A choice: a place in the values of each axis, in the space's order.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Point(Vec<usize>);

/// All that may be chosen.
#[derive(Clone, Debug)]
pub struct Space {
    ranges: Vec<Range>,
}

impl Space {
    /// A space of these ranges.
    ///
    /// # Errors
    /// `Usage` when a range is empty, starts outside itself, is not ascending where it must be, or an axis is named twice.
    pub fn new(ranges: Vec<Range>) -> Result<Space> {
        for (place, range) in ranges.iter().enumerate() {
            let axis = range.axis;
            let wrong = |why: &str| Err(Error::new(Kind::Usage, format!("nothing to tune {axis:?} over: {why}")));
            if range.start >= range.values.len() {
                return wrong("the start is none of its values");
            }
            if axis.is_ordered() && !range.values.is_sorted_by(|a, b| a < b) {
                return wrong("its values do not ascend");
            }
            if ranges[..place].iter().any(|earlier| earlier.axis == axis) {
                return wrong("it is named twice");
            }
        }
        Ok(Space { ranges })
    }

    /// The ranges, in order.
    pub fn ranges(&self) -> &[Range] {
        &self.ranges
    }

    /// How many points there are.
    pub fn points(&self) -> u64 {
        self.ranges.iter().map(|range| range.values.len() as u64).product()
    }

    /// Where to start.
    pub fn start(&self) -> Point {
        Point(self.ranges.iter().map(|range| range.start).collect())
    }

    /// The value a point chooses on an axis; `None` when the space has no such axis.
    pub fn value(&self, point: &Point, axis: Axis) -> Option<u64> {
        let place = self.place(axis)?;
        Some(self.ranges[place].values[point.0[place]])
    }

    /// The point so many values further along an axis; `None` where the values or the axis end.
    pub fn step(&self, point: &Point, axis: Axis, by: isize) -> Option<Point> {
        let place = self.place(axis)?;
        let to = point.0[place].checked_add_signed(by).filter(|to| *to < self.ranges[place].values.len())?;
        let mut moved = point.clone();
        moved.0[place] = to;
        Some(moved)
    }

    fn place(&self, axis: Axis) -> Option<usize> {
        self.ranges.iter().position(|range| range.axis == axis)
    }
}

/// What one trial of a point brought.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct Measured {
    /// Payload delivered per second of wall time.
    pub bytes_per_s: f64,
    /// Processor time of all shards per byte delivered.
    pub cpu_s_per_byte: f64,
    /// Share of the time in which the busiest shard's core was at work.
    pub busy: f64,
    /// Median time from a request to its last byte, s.
    pub latency_s: f64,
    /// Mean number of requests under way.
    pub requests_in_flight: f64,
    /// Times the server asked to slow down.
    pub throttled: u64,
}

/// What a saving of processor time is worth against speed: ten per cent less for two per cent slower.
const CPU_WEIGHT: f64 = 0.2;

impl Measured {
    /// How good this is; more is better. Differences are relative: 0.01 is one per cent of speed.
    pub fn score(&self) -> f64 {
        let least = f64::MIN_POSITIVE;
        self.bytes_per_s.max(least).ln() - CPU_WEIGHT * self.cpu_s_per_byte.max(least).ln()
    }
}

/// All trials of one point.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Trials {
    told: Vec<Measured>,
    /// It could not even be tried.
    refused: bool,
}

impl Trials {
    /// The trials, in order.
    pub fn told(&self) -> &[Measured] {
        &self.told
    }

    fn add(&mut self, measured: Measured) {
        self.told.push(measured);
    }

    /// Mean score; minus infinity for what was refused or not tried.
    pub fn score(&self) -> f64 {
        if self.told.is_empty() { f64::NEG_INFINITY } else { self.mean_of(Measured::score) }
    }

    /// The mean of something over the trials; 0 when there are none.
    pub fn mean_of(&self, what: impl Fn(&Measured) -> f64) -> f64 {
        self.told.iter().map(what).sum::<f64>() / self.told.len().max(1) as f64
    }

    /// Sum of squared deviations of the scores from their mean.
    fn squares(&self) -> f64 {
        let mean = self.score();
        self.told.iter().map(|measured| (measured.score() - mean).powi(2)).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(axis: Axis, values: &[u64], start: usize) -> Range {
        Range { axis, values: values.to_vec(), start }
    }

    #[test]
    fn points_move_along_one_axis_and_stop_at_its_ends() {
        let space = Space::new(vec![range(Axis::Shards, &[1, 2, 4], 1), range(Axis::Ring, &[7, 3], 0)]).unwrap();
        let start = space.start();
        let read = |point: &Point| [Axis::Shards, Axis::Ring].map(|axis| space.value(point, axis).unwrap());
        assert_eq!((space.points(), read(&start)), (6, [2, 7]));
        assert_eq!(read(&space.step(&start, Axis::Shards, 1).unwrap()), [4, 7]);
        assert_eq!(space.step(&start, Axis::Shards, 2), None);
        assert_eq!(space.step(&start, Axis::Ring, -1), None);
        assert_eq!((space.step(&start, Axis::Register, 1), space.value(&start, Axis::Register)), (None, None));
    }

    #[test]
    fn senseless_spaces_are_refused() {
        for ranges in [
            vec![range(Axis::Shards, &[], 0)],
            vec![range(Axis::Shards, &[1, 2], 2)],
            vec![range(Axis::Shards, &[2, 1], 0)],
            vec![range(Axis::Shards, &[1, 1], 0)],
            vec![range(Axis::Register, &[0, 1], 0), range(Axis::Register, &[0], 0)],
        ] {
            assert_eq!(Space::new(ranges).unwrap_err().kind(), Kind::Usage);
        }
        assert!(Space::new(vec![range(Axis::Ring, &[9, 1], 0)]).is_ok(), "names have no order");
    }

    #[test]
    fn speed_comes_first_and_thrift_decides_between_equals() {
        let base = Measured { bytes_per_s: 1e9, cpu_s_per_byte: 1e-9, ..Measured::default() };
        let faster = Measured { bytes_per_s: 1.1e9, cpu_s_per_byte: 1.3e-9, ..base };
        let thrifty = Measured { cpu_s_per_byte: 0.5e-9, ..base };
        assert!(faster.score() > base.score() && thrifty.score() > base.score());
        assert!(Measured::default().score().is_finite(), "nothing delivered is bad, not infinitely bad");
        assert_eq!(Trials::default().score(), f64::NEG_INFINITY);
    }
}
