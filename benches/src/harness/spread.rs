//! Repeated measurements in three numbers, and ratios taken pair by pair: what one contestant cost in a round over what
//! another cost in the same round, so that a machine that slows down slows both.
//!
//! Owns the arithmetic. Never measures.

use serde::{Deserialize, Serialize};

/// Median, least and most of repeated measurements.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Spread {
    /// The middle one; the mean of the two in the middle of an even number.
    pub median: f64,
    pub min: f64,
    pub max: f64,
    pub count: usize,
}

impl Spread {
    /// Of these values; none when there are none or one is not a number.
    pub fn of(values: impl IntoIterator<Item = f64>) -> Option<Spread> {
        let mut sorted: Vec<f64> = values.into_iter().collect();
        if sorted.is_empty() || sorted.iter().any(|value| value.is_nan()) {
            return None;
        }
        sorted.sort_by(f64::total_cmp);
        let count = sorted.len();
        let median = f64::midpoint(sorted[(count - 1) / 2], sorted[count / 2]);
        Some(Spread { median, min: sorted[0], max: sorted[count - 1], count })
    }

    /// Of one series over another, pair by pair. Pairs whose second value is not above zero are left out.
    pub fn of_ratios(values: &[f64], to: &[f64]) -> Option<Spread> {
        let pairs = values.iter().zip(to).filter(|(_, to)| **to > 0.0);
        Spread::of(pairs.map(|(value, to)| value / to))
    }

    /// Whether the two ranges have a value in common: then the difference may be chance.
    pub fn overlaps(&self, other: &Spread) -> bool {
        self.min <= other.max && other.min <= self.max
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians_of_odd_and_even_counts() {
        let of = |values: &[f64]| Spread::of(values.iter().copied());
        assert_eq!(of(&[3.0, 1.0, 2.0]), Some(Spread { median: 2.0, min: 1.0, max: 3.0, count: 3 }));
        assert_eq!(of(&[4.0, 1.0, 2.0, 3.0]).unwrap().median, 2.5);
        assert_eq!((of(&[]), of(&[1.0, f64::NAN])), (None, None));
    }

    #[test]
    fn ratios_are_taken_within_a_round() {
        // Both slow down by three in the last round: the pairs say 2, the medians over all would say otherwise.
        let ratio = Spread::of_ratios(&[2.0, 2.2, 6.0], &[1.0, 1.1, 3.0]).unwrap();
        assert!((ratio.median - 2.0).abs() < 1e-12 && (ratio.max - 2.0).abs() < 1e-12, "{ratio:?}");
        assert_eq!(Spread::of_ratios(&[1.0, 5.0], &[0.0, 2.0]).unwrap(), Spread::of([2.5]).unwrap());
        assert_eq!(Spread::of_ratios(&[1.0], &[]), None);
    }

    #[test]
    fn ranges_that_touch_overlap() {
        let of = |min, max| Spread { median: min, min, max, count: 2 };
        assert!(of(1.0, 2.0).overlaps(&of(2.0, 3.0)) && of(1.0, 9.0).overlaps(&of(2.0, 3.0)));
        assert!(!of(1.0, 2.0).overlaps(&of(2.1, 3.0)) && !of(2.1, 3.0).overlaps(&of(1.0, 2.0)));
    }
}
