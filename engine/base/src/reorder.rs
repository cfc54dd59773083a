//! A reorder window: values inserted under consecutive numbers in any order, removed by number.
//!
//! What a map from number to value would do, without its allocations: once the window has been at its widest, nothing is
//! allocated any more. It only moves forward.

use std::collections::VecDeque;

/// Values by number, in a window that begins at the least number present.
#[derive(Clone, Debug)]
pub struct ReorderWindow<T> {
    /// The number of the first place.
    first: u64,
    places: VecDeque<Option<T>>,
    len: usize,
}

impl<T> Default for ReorderWindow<T> {
    fn default() -> ReorderWindow<T> {
        ReorderWindow { first: 0, places: VecDeque::new(), len: 0 }
    }
}

impl<T> ReorderWindow<T> {
    /// With room for a window of so many numbers.
    #[must_use]
    pub fn with_capacity(numbers: usize) -> ReorderWindow<T> {
        ReorderWindow { places: VecDeque::with_capacity(numbers), ..ReorderWindow::default() }
    }

    /// Values present.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// None is present.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Puts `value` at `number`. The window takes room for every number between the least and the greatest present.
    ///
    /// # Panics
    /// When the number is taken.
    pub fn insert(&mut self, number: u64, value: T) {
        if self.is_empty() {
            self.places.clear();
            self.first = number;
        }
        while number < self.first {
            self.places.push_front(None);
            self.first -= 1;
        }
        let at = (number - self.first) as usize;
        while self.places.len() <= at {
            self.places.push_back(None);
        }
        assert!(self.places[at].replace(value).is_none(), "number {number} is taken");
        self.len += 1;
    }

    /// Takes the value at `number` out.
    pub fn remove(&mut self, number: u64) -> Option<T> {
        let at = usize::try_from(number.checked_sub(self.first)?).ok()?;
        let value = self.places.get_mut(at)?.take()?;
        self.len -= 1;
        while let Some(None) = self.places.front() {
            self.places.pop_front();
            self.first += 1;
        }
        Some(value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::prng::Prng;
    use std::collections::BTreeMap;

    #[test]
    fn does_what_a_map_does() {
        let (mut window, mut map, mut prng) = (ReorderWindow::default(), BTreeMap::new(), Prng::new(7));
        for step in 0..20_000u64 {
            let number = step / 8 + prng.below(64);
            if prng.below(2) == 0 {
                map.entry(number).or_insert_with(|| {
                    window.insert(number, step);
                    step
                });
            } else {
                assert_eq!(window.remove(number), map.remove(&number));
            }
            assert_eq!((window.len(), window.is_empty()), (map.len(), map.is_empty()));
        }
        let left: Vec<u64> = map.keys().copied().collect();
        for number in left {
            assert_eq!(window.remove(number), map.remove(&number));
        }
        assert!(window.is_empty());
    }

    #[test]
    #[should_panic(expected = "number 3 is taken")]
    fn a_number_is_given_once() {
        let mut window = ReorderWindow::default();
        window.insert(3, 'a');
        window.insert(3, 'b');
    }
}
