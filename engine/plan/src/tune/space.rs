//! What may be chosen: a few values on each axis, and points that choose one of each.

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
pub struct Point(pub(super) Vec<usize>);

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
    #[must_use]
    pub fn ranges(&self) -> &[Range] {
        &self.ranges
    }

    /// How many points there are.
    #[must_use]
    pub fn points(&self) -> u64 {
        self.ranges.iter().map(|range| range.values.len() as u64).product()
    }

    /// Where to start.
    #[must_use]
    pub fn start(&self) -> Point {
        Point(self.ranges.iter().map(|range| range.start).collect())
    }

    /// The value a point chooses on an axis; `None` when the space has no such axis.
    #[must_use]
    pub fn value(&self, point: &Point, axis: Axis) -> Option<u64> {
        let place = self.place(axis)?;
        Some(self.ranges[place].values[point.0[place]])
    }

    /// The point so many values further along an axis; `None` where the values or the axis end.
    #[must_use]
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
}
