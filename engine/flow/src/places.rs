//! Where the samples of a delivered batch lie: a list that comes home to its shard when the batch is dropped, on whatever
//! thread that happens, so that no batch costs an allocation.
//!
//! Owns the lists. Never touches payload.

use core::ops::{Deref, DerefMut};
use crossbeam_queue::ArrayQueue;
use fuelrail_base::SampleId;
use std::sync::Arc;

/// A sample's place in a delivered batch.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Placed {
    /// Which sample.
    pub id: SampleId,
    /// First byte in the batch's memory.
    pub offset: usize,
    /// Length, bytes.
    pub len: usize,
}

/// The samples of a batch, in order of position.
#[derive(Debug)]
pub struct Places {
    list: Vec<Placed>,
    home: Arc<ArrayQueue<Vec<Placed>>>,
}

impl Places {
    pub(crate) fn push(&mut self, placed: Placed) {
        self.list.push(placed);
    }

    /// Keeps the samples that `keep` says, which is shown each with its number in the list.
    pub fn retain(&mut self, mut keep: impl FnMut(usize, &Placed) -> bool) {
        let mut at = 0;
        self.list.retain(|placed| {
            at += 1;
            keep(at - 1, placed)
        });
    }
}

impl Deref for Places {
    type Target = [Placed];

    fn deref(&self) -> &[Placed] {
        &self.list
    }
}

impl DerefMut for Places {
    fn deref_mut(&mut self) -> &mut [Placed] {
        &mut self.list
    }
}

impl<'a> IntoIterator for &'a Places {
    type Item = &'a Placed;
    type IntoIter = core::slice::Iter<'a, Placed>;

    fn into_iter(self) -> Self::IntoIter {
        self.list.iter()
    }
}

impl Drop for Places {
    fn drop(&mut self) {
        let mut list = core::mem::take(&mut self.list);
        list.clear();
        // A full drawer has lists enough: this one is freed.
        drop(self.home.push(list));
    }
}

/// Empty lists of one shard.
pub(crate) struct Drawer(Arc<ArrayQueue<Vec<Placed>>>);

impl Drawer {
    /// Keeps at most `capacity` lists, and has `lists` of them with room for `samples` from the start.
    pub(crate) fn new(capacity: usize, lists: usize, samples: usize) -> Drawer {
        let drawer = ArrayQueue::new(capacity);
        for _ in 0..lists.min(capacity) {
            drop(drawer.push(Vec::with_capacity(samples)));
        }
        Drawer(Arc::new(drawer))
    }

    /// An empty list: one that came home, or a new one.
    pub(crate) fn list(&self) -> Places {
        Places { list: self.0.pop().unwrap_or_default(), home: Arc::clone(&self.0) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_comes_home_from_another_thread_with_its_memory() {
        let drawer = Drawer::new(2, 0, 0);
        let mut places = drawer.list();
        places.push(Placed { id: SampleId(3), offset: 64, len: 7 });
        let memory = places.as_ptr();
        std::thread::spawn(move || assert_eq!((places.len(), places[0].len), (1, 7))).join().unwrap();
        let again = drawer.list();
        assert!(again.is_empty() && again.as_ptr() == memory);
    }

    #[test]
    fn a_filter_is_shown_each_sample_with_its_number() {
        let mut places = Drawer::new(1, 1, 4).list();
        (10..14).for_each(|id| places.push(Placed { id: SampleId(id), offset: 0, len: 1 }));
        let mut shown = Vec::new();
        places.retain(|at, placed| {
            shown.push((at, placed.id.0));
            at % 2 == 1
        });
        assert_eq!(shown, [(0, 10), (1, 11), (2, 12), (3, 13)]);
        assert_eq!(places.iter().map(|placed| placed.id.0).collect::<Vec<_>>(), [11, 13]);
    }
}
