//! Spans of the samples in a delivered batch: a list that returns to its shard's free lists when the batch is dropped, on any
//! thread, so that no batch costs an allocation.
//!
//! Owns the lists. Never touches payload.

use core::ops::{Deref, DerefMut};
use crossbeam_queue::ArrayQueue;
use fuelrail_base::SampleId;
use std::sync::Arc;

/// The span of one sample in a delivered batch.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SampleSpan {
    /// Which sample.
    pub id: SampleId,
    /// First byte in the batch's memory.
    pub offset: usize,
    /// Length, bytes.
    pub len: usize,
    /// Its label, where that is read from its bytes, which decoding does not keep.
    pub label: Option<u32>,
}

/// The spans of all samples of a batch, in order of position.
#[derive(Debug)]
pub struct SampleSpans {
    list: Vec<SampleSpan>,
    free_lists: Arc<ArrayQueue<Vec<SampleSpan>>>,
}

impl SampleSpans {
    /// Adds the next sample.
    pub fn push(&mut self, placed: SampleSpan) {
        self.list.push(placed);
    }

    /// Keeps the samples for which `keep`, called with each one's number in the list, returns true.
    pub fn retain(&mut self, mut keep: impl FnMut(usize, &SampleSpan) -> bool) {
        let mut at = 0;
        self.list.retain(|placed| {
            at += 1;
            keep(at - 1, placed)
        });
    }
}

impl Deref for SampleSpans {
    type Target = [SampleSpan];

    fn deref(&self) -> &[SampleSpan] {
        &self.list
    }
}

impl DerefMut for SampleSpans {
    fn deref_mut(&mut self) -> &mut [SampleSpan] {
        &mut self.list
    }
}

/// A list of no shard's.
impl FromIterator<SampleSpan> for SampleSpans {
    fn from_iter<I: IntoIterator<Item = SampleSpan>>(spans: I) -> SampleSpans {
        SampleSpans { list: spans.into_iter().collect(), free_lists: Arc::new(ArrayQueue::new(1)) }
    }
}

impl Drop for SampleSpans {
    fn drop(&mut self) {
        let mut list = core::mem::take(&mut self.list);
        list.clear();
        // When there are lists enough, this one is freed.
        drop(self.free_lists.push(list));
    }
}

/// The free lists of what makes batches: emptied, with their memory.
pub struct FreeLists(Arc<ArrayQueue<Vec<SampleSpan>>>);

impl FreeLists {
    /// Keeps at most `capacity` lists, and starts with `lists` of them with room for `samples`.
    ///
    /// # Panics
    /// When it is to keep none.
    pub fn new(capacity: usize, lists: usize, samples: usize) -> FreeLists {
        let free_lists = ArrayQueue::new(capacity);
        for _ in 0..lists.min(capacity) {
            drop(free_lists.push(Vec::with_capacity(samples)));
        }
        FreeLists(Arc::new(free_lists))
    }

    /// An empty list: one that was returned, or a new one.
    pub fn list(&self) -> SampleSpans {
        SampleSpans { list: self.0.pop().unwrap_or_default(), free_lists: Arc::clone(&self.0) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_returns_from_another_thread_with_its_memory() {
        let free_lists = FreeLists::new(2, 0, 0);
        let mut places = free_lists.list();
        places.push(SampleSpan { id: SampleId(3), offset: 64, len: 7, label: None });
        let memory = places.as_ptr();
        std::thread::spawn(move || assert_eq!((places.len(), places[0].len), (1, 7))).join().unwrap();
        let again = free_lists.list();
        assert!(again.is_empty() && again.as_ptr() == memory);
    }

    #[test]
    fn a_filter_is_shown_each_sample_with_its_number() {
        let mut places = FreeLists::new(1, 1, 4).list();
        (10..14).for_each(|id| places.push(SampleSpan { id: SampleId(id), offset: 0, len: 1, label: None }));
        let mut shown = Vec::new();
        places.retain(|at, placed| {
            shown.push((at, placed.id.0));
            at % 2 == 1
        });
        assert_eq!(shown, [(0, 10), (1, 11), (2, 12), (3, 13)]);
        assert_eq!(places.iter().map(|placed| placed.id.0).collect::<Vec<_>>(), [11, 13]);
    }
}
