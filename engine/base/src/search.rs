//! Searching numbers, where there is no slice that could be partitioned.

use core::ops::Range;

/// The first number of a range that is `wanted`, where all after it are, too; the end of the range where none is.
#[must_use]
pub fn first_wanted(range: Range<u64>, wanted: impl Fn(u64) -> bool) -> u64 {
    let (mut low, mut high) = (range.start, range.end);
    while low < high {
        let middle = low.midpoint(high);
        if wanted(middle) {
            high = middle;
        } else {
            low = middle + 1;
        }
    }
    low
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_place_in_every_short_range_is_found() {
        for end in 3..9 {
            for first in 3..=end {
                assert_eq!(first_wanted(3..end, |number| number >= first), first);
            }
        }
        assert_eq!(first_wanted(0..u64::MAX, |number| number >= u64::MAX - 1), u64::MAX - 1);
    }
}
