//! Timers: what is due when. A binary heap whose entries know their place, so cancelling is exact and costs O(log n);
//! equal instants come out in the order they were set. Allocates only while it grows. Reads no clock.

use fuelrail_base::Instant;
use slab::Slab;

/// Names one timer. Goes stale when the timer fires or is cancelled, and is never mistaken for a later one.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct TimerKey {
    index: u32,
    sequence: u64,
}

/// Timers carrying a `T` each.
#[derive(Clone, Debug)]
pub struct Timers<T> {
    entries: Slab<Entry<T>>,
    /// Slab indices, ordered as a binary heap by (at, sequence).
    heap: Vec<u32>,
    sequence: u64,
}

#[derive(Clone, Debug)]
struct Entry<T> {
    at: Instant,
    sequence: u64,
    place: usize,
    item: T,
}

impl<T> Default for Timers<T> {
    fn default() -> Timers<T> {
        Timers::new()
    }
}

impl<T> Timers<T> {
    /// No timers.
    #[must_use]
    pub fn new() -> Timers<T> {
        Timers::with_capacity(0)
    }

    /// No timers, room for `timers` before it allocates.
    #[must_use]
    pub fn with_capacity(timers: usize) -> Timers<T> {
        Timers { entries: Slab::with_capacity(timers), heap: Vec::with_capacity(timers), sequence: 0 }
    }

    /// Sets a timer.
    ///
    /// # Panics
    /// At 2^32 timers.
    pub fn insert(&mut self, at: Instant, item: T) -> TimerKey {
        let sequence = self.sequence;
        self.sequence += 1;
        let place = self.heap.len();
        let index = u32::try_from(self.entries.insert(Entry { at, sequence, place, item })).expect("below 2^32 timers");
        self.heap.push(index);
        self.rise(place);
        TimerKey { index, sequence }
    }

    /// Takes a timer out. `None` when it has fired or was cancelled.
    pub fn cancel(&mut self, key: TimerKey) -> Option<T> {
        let entry = self.entries.get(key.index as usize)?;
        if entry.sequence != key.sequence {
            return None;
        }
        Some(self.remove_at(entry.place))
    }

    /// The earliest timer that is due at `now`, earliest first; equal instants in the order they were set.
    pub fn pop_due(&mut self, now: Instant) -> Option<T> {
        if self.next()? > now {
            return None;
        }
        Some(self.remove_at(0))
    }

    /// When the next timer is due.
    #[must_use]
    pub fn next(&self) -> Option<Instant> {
        self.heap.first().map(|index| self.entries[*index as usize].at)
    }

    /// Number of timers set.
    #[must_use]
    pub fn len(&self) -> usize {
        self.heap.len()
    }

    /// Whether none is set.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.heap.is_empty()
    }

    fn remove_at(&mut self, place: usize) -> T {
        let index = self.heap.swap_remove(place);
        if place < self.heap.len() {
            self.settle(place);
            self.sink(place);
            self.rise(place);
        }
        self.entries.remove(index as usize).item
    }

    fn before(&self, a: usize, b: usize) -> bool {
        let order = |place: usize| {
            let entry = &self.entries[self.heap[place] as usize];
            (entry.at, entry.sequence)
        };
        order(a) < order(b)
    }

    /// Tells the entry at `place` where it is.
    fn settle(&mut self, place: usize) {
        self.entries[self.heap[place] as usize].place = place;
    }

    fn swap(&mut self, a: usize, b: usize) {
        self.heap.swap(a, b);
        self.settle(a);
        self.settle(b);
    }

    fn rise(&mut self, mut place: usize) {
        while place > 0 {
            let parent = (place - 1) / 2;
            if !self.before(place, parent) {
                return;
            }
            self.swap(place, parent);
            place = parent;
        }
    }

    fn sink(&mut self, mut place: usize) {
        loop {
            let left = 2 * place + 1;
            if left >= self.heap.len() {
                return;
            }
            let right = left + 1;
            let child = if right < self.heap.len() && self.before(right, left) { right } else { left };
            if !self.before(child, place) {
                return;
            }
            self.swap(place, child);
            place = child;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    proptest! {
        #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]
        #[test]
        fn behaves_like_a_sorted_map(
            steps in prop::collection::vec((0u8..5, 0u64..50, any::<prop::sample::Index>()), 1..300),
        ) {
            let mut timers = Timers::new();
            let mut model: BTreeMap<(Instant, u64), TimerKey> = BTreeMap::new();
            let mut keys = Vec::new();
            for (n, (what, at, pick)) in steps.into_iter().enumerate() {
                let (n, at) = (n as u64, Instant(at));
                match what {
                    0..=2 => {
                        let key = timers.insert(at, n);
                        model.insert((at, n), key);
                        keys.push((key, (at, n)));
                    }
                    3 => {
                        let expected = model.first_key_value().filter(|((due, _), _)| *due <= at).map(|(key, _)| *key);
                        if let Some(key) = expected {
                            model.remove(&key);
                        }
                        prop_assert_eq!(timers.pop_due(at), expected.map(|(_, item)| item));
                    }
                    _ if !keys.is_empty() => {
                        let (key, name) = keys[pick.index(keys.len())];
                        let expected = model.remove(&name).map(|_| name.1);
                        prop_assert_eq!(timers.cancel(key), expected, "stale keys cancel nothing");
                    }
                    _ => {}
                }
                prop_assert_eq!(timers.len(), model.len());
                prop_assert_eq!(timers.next(), model.first_key_value().map(|((due, _), _)| *due));
            }
        }
    }

    #[test]
    fn does_not_grow_in_steady_state() {
        let mut timers = Timers::with_capacity(64);
        let before = (timers.heap.capacity(), timers.entries.capacity());
        for round in 0..1_000u64 {
            let keys: Vec<TimerKey> = (0..64).map(|i| timers.insert(Instant(round * 37 % 101 + i), i)).collect();
            for key in keys.iter().step_by(2) {
                assert!(timers.cancel(*key).is_some());
            }
            while timers.pop_due(Instant(u64::MAX)).is_some() {}
        }
        assert_eq!((timers.heap.capacity(), timers.entries.capacity()), before);
    }
}
