//! The pinned ranges of host memory.
//!
//! Owns the table. What is not in it is pageable.

use std::collections::BTreeMap;

/// Flag of both calls: pinned for all contexts, not only for the one that asked.
const PORTABLE: u32 = 1;

/// Where a range came from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Origin {
    Registered,
    Allocated,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Range {
    pub(crate) bytes: u64,
    pub(crate) device: u32,
    pub(crate) flags: u32,
    pub(crate) origin: Origin,
}

/// All pinned ranges, by their begin.
#[derive(Debug, Default)]
pub(crate) struct Pinned {
    pub(crate) ranges: BTreeMap<u64, Range>,
    pub(crate) unregistered: BTreeMap<u64, u64>,
}

/// What host memory is to a device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Reach {
    /// The device reaches it.
    Pinned,
    /// The driver must copy it first.
    Pageable,
    /// Part of it is pinned, part is not: CUDA refuses it.
    Across,
}

impl Pinned {
    /// How many ranges of an origin there are.
    pub(crate) fn count(&self, origin: Origin) -> u64 {
        self.ranges.values().filter(|r| r.origin == origin).count() as u64
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.ranges.values().map(|r| r.bytes).sum()
    }

    pub(crate) fn overlapping(&self, start: u64, bytes: u64) -> Option<(u64, Range)> {
        let (at, range) = self.ranges.range(..start.saturating_add(bytes)).next_back()?;
        (at.saturating_add(range.bytes) > start).then_some((*at, *range))
    }

    /// What a range is to a device.
    pub(crate) fn reach(&self, device: u32, start: u64, bytes: u64) -> Reach {
        match self.overlapping(start, bytes) {
            None => Reach::Pageable,
            Some((_, range)) if range.device != device && range.flags & PORTABLE == 0 => Reach::Pageable,
            Some((at, range)) if at <= start && start + bytes <= at + range.bytes => Reach::Pinned,
            Some(_) => Reach::Across,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reach_tells_pinned_from_pageable_and_refuses_what_lies_across() {
        let mut pinned = Pinned::default();
        let range = Range { bytes: 100, device: 0, flags: 0, origin: Origin::Registered };
        pinned.ranges.insert(1000, range);
        pinned.ranges.insert(2000, Range { flags: PORTABLE, ..range });
        assert_eq!(pinned.reach(0, 1000, 100), Reach::Pinned);
        assert_eq!(pinned.reach(0, 1099, 2), Reach::Across);
        assert_eq!(pinned.reach(0, 990, 20), Reach::Across);
        assert_eq!(pinned.reach(0, 1100, 10), Reach::Pageable);
        assert_eq!(pinned.reach(1, 1000, 10), Reach::Pageable, "not portable");
        assert_eq!(pinned.reach(1, 2000, 10), Reach::Pinned);
    }
}
