//! The size of the experiment, and how its times shrink with it, so that a short run keeps the published proportions.
//!
//! Owns sizes and times, and the arithmetic between them. Two scales shrink independently: sizes (samples, batch, cache) relative to the
//! published 14 000 samples per node, and times (step, listing) relative to the published 55 ms per `GET`.

use core::time::Duration;

use serde::{Deserialize, Serialize};

/// Samples per node and epoch in the paper (MNIST).
const PUBLISHED_SAMPLES: u64 = 14_000;
/// Samples per batch in the paper.
const PUBLISHED_BATCH: u64 = 512;
/// Items in a node's cache in the paper's prefetching runs.
const PUBLISHED_CACHE: u64 = 2_048;
/// Nodes in the paper.
const PUBLISHED_RANKS: u32 = 3;
/// Time of one `GET` in the paper, µs.
const PUBLISHED_GET_US: u64 = 55_000;
/// Time of one training step in the paper, µs.
const PUBLISHED_STEP_US: u64 = 680_000;
/// Keys per page of a listing: the most that buckets return. The paper's listing of 60 000 keys took about 7 s, 117 ms a
/// page; here a page takes as long as one `GET`, so listing costs DELI less than in the paper.
const LIST_PAGE_KEYS: usize = 1_000;
/// Concurrent requests of a fetch: at 55 ms a `GET` and 3.5 ms a sample, about 16 of DELI's threads make progress at a
/// time. Its threads share this many connections here.
const FETCH_CONNECTIONS: usize = 16;

/// The size of the experiment.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Scale {
    /// Nodes; each trains on its share of every epoch.
    pub ranks: u32,
    /// Samples per rank and epoch.
    pub samples_per_rank: u64,
    /// Samples per batch and rank.
    pub batch_size: u32,
    /// Items in DELI's prefetching cache, per rank.
    pub cache_samples: u64,
    /// Epochs.
    pub epochs: u64,
    /// Latency of every response of the bucket, µs.
    pub get_latency_us: u64,
    /// Simulated step time for a full batch, µs.
    pub step_us: u64,
    /// Keys per page when DELI lists the bucket.
    pub list_page_keys: usize,
    /// Connections shared by the threads of one of DELI's fetches.
    pub fetch_connections: usize,
    /// Seed of the order of samples and of the data set.
    pub seed: u64,
}

impl Scale {
    /// A quarter of the samples at a fifth of the latency: about two minutes.
    pub fn short(seed: u64) -> Scale {
        Scale::shrunk(4, 5, seed)
    }

    /// The published scale: 42 000 objects at 55 ms, about half an hour.
    pub fn full(seed: u64) -> Scale {
        Scale::shrunk(1, 1, seed)
    }

    /// Seconds, for tests: miss rates keep roughly their proportions, times are meaningless.
    pub fn quick(seed: u64) -> Scale {
        Scale::shrunk(32, 50, seed)
    }

    fn shrunk(size_divisor: u64, time_divisor: u64, seed: u64) -> Scale {
        let batch_size = PUBLISHED_BATCH / size_divisor;
        Scale {
            ranks: PUBLISHED_RANKS,
            samples_per_rank: PUBLISHED_SAMPLES / size_divisor,
            batch_size: batch_size as u32,
            cache_samples: PUBLISHED_CACHE / size_divisor,
            epochs: 2,
            get_latency_us: PUBLISHED_GET_US / time_divisor,
            step_us: PUBLISHED_STEP_US / time_divisor * batch_size / PUBLISHED_BATCH,
            list_page_keys: LIST_PAGE_KEYS,
            fetch_connections: FETCH_CONNECTIONS,
            seed,
        }
    }

    /// Objects in the bucket: what all ranks read in an epoch.
    pub fn samples(&self) -> u64 {
        self.samples_per_rank * u64::from(self.ranks)
    }

    /// Steps of one epoch, the same on every rank.
    pub fn steps(&self) -> u64 {
        self.samples().div_ceil(u64::from(self.batch_size) * u64::from(self.ranks))
    }

    /// Simulated step time for `samples` samples: in proportion, as the last batch of an epoch is smaller.
    pub fn step_of(&self, samples: usize) -> Duration {
        Duration::from_micros(self.step_us * samples as u64 / u64::from(self.batch_size))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_scale_keeps_the_published_proportions() {
        for scale in [Scale::short(0), Scale::full(0), Scale::quick(0)] {
            let published = PUBLISHED_STEP_US as f64 / (PUBLISHED_BATCH * PUBLISHED_GET_US) as f64;
            let ours = scale.step_us as f64 / (u64::from(scale.batch_size) * scale.get_latency_us) as f64;
            assert!((ours / published - 1.0).abs() < 1e-3, "{scale:?}");
            let cached = scale.cache_samples as f64 / scale.samples_per_rank as f64;
            assert!((cached / (2048.0 / 14_000.0) - 1.0).abs() < 2e-3, "{scale:?}");
            assert_eq!(scale.steps(), 28, "{scale:?}");
        }
        assert_eq!(Scale::full(0).samples(), 42_000);
        assert_eq!((Scale::full(0).step_us, Scale::full(0).get_latency_us), (680_000, 55_000));
    }
}
