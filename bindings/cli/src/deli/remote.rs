//! The bucket read by the trainer itself, one `GET` at a time; behind a demand cache; and with DELI's prefetch beside it.
//!
//! Owns the trainer's one connection. A sample that is not in the cache is read from the bucket while the trainer waits,
//! also when the service is fetching it at the same moment, as DELI does.

use std::net::SocketAddr;
use std::sync::Arc;

use fuelrail_base::{Result, SampleId};

use super::cache::ItemCache;
use super::feed::{Counts, Course, Feed, Gathered};
use super::http::Client;
use super::originals::Originals;
use super::prefetch::{Sampler, Setting};
use super::scale::Scale;

/// What stands between the trainer and the bucket.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Between {
    /// Nothing.
    Nothing,
    /// A demand cache of so many items.
    Cache(u64),
    /// DELI: a cache of the scale's size, filled ahead.
    Prefetch(Setting),
}

/// A trainer's own reading.
#[derive(Debug)]
pub(super) struct Remote<'a> {
    course: Course,
    originals: &'a Originals,
    client: Client,
    cache: Option<Arc<ItemCache>>,
    sampler: Option<Sampler>,
    gathered: Gathered,
    misses: u64,
}

impl<'a> Remote<'a> {
    /// Reads `bucket` at `addr`; keys are known from `originals`, as from a data set's index.
    pub(super) fn open(
        between: Between,
        scale: &Scale,
        rank: u32,
        originals: &'a Originals,
        addr: SocketAddr,
        bucket: &str,
    ) -> Result<Remote<'a>> {
        let cache = match between {
            Between::Nothing => None,
            Between::Cache(items_max) => Some(Arc::new(ItemCache::new(items_max))),
            Between::Prefetch(_) => Some(Arc::new(ItemCache::new(scale.cache_samples))),
        };
        let sampler = match (between, &cache) {
            (Between::Prefetch(setting), Some(cache)) => {
                Some(Sampler::new(setting, scale, addr, bucket, Arc::clone(cache))?)
            }
            _ => None,
        };
        let (client, gathered) = (Client::new(addr, bucket), Gathered::default());
        Ok(Remote { course: Course::new(scale, rank), originals, client, cache, sampler, gathered, misses: 0 })
    }

    fn read(&mut self, id: SampleId) -> Result<()> {
        if let Some(cache) = &self.cache
            && cache.read(id, &mut self.gathered.bytes)
        {
            self.gathered.close(id);
            return Ok(());
        }
        self.client.get(self.originals.key(id), &mut self.gathered.bytes)?;
        self.gathered.close(id);
        self.misses += 1;
        if let Some(cache) = &self.cache {
            cache.put([(id, self.gathered.last().into())]);
        }
        Ok(())
    }
}

impl Feed for Remote<'_> {
    fn begin_epoch(&mut self, epoch: u64) -> Result<()> {
        match &mut self.sampler {
            Some(sampler) => sampler.begin_epoch(self.course.epoch(epoch)),
            None => Ok(()),
        }
    }

    fn next(&mut self, epoch: u64, step: u64) -> Result<()> {
        self.gathered.clear();
        let batch: Vec<SampleId> = self.course.batch(epoch, step).collect();
        // The trainer's framework draws all samples of a batch from the sampler before it reads the first.
        if let Some(sampler) = &mut self.sampler {
            sampler.take(batch.len())?;
        }
        batch.into_iter().try_for_each(|id| self.read(id))
    }

    fn visit(&self, see: &mut dyn FnMut(SampleId, &[u8]) -> Result<()>) -> Result<()> {
        self.gathered.visit(see)
    }

    fn counts(&self) -> Counts {
        let (fetched, list_pages) = self.sampler.as_ref().map_or((0, 0), Sampler::reads);
        Counts { misses: self.misses, gets: self.misses + fetched, list_pages }
    }

    fn held_bytes_max(&self) -> u64 {
        self.cache.as_ref().map_or(0, |cache| cache.held_bytes_max())
    }
}
