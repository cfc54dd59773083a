//! Where a trainer's batches come from: the trait every row implements, the batches it must bring, and the local disk.
//!
//! Owns no time: the trainer measures. A feed never decides which samples a batch holds, that is the course.

use std::fs::File;
use std::io::Read;
use std::path::PathBuf;

use fuelrail_base::{Error, Kind, Result, SampleId};
use fuelrail_plan::order::Order;
use fuelrail_plan::split::Split;

use super::scale::Scale;

/// The batches of one rank: the same in every row.
#[derive(Clone, Copy, Debug)]
pub(super) struct Course {
    order: Order,
    split: Split,
}

impl Course {
    pub(super) fn new(scale: &Scale, rank: u32) -> Course {
        let order = Order::new(scale.samples(), scale.seed, true);
        Course { order, split: Split::new(scale.samples(), 0, scale.ranks, rank, scale.batch_size, false) }
    }

    /// Steps of every epoch.
    pub(super) fn steps(&self) -> u64 {
        self.split.steps()
    }

    /// The samples of a batch, in order.
    pub(super) fn batch(&self, epoch: u64, step: u64) -> impl Iterator<Item = SampleId> {
        let order = self.order.epoch(epoch);
        self.split.positions(step).map(move |position| order.sample_at(position))
    }

    /// All samples of an epoch, in order.
    pub(super) fn epoch(&self, epoch: u64) -> Vec<SampleId> {
        (0..self.steps()).flat_map(|step| self.batch(epoch, step)).collect()
    }
}

/// What a feed counted since it was opened.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(super) struct Counts {
    /// Samples that were not at hand when the trainer asked.
    pub(super) misses: u64,
    /// Objects read from the bucket.
    pub(super) gets: u64,
    /// Pages of listings read from the bucket.
    pub(super) list_pages: u64,
}

/// A source of batches. Opening it belongs to the first data wait.
pub(super) trait Feed {
    /// Gets ready for an epoch.
    ///
    /// # Errors
    /// Whatever keeps the source from going on.
    fn begin_epoch(&mut self, epoch: u64) -> Result<()>;

    /// Blocks until the next batch is there. The one before is given up.
    ///
    /// # Errors
    /// The error of the sample that could not be had.
    fn next(&mut self, epoch: u64, step: u64) -> Result<()>;

    /// Shows every sample of the batch that [`Feed::next`] brought, in order.
    ///
    /// # Errors
    /// The first error of `see`.
    fn visit(&self, see: &mut dyn FnMut(SampleId, &[u8]) -> Result<()>) -> Result<()>;

    /// What was counted so far.
    fn counts(&self) -> Counts;

    /// Most payload bytes it kept for later use.
    fn held_bytes_max(&self) -> u64;
}

/// Samples one behind the other in one buffer.
#[derive(Debug, Default)]
pub(super) struct Gathered {
    ids: Vec<SampleId>,
    pub(super) bytes: Vec<u8>,
    ends: Vec<usize>,
}

impl Gathered {
    /// Empties it.
    pub(super) fn clear(&mut self) {
        self.ids.clear();
        self.bytes.clear();
        self.ends.clear();
    }

    /// Ends a sample: what was appended to `bytes` since the one before is this one.
    pub(super) fn close(&mut self, id: SampleId) {
        self.ids.push(id);
        self.ends.push(self.bytes.len());
    }

    /// The bytes of the sample closed last.
    pub(super) fn last(&self) -> &[u8] {
        let end = self.ends.len();
        &self.bytes[end.checked_sub(2).map_or(0, |before| self.ends[before])..]
    }

    /// As [`Feed::visit`].
    pub(super) fn visit(&self, see: &mut dyn FnMut(SampleId, &[u8]) -> Result<()>) -> Result<()> {
        let mut from = 0;
        for (&id, &end) in self.ids.iter().zip(&self.ends) {
            see(id, &self.bytes[from..end])?;
            from = end;
        }
        Ok(())
    }
}

/// The local disk: one file per sample, opened, read and closed one after the other.
#[derive(Debug)]
pub(super) struct LocalDisk<'a> {
    course: Course,
    paths: &'a [PathBuf],
    gathered: Gathered,
}

impl<'a> LocalDisk<'a> {
    /// Reads sample `n` from `paths[n]`.
    pub(super) fn new(course: Course, paths: &'a [PathBuf]) -> LocalDisk<'a> {
        LocalDisk { course, paths, gathered: Gathered::default() }
    }
}

impl Feed for LocalDisk<'_> {
    fn begin_epoch(&mut self, _epoch: u64) -> Result<()> {
        Ok(())
    }

    fn next(&mut self, epoch: u64, step: u64) -> Result<()> {
        self.gathered.clear();
        for id in self.course.batch(epoch, step) {
            let path = &self.paths[id.0 as usize];
            File::open(path)
                .and_then(|mut file| file.read_to_end(&mut self.gathered.bytes))
                .map_err(|e| Error::new(Kind::File, format!("reading {}: {e}", path.display())))?;
            self.gathered.close(id);
        }
        Ok(())
    }

    fn visit(&self, see: &mut dyn FnMut(SampleId, &[u8]) -> Result<()>) -> Result<()> {
        self.gathered.visit(see)
    }

    fn counts(&self) -> Counts {
        Counts::default()
    }

    fn held_bytes_max(&self) -> u64 {
        0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn ranks_share_every_epoch_and_orders_differ() {
        let scale = Scale::quick(5);
        let courses: Vec<_> = (0..scale.ranks).map(|rank| Course::new(&scale, rank)).collect();
        for epoch in 0..2 {
            let all: Vec<_> = courses.iter().flat_map(|course| course.epoch(epoch)).collect();
            assert_eq!(all.len() as u64, scale.samples());
            assert_eq!(all.iter().collect::<HashSet<_>>().len(), all.len());
        }
        assert_ne!(courses[0].epoch(0), courses[0].epoch(1));
        assert!(courses[0].batch(0, 1).eq(courses[0].epoch(0)[16..32].iter().copied()));
    }

    #[test]
    fn gathered_samples_keep_their_borders() {
        let mut gathered = Gathered::default();
        for (id, text) in [(4, "four"), (0, ""), (5, "fives")] {
            gathered.bytes.extend_from_slice(text.as_bytes());
            gathered.close(SampleId(id));
            assert_eq!(gathered.last(), text.as_bytes());
        }
        let mut seen = Vec::new();
        let mut see = |id: SampleId, bytes: &[u8]| {
            seen.push((id.0, bytes.to_vec()));
            Ok(())
        };
        gathered.visit(&mut see).unwrap();
        assert_eq!(seen, [(4, b"four".to_vec()), (0, vec![]), (5, b"fives".to_vec())]);
    }
}
