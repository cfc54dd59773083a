//! What was delivered, joined over the lives of a run.
//!
//! A life that is killed counts as far as every rank has come: what a faster rank took beyond that is taken again.

use fuelrail_base::SampleId;
use xxhash_rust::xxh3::{Xxh3, xxh3_128};

/// One sample of a delivered batch.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Entry {
    /// Delivered, with the hash of its bytes.
    Delivered(SampleId, u128),
    /// Left out, as the policy for bad samples says.
    LeftOut(SampleId),
}

impl Entry {
    pub(crate) fn of(sample: SampleId, bytes: &[u8]) -> Entry {
        Entry::Delivered(sample, xxh3_128(bytes))
    }

    pub(crate) fn sample(self) -> SampleId {
        match self {
            Entry::Delivered(sample, _) | Entry::LeftOut(sample) => sample,
        }
    }
}

/// Every sample of the run so far, in order of epoch and position, whatever the worlds' sizes were.
#[derive(Default)]
pub(crate) struct Journal {
    /// (epoch, entry).
    entries: Vec<(u64, Entry)>,
}

impl Journal {
    /// Adds what all ranks took at one global step, in order of rank.
    pub(crate) fn step(&mut self, epoch: u64, entries: impl IntoIterator<Item = Entry>) {
        self.entries.extend(entries.into_iter().map(|entry| (epoch, entry)));
    }

    pub(crate) fn len(&self) -> u64 {
        self.entries.len() as u64
    }

    /// How often each of `samples` samples comes in `epoch`.
    pub(crate) fn uses(&self, epoch: u64, samples: u64) -> Vec<u32> {
        let mut uses = vec![0; samples as usize];
        for (_, entry) in self.entries.iter().filter(|(of, _)| *of == epoch) {
            uses[entry.sample().0 as usize] += 1;
        }
        uses
    }

    /// XXH3-128 over the hashes of all delivered samples in order: the same for any world sizes, shards and faults.
    pub(crate) fn hash(&self) -> u128 {
        let mut hash = Xxh3::new();
        for (_, entry) in &self.entries {
            if let Entry::Delivered(_, digest) = entry {
                hash.update(&digest.to_le_bytes());
            }
        }
        hash.digest128()
    }
}
