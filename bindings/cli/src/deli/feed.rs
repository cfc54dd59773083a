//! Where a trainer's batches come from: the trait of every row, and those that a trainer reads itself, sample by sample: from the
//! local disk, and from the bucket without anything between, behind a demand cache, or with DELI's prefetch beside it.
//!
//! Owns no time: the trainer measures. A feed never decides which samples a batch holds.

use std::fs;
use std::path::PathBuf;
use std::sync::Arc;

use fuelrail_base::{Error, Kind, Result, SampleId};

use super::cache::ItemCache;
use super::http::Client;
use super::prefetch::Sampler;

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
pub(super) trait Feed: Send {
    /// Gets ready for an epoch of these samples.
    fn begin_epoch(&mut self, _samples: Vec<SampleId>) {}

    /// Blocks until the batch of these samples is there: each with its bytes, in order. The one before is given up.
    ///
    /// # Errors
    /// The error of the sample that could not be had.
    fn next(&mut self, due: &[SampleId]) -> Result<Vec<(SampleId, &[u8])>>;

    /// What was counted so far.
    fn counts(&self) -> Counts {
        Counts::default()
    }

    /// Most bytes it took for samples and what belongs to them.
    fn held_bytes_max(&self) -> u64 {
        0
    }

    /// Connections that it may have open.
    fn connections(&self) -> usize {
        0
    }
}

/// The local disk: one file per sample, opened, read and closed one after the other.
pub(super) struct LocalDisk<'a> {
    /// Sample `n` is in file `n`.
    pub(super) paths: &'a [PathBuf],
    pub(super) batch: Vec<Vec<u8>>,
}

impl Feed for LocalDisk<'_> {
    fn next(&mut self, due: &[SampleId]) -> Result<Vec<(SampleId, &[u8])>> {
        self.batch.clear();
        for id in due {
            let path = &self.paths[id.0 as usize];
            let failed = |e| Error::from_io(Kind::File, format_args!("reading {}", path.display()), e);
            self.batch.push(fs::read(path).map_err(failed)?);
        }
        Ok(due.iter().copied().zip(self.batch.iter().map(Vec::as_slice)).collect())
    }
}

/// The bucket, read by the trainer over one connection. A sample that is not in the cache is read while the trainer waits, also
/// when the service is fetching it at the same moment, as DELI does.
pub(super) struct Remote<'a> {
    /// Of every sample, as from a data set's index.
    pub(super) keys: &'a [String],
    pub(super) client: Client,
    pub(super) cache: Option<Arc<ItemCache>>,
    pub(super) sampler: Option<Sampler>,
    pub(super) batch: Vec<Arc<[u8]>>,
    pub(super) misses: u64,
}

impl Remote<'_> {
    fn read(&mut self, id: SampleId) -> Result<Arc<[u8]>> {
        if let Some(bytes) = self.cache.as_ref().and_then(|cache| cache.get(id)) {
            return Ok(bytes);
        }
        let bytes: Arc<[u8]> = self.client.get(&self.keys[id.0 as usize])?.into();
        self.misses += 1;
        if let Some(cache) = &self.cache {
            cache.put([(id, Arc::clone(&bytes))]);
        }
        Ok(bytes)
    }
}

impl Feed for Remote<'_> {
    fn begin_epoch(&mut self, samples: Vec<SampleId>) {
        if let Some(sampler) = &mut self.sampler {
            sampler.begin_epoch(samples);
        }
    }

    fn next(&mut self, due: &[SampleId]) -> Result<Vec<(SampleId, &[u8])>> {
        self.batch.clear();
        // The trainer's framework draws all samples of a batch from the sampler before it reads the first.
        if let Some(sampler) = &mut self.sampler {
            sampler.take(due.len())?;
        }
        for id in due {
            let bytes = self.read(*id)?;
            self.batch.push(bytes);
        }
        Ok(due.iter().copied().zip(self.batch.iter().map(AsRef::as_ref)).collect())
    }

    fn counts(&self) -> Counts {
        let (fetched, list_pages) = self.sampler.as_ref().map_or((0, 0), Sampler::reads);
        Counts { misses: self.misses, gets: self.misses + fetched, list_pages }
    }

    fn held_bytes_max(&self) -> u64 {
        self.cache.as_ref().map_or(0, |cache| cache.held_bytes_max())
    }

    fn connections(&self) -> usize {
        1 + self.sampler.as_ref().map_or(0, Sampler::connections)
    }
}
