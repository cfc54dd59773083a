//! Sources of a trainer's batches: the trait for every row, and the sources that read sample by sample: from local disk,
//! and from the bucket directly, behind a demand cache, or with DELI's prefetch.
//!
//! Measures no time: the trainer does. A feed never decides which samples a batch holds.

use std::fs;
use std::path::PathBuf;
use std::sync::Arc;

use fuelrail_base::{Error, Kind, Result, SampleId};

use super::http::Client;
use super::prefetch::{ItemCache, Sampler};

/// Counters of a feed since it was opened.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(super) struct Counts {
    /// Samples that were not ready when the trainer asked for them.
    pub(super) misses: u64,
    /// Objects read from the bucket.
    pub(super) gets: u64,
    /// Pages of listings read from the bucket.
    pub(super) list_pages: u64,
}

/// A source of batches. The time to open it is part of the first data wait.
pub(super) trait Feed: Send {
    /// Prepares for an epoch of these samples.
    fn begin_epoch(&mut self, _samples: Vec<SampleId>) {}

    /// Blocks until the batch of these samples is ready, and returns each with its bytes, in order. Releases the batch before it.
    ///
    /// # Errors
    /// The error of the sample that could not be read.
    fn next(&mut self, due: &[SampleId]) -> Result<Vec<(SampleId, &[u8])>>;

    /// The counters so far.
    fn counts(&self) -> Counts {
        Counts::default()
    }

    /// The most memory that its samples and their bookkeeping took, bytes.
    fn held_bytes_max(&self) -> u64 {
        0
    }

    /// Connections that it may open.
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

/// The bucket, read by the trainer over one connection. As in DELI, a sample that is not cached is read while the trainer
/// waits, even if the service is fetching it at the same time.
pub(super) struct Remote<'a> {
    /// The keys of all samples, as from a data set's index.
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
